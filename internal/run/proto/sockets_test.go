package proto

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestIsTCP has a socket that proves a connection be one of TCP, or of MPTCP, which has the same
// ports: not one of another protocol that has stream sockets.
func TestIsTCP(t *testing.T) {
	for protocol, want := range map[int]bool{unix.IPPROTO_TCP: true, unix.IPPROTO_MPTCP: true, unix.IPPROTO_SCTP: false, 0: false} {
		if got := hasTCPPorts(protocol); got != want {
			t.Errorf("hasTCPPorts(%d) = %v, want %v", protocol, got, want)
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			continue // the kernel has it not
		}
		if got := IsTCP(fd); got != (want || protocol == 0) {
			t.Errorf("a stream socket made with protocol %d: isTCP = %v", protocol, got)
		}
		unix.Close(fd)
	}
	inner, err := net.Listen("tcp", "127.0.0.1:0") // of MPTCP, if there is that
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	l := inner.(*net.TCPListener)
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	accepted, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	raw, err := accepted.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if !IsTCP(int(fd)) {
			t.Error("what a listener of package net has accepted is not TCP")
		}
	})
}
