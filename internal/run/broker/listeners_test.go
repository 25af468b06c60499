package broker

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
)

// newTestBroker returns a broker that is closed when the test ends.
func newTestBroker(t *testing.T) *Broker {
	t.Helper()
	dir, err := os.MkdirTemp("", "run") // a short name: sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := rundir.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	policy, err := config.NewPolicy(config.Filter{}, config.Filter{}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(dir, func() *config.Policy { return policy })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// listen returns a listener that is one of TCP in the kernel, too, and not of multipath TCP.
func listen(t *testing.T, address string) *net.TCPListener {
	t.Helper()
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// TestGoneListener has an offer for a listener that was closed. Another program may have its port
// by now.
func TestGoneListener(t *testing.T) {
	s := newTestBroker(t)
	l := NewListeners(t.TempDir(), "x", s.Listeners.NetNS)
	port := uint16(9)
	l.Add(proto.Message{NetNS: l.NetNS, Local: netip.AddrPortFrom(netip.IPv4Unspecified(), port), Unique: 1 << 62})
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	if !l.Has(to) {
		t.Error("a listener that was announced just now is not believed")
	}
	l.looked[port] = time.Time{}
	if l.Has(to) {
		t.Error("a listener that the kernel does not have is believed")
	}
	if _, err := os.Lstat(l.Link(port)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its announcement: %v, want none", err)
	}
}

// TestListenersOfThePast has as many listeners announced as there may be. They are none any more when another one is: it takes their place. Those
// that are there keep theirs.
func TestListenersOfThePast(t *testing.T) {
	netns, err := proto.OwnNetNS()
	if err != nil {
		t.Fatal(err)
	}
	l := NewListeners(t.TempDir(), "x", netns)
	announce := func(address string) bool {
		listens := listen(t, address)
		m := proto.Message{NetNS: netns, Local: listens.Addr().(*net.TCPAddr).AddrPort()}
		raw, _ := listens.SyscallConn()
		raw.Control(func(fd uintptr) { m.Unique, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
		return l.Add(m)
	}
	there := announce("127.0.0.1:0") && announce("[::1]:0")
	for i := range maxListeners - 2 {
		local := netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(i%1000+1))
		if !l.Add(proto.Message{NetNS: netns, Local: local, Unique: 1<<62 + uint64(i)}) {
			t.Fatalf("listener %d is not announced", i)
		}
	}
	if !there || !announce("127.0.0.1:0") {
		t.Error("a listener has no place beside those that are gone")
	}
	if l.count != 3 || len(l.ports) != 3 {
		t.Errorf("%d listeners are known on %d ports, want 3 that are there", l.count, len(l.ports))
	}
	if links, _ := os.ReadDir(l.dir); len(links) != 3 {
		t.Errorf("%d links are there, want 3", len(links))
	}
}

// TestRelayedNowAndThen has a program miss a connection: that is no reason to give its listener up.
func TestRelayedNowAndThen(t *testing.T) {
	l := NewListeners(t.TempDir(), "x", 1)
	to := netip.MustParseAddrPort("127.0.0.1:1")
	l.Add(proto.Message{NetNS: 1, Local: to, Unique: 1})
	for range 3 {
		l.Claimed(1, 1)
		l.relayed(time.Now(), 1, false)
		if !l.Has(to) {
			t.Error("given up though as many were claimed")
		}
	}
	l.relayed(time.Now(), 1, false)
	if l.Has(to) || l.count != 0 {
		t.Errorf("not given up, count %d", l.count)
	}
}

// TestLettersLost has clients of a server that does not know of letters ask, and gives it up where that does not help.
func TestLettersLost(t *testing.T) {
	l := NewListeners(t.TempDir(), "x", 1)
	l.policy = new(config.Policy)
	to := netip.MustParseAddrPort("127.0.0.1:1")
	l.Add(proto.Message{NetNS: 1, Local: to, Unique: 1})
	said := func() string {
		target, _ := os.Readlink(l.Link(1))
		return target
	}
	now := time.Now()
	if !strings.HasPrefix(said(), "x.") {
		t.Fatalf("the link says %q", said())
	}
	for range 20 { // which were on their way, but the first
		l.relayed(now, 1, true)
		if said() != "x" {
			t.Errorf("after a letter that nobody has claimed the link says %q", said())
		}
	}
	l.Claimed(1, 1)
	l.relayed(now, 1, false)
	if said() != "x" {
		t.Error("given up though one was claimed")
	}
	l.relayed(now, 1, false)
	if said() != "" || l.Has(to) {
		t.Errorf("not given up though asking does not help: %q", said())
	}
	l.Add(proto.Message{NetNS: 1, Local: to, Unique: 2})
	if !strings.HasPrefix(said(), "x.") {
		t.Errorf("of a new listener the link says %q", said())
	}
	l.relayed(now, 1, true)
	if l.relayed(now.Add(lostLetters), 1, true); said() != "" {
		t.Errorf("not given up though letters go on: %q", said())
	}
}

// TestListeners has the addresses that a listener gets connections to.
func TestListeners(t *testing.T) {
	l := NewListeners(t.TempDir(), "x", 1)
	for i, local := range []string{"127.0.0.1:1", "0.0.0.0:2", "[::]:3", "[::1]:4"} {
		if !l.Add(proto.Message{NetNS: 1, Local: netip.MustParseAddrPort(local), Unique: uint64(i + 1)}) {
			t.Errorf("add(%s): false", local)
		}
	}
	for to, want := range map[string]bool{
		"127.0.0.1:1": true, "127.0.0.2:1": false, "127.0.0.2:2": true, "[::1]:2": false,
		"127.0.0.1:3": true, "[::1]:3": true, "[::1]:4": true, "127.0.0.1:4": false, "127.0.0.1:5": false,
	} {
		if got := l.Has(netip.MustParseAddrPort(to)); got != want {
			t.Errorf("has(%s) = %t, want %t", to, got, want)
		}
	}
	if l.Add(proto.Message{NetNS: 2, Local: netip.MustParseAddrPort("127.0.0.1:6"), Unique: 9}) {
		t.Error("a listener of another network namespace is announced here")
	}
	l.Close()
	if left, _ := os.ReadDir(l.dir); len(left) != 0 {
		t.Errorf("close has left %v", left)
	}
}

// TestAnnouncedByOther has two supervisors and one port: the first has it while it lives and somebody listens there.
func TestAnnouncedByOther(t *testing.T) {
	s := newTestBroker(t)
	l := listen(t, "127.0.0.1:0")
	m := proto.Message{NetNS: s.Listeners.NetNS, Local: l.Addr().(*net.TCPAddr).AddrPort()}
	raw, _ := l.SyscallConn()
	raw.Control(func(fd uintptr) { m.Unique, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
	first := NewListeners(s.Listeners.dir, s.Listeners.socket, m.NetNS)
	second := NewListeners(s.Listeners.dir, "second", m.NetNS)
	beside := m
	beside.Unique++
	if !first.Add(m) || second.Add(beside) {
		t.Error("two supervisors have a port on which both have a listener")
	}
	if !second.Add(m) {
		t.Error("a supervisor keeps a port on which nobody listens but a program of another")
	}
	if !first.Add(beside) {
		t.Error("a supervisor that is dead keeps a port")
	}
	first.Close()
	second.Close()
}

// TestListenersShared has two supervisors' programs share a port by SO_REUSEPORT: connections to it are TCP, as an offer to one of them may be accepted by the other.
func TestListenersShared(t *testing.T) {
	s := newTestBroker(t)
	l := listen(t, "127.0.0.1:0")
	m := proto.Message{NetNS: s.Listeners.NetNS, Local: l.Addr().(*net.TCPAddr).AddrPort()}
	raw, _ := l.SyscallConn()
	raw.Control(func(fd uintptr) { m.Unique, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
	first := NewListeners(s.Listeners.dir, s.Listeners.socket, m.NetNS)
	second := NewListeners(s.Listeners.dir, "second", m.NetNS)
	defer first.Close()
	beside := m
	beside.Unique++
	port := m.Local.Port()
	if !first.Add(m) {
		t.Fatal("the first listener is not announced")
	}
	if second.Add(beside) {
		t.Error("a listener is announced beside one of another supervisor")
	}
	first.looked[port] = time.Time{}
	first.refresh(port)
	if target, err := os.Readlink(first.Link(port)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("clients are told to ask %q, %v; want nobody", target, err)
	}
	third := NewListeners(s.Listeners.dir, "third", m.NetNS)
	beside.Unique++
	if third.Add(beside) {
		t.Error("a listener is announced beside those of two supervisors, of which none has a link")
	}
	if target, err := os.Readlink(first.Link(port)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("clients are told to ask %q, %v; want nobody", target, err)
	}
}

// TestOnly6 has a listener of IPv6 only, beside which anybody can have one of IPv4: another user
// could claim an end that is offered for that.
func TestOnly6(t *testing.T) {
	netns, err := proto.OwnNetNS()
	if err != nil {
		t.Fatal(err)
	}
	for _, only := range []int{0, 1} {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Skipf("needs IPv6: %v", err)
		}
		defer unix.Close(fd)
		for _, err := range []error{
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only), unix.Bind(fd, &unix.SockaddrInet6{}), unix.Listen(fd, 1),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		sa, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
		if err != nil {
			t.Fatal(err)
		}
		l := NewListeners(t.TempDir(), "x", netns)
		port := proto.AddrPort(sa).Port()
		if !l.Add(proto.Message{NetNS: netns, IPv6: true, Local: proto.AddrPort(sa), Unique: cookie}) {
			t.Fatal("the listener is not announced")
		}
		four, six := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), netip.AddrPortFrom(netip.IPv6Loopback(), port)
		if l.Has(four) != (only == 0) || !l.Has(six) {
			t.Errorf("IPV6_V6ONLY is %d: has(%v) = %t, has(%v) = %t", only, four, l.Has(four), six, l.Has(six))
		}
		target, err := os.Readlink(l.Link(port))
		if asked := target == "x"; err != nil || asked != (only == 1) {
			t.Errorf("IPV6_V6ONLY is %d: the link says %q, %v", only, target, err)
		}
	}
}

// TestPortComesBack has a port go from one supervisor's programs to another's and back, as the kernel gives ports that are free: the link has to follow. Clients of the
// third listener offered their connections to the second one's supervisor, which joined them to TCP, or ended with them.
func TestPortComesBack(t *testing.T) {
	s, other := newTestBroker(t), newTestBroker(t)
	dir, netns := filepath.Dir(other.Path), s.Listeners.NetNS
	a, b := NewListeners(dir, "a", netns), NewListeners(dir, filepath.Base(other.Path), netns)
	local := netip.AddrPort{}
	announce := func(to *Listeners, want string) {
		t.Helper()
		l := listen(t, local.String())
		defer l.Close()
		local = proto.AddrPortOf(l.Addr())
		raw, err := l.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		m := proto.Message{Local: local, NetNS: netns}
		raw.Control(func(fd uintptr) { m.Unique, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
		if err != nil || !to.Add(m) {
			t.Fatalf("the listener is not announced: %v", err)
		}
		if target, err := os.Readlink(to.Link(local.Port())); proto.LinkedSocket(target) != want {
			t.Errorf("the link leads to %q, %v; want %q", target, err, want)
		}
	}
	local = netip.MustParseAddrPort("127.0.0.1:0")
	announce(a, "a")
	announce(b, filepath.Base(other.Path))
	announce(a, "a")
}
