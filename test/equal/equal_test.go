package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestScripts plays the scripts of testdata: the ones that once differed, and a few that show the
// abilities of the player. A script with a line "known:" has to differ still, and its row has to be
// in docs/run.md.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	table, err := os.ReadFile("../../docs/run.md")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "eq")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	tool, err := newTool(t.Context(), dir, "", 1)
	if errors.Is(err, errNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	x := newTable(tool, modes(1))
	defer x.stop()
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			s, err := readScript(f)
			if err != nil {
				t.Fatal(err)
			}
			r, err := x.try(s)
			if err != nil {
				t.Fatal(err)
			}
			if r.unsteady {
				t.Fatalf("TCP does not observe the same each time:\n%s", strings.Join(r.bare.lines, "\n"))
			}
			for i, want := range s.want {
				if r.bare.lines[i] != want {
					t.Errorf("step %d, %s: %q over TCP, want %q", i+1, s.steps[i], r.bare.lines[i], want)
				}
			}
			switch {
			case s.known == "" && r.difference != "":
				t.Errorf("%s: %s", r.mode, r.difference)
			case s.known != "" && r.difference == "":
				t.Errorf("does not differ any more: take its line %q out", s.known)
			case s.known != "" && !strings.Contains(string(table), "\n| "+s.known+" |"):
				t.Errorf("docs/run.md has no row %q", s.known)
			}
			if r.difference == "" && r.of > 0 && r.moved == 0 {
				t.Error("no connection has left TCP")
			}
		})
	}
}

// TestCompare compares observations that differ as TCP allows, and others.
func TestCompare(t *testing.T) {
	for _, tt := range []struct {
		name        string
		steps       []string
		bare, moved []string
		equal       bool
	}{
		{"a read that is shorter", []string{"0 recv s1 10"}, []string{"10 right"}, []string{"9 right"}, false},
		{"a read that is longer", []string{"0 recv s1 10", "0 recv s1 10"}, []string{"9 right", "1 right"}, []string{"10 right", "-1 EAGAIN"}, true},
		{"a read that is longer, of wrong bytes", []string{"0 recv s1 10"}, []string{"9 right"}, []string{"10 wrong"}, false},
		{"bytes in place of an end", []string{"0 recv s1 10"}, []string{"0"}, []string{"10 right"}, false},
		{"nothing more to acknowledge", []string{"0 ask s1 outq"}, []string{"0 10"}, []string{"0 0"}, true},
		{"less to read", []string{"0 ask s1 fionread"}, []string{"0 10"}, []string{"0 0"}, false},
		{"another error", []string{"0 recv s1 10"}, []string{"-1 EAGAIN"}, []string{"-1 EPIPE"}, false},
		{"an event more", []string{"0 ctl e0 add s1 in", "0 ewait e0 8"}, []string{"0", "0"}, []string{"0", "1 s1 in"}, false},
		{"an edge more", []string{"0 ctl e0 add s1 in|et", "0 ewait e0 8"}, []string{"0", "0"}, []string{"0", "1 s1 in"}, true},
		{"an edge less", []string{"0 ctl e0 add s1 in|et", "0 ewait e0 8"}, []string{"0", "1 s1 in"}, []string{"0", "0"}, false},
		{"an edge of another instance", []string{"0 ctl e1 add s1 in|et", "0 ewait e0 8"}, []string{"0", "0"}, []string{"0", "1 s1 in"}, false},
		{"an edge within", []string{"0 ctl e0 add s1 out|et", "0 ctl e3 add e0 in", "0 ewait e3 8"}, []string{"0", "0", "0"}, []string{"0", "0", "1 e0 in"}, true},
		{"an edge within a child's", []string{"0 ctl e0 add s1 out|et", "0 ctl e3 add e0 in", "0 fork 3", "3 ewait e3 8"}, []string{"0", "0", "forked", "0"}, []string{"0", "0", "forked", "1 e0 in"}, true},
		{"an event within", []string{"0 ctl e0 add s1 out", "0 ctl e3 add e0 in", "0 ewait e3 8"}, []string{"0", "0", "0"}, []string{"0", "0", "1 e0 in"}, false},
		{"an edge in a child", []string{"0 ctl e0 add s1 in|et", "0 fork 3", "3 ewait e0 8"}, []string{"0", "forked", "0"}, []string{"0", "forked", "1 s1 in"}, true},
		{"a bit less", []string{"0 ctl e0 add s1 in|out|et", "0 ewait e0 8"}, []string{"0", "1 s1 in|out"}, []string{"0", "1 s1 out"}, false},
		{"a hang-up before any end", []string{"0 poll s1 in"}, []string{"0 s1 -"}, []string{"0 s1 hup"}, false},
		{"a hang-up after an end", []string{"1 close s1", "0 poll s1 in"}, []string{"0", "1 s1 in"}, []string{"0", "1 s1 in|hup"}, true},
		{"a hang-up of one of two with a name", []string{"1 close s1", "0 ewait e0 8 0"}, []string{"0", "2 s1 in|out s1 in"}, []string{"0", "2 s1 in|out|hup s1 in"}, true},
		{"room that one of two with a name had", []string{"1 close s1", "0 ewait e0 8 0"}, []string{"0", "2 s1 in|out s1 in"}, []string{"0", "2 s1 in s1 in"}, false},
		{"no error after an end", []string{"1 close s1", "0 poll s1 in"}, []string{"0", "1 s1 in|err|hup"}, []string{"0", "1 s1 in|hup"}, false},
		{"no error after a reset", []string{"1 linger s1 1 0", "1 close s1", "0 poll s1 in"}, []string{"0", "0", "1 s1 in|err|hup"}, []string{"0", "0", "1 s1 in|hup"}, true},
		{"a signal more", []string{"0 signals"}, []string{"io 0 urg 0 usr 0"}, []string{"io 1 urg 0 usr 0"}, true},
		{"a signal more by an accept", []string{"0 signals", "1 accept s1 s0", "0 signals"}, []string{"io 1", "4", "io 0"}, []string{"io 1", "4", "io 1"}, false},
		{"a signal more by a step behind", []string{"&0 echo s1 8 poll", "0 signals", "1 accept s1 s0", "0 signals"}, []string{"left 0", "io 1", "4", "io 0"}, []string{"left 0", "io 1", "4", "io 1"}, true},
		{"a signal more after a send", []string{"0 signals", "1 send s1 1", "0 signals"}, []string{"io 1", "1", "io 0"}, []string{"io 1", "1", "io 1"}, true},
		{"a signal less", []string{"0 signals"}, []string{"io 1 urg 0 usr 0"}, []string{"io 0 urg 0 usr 0"}, false},
		{"a signal less of bytes for a receive that waited", []string{"&0 echo s1 8 block", "0 signals"}, []string{"left 0", "io 1 urg 0 usr 0"}, []string{"left 0", "io 0 urg 0 usr 0"}, true},
		{"another signal less", []string{"&0 echo s1 8 block", "0 signals"}, []string{"left 0", "io 1 urg 1 usr 0"}, []string{"left 0", "io 1 urg 0 usr 0"}, false},
		{"a signal less, later", []string{"&0 echo s1 8 block", "0 signals", "0 signals"}, []string{"left 0", "io 1 urg 0 usr 0", "io 1 urg 0 usr 0"}, []string{"left 0", "io 1 urg 0 usr 0", "io 0 urg 0 usr 0"}, false},
		{"a signal less of a loop that polls", []string{"&0 echo s1 8 poll", "0 signals"}, []string{"left 0", "io 1 urg 0 usr 0"}, []string{"left 0", "io 0 urg 0 usr 0"}, false},
		{"one that waits for ever", []string{"0 join"}, []string{""}, []string{"HANGS"}, false},
	} {
		s := &script{steps: tt.steps}
		if got := compare(s, &play{lines: tt.bare}, &play{lines: tt.moved}); (got == "") != tt.equal {
			t.Errorf("%s: compare = %q, want equal %v", tt.name, got, tt.equal)
		}
	}
	for _, tt := range []struct {
		name        string
		steps       []string
		bare, moved []string
		rings       bool
		equal       bool
	}{
		{"no error after an end, with bytes in a ring", []string{"1 close s1", "0 poll s1 in"}, []string{"0", "1 s1 in|err|hup"}, []string{"0", "1 s1 in|hup"}, true, true},
		{"no error before any end", []string{"0 poll s1 in"}, []string{"1 s1 in|err"}, []string{"1 s1 in"}, true, false},
		{"no edge for room, of bytes that were read", []string{"0 ctl e0 add s1 in|out|et", "0 ewait e0 8", "0 recv s1 9", "0 ewait e0 8"}, []string{"0", "1 s1 out", "5", "1 s1 out"}, []string{"0", "1 s1 out", "5", "0"}, true, true},
		{"the same in-band", []string{"0 ctl e0 add s1 in|out|et", "0 ewait e0 8", "0 recv s1 9", "0 ewait e0 8"}, []string{"0", "1 s1 out", "5", "1 s1 out"}, []string{"0", "1 s1 out", "5", "0"}, false, false},
		{"the same after a full connection", []string{"0 ctl e0 add s1 in|out|et", "0 fill s1", "0 recv s1 9", "0 ewait e0 8"}, []string{"0", "-1 EAGAIN full", "5", "1 s1 out"}, []string{"0", "-1 EAGAIN full", "5", "0"}, true, false},
		{"no edge for room before any bytes", []string{"0 ctl e0 add s1 in|out|et", "0 ewait e0 8"}, []string{"0", "1 s1 out"}, []string{"0", "0"}, true, false},
		{"no edge for bytes", []string{"0 ctl e0 add s1 in|out|et", "0 recv s1 9", "0 ewait e0 8"}, []string{"0", "5", "1 s1 in|out"}, []string{"0", "5", "0"}, true, false},
		{"no edge for room, within", []string{"0 ctl e0 add s1 in|out|et", "0 recv s1 9", "0 ctl e3 add e0 in", "0 ewait e3 8"}, []string{"0", "5", "0", "1 e0 in"}, []string{"0", "5", "0", "0"}, true, true},
	} {
		s := &script{steps: tt.steps}
		if got := compare(s, &play{lines: tt.bare}, &play{lines: tt.moved, rings: tt.rings}); (got == "") != tt.equal {
			t.Errorf("%s: compare = %q, want equal %v", tt.name, got, tt.equal)
		}
	}
	s := &script{steps: []string{"0 join"}}
	if compare(s, &play{lines: []string{""}}, &play{lines: []string{""}, died: "died 0 of signal 11"}) == "" {
		t.Error("compare of a process that died = equal")
	}
}

// TestGenerate has a seed make the same script each time, which reads back as it was written, and has all operations come up.
func TestGenerate(t *testing.T) {
	seen := make(map[string]bool)
	for seed := range uint64(3000) {
		s := generate(seed)
		text := s.String()
		if text != generate(seed).String() {
			t.Fatalf("seed %d makes different scripts", seed)
		}
		back, err := parseScript(s.name, text)
		if err != nil {
			t.Fatal(err)
		}
		if back.String() != text {
			t.Fatalf("parseScript(%q) = %q", text, back.String())
		}
		for _, step := range s.steps {
			_, op, _ := fields(step)
			seen[op] = true
		}
	}
	for _, op := range []string{"socket", "bind", "listen", "connect", "accept", "close", "shutdown", "linger", "set", "get", "ask", "block", "catch", "own", "async", "signals",
		"join", "waits", "send", "recv", "burst", "pump", "drain", "echo", "ping", "fill", "empty", "poll", "select", "epoll", "ctl", "ewait", "dup", "fork", "exec", "sendfd", "recvfd"} {
		if !seen[op] {
			t.Errorf("no script has %q", op)
		}
	}
}

// TestParse refuses texts that are no scripts.
func TestParse(t *testing.T) {
	for _, text := range []string{"nonsense", "9 send s1 1", "0.7 send s1 1", "0 ", "0 join => \n0 join", "~~ join"} {
		if s, err := parseScript("x", text); err == nil {
			t.Errorf("parseScript(%q) = %q", text, s)
		}
	}
}

// TestShrink leaves out the steps that are not needed.
func TestShrink(t *testing.T) {
	s := &script{steps: strings.Split("abcdefghijklmnopqrstuvwxyz", "")}
	got := shrink(s, func(s *script) bool {
		text := strings.Join(s.steps, "")
		return strings.Contains(text, "c") && strings.Contains(text, "q") && strings.Contains(text, "z")
	})
	if text := strings.Join(got.steps, ""); text != "cqz" {
		t.Errorf("shrink = %q, want %q", text, "cqz")
	}
}
