package udp

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// sharedSocket binds a socket that others may have theirs beside.
func sharedSocket(t *testing.T, addr netip.AddrPort) (*os.File, netip.AddrPort) {
	t.Helper()
	family := unix.AF_INET6
	var sa unix.Sockaddr = &unix.SockaddrInet6{Addr: addr.Addr().As16(), Port: int(addr.Port())}
	if addr.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "shared")
	t.Cleanup(func() { f.Close() })
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, sa); err != nil {
		t.Fatal(err)
	}
	bound, err := boundTo(fd)
	if err != nil {
		t.Fatal(err)
	}
	return f, bound
}

// TestShared receives on a socket that was made elsewhere, and sends from a port of its own.
func TestShared(t *testing.T) {
	for family, addr := range families(t) {
		t.Run(family, func(t *testing.T) {
			first, port := sharedSocket(t, addr)
			second, again := sharedSocket(t, port)
			if port != again {
				t.Fatalf("bound to %v and %v", port, again)
			}
			a := listen(t, Config{Local: port, Socket: first})
			b := listen(t, Config{Local: port, Socket: second})
			if a.LocalAddr() != port || b.LocalAddr() != port {
				t.Errorf("local addresses %v, %v; want %v", a.LocalAddr(), b.LocalAddr(), port)
			}
			sources := []netip.AddrPort{a.SourceAddr(), b.SourceAddr()}
			if sources[0] == sources[1] || sources[0] == port || sources[1] == port || sources[0].Port() == 0 {
				t.Errorf("sent from %v", sources)
			}
			c := listen(t, Config{Local: addr})
			for i, s := range []*Socket{a, b} {
				tx := NewTxBatch(0)
				tx.To(c.LocalAddr(), 0)
				put(t, tx, i, 100)
				if err := s.Send(tx, nil); err != nil {
					t.Fatal(err)
				}
				if got := collect(t, c, NewRxBatch(1), 1); got[0].from != sources[i] {
					t.Errorf("received from %v, want %v", got[0].from, sources[i])
				}
			}
			b.Close() // all that comes is for a now
			tx := NewTxBatch(0)
			tx.To(port, 0)
			for i := range 10 {
				put(t, tx, i, 100)
			}
			if err := c.Send(tx, nil); err != nil {
				t.Fatal(err)
			}
			if got := collect(t, a, NewRxBatch(4), 10); len(got) != 10 || got[0].from != c.LocalAddr() {
				t.Errorf("received %d datagrams from %v", len(got), got[0].from)
			}
		})
	}
}

// TestSharedErrors takes over files that are no such sockets. None of them stays open.
func TestSharedErrors(t *testing.T) {
	addr := randomLoopback()
	before := descriptors(t)
	for name, open := range map[string]func(netip.AddrPort) *os.File{
		"another port": func(netip.AddrPort) *os.File { f, _ := sharedSocket(t, addr); return f },
		"a file":       func(netip.AddrPort) *os.File { f, _ := os.Open("/dev/null"); return f },
		"TCP": func(netip.AddrPort) *os.File {
			fd, _ := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			return os.NewFile(uintptr(fd), "TCP")
		},
		"closed": func(at netip.AddrPort) *os.File {
			fd, _ := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			f := os.NewFile(uintptr(fd), "closed")
			f.Close()
			return f
		},
	} {
		at := netip.AddrPortFrom(addr.Addr(), 4791)
		if s, err := Listen(Config{Local: at, Socket: open(at)}); err == nil {
			s.Close()
			t.Errorf("%s: no error", name)
		}
	}
	f, at := sharedSocket(t, addr)
	if _, err := Listen(Config{Local: at, Socket: f, Headers: HeadersAlways}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("with headers: %v", err)
	}
	f, _ = sharedSocket(t, addr)
	if _, err := Listen(Config{Socket: f}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("without an address: %v", err)
	}
	if after := descriptors(t); len(after) > len(before) {
		t.Errorf("descriptors %v, before %v", after, before)
	}
}
