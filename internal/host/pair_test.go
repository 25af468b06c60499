package host

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/run/client"
	"github.com/gosmc/smc/internal/smctest"
)

// TestPairLeavesTCP has a connection accepted, and its pair claimed, before the client looks
// whether it is connected: connect(2) would return an error if the connection were reset by then.
func TestPairLeavesTCP(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	l := mustListen(t, newTestHost(t, Config{Dir: dir}), "127.0.0.1:0")
	call := client.NewCall(dir)
	nd := net.Dialer{ControlContext: func(ctx context.Context, _, address string, raw syscall.RawConn) error {
		call.Offer(ctx, raw, netip.MustParseAddrPort(address), netip.AddrPort{})
		return nil
	}}
	tcp, err := nd.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	s := mustAccept(t, l)
	defer s.Close()
	if s.Mode() != conn.ModeUnix {
		t.Fatalf("mode = %v (%v), want %v", s.Mode(), s.Reason(), conn.ModeUnix)
	}
	raw, err := tcp.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if v, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); v != 0 || err != nil {
			t.Errorf("the TCP connection before the client is back: SO_ERROR = %v, %v, want none", syscall.Errno(v), err)
		}
	})
	end, reason := call.Connected(tcp.(*net.TCPConn))
	if end == nil {
		t.Fatalf("no end of a pair: %v", reason)
	}
	tcp.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := tcp.Read(make([]byte, 1)); n != 0 || err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the TCP connection: Read = %d, %v, want an end of file or a reset", n, err)
	}
	end.Close()
}

// lingering returns a TCP socket. Its last close waits until the test ends: it has bytes to send
// that nobody takes.
func lingering(t *testing.T) *os.File {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() }) // with bytes unread, which resets it
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 1<<20); err == nil; {
		err = unix.Sendto(int(f.Fd()), b, unix.MSG_DONTWAIT, nil)
	}
	if err := unix.SetsockoptLinger(int(f.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1000}); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestPairDescriptors has the peer send sockets along with its bytes that take long to close. Read returns the bytes, and neither Read nor Close waits.
func TestPairDescriptors(t *testing.T) {
	const soon = 20 * time.Second
	dir := t.TempDir()
	l := mustListen(t, newTestHost(t, Config{Dir: dir}), "127.0.0.1:0")
	call := client.NewCall(dir)
	nd := net.Dialer{ControlContext: func(ctx context.Context, _, address string, raw syscall.RawConn) error {
		call.Offer(ctx, raw, netip.MustParseAddrPort(address), netip.AddrPort{})
		return nil
	}}
	tcp, err := nd.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	s := mustAccept(t, l)
	end, reason := call.Connected(tcp.(*net.TCPConn))
	if end == nil {
		t.Fatalf("no end of a pair: %v", reason)
	}
	defer end.Close()
	inTime := func(what string, f func()) {
		t.Helper()
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		select {
		case <-done:
		case <-time.After(soon):
			t.Fatalf("%s waits for a close", what)
		}
	}
	send := func(text string) {
		t.Helper()
		f := lingering(t)
		fds := slices.Repeat([]int{int(f.Fd())}, 3)
		if _, _, err := end.WriteMsgUnix([]byte(text), unix.UnixRights(fds...), nil); err != nil {
			t.Fatal(err)
		}
		f.Close() // not the last one
	}
	send("read")
	inTime("Read", func() {
		b := make([]byte, 10)
		if n, err := s.Read(b); err != nil || string(b[:n]) != "read" {
			t.Errorf("Read = %q, %v", b[:n], err)
		}
	})
	send("not read")
	inTime("Close", func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}
