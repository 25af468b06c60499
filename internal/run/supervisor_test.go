package run

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
		if err := s.stop(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		path := s.path
		s.close()
		left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
		if len(left) != 0 {
			t.Errorf("the supervisor has left %v", left)
		}
	})
	return s
}

// A program plays the library.
type program struct {
	t  *testing.T
	s  *supervisor
	fd int
}

func (s *supervisor) program(t *testing.T) *program { return s.dial(t, s.path) }

func (s *supervisor) dial(t *testing.T, path string) *program {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	return &program{t, s, fd}
}

func (p *program) send(b []byte, fds ...int) {
	p.t.Helper()
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(p.fd, b, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		p.t.Fatalf("send: %v", err)
	}
}

// reply returns an answer and its descriptor, -1 if it has none. The status is 99 if the supervisor has hung up.
func (p *program) reply() (status, int) {
	p.t.Helper()
	b, control := make([]byte, 64), make([]byte, 64)
	n, controlLen, _, _, err := unix.Recvmsg(p.fd, b, control, unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR {
		n, controlLen, _, _, err = unix.Recvmsg(p.fd, b, control, unix.MSG_CMSG_CLOEXEC)
	}
	if err == unix.ECONNRESET || err == nil && n == 0 {
		return 99, -1
	}
	if err != nil || n != replyLen {
		p.t.Fatalf("reply: %d bytes, %v", n, err)
	}
	return status(binary.NativeEndian.Uint32(b[4:])), append(descriptors(control[:controlLen]), -1)[0]
}

// connection is a TCP connection that a program of ours is about to make to one that listens.
type connection struct {
	listener       *net.TCPListener
	client         *program
	offer          message
	end            int // of the client
	server, socket netip.AddrPort
	fd             int // the client's TCP socket
	dialled        bool
	accepted       *net.TCPConn
}

// offer announces a listener and offers a connection to it.
func (s *supervisor) offer(t *testing.T) *connection {
	t.Helper()
	c, got := s.tryOffer(t)
	if got != statusOK {
		t.Fatalf("Offer: status %d", got)
	}
	return c
}

// tryOffer is offer, and may be refused.
func (s *supervisor) tryOffer(t *testing.T) (*connection, status) {
	t.Helper()
	l := listenTCP(t, "127.0.0.1:0")
	c := &connection{listener: l, server: l.Addr().(*net.TCPAddr).AddrPort()}
	raw, _ := l.SyscallConn()
	announce := message{kind: kindAnnounce, netns: s.listeners.netns, local: c.server}
	raw.Control(func(fd uintptr) {
		announce.unique, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	})
	p := s.program(t)
	p.send(testMessage(announce))
	if got, _ := p.reply(); got != statusOK {
		t.Fatalf("Announce: status %d", got)
	}
	var err error
	if c.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(c.fd) })
	if err := unix.Bind(c.fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	sa, _ := unix.Getsockname(c.fd)
	c.socket = netip.AddrPortFrom(netip.AddrFrom4(sa.(*unix.SockaddrInet4).Addr), uint16(sa.(*unix.SockaddrInet4).Port))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.end = pair[0]
	t.Cleanup(func() { unix.Close(c.end) })
	unix.SetsockoptTimeval(c.end, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	c.offer = message{kind: kindOffer, netns: s.listeners.netns, local: c.socket, peer: c.server}
	c.offer.unique, _ = unix.GetsockoptUint64(c.end, unix.SOL_SOCKET, unix.SO_COOKIE)
	theirs := name{role: roleClient, local: c.socket, peer: c.server, unique: c.offer.unique}
	if err := unix.Bind(c.end, &unix.SockaddrUnix{Name: theirs.String()}); err != nil {
		t.Fatal(err)
	}
	c.client = s.program(t)
	c.client.send(testMessage(c.offer), pair[1])
	unix.Close(pair[1])
	got, _ := c.client.reply()
	return c, got
}

func (c *connection) connect() {
	c.client.t.Helper()
	if !c.dialled {
		if err := c.dial(); err != nil {
			c.client.t.Fatal(err)
		}
	}
	m := c.offer
	m.kind = kindConnected
	c.client.send(testMessage(m), c.fd)
	unix.Close(c.fd)
	c.fd = -1
}

// claimAs plays the server: it accepts, unless the client has not connected yet, and claims.
func (s *supervisor) claimAs(t *testing.T, c *connection) (status, int) {
	t.Helper()
	return s.program(t).claim(c)
}

func (p *program) claim(c *connection) (status, int) {
	p.t.Helper()
	if c.fd >= 0 && !c.dialled {
		if err := c.dial(); err != nil {
			p.t.Fatal(err)
		}
	}
	raw, err := c.accept().SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		p.send(testMessage(message{kind: kindClaim, local: c.server, peer: c.socket}), int(fd))
	})
	return p.reply()
}

func (c *connection) dial() error {
	c.dialled = true
	return unix.Connect(c.fd, &unix.SockaddrInet4{Addr: c.server.Addr().As4(), Port: int(c.server.Port())})
}

// accept accepts, unless that has been done.
func (c *connection) accept() *net.TCPConn {
	t := c.client.t
	t.Helper()
	if c.accepted == nil {
		conn, err := c.listener.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		c.accepted = conn
	}
	return c.accepted
}

func waiting(t *testing.T, s *supervisor) uint32 {
	t.Helper()
	p := s.program(t)
	p.send(testMessage(message{kind: kindBoard}))
	st, fd := p.reply()
	if st != statusOK || fd < 0 {
		t.Fatalf("Board: status %d, descriptor %d", st, fd)
	}
	defer unix.Close(fd)
	b, err := unix.Mmap(fd, 0, boardSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	return binary.NativeEndian.Uint32(b)
}

// exchange sends from one end and receives at the other.
func exchange(t *testing.T, to, from int, text string) {
	t.Helper()
	if _, err := unix.Write(from, []byte(text)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	if n, err := unix.Read(to, b); err != nil || string(b[:n]) != text {
		t.Errorf("read %q, %v; want %q", b[:max(n, 0)], err, text)
	}
}

func TestClaim(t *testing.T) {
	s := newTestSupervisor(t)
	c := s.offer(t)
	if n := waiting(t, s); n != 1 {
		t.Errorf("the board has %d, want 1", n)
	}
	c.connect()
	st, end := s.claimAs(t, c)
	if st != statusOK || end < 0 {
		t.Fatalf("Claim: status %d, descriptor %d", st, end)
	}
	defer unix.Close(end)
	exchange(t, end, c.end, "there")
	exchange(t, c.end, end, "and back")
	sa, err := unix.Getsockname(end)
	if err != nil {
		t.Fatal(err)
	}
	want := name{role: roleServer, local: c.server, peer: c.socket, unique: c.offer.unique}
	if got, ok := parseName(sa.(*unix.SockaddrUnix).Name); !ok || got != want {
		t.Errorf("the server's end is %+v, want %+v", got, want)
	}
	if n := waiting(t, s); n != 0 {
		t.Errorf("the board has %d afterwards, want 0", n)
	}
	if st, _ := s.claimAs(t, c); st != statusNo {
		t.Errorf("a second Claim: status %d, want %d", st, statusNo)
	}
}

// TestClaimOutside has a program claim that has another user by now than its supervisor: it shows the TCP socket. It may ask for nothing else,
// and another socket is no proof.
func TestClaimOutside(t *testing.T) {
	s := newTestSupervisor(t)
	door := func() *program { return s.dial(t, "@gosmc-run/"+filepath.Base(s.path)) }
	c := s.offer(t)
	c.connect()
	for _, k := range []kind{kindAnnounce, kindOffer} {
		p := door()
		fds := []int{c.end}[:k-kindAnnounce]
		p.send(testMessage(message{kind: k, netns: s.listeners.netns, local: c.server, peer: c.server}), fds...)
		if got, _ := p.reply(); got != 99 {
			t.Errorf("kind %d: status %d, want to be hung up on", k, got)
		}
	}
	p := door()
	p.send(testMessage(message{kind: kindClaim, local: c.server, peer: c.socket}), c.end)
	if got, _ := p.reply(); got != statusNo {
		t.Errorf("Claim with another socket: status %d, want %d", got, statusNo)
	}
	st, end := door().claim(c)
	if st != statusOK || end < 0 {
		t.Fatalf("Claim: status %d, descriptor %d", st, end)
	}
	defer unix.Close(end)
	exchange(t, end, c.end, "there")
}

// TestClaimFirst has the server claim before the client has said that it is connected, or wants to give up.
func TestClaimFirst(t *testing.T) {
	s := newTestSupervisor(t)
	for _, k := range []kind{kindConnected, kindCancel} {
		c := s.offer(t)
		st, end := s.claimAs(t, c)
		if st != statusOK || end < 0 {
			t.Fatalf("Claim: status %d, descriptor %d", st, end)
		}
		if k == kindConnected {
			c.connect()
		} else {
			c.client.send(testMessage(message{kind: kindCancel}))
			if st, _ := c.client.reply(); st != statusClaimed {
				t.Errorf("Cancel: status %d, want %d", st, statusClaimed)
			}
		}
		exchange(t, end, c.end, "there")
		unix.Close(end)
	}
}

// TestCancel has a client give up, in words or by its death: nobody gets the end.
func TestCancel(t *testing.T) {
	s := newTestSupervisor(t)
	for _, dies := range []bool{false, true} {
		c := s.offer(t)
		if dies {
			unix.Shutdown(c.client.fd, unix.SHUT_RDWR)
		} else {
			c.client.send(testMessage(message{kind: kindCancel}))
			if st, _ := c.client.reply(); st != statusOK {
				t.Errorf("Cancel: status %d, want %d", st, statusOK)
			}
		}
		if n, err := unix.Read(c.end, make([]byte, 1)); n != 0 || err != nil {
			t.Errorf("the other end is open: %d, %v", n, err)
		}
		if st, _ := s.claimAs(t, c); st != statusNo {
			t.Errorf("Claim: status %d, want %d", st, statusNo)
		}
	}
}

// TestRelay has a server accept that does not know of us, and speak only when it is spoken to. Nothing is lost.
func TestRelay(t *testing.T) {
	s := newTestSupervisor(t)
	c := s.offer(t)
	c.connect()
	const early = "before anybody accepts"
	if _, err := unix.Write(c.end, []byte(early)); err != nil {
		t.Fatal(err)
	}
	conn := c.accept()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	b := make([]byte, len(early))
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != early {
		t.Fatalf("the server has read %q, %v", b, err)
	}
	if _, err := os.Lstat(s.listeners.link(c.server.Port())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the listener is still announced, %v: the next connection will be relayed, too", err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() {
		conn.Write(large)
		conn.CloseWrite()
	}()
	end := stream(c.end)
	c.end = -1
	end.SetDeadline(time.Now().Add(30 * time.Second))
	if got, err := io.ReadAll(end); err != nil || !bytes.Equal(got, large) {
		t.Errorf("the client has read %d bytes, %v; want %d", len(got), err, len(large))
	}
	end.Write([]byte("after the half close"))
	end.Close()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "after the half close" {
		t.Errorf("the server has read %q, %v", got, err)
	}
	if st, _ := s.claimAs(t, c); st != statusNo {
		t.Errorf("Claim of what is relayed: status %d, want %d", st, statusNo)
	}
}

// TestRelayAtOnce has such a server speak first, and close: the client gets it.
func TestRelayAtOnce(t *testing.T) {
	s := newTestSupervisor(t)
	c := s.offer(t)
	c.connect()
	conn := c.accept()
	io.WriteString(conn, "220 hello")
	conn.Close()
	end := stream(c.end)
	c.end = -1
	defer end.Close()
	end.SetDeadline(time.Now().Add(30 * time.Second))
	if got, err := io.ReadAll(end); err != nil || string(got) != "220 hello" {
		t.Errorf("the client has read %q, %v", got, err)
	}
}

// TestWaitsForAccept has a server that takes long to accept: that is no reason to relay.
func TestWaitsForAccept(t *testing.T) {
	s := newTestSupervisor(t)
	c := s.offer(t)
	c.connect()
	state, err := diagConnection(c.server, c.socket)
	if err != nil || state.inode != 0 {
		t.Fatalf("before Accept the kernel says %+v, %v; want inode 0", state, err)
	}
	conn, err := c.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if state, err = diagConnection(c.server, c.socket); err != nil || state.inode == 0 {
		t.Errorf("after Accept the kernel says %+v, %v; want an inode", state, err)
	}
}

// TestGoneListener has an offer for a listener that was closed, whose port somebody else may have by now.
func TestGoneListener(t *testing.T) {
	s := newTestSupervisor(t)
	l := newListeners(t.TempDir(), "x", s.listeners.netns)
	port := uint16(9)
	l.add(message{netns: l.netns, local: netip.AddrPortFrom(netip.IPv4Unspecified(), port), unique: 1 << 62})
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	if !l.has(to) {
		t.Error("a listener that was announced just now is not believed")
	}
	l.looked[port] = time.Time{}
	if l.has(to) {
		t.Error("a listener that the kernel does not have is believed")
	}
	if _, err := os.Lstat(l.link(port)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its announcement: %v, want none", err)
	}
}

// TestRelayedNowAndThen has a program miss a connection: that is no reason to give its listener up.
func TestRelayedNowAndThen(t *testing.T) {
	l := newListeners(t.TempDir(), "x", 1)
	to := netip.MustParseAddrPort("127.0.0.1:1")
	l.add(message{netns: 1, local: to, unique: 1})
	for range 3 {
		l.claimed(1)
		l.relayed(1)
		if !l.has(to) {
			t.Error("given up though as many were claimed")
		}
	}
	l.relayed(1)
	if l.has(to) || l.count != 0 {
		t.Errorf("not given up, count %d", l.count)
	}
}

// TestListeners has the addresses that a listener gets connections to.
func TestListeners(t *testing.T) {
	l := newListeners(t.TempDir(), "x", 1)
	for i, local := range []string{"127.0.0.1:1", "0.0.0.0:2", "[::]:3", "[::1]:4"} {
		if !l.add(message{netns: 1, local: netip.MustParseAddrPort(local), unique: uint64(i + 1)}) {
			t.Errorf("add(%s): false", local)
		}
	}
	for to, want := range map[string]bool{
		"127.0.0.1:1": true, "127.0.0.2:1": false, "127.0.0.2:2": true, "[::1]:2": false,
		"127.0.0.1:3": true, "[::1]:3": true, "[::1]:4": true, "127.0.0.1:4": false, "127.0.0.1:5": false,
	} {
		if got := l.has(netip.MustParseAddrPort(to)); got != want {
			t.Errorf("has(%s) = %t, want %t", to, got, want)
		}
	}
	if l.add(message{netns: 2, local: netip.MustParseAddrPort("127.0.0.1:6"), unique: 9}) {
		t.Error("a listener of another network namespace is announced here")
	}
	l.close()
	if left, _ := os.ReadDir(l.dir); len(left) != 0 {
		t.Errorf("close has left %v", left)
	}
}

// TestAnnouncedByOther has two supervisors and one port: the first has it while it lives and somebody listens there.
func TestAnnouncedByOther(t *testing.T) {
	s := newTestSupervisor(t)
	l := listenTCP(t, "127.0.0.1:0")
	m := message{netns: s.listeners.netns, local: l.Addr().(*net.TCPAddr).AddrPort()}
	raw, _ := l.SyscallConn()
	raw.Control(func(fd uintptr) { m.unique, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
	first := newListeners(s.listeners.dir, s.listeners.socket, m.netns)
	second := newListeners(s.listeners.dir, "second", m.netns)
	beside := m
	beside.unique++
	if !first.add(m) || second.add(beside) {
		t.Error("two supervisors have a port on which both have a listener")
	}
	if !second.add(m) {
		t.Error("a supervisor keeps a port on which nobody listens but a program of another")
	}
	if !first.add(beside) {
		t.Error("a supervisor that is dead keeps a port")
	}
	first.close()
	second.close()
}

// TestHostile has programs say what no library says. The supervisor hangs up, and serves others.
func TestHostile(t *testing.T) {
	s := newTestSupervisor(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	good := testMessage(message{kind: kindBoard})
	with := func(k kind) []byte { return testMessage(message{kind: k}) }
	for what, c := range map[string]struct {
		bytes []byte
		fds   []int
	}{
		"short":                {good[:10], nil},
		"long":                 {append(bytes.Clone(good), 1), nil},
		"very long":            {make([]byte, 60000), nil},
		"no kind":              {make([]byte, messageLen), nil},
		"Offer without an end": {with(kindOffer), nil},
		"Offer with two":       {with(kindOffer), []int{fd, fd}},
		"Claim with nothing":   {with(kindClaim), nil},
		"Board with 100":       {with(kindBoard), bytes100(fd)},
		"Connected to nothing": {with(kindConnected), []int{fd}},
		"Cancel of nothing":    {with(kindCancel), nil},
	} {
		p := s.program(t)
		p.send(c.bytes, c.fds...)
		if got, _ := p.reply(); got != 99 {
			t.Errorf("%s: status %d, want to be hung up on", what, got)
		}
	}
	c := s.offer(t)
	for what, change := range map[string]func(m *message, end *int){
		"not a socket":           func(_ *message, end *int) { *end = fd },
		"nobody listens":         func(m *message, _ *int) { m.peer = netip.MustParseAddrPort("127.0.0.1:1") },
		"another namespace":      func(m *message, _ *int) { m.netns++ },
		"an end with no name":    func(m *message, end *int) { m.local = netip.MustParseAddrPort("127.0.0.1:1") },
		"a connection that is":   func(m *message, _ *int) {},
		"another end's identity": func(m *message, _ *int) { m.unique++ },
	} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		m, end := c.offer, pair[1]
		change(&m, &end)
		p := s.program(t)
		p.send(testMessage(m), end)
		if got, _ := p.reply(); got != statusNo {
			t.Errorf("Offer, %s: status %d, want %d", what, got, statusNo)
		}
		unix.Close(pair[0])
		unix.Close(pair[1])
	}
	c.connect()
	if st, end := s.claimAs(t, c); st != statusOK {
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

// TestTidy removes what a killed supervisor has left, and nothing else.
func TestTidy(t *testing.T) {
	s := newTestSupervisor(t)
	dir := filepath.Dir(s.path)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, "dead")}); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	os.Symlink("dead", filepath.Join(dir, "0000000000000001.80"))
	os.Symlink(filepath.Base(s.path), filepath.Join(dir, "0000000000000001.81"))
	tidy(dir)
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if got := strings.Join(left, " "); strings.Contains(got, "dead") || strings.Contains(got, ".80") || !strings.Contains(got, ".81") || len(left) != 2 {
		t.Errorf("tidy has left %v", left)
	}
	os.Remove(filepath.Join(dir, "0000000000000001.81"))
}

// TestEnds has a supervisor end with its program, whoever else has come by: another supervisor that looks whether it is there, and
// would be kept by it in turn.
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
	p.send(testMessage(message{kind: kindOffer}), p.fd)
	if got, _ := p.reply(); got != statusNo {
		t.Errorf("Offer of nothing: status %d, want %d", got, statusNo)
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
