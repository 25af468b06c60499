package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect"
)

// --list has a line for each connection, and the filters choose among them.
func TestDumpList(t *testing.T) {
	all := dumpTwoLinks(t, "--list")
	lines := strings.Count(all.stdout, "\n")
	if all.code != exitOK || lines < 5 {
		t.Fatalf("gosmc dump --list = %d, %q\n%s", all.code, all.stderr, all.stdout)
	}
	if got := dumpTwoLinks(t, "--list", "--conn", "5"); strings.Count(got.stdout, "\n") != 2 || !strings.Contains(got.stdout, "\nc5 ") {
		t.Errorf("gosmc dump --list --conn 5 =\n%s", got.stdout)
	}
	if got := dumpTwoLinks(t, "--list", "--port", "1"); strings.Count(got.stdout, "\n") != 1 {
		t.Errorf("gosmc dump --list --port 1 =\n%s", got.stdout)
	}
}

// A capture with too many connections fills no memory: those beyond the bound are counted.
func TestDumpListBound(t *testing.T) {
	l := newConnList(nil, nil)
	const more = 10
	for i := range maxListed + more {
		c := &dissect.Conn{ID: i + 1}
		for range 2 {
			l.add(&dissect.Event{Conn: c, Problems: make([]dissect.Problem, 1)})
		}
	}
	if len(l.list) != maxListed || l.omitted != more || l.problems[l.list[7]] != 2 {
		t.Errorf("%d connections are kept, %d left out, with %d problems; want %d, %d and 2", len(l.list), l.omitted, l.problems[l.list[7]], maxListed, more)
	}
	l.conns = []int{maxListed}
	var b strings.Builder
	if err := l.write(&b); err != nil || !strings.Contains(b.String(), "c"+strconv.Itoa(maxListed)+" ") || !strings.Contains(b.String(), "10 more connections at least") {
		t.Errorf("the list is %v\n%s", err, b.String())
	}
}
