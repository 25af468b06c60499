package run

import (
	"net"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDiagListeners has the kernel name a listener, of either family, as the program that listens does.
func TestDiagListeners(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"} {
		l := listenTCP(t, address)
		var cookie uint64
		raw, _ := l.SyscallConn()
		raw.Control(func(fd uintptr) { cookie, _ = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) })
		list, err := diagListeners(uint16(l.Addr().(*net.TCPAddr).Port))
		if err != nil || !slices.ContainsFunc(list, func(s socketState) bool { return s.cookie == cookie }) {
			t.Errorf("%s: diagListeners = %+v, %v; want one with cookie %d", l.Addr(), list, err, cookie)
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
