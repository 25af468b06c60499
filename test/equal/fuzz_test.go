package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// fake has a shell play scripts: a line of shell says what each step observes, in which n counts the
// plays.
func fake(t *testing.T, bare, moved string) *tool {
	t.Helper()
	dir := t.TempDir()
	player := fmt.Sprintf(`#!/bin/sh
n=0 steps=0
say() { if [ -n "$EQUAL_BARE" ]; then %s; else %s; fi; }
while read -r line; do
	case $line in
	script*) ;;
	.)
		n=$((n + 1))
		echo script x
		while [ $steps -gt 0 ]; do
			say
			steps=$((steps - 1))
		done
		echo moved 1 0 1
		echo . ;;
	*) steps=$((steps + 1)) ;;
	esac
done
`, bare, moved)
	r := &tool{dir: dir, player: filepath.Join(dir, "player"), gosmc: filepath.Join(dir, "gosmc")}
	for path, text := range map[string]string{r.player: player, r.gosmc: "#!/bin/sh\nshift 2\nexec \"$@\"\n"} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// TestTry tells scripts that differ from those that are equal, and from those that TCP itself does
// not observe the same each time.
func TestTry(t *testing.T) {
	s := &script{name: "x", steps: []string{"0 join"}}
	for _, tt := range []struct {
		name, bare, moved string
		differs, unsteady bool
	}{
		{"equal", "echo a", "echo a", false, false},
		{"another observation", "echo a", "echo b", true, false},
		{"another one each time, over TCP", "echo $n", "echo b", false, true},
		{"a third one over TCP", "echo $((n / 3))", "echo b", false, true},
		{"a hang", "echo a", "echo HANGS", true, false},
		{"a hang over TCP", "echo HANGS", "echo HANGS", false, true},
	} {
		x := newTable(fake(t, tt.bare, tt.moved), modes(1)[:2])
		r, err := x.try(s)
		x.stop()
		if err != nil || (r.difference != "") != tt.differs || r.unsteady != tt.unsteady {
			t.Errorf("%s: try = difference %q, unsteady %v, %v", tt.name, r.difference, r.unsteady, err)
		}
	}
}

// TestFuzzState goes on after the scripts of a run before, and counts a player that has ended as a
// difference.
func TestFuzzState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	for _, moved := range []string{"echo a", "exit"} {
		l, err := openLedger(path)
		if err != nil {
			t.Fatal(err)
		}
		opt := options{seed: max(next(l.spans), 500), scripts: 3, workers: 2, stop: 5}
		good, err := fuzz(t.Context(), fake(t, "echo a", moved), modes(1)[:2], opt, l)
		if err != nil || good != (moved == "echo a") {
			t.Errorf("%q: fuzz = %v, %v", moved, good, err)
		}
	}
	text, err := os.ReadFile(path)
	if want := "500 503 3 0 0 unknown\n503 506 0 0 3 unknown\n"; err != nil || string(text) != want {
		t.Errorf("file = %q, %v, want %q", text, err, want)
	}
}

// TestFuzzLate plays a script again whose player has not come back: once.
func TestFuzzLate(t *testing.T) {
	defer func(a, b time.Duration) { playTime, spareTime = a, b }(playTime, spareTime)
	playTime, spareTime = 0, 500*time.Millisecond
	for _, tt := range []struct {
		moved string
		good  bool
	}{{"if [ -e $0.once ]; then echo a; else : > $0.once; read -r more; fi", true}, {"read -r more", false}} {
		l, err := openLedger("")
		if err != nil {
			t.Fatal(err)
		}
		opt := options{seed: 500, scripts: 1, workers: 1, stop: 5}
		good, err := fuzz(t.Context(), fake(t, "echo a", tt.moved), modes(1)[:2], opt, l)
		if err != nil || good != tt.good {
			t.Errorf("%q: fuzz = %v, %v", tt.moved, good, err)
		}
	}
}

// TestStall has a script hang over TCP that would have an hour. Without the end of those that stand
// still this test does not end.
func TestStall(t *testing.T) {
	tool, err := newTool(t.Context(), t.TempDir(), "/nonexistent", 1)
	if errors.Is(err, errNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &player{tool: tool, mode: modes(1)[0]}
	defer p.stop()
	s := &script{steps: []string{"0 socket s0", "0 bind s0", "0 listen s0 L0 16", "1 socket s0", "1 connect s0 L0", "0 accept s1 s0", "~0 recv s1 10", "1 recv s0 10", "1 join"}}
	r, err := p.play(s, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if r.lines[5] != "4 of 0 family 2 16" || r.lines[6] != "HANGS" || r.lines[7] != "HANGS" || r.lines[8] != "NEVER" {
		t.Errorf("play = %q", r.lines)
	}
}

// TestSteady plays scripts over TCP in which a receive would wait for ever, were SO_RCVLOWAT not
// seen to.
func TestSteady(t *testing.T) {
	tool, err := newTool(t.Context(), t.TempDir(), "/nonexistent", 1)
	if errors.Is(err, errNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	x := newTable(tool, modes(1)[:1])
	defer x.stop()
	for _, seed := range []uint64{4357, 4735} {
		if r, err := x.try(generate(seed)); err != nil || r.unsteady {
			t.Errorf("seed %d: try = unsteady %v, %v", seed, r.unsteady, err)
		}
	}
}
