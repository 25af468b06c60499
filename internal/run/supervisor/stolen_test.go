package supervisor

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestStolenNames has somebody take the names that ends are about to get, as any user of the machine can. It used to end connections.
func TestStolenNames(t *testing.T) {
	program := filepath.Join(t.TempDir(), "stolen")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/stolen.c")
	s := newTestSupervisor(t)
	runRings(t, program, []string{"client"}, 1, "LD_PRELOAD="+committedLibrary(t), proto.EnvSocket+"="+s.Path)
}

// TestStolenNameClaim has somebody take the name of an end that its supervisor gives away.
func TestStolenNameClaim(t *testing.T) {
	s := newTestSupervisor(t)
	c := s.offer(t)
	c.connect()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	stolen := proto.Name{Role: proto.RoleServer, Local: c.server, Peer: c.socket, Unique: c.offer.Unique}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: stolen.String()}); err != nil {
		t.Fatal(err)
	}
	got, end := s.claimAs(t, c)
	if got != proto.StatusOK {
		t.Fatalf("Claim: status %d", got)
	}
	defer unix.Close(end)
	sa, err := unix.Getsockname(end)
	if err != nil {
		t.Fatal(err)
	}
	has, ok := proto.ParseName(sa.(*unix.SockaddrUnix).Name)
	if !ok || has.Role != proto.RoleServer || has.Local != stolen.Local || has.Peer != stolen.Peer {
		t.Errorf("the end has the name %q, want that of %v", sa.(*unix.SockaddrUnix).Name, stolen)
	}
}

// TestScarce has a server lose no connection though its threads use up its descriptors.
func TestScarce(t *testing.T) {
	program := filepath.Join(t.TempDir(), "scarce")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/scarce.c")
	s := newTestSupervisor(t)
	runRings(t, program, []string{"threads", "hoard"}, 1, "LD_PRELOAD="+committedLibrary(t), proto.EnvSocket+"="+s.Path)
}

// TestFull has a server listen that has as many descriptors as it may, or nearly: it waited for two seconds for one in which to get the board.
func TestFull(t *testing.T) {
	program := filepath.Join(t.TempDir(), "full")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/full.c")
	cases := []string{"1", "2", "3", "4", "5", "6"}
	t.Run("bare", func(t *testing.T) { runRings(t, program, cases, 1) })
	s := newTestSupervisor(t)
	runRings(t, program, cases, 1, "LD_PRELOAD="+committedLibrary(t), proto.EnvSocket+"="+s.Path)
}
