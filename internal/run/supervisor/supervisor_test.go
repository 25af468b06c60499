package supervisor

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
)

// newTestSupervisor runs a supervisor that serves until the test ends.
func newTestSupervisor(t *testing.T) *supervisor {
	t.Helper()
	dir, err := os.MkdirTemp("", "run") // a short name: sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	life := exec.Command("sleep", "1000")
	if err := life.Start(); err != nil {
		t.Fatal(err)
	}
	s, err := newSupervisor(dir, life.Process.Pid)
	if err != nil {
		life.Process.Kill()
		life.Wait()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.serve() }()
	t.Cleanup(func() {
		life.Process.Kill()
		life.Wait()
		// The test itself has spoken to the supervisor, and lives: it ends when the test says so.
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		path := s.Path
		s.close()
		left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
		if len(left) != 0 {
			t.Errorf("the supervisor has left %v", left)
		}
	})
	return s
}

// TestHostile has programs send messages that no library sends. The supervisor hangs up, and serves
// others.
func TestHostile(t *testing.T) {
	s := newTestSupervisor(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	good := testMessage(proto.Message{Kind: proto.KindBoard})
	with := func(k proto.Kind) []byte { return testMessage(proto.Message{Kind: k}) }
	for what, c := range map[string]struct {
		bytes []byte
		fds   []int
	}{
		"short":                {good[:10], nil},
		"long":                 {append(bytes.Clone(good), 1), nil},
		"very long":            {make([]byte, 60000), nil},
		"no kind":              {make([]byte, proto.MessageLen), nil},
		"Offer without an end": {with(proto.KindOffer), nil},
		"Offer with two":       {with(proto.KindOffer), []int{fd, fd}},
		"Claim with nothing":   {with(proto.KindClaim), nil},
		"Board with 100":       {with(proto.KindBoard), bytes100(fd)},
		"Connected to nothing": {with(proto.KindConnected), []int{fd}},
		"Cancel of nothing":    {with(proto.KindCancel), nil},
	} {
		p := s.program(t)
		p.send(c.bytes, c.fds...)
		if got, _ := p.reply(); got != 99 {
			t.Errorf("%s: status %d, want to be hung up on", what, got)
		}
	}
	c := s.offer(t)
	for what, change := range map[string]func(m *proto.Message, end *int){
		"not a socket":           func(_ *proto.Message, end *int) { *end = fd },
		"nobody listens":         func(m *proto.Message, _ *int) { m.Peer = netip.MustParseAddrPort("127.0.0.1:1") },
		"another namespace":      func(m *proto.Message, _ *int) { m.NetNS++ },
		"an end with no name":    func(m *proto.Message, end *int) { m.Local = netip.MustParseAddrPort("127.0.0.1:1") },
		"a connection that is":   func(m *proto.Message, _ *int) {},
		"another end's identity": func(m *proto.Message, _ *int) { m.Unique++ },
	} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		m, end := c.offer, pair[1]
		change(&m, &end)
		p := s.program(t)
		p.send(testMessage(m), end)
		if got, _ := p.reply(); got != proto.StatusNo {
			t.Errorf("Offer, %s: status %d, want %d", what, got, proto.StatusNo)
		}
		unix.Close(pair[0])
		unix.Close(pair[1])
	}
	c.connect()
	if st, end := s.claimAs(t, c); st != proto.StatusOK {
		t.Errorf("Claim, after all that: status %d", st)
	} else {
		unix.Close(end)
	}
}

func bytes100(fd int) (list []int) {
	for range 100 {
		list = append(list, fd)
	}
	return list
}

// TestTidy removes the files that a killed supervisor has left, and nothing else, and tells of a
// program of it that still runs.
func TestTidy(t *testing.T) {
	s := newTestSupervisor(t)
	dir := filepath.Dir(s.Path)
	const dead = "00000000deaddead"
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, dead)}); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	if err := makeMark(filepath.Join(dir, dead), ""); err != nil {
		t.Fatal(err)
	}
	control := filepath.Join(filepath.Dir(dir), rundir.Control, dead)
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: control}); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	os.Symlink(dead, filepath.Join(dir, "0000000000000001.80"))
	os.Symlink(filepath.Base(s.Path), filepath.Join(dir, "0000000000000001.81"))
	orphan := exec.Command("sleep", "1000")
	orphan.Env = append(os.Environ(), proto.EnvSocket+"="+filepath.Join(dir, dead))
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	defer orphan.Wait()
	defer orphan.Process.Kill()
	var told []string
	tidy(dir, func(text string) { told = append(told, text) })
	if len(told) != 1 || !strings.Contains(told[0], fmt.Sprintf("of sleep (pid %d) has ended", orphan.Process.Pid)) {
		t.Errorf("tidy tells %q, want that the supervisor of sleep has ended", told)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if got := strings.Join(left, " "); strings.Contains(got, "dead") || strings.Contains(got, ".80") || !strings.Contains(got, ".81") || len(left) != 6+proto.Letterboxes { // its socket, its mark, the link, and the tables
		t.Errorf("tidy has left %v", left)
	}
	left, _ = filepath.Glob(filepath.Join(filepath.Dir(control), "*"))
	if len(left) != 1 || filepath.Base(left[0]) != filepath.Base(s.Path) {
		t.Errorf("tidy has left control sockets %v, want that of %s", left, s.Path)
	}
	os.Remove(filepath.Join(dir, "0000000000000001.81"))
}

// TestEnds has a supervisor end with its program, even if another supervisor has come by: that one
// looks whether it is there, and would be kept by it in turn.
func TestEnds(t *testing.T) {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	life := exec.Command("sleep", "1000")
	if err := life.Start(); err != nil {
		t.Fatal(err)
	}
	defer life.Wait()
	defer life.Process.Kill()
	s, err := newSupervisor(dir, life.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.serve() }()
	p := s.program(t)
	p.send(testMessage(proto.Message{Kind: proto.KindOffer}), p.fd)
	if got, _ := p.reply(); got != proto.StatusNo {
		t.Errorf("Offer of nothing: status %d, want %d", got, proto.StatusNo)
	}
	life.Process.Kill()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the supervisor is there without a program")
	}
	s.close()
}
