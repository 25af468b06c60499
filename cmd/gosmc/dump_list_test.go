package main

import (
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dump"
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

// Connections that a list leaves out are counted below it.
func TestDumpListOmitted(t *testing.T) {
	l := &dump.ConnList{Conns: []dump.ListedConn{{Conn: &dissect.Conn{ID: 65536}, Problems: 2}}, Omitted: 10}
	var b strings.Builder
	if err := l.Write(&b); err != nil || !strings.Contains(b.String(), "c65536 ") || !strings.Contains(b.String(), "10 more connections at least") {
		t.Errorf("the list is %v\n%s", err, b.String())
	}
}
