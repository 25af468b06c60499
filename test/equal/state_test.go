package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLedger has two runs add their scripts to a file, which end in another order than they began.
func TestLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	l, err := openLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	l.begin(100, "/nonexistent")
	l.note(101, dropped)
	l.note(103, equal)
	if err := l.write(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("a span before its first script has ended")
	}
	l.note(100, equal)
	if err := l.write(); err != nil {
		t.Fatal(err)
	}
	l.note(102, differs)
	if err := l.write(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if want := "100 102 1 1 0 unknown\n102 104 1 0 1 unknown\n"; err != nil || string(text) != want {
		t.Errorf("file = %q, %v, want %q", text, err, want)
	}
	if l, err = openLedger(path); err != nil {
		t.Fatal(err)
	}
	if n := next(l.spans); n != 104 {
		t.Errorf("next = %d, want 104", n)
	}
	l.begin(next(l.spans), "/nonexistent")
	l.note(104, equal)
	if err := l.write(); err != nil {
		t.Fatal(err)
	}
	all, lines := total(l.spans)
	if all != [outcomes]uint64{3, 1, 1} || !strings.Contains(lines, "total: 3 scripts were equal, 1 dropped, 1 differed\n") {
		t.Errorf("total = %v, %q", all, lines)
	}
}

// TestTotal counts no script twice of one gosmc, and tells two of them apart.
func TestTotal(t *testing.T) {
	spans, err := parseSpans("10 20 10 0 0 a\n15 25 10 0 0 a\n20 30 9 1 0 a\n10 20 8 0 2 b\n")
	if err != nil {
		t.Fatal(err)
	}
	all, text := total(spans)
	if want := "a: 19 scripts were equal, 1 dropped, 0 differed\nb: 8 scripts were equal, 0 dropped, 2 differed\ntotal: 27 scripts were equal, 1 dropped, 2 differed\n"; text != want || all != [outcomes]uint64{27, 1, 2} {
		t.Errorf("total = %v, %q, want %q", all, text, want)
	}
	for _, text := range []string{"10\n", "10 20 10 0 0\n", "20 10 0 0 0 a\n", "10 20 9 0 0 a\n", "10 20 10 0 0 a b\n"} {
		if spans, err := parseSpans(text); err == nil {
			t.Errorf("parseSpans(%q) = %v", text, spans)
		}
	}
}
