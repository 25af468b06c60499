package inspect

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
)

// TestExplainLeft has a user that asks about a server be told why 'gosmc run' has left it to TCP,
// until it is not so any more. It does not matter whether a killed supervisor has announced it
// before.
func TestExplainLeft(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GOSMC_DIR", dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	look := func() string {
		t.Helper()
		s, err := Look(l.Addr().(*net.TCPAddr).AddrPort(), os.Geteuid())
		if err != nil || s.PID != os.Getpid() {
			t.Fatalf("Look: %+v, %v", s, err)
		}
		return s.Obstacle
	}
	NoteLeft(dir, self, "no\x1b place\nfor it")
	const want = "'gosmc run' has left it to TCP: no? place;for it"
	if got := look(); got != want {
		t.Errorf("left: %q, want %q", got, want)
	}
	if m := Left(dir); len(m) != 1 || m[self] != "no? place;for it" {
		t.Errorf("Left(%s) = %q", dir, m)
	}
	netns, err := proto.OwnNetNS()
	if err != nil {
		t.Fatal(err)
	}
	link := proto.LinkPath(rundir.Path(dir, rundir.Run), netns, netip.MustParseAddrPort(l.Addr().String()).Port())
	if err := os.Symlink("0123456789abcdef", link); err != nil { // of a supervisor that was killed
		t.Fatal(err)
	}
	if got := look(); got != want {
		t.Errorf("left, and announced before: %q, want %q", got, want)
	}
	NoteLeft(dir, self, "")
	if got := look(); !strings.Contains(got, "its supervisor has ended") || len(Left(dir)) != 0 {
		t.Errorf("not left any more: %q, %q", got, Left(dir))
	}
}
