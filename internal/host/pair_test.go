package host

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run"
	"github.com/gosmc/smc/internal/smctest"
)

// TestPairLeavesTCP has a connection accepted, and its pair claimed, before the client looks whether it is connected: a reset by
// then would be what connect(2) returns.
func TestPairLeavesTCP(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	l := mustListen(t, newTestHost(t, Config{Dir: dir}), "127.0.0.1:0")
	call := run.NewCall(dir)
	nd := net.Dialer{ControlContext: func(ctx context.Context, _, address string, raw syscall.RawConn) error {
		call.Offer(ctx, raw, netip.MustParseAddrPort(address), netip.AddrPort{})
		return nil
	}}
	conn, err := nd.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := mustAccept(t, l)
	defer s.Close()
	if s.Mode() != ModeUnix {
		t.Fatalf("mode = %v (%v), want %v", s.Mode(), s.Reason(), ModeUnix)
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if v, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); v != 0 || err != nil {
			t.Errorf("the TCP connection before the client is back: SO_ERROR = %v, %v, want none", syscall.Errno(v), err)
		}
	})
	end, reason := call.Connected(conn.(*net.TCPConn))
	if end == nil {
		t.Fatalf("no end of a pair: %v", reason)
	}
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the TCP connection: Read = %d, %v, want an end of file or a reset", n, err)
	}
	end.Close()
}
