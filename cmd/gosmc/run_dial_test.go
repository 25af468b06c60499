package main

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/run/client"
)

// TestLibraryDialSlowly has a program of package smc look late whether it is connected: a server under 'gosmc run' has accepted meanwhile, and taken its end of
// the pair, and that must not look like a connection that was refused.
func TestLibraryDialSlowly(t *testing.T) {
	l := newLibraryTest(t, smc.Config{})
	p := l.peer(t, "serve")
	port, err := strconv.Atoi(p.hear(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		raw, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		call := client.NewCall(strings.TrimPrefix(l.environ[len(l.environ)-1], "GOSMC_DIR="))
		call.Offer(t.Context(), raw, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)), netip.AddrPort{})
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil && err != unix.EINPROGRESS {
			t.Fatal(err)
		}
		p.say(t, "accept")
		if e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || e != 0 {
			t.Fatalf("connect fails with %v, %v", syscall.Errno(e), err)
		}
		tcp, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		end, reason := call.Connected(tcp.(*net.TCPConn))
		tcp.Close()
		if end == nil {
			t.Fatalf("the connection is TCP: %v", reason)
		}
		if _, err := end.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		end.Close()
		if got := p.say(t, "receive"); got != "hello" {
			t.Errorf("the server has received %q", got)
		}
	}
}
