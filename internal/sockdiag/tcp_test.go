package sockdiag

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestListeners has the kernel name a listener, of either family, as the program that listens does.
func TestListeners(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"} {
		l := listenTCP(t, address)
		var cookie uint64
		raw, _ := l.SyscallConn()
		raw.Control(func(fd uintptr) { cookie, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
		list, err := Listeners(uint16(l.Addr().(*net.TCPAddr).Port))
		if err != nil || !slices.ContainsFunc(list, func(s Socket) bool { return s.Cookie == cookie }) {
			t.Errorf("%s: Listeners = %+v, %v; want one with cookie %d", l.Addr(), list, err, cookie)
		}
	}
}

// listenTCP returns a listener that is one of TCP in the kernel, too, and not of multipath TCP. It is closed when the test ends.
func listenTCP(t *testing.T, address string) *net.TCPListener {
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

// TestProcConnection has /proc/net give the same facts about connections as netlink, for
// supervisors that may have no such sockets.
func TestProcConnection(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l := listenTCP(t, address)
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		local, peer := l.Addr().(*net.TCPAddr).AddrPort(), c.LocalAddr().(*net.TCPAddr).AddrPort()
		state, err := procConnection("/proc/net", local, peer)
		if err != nil || state.Inode != 0 {
			t.Errorf("%s, not accepted yet: %+v, %v; want inode 0", address, state, err)
		}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		want, err := Connection(local, peer)
		if err != nil {
			t.Fatal(err)
		}
		state, err = procConnection("/proc/net", local, peer)
		if err != nil || state.Inode != want.Inode || state.Inode == 0 {
			t.Errorf("%s, accepted: %+v, %v; want the inode %d", address, state, err, want.Inode)
		}
		accepted.Close()
		if _, err := procConnection("/proc/net", local, netip.AddrPortFrom(peer.Addr(), 1)); err != ErrNoSocket {
			t.Errorf("%s, no such connection: %v, want %v", address, err, ErrNoSocket)
		}
	}
	for _, text := range []string{"", ":", "0100007F", "0100007F:", "0100007:1F90", "0100007F:1F900", "xx00007F:1F90"} {
		if got := procAddress(text); got.IsValid() {
			t.Errorf("procAddress(%q) = %v", text, got)
		}
	}
	for _, err := range []error{unix.EAFNOSUPPORT, unix.EPERM} {
		if !noNetlink(err) {
			t.Errorf("%v is no reason to look at /proc/net", err)
		}
	}
}
