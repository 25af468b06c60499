package config

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNearest checks that a word with a slip gets the one that was meant.
func TestNearest(t *testing.T) {
	for word, want := range map[string]string{
		"lisen-port": "; did you mean listen-port?", "ueids": "; did you mean ueid?",
		"smcr-v2": "; did you mean smcr-v1?", "memry": "; did you mean memory?",
		"frobnicate": "", "x": "", strings.Repeat("smc", 1000): "",
	} {
		err := Check(word, "1")
		if err == nil || !strings.HasSuffix(err.Error(), "\""+want) {
			t.Errorf("Check(%.20q) = %.100v, want %q at its end", word, err, want)
		}
	}
}

// TestEffective checks values and sources of the file, of the environment, and of neither. Words has
// each word that has a constant, and Defaults a value for it.
func TestEffective(t *testing.T) {
	file := write(t, "memory 1MiB\n# two\nmemory 2MiB\nlisten-port 1\n\nlisten-port 2\nueid A\nprogram /x\n")
	t.Setenv("GOSMC_UEIDS", "B,C")
	t.Setenv(EnvDisabled, "1")
	list, err := Effective()
	if err == nil || !strings.Contains(err.Error(), ":8: program") || len(list) != len(Words) {
		t.Fatalf("Effective = %+v, %v", list, err)
	}
	for _, want := range []Entry{
		{Memory, []string{"2MiB"}, Defaults[Memory], file, []int{3}, Takes(Memory)},
		{ListenPort, []string{"1", "2"}, "any", file, []int{4, 6}, Takes(ListenPort)},
		{UEID, []string{"B", "C"}, "(none)", "$GOSMC_UEIDS", nil, Takes(UEID)},
		{SMC, []string{"off"}, "on", "$" + EnvDisabled, nil, Takes(SMC)},
		{Peer, []string{}, Defaults[Peer], "", nil, Takes(Peer)},
		{Program, []string{"none"}, "any", file, nil, Takes(Program)}, // what is not understood refuses all
	} {
		if diff := cmp.Diff(want, list[slices.Index(Words, want.Word)]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Word, diff)
		}
	}
	for _, word := range words(t) {
		if !slices.Contains(Words, word) || Defaults[word] == "" {
			t.Errorf("Words or Defaults lacks %s", word)
		}
		if d := Defaults[word]; !strings.HasPrefix(d, "(") && Check(word, d) != nil {
			t.Errorf("the default of %s, %q: %v", word, d, Check(word, d))
		}
	}
}

// TestProblems finds lines that are not understood, that a later line overrules, and that others
// exclude.
func TestProblems(t *testing.T) {
	nine := strings.Repeat("ueid A\n", maxUEIDs+1)
	for _, tt := range []struct {
		name, text string
		want       []string // "LINE WORD NEAR MESSAGE", the message's beginning
	}{
		{"none", "# nothing\n\nsmc on # a switch\nlisten-port 1\nlisten-port 2\npnet A a0\npnet A a1\n", nil},
		{"slip", "smc on\r\nlisten-prot 80\n", []string{`2 listen-prot listen-port unknown word "listen-prot"`}},
		{"far", "\x00 1\n", []string{"1 \x00  unknown word"}},
		{"value", "seid maybe\nueid X\n", []string{`1 seid  seid "maybe": want on or off`}},
		{"peer", "peer 192.0.2\ndevice 192.0.2.0/33\n", []string{`1 peer  peer "192.0.2"`, `2 device  device "192.0.2.0/33"`}},
		{"twice", "memory 1\nmemory 2\npnet A a0\npnet B a0\n", []string{
			"1 memory  memory has no effect here: line 2", "3 pnet  pnet for a0 has no effect here: line 4"}},
		{"too many", nine, []string{"9 ueid  ueid number 9"}},
		{"no EID", "seid off\n", []string{"1 seid  seid off has no effect"}},
		{"user", "users any # all\nusers !rooot\nusers @nobody-has-this-name\nusers !0\nusers @0\n", []string{
			`2 users !root users "!rooot": no user has the name "rooot": until this is right, ` +
				`no other user is admitted; did you mean !root?`,
			`3 users  users "@nobody-has-this-name": no group has the name "nobody-has-this-name": ` +
				`the entry admits nobody; a group of`}},
		{"order", "seid off\nfoo\n", []string{"1 seid ", "2 foo  unknown"}},
	} {
		list, err := Problems(write(t, tt.text))
		if err != nil || len(list) != len(tt.want) {
			t.Errorf("%s: %+v, %v, want %q", tt.name, list, err, tt.want)
			continue
		}
		for i, p := range list {
			got := strings.Join([]string{string(rune('0' + p.Line)), p.Word, p.Near, p.Message}, " ")
			if !strings.HasPrefix(got, tt.want[i]) {
				t.Errorf("%s: %q, want %q", tt.name, got, tt.want[i])
			}
		}
	}
	if list, err := Problems("/nonexistent/x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no file: %v, %v", list, err)
	}
	if list, err := Problems(t.TempDir()); err == nil {
		t.Errorf("of a directory: %v", list)
	}
	if list, err := Problems(os.DevNull); err != nil || len(list) > 0 {
		t.Errorf("of /dev/null: %v, %v", list, err)
	}
	if list, err := Problems(write(t, strings.Repeat("\n", maxLines+1))); err != nil || len(list) != 1 {
		t.Errorf("of too many lines: %v, %v", list, err)
	}
}

// TestSet has a word get new values, where it was or where its example is, and keeps the rest.
func TestSet(t *testing.T) {
	const example = "# the size\n#memory 512MiB\n\n# Memory is scarce.\nsmc on\n"
	for _, tt := range []struct {
		name, text, word, values, want string
	}{
		{"empty", "", Memory, "1", "memory 1\n"},
		{"at the end", "smc on", Memory, "1", "smc on\nmemory 1\n"},
		{"in place", "a # b\n#x\n  memory\t1 # big # one\nsmc on\n", Memory, "2", "a # b\n#x\nmemory 2 # big # one\nsmc on\n"},
		{"same", "  memory  1#x\n", Memory, "1", "  memory  1#x\n"},
		{"twice", "memory 1\nsmc on\nmemory 2\n", Memory, "3", "memory 3\nsmc on\n"},
		{"behind its example", example, Memory, "1", strings.Replace(example, "MiB\n", "MiB\nmemory 1\n", 1)},
		{"more", "listen-port 1 # one\nsmc on\n", ListenPort, "2 3 4", "listen-port 2 # one\nlisten-port 3\nlisten-port 4\nsmc on\n"},
		{"fewer", "listen-port 1\nlisten-port 2\nlisten-port 3\n", ListenPort, "9 2", "listen-port 9\nlisten-port 2\n"},
		{"wrong", "memory 1\n", Memory, "much", ""},
		{"one wrong", "listen-port 1\n", ListenPort, "2 x", ""},
	} {
		path := write(t, tt.text)
		f, _ := Read(path)
		err := f.Set(tt.word, strings.Fields(tt.values)...)
		if (err != nil) != (tt.want == "") {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err := f.Write(); err != nil {
			t.Fatal(err)
		}
		want := tt.want
		if want == "" {
			want = tt.text
		}
		if got, _ := os.ReadFile(path); string(got) != want {
			t.Errorf("%s: %q, want %q", tt.name, got, want)
		}
	}
}
