package run

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// resetsOnLoopback returns a socket that gets each IPv4 packet of the loopback device which resets a TCP connection.
func resetsOnLoopback(t *testing.T) int {
	t.Helper()
	const all = unix.ETH_P_IP>>8 | unix.ETH_P_IP&0xff<<8 // in the order of the network
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs CAP_NET_RAW")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9}, // the protocol
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 20 + 13}, // the flags, as there are no options of IP
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 4, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: 1}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestLetterFreesPort has the server's socket be gone before the client's port is free. Otherwise a connection that gets the port in between
// is lost for a second, as seldom as that is: the server's kernel takes its SYN for one of the connection before.
func TestLetterFreesPort(t *testing.T) {
	s, start := stillSupervisor(t)
	stop := start()
	p := startLetters(t, s, "turn")
	stop()
	fd := resetsOnLoopback(t)
	if n := p.run(); n != 100 {
		t.Fatalf("%d were moved, want 100", n)
	}
	var byServer, byClient int
	for b := make([]byte, 100); ; {
		n, from, err := unix.Recvfrom(fd, b, 0)
		if err == unix.EAGAIN {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if a, ok := from.(*unix.SockaddrLinklayer); !ok || a.Pkttype == unix.PACKET_OUTGOING || n < 40 {
			continue // each packet is seen twice
		}
		switch {
		case binary.BigEndian.Uint16(b[20:]) == p.port:
			byServer++
		case binary.BigEndian.Uint16(b[22:]) == p.port:
			byClient++
		}
	}
	if byServer != 100 || byClient != 0 {
		t.Errorf("%d connections were reset by the server and %d by the client, want 100 and 0", byServer, byClient)
	}
}
