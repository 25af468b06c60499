package main

import (
	"fmt"
	"testing"
)

// TestJournal keeps the last lines, in their order.
func TestJournal(t *testing.T) {
	var j journal
	for i := range 3 * journalLines {
		fmt.Fprintf(&j, "line %d\n", i)
	}
	if n := len(j.lines); n != journalLines {
		t.Fatalf("%d lines, want %d", n, journalLines)
	}
	for i, line := range j.lines {
		if want := fmt.Sprintf("line %d", 2*journalLines+i); line != want {
			t.Fatalf("line %d is %q, want %q", i, line, want)
		}
	}
}

// TestIndented writes equal lines once.
func TestIndented(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"one", "one"},
		{"one\ntwo\none", "one\n      two\n      one"},
		{"one\ntwo\ntwo\ntwo\none\none", "one\n      two (3 times)\n      one (2 times)"},
	} {
		if got := indented(c.text); got != c.want {
			t.Errorf("%q is %q, want %q", c.text, got, c.want)
		}
	}
}
