package policy_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/exit"
	"github.com/gosmc/smc/internal/policy"
	"github.com/gosmc/smc/internal/text"
)

// ownFile has the configuration in a file of the test's, with these lines, and none in the environment.
func ownFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gosmc.conf")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range config.Variables {
		t.Setenv(name, "")
	}
	t.Setenv(config.EnvDisabled, "")
	t.Setenv(config.EnvCopied, "")
	t.Setenv(config.EnvFile, path)
	return path
}

// all are flags that set every word.
func all() (f policy.Flags, given func(string) bool) {
	f = policy.Flags{SMC: "off", Memory: text.ByteSize(64 << 20), Ring: text.ByteSize(4096), Short: "7"}
	f.Lists = [...][]string{{"nginx", "!curl"}, {"80-90", "!85"}, {"10.0.0.0/8"}, {"any"}, {"192.0.2.1"}, {"same"}}
	return f, func(string) bool { return true }
}

// TestWords has each word of the policy be one of the configuration, with a variable or the switch.
func TestWords(t *testing.T) {
	for _, word := range policy.Words {
		if _, ok := config.Variables[word]; !ok && word != config.SMC {
			t.Errorf("%s has no variable", word)
		}
		if err := policy.Check(word); err != nil {
			t.Errorf("%s: %v", word, err)
		}
	}
	var single []string
	for _, word := range policy.Words {
		if policy.Single(word) {
			single = append(single, word)
		}
	}
	if len(single)+len(policy.Lists) != len(policy.Words) {
		t.Errorf("single are %v, and there are %d lists, of %d words", single, len(policy.Lists), len(policy.Words))
	}
	for _, l := range policy.Lists {
		if policy.Single(l.Word) {
			t.Errorf("%s is a list", l.Word)
		}
	}
	for _, word := range []string{config.UEID, config.Peer, "", "users "} {
		var e *exit.Error
		if err := policy.Check(word); !errors.As(err, &e) || e.Code != exit.Usage {
			t.Errorf("%q: %v", word, err)
		}
	}
}

// TestFlagsApply sets what was given, and nothing else.
func TestFlagsApply(t *testing.T) {
	f, given := all()
	var s config.Settings
	if err := f.Apply(&s, given); err != nil {
		t.Fatal(err)
	}
	want := config.Settings{
		Off: true, Programs: []string{"nginx", "!curl"}, Users: []string{"same"}, Memory: 64 << 20, RingAfter: 4096, ShortAfter: 7,
		Listen:  config.Filter{Ports: []string{"80-90", "!85"}, Addresses: []string{"10.0.0.0/8"}},
		Connect: config.Filter{Ports: []string{"any"}, Addresses: []string{"192.0.2.1"}},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	changed, words := slices.Sorted(slices.Values(f.Changed)), slices.Sorted(slices.Values(policy.Words))
	if !slices.Equal(changed, words) {
		t.Errorf("changed are %v", changed)
	}

	f, _ = all()
	before := config.Settings{Programs: []string{"redis"}, Memory: 5, ShortAfter: -1}
	s = before
	if err := f.Apply(&s, func(string) bool { return false }); err != nil || len(f.Changed) > 0 {
		t.Errorf("nothing was given: %v, changed %v", err, f.Changed)
	}
	if diff := cmp.Diff(before, s); diff != "" {
		t.Errorf("nothing was given (-want +got):\n%s", diff)
	}
}

// TestFlagsWrong refuses values that the file would not have either, with the status of usage and the flag's name.
func TestFlagsWrong(t *testing.T) {
	for word, set := range map[string]func(f *policy.Flags){
		config.ListenPort:     func(f *policy.Flags) { f.Lists[1] = []string{"80", "http"} },
		config.ConnectAddress: func(f *policy.Flags) { f.Lists[4] = []string{"10.0.0.0/40"} },
		config.UsersWord:      func(f *policy.Flags) { f.Lists[5] = []string{"@"} },
		config.SMC:            func(f *policy.Flags) { f.SMC = "perhaps" },
		config.ShortAfter:     func(f *policy.Flags) { f.Short = "-1" },
	} {
		f, given := all()
		set(&f)
		var e *exit.Error
		err := f.Apply(new(config.Settings), given)
		if !errors.As(err, &e) || e.Code != exit.Usage || !strings.HasPrefix(err.Error(), "--"+word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

// TestEnviron has a program whose environment it is see the same policy as its parent, which has a file, a variable and flags.
func TestEnviron(t *testing.T) {
	ownFile(t, "program nginx", "listen-port 80", "memory 1MiB", "users same")
	t.Setenv(config.Variables[config.ListenPort], "90")
	s, err := config.Load()
	if err != nil {
		t.Fatal(err)
	}
	f := policy.Flags{Short: "9"}
	if err := f.Apply(&s, func(word string) bool { return word == config.ShortAfter }); err != nil {
		t.Fatal(err)
	}
	old := config.Variables[config.ShortAfter] + "=3" // to be replaced
	environ := policy.Environ([]string{"PATH=/bin", old, config.Variables[config.ListenPort] + "=90"}, &s, f.Changed)
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if name != "PATH" {
			t.Setenv(name, value)
		}
	}
	if !slices.Contains(environ, "PATH=/bin") || slices.Contains(environ, old) {
		t.Errorf("the environment is %q", environ)
	}
	got, err := config.Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, got); diff != "" {
		t.Errorf("settings of the program (-want +got):\n%s", diff)
	}
	// Values of the file follow the file, and those of the environment and of flags do not.
	ownValues := map[string]string{}
	for _, name := range config.Variables {
		ownValues[name] = os.Getenv(name)
	}
	copied := os.Getenv(config.EnvCopied)
	ownFile(t, "program redis", "listen-port 81", "memory 2MiB", "users same", "short-after 4")
	for name, value := range ownValues {
		t.Setenv(name, value)
	}
	t.Setenv(config.EnvCopied, copied)
	if got, err = config.Load(); err != nil {
		t.Fatal(err)
	}
	s.Programs, s.Memory = []string{"redis"}, 2<<20
	if diff := cmp.Diff(s, got); diff != "" {
		t.Errorf("settings of the program with another file (-want +got):\n%s", diff)
	}
}

// TestClosed has the lists that refuse all others: those with an entry that is no exception.
func TestClosed(t *testing.T) {
	ownFile(t, "listen-port 80", "listen-port !81", "connect-port !22", "program any", "program nginx", "memory 1MiB")
	closed := policy.Closed()
	for _, word := range policy.Words {
		if want := word == config.ListenPort; closed[word] != want {
			t.Errorf("%s is closed: %v", word, closed[word])
		}
	}
	t.Setenv(config.EnvFile, filepath.Join(t.TempDir(), "none"))
	for word, is := range policy.Closed() {
		if is {
			t.Errorf("%s is closed without a file", word)
		}
	}
}

// TestReport has each word with its source, and a table of the same.
func TestReport(t *testing.T) {
	path := ownFile(t, "listen-port 80", "short-after off", "memory 1MiB")
	t.Setenv(config.Variables[config.Program], "nginx,!curl")
	r, err := policy.NewReport()
	if err != nil {
		t.Fatal(err)
	}
	byWord := map[string]policy.Entry{}
	for _, e := range r.Entries {
		byWord[e.Word] = e
	}
	for _, want := range []policy.Entry{
		{Word: config.SMC, Values: []string{"on"}},
		{Word: config.Program, Values: []string{"nginx", "!curl"}, Source: "$" + config.Variables[config.Program]},
		{Word: config.ListenPort, Values: []string{"80"}, Source: path},
		{Word: config.ConnectPort, Values: []string{}},
		{Word: config.Memory, Values: []string{"1048576"}, Source: path},
		{Word: config.ShortAfter, Values: []string{"off"}, Source: path},
	} {
		if diff := cmp.Diff(want, byWord[want.Word]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Word, diff)
		}
	}
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "nginx !curl") || strings.Count(b.String(), "\n") != len(policy.Words)+1 {
		t.Errorf("the table is\n%s", b.String())
	}
}
