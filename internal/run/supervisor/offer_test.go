package supervisor

import (
	"encoding/binary"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/smctest"
)

// connection is a TCP connection that a program of ours is about to make to one that listens.
type connection struct {
	listener       *net.TCPListener
	client         *program
	offer          proto.Message
	end, other     int // of the client, and of the server before the supervisor has it
	server, socket netip.AddrPort
	fd             int // the client's TCP socket
	dialled        bool
	accepted       *net.TCPConn
}

// offer announces a listener and offers a connection to it.
func (s *supervisor) offer(t *testing.T) *connection {
	t.Helper()
	c, got := s.tryOffer(t)
	if got != proto.StatusOK {
		t.Fatalf("Offer: status %d", got)
	}
	return c
}

// tryOffer is offer, and may be refused.
func (s *supervisor) tryOffer(t *testing.T) (*connection, proto.Status) {
	t.Helper()
	l := listenTCP(t, "127.0.0.1:0")
	raw, _ := l.SyscallConn()
	announce := proto.Message{Kind: proto.KindAnnounce, NetNS: s.Listeners.NetNS, Local: l.Addr().(*net.TCPAddr).AddrPort()}
	raw.Control(func(fd uintptr) {
		announce.Unique, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	})
	p := s.program(t)
	p.send(testMessage(announce))
	if got, _ := p.reply(); got != proto.StatusOK {
		t.Fatalf("Announce: status %d", got)
	}
	return s.tryOfferTo(t, l)
}

// offerTo offers a connection to a listener that was announced.
func (s *supervisor) offerTo(t *testing.T, l *net.TCPListener) *connection {
	t.Helper()
	c, got := s.tryOfferTo(t, l)
	if got != proto.StatusOK {
		t.Fatalf("Offer: status %d", got)
	}
	return c
}

func (s *supervisor) tryOfferTo(t *testing.T, l *net.TCPListener) (*connection, proto.Status) {
	t.Helper()
	c := &connection{listener: l, server: l.Addr().(*net.TCPAddr).AddrPort()}
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
	c.offer = proto.Message{Kind: proto.KindOffer, NetNS: s.Listeners.NetNS, Local: c.socket, Peer: c.server}
	c.offer.Unique, _ = unix.GetsockoptUint64(c.end, unix.SOL_SOCKET, unix.SO_COOKIE)
	theirs := proto.Name{Role: proto.RoleClient, Local: c.socket, Peer: c.server, Unique: c.offer.Unique}
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
	m.Kind = proto.KindConnected
	c.client.send(testMessage(m), c.fd)
	unix.Close(c.fd)
	c.fd = -1
}

// claimAs plays the server: it accepts, unless the client has not connected yet, and claims.
func (s *supervisor) claimAs(t *testing.T, c *connection) (proto.Status, int) {
	t.Helper()
	return s.program(t).claim(c)
}

func (p *program) claim(c *connection) (proto.Status, int) {
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
		p.send(testMessage(proto.Message{Kind: proto.KindClaim, Local: c.server, Peer: c.socket}), int(fd))
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
	p.send(testMessage(proto.Message{Kind: proto.KindBoard}))
	st, fd := p.reply()
	if st != proto.StatusOK || fd < 0 {
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
	if n, err := readFrom(to, b); err != nil || string(b[:n]) != text {
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
	if st != proto.StatusOK || end < 0 {
		t.Fatalf("Claim: status %d, descriptor %d", st, end)
	}
	defer unix.Close(end)
	exchange(t, end, c.end, "there")
	exchange(t, c.end, end, "and back")
	sa, err := unix.Getsockname(end)
	if err != nil {
		t.Fatal(err)
	}
	want := proto.Name{Role: proto.RoleServer, Local: c.server, Peer: c.socket, Unique: c.offer.Unique}
	if got, ok := proto.ParseName(sa.(*unix.SockaddrUnix).Name); !ok || got != want {
		t.Errorf("the server's end is %+v, want %+v", got, want)
	}
	if n := waiting(t, s); n != 0 {
		t.Errorf("the board has %d afterwards, want 0", n)
	}
	if st, _ := s.claimAs(t, c); st != proto.StatusNo {
		t.Errorf("a second Claim: status %d, want %d", st, proto.StatusNo)
	}
}

// TestClaimOutside has a program claim that has another user by now than its supervisor: it shows the TCP socket. It may ask for nothing else,
// and another socket is no proof.
func TestClaimOutside(t *testing.T) {
	s := newTestSupervisor(t)
	door := func() *program { return s.dial(t, "@gosmc-run/"+filepath.Base(s.Path)) }
	c := s.offer(t)
	c.connect()
	for _, k := range []proto.Kind{proto.KindAnnounce, proto.KindOffer} {
		p := door()
		fds := []int{c.end}[:k-proto.KindAnnounce]
		p.send(testMessage(proto.Message{Kind: k, NetNS: s.Listeners.NetNS, Local: c.server, Peer: c.server}), fds...)
		if got, _ := p.reply(); got != 99 {
			t.Errorf("kind %d: status %d, want to be hung up on", k, got)
		}
	}
	other := s.offer(t)
	other.connect()
	raw, err := other.accept().SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		for _, fd := range []int{c.end, int(fd)} {
			p := door()
			p.send(testMessage(proto.Message{Kind: proto.KindClaim, Local: c.server, Peer: c.socket}), fd)
			if got, _ := p.reply(); got != proto.StatusNo {
				t.Errorf("Claim with another socket: status %d, want %d", got, proto.StatusNo)
			}
		}
	})
	st, end := door().claim(c)
	if st != proto.StatusOK || end < 0 {
		t.Fatalf("Claim: status %d, descriptor %d", st, end)
	}
	defer unix.Close(end)
	exchange(t, end, c.end, "there")
}

// TestClaimFromElsewhere has somebody show a TCP socket with the addresses of a connection that was made in another network namespace.
func TestClaimFromElsewhere(t *testing.T) {
	elsewhere, _ := smctest.EnterNamespace(t)
	s := newTestSupervisor(t)
	c := s.offer(t)
	c.connect()
	forged := *c
	elsewhere(func() {
		lo, err := unix.NewIfreq("lo")
		if err != nil {
			t.Error(err)
			return
		}
		lo.SetUint16(unix.IFF_UP)
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
			t.Error(err)
			return
		}
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(c.server))
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { l.Close() })
		conn, err := net.DialTCP("tcp", net.TCPAddrFromAddrPort(c.socket), net.TCPAddrFromAddrPort(c.server))
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { conn.Close() })
		forged.listener, forged.accepted = l, nil
	})
	if t.Failed() {
		return
	}
	if got, end := s.claimAs(t, &forged); got != proto.StatusNo {
		t.Errorf("Claim with a socket of another namespace: status %d, want %d", got, proto.StatusNo)
		unix.Close(end)
	}
	s.claims(t, c, "by who has accepted")
}

// claims has a server claim its end, and something be said to the client.
func (s *supervisor) claims(t *testing.T, c *connection, what string) {
	t.Helper()
	st, end := s.claimAs(t, c)
	if st != proto.StatusOK {
		t.Fatalf("Claim, %s: status %d", what, st)
	}
	defer unix.Close(end)
	exchange(t, end, c.end, "there")
}

// TestClaimFirst has the server claim before the client has said that it is connected, or wants to give up.
func TestClaimFirst(t *testing.T) {
	s := newTestSupervisor(t)
	for _, k := range []proto.Kind{proto.KindConnected, proto.KindCancel} {
		c := s.offer(t)
		st, end := s.claimAs(t, c)
		if st != proto.StatusOK || end < 0 {
			t.Fatalf("Claim: status %d, descriptor %d", st, end)
		}
		if k == proto.KindConnected {
			c.connect()
		} else {
			c.client.send(testMessage(proto.Message{Kind: proto.KindCancel}))
			if st, _ := c.client.reply(); st != proto.StatusClaimed {
				t.Errorf("Cancel: status %d, want %d", st, proto.StatusClaimed)
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
			c.client.send(testMessage(proto.Message{Kind: proto.KindCancel}))
			if st, _ := c.client.reply(); st != proto.StatusOK {
				t.Errorf("Cancel: status %d, want %d", st, proto.StatusOK)
			}
		}
		if n, err := readFrom(c.end, make([]byte, 1)); n != 0 || err != nil {
			t.Errorf("the other end is open: %d, %v", n, err)
		}
		if st, _ := s.claimAs(t, c); st != proto.StatusNo {
			t.Errorf("Claim: status %d, want %d", st, proto.StatusNo)
		}
	}
}

// TestClaimParts has a server close its end as soon as it is told that the supervisor has it no more: the client sees that at once.
func TestClaimParts(t *testing.T) {
	s := newTestSupervisor(t)
	late := 0
	for range 100 {
		c := s.offer(t)
		c.connect()
		p := s.program(t)
		st, end := p.claim(c)
		again, none := p.reply()
		if st != proto.StatusOK || again != proto.StatusOK || none >= 0 {
			t.Fatalf("Claim: status %d, then %d and descriptor %d; want %d twice, and one descriptor", st, again, none, proto.StatusOK)
		}
		unix.Close(end)
		if !broker.HungUp(c.end) {
			late++
		}
		c.listener.Close()
	}
	if late != 0 {
		t.Errorf("%d of 100 clients did not see their server's close", late)
	}
}
