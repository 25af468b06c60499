package supervisor

import (
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/sockdiag"
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

// resetsOf waits until a connection to a server's port was reset, and returns how many either side has reset by then.
func resetsOf(t *testing.T, fd int, server uint16) (byServer, byClient int) {
	t.Helper()
	wait := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for b := make([]byte, 100); ; {
		n, from, err := unix.Recvfrom(fd, b, 0)
		switch {
		case err == unix.EAGAIN && byServer+byClient == 0:
			if n, err := unix.Poll(wait, 30_000); n == 0 || err != nil && err != unix.EINTR {
				t.Fatalf("nobody has reset a connection: %d, %v", n, err)
			}
			continue
		case err == unix.EAGAIN:
			return byServer, byClient
		case err != nil:
			t.Fatal(err)
		}
		if a, ok := from.(*unix.SockaddrLinklayer); !ok || a.Pkttype == unix.PACKET_OUTGOING || n < 40 {
			continue // each packet is seen twice
		}
		switch server {
		case binary.BigEndian.Uint16(b[20:]):
			byServer++
		case binary.BigEndian.Uint16(b[22:]):
			byClient++
		}
	}
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
	if byServer, byClient := resetsOf(t, fd, p.port); byServer != 100 || byClient != 0 {
		t.Errorf("%d connections were reset by the server and %d by the client, want 100 and 0", byServer, byClient)
	}
}

// TestClaimFreesPort has the same of connections that a server claims from its supervisor, from another user's, and from its own desk: before the
// client has come back from connect, which must not fail of it, and afterwards.
func TestClaimFreesPort(t *testing.T) {
	s, d := newTestSupervisor(t), newTestDesk(t)
	offered := func(t *testing.T, server string) *connection {
		if server != "desk" {
			return s.offer(t)
		}
		l, _ := announced(t, d)
		return playersOf(d).offerTo(t, l)
	}
	from := func(path string) func(*testing.T, *connection) {
		return func(t *testing.T, c *connection) {
			st, end := s.dial(t, path).claim(c)
			if st != proto.StatusOK {
				t.Fatalf("Claim: status %d", st)
			}
			unix.Close(end)
		}
	}
	for server, claim := range map[string]func(*testing.T, *connection){
		"supervisor": from(s.Path),
		"outside":    from("@gosmc-run/" + filepath.Base(s.Path)),
		"desk": func(t *testing.T, c *connection) {
			end, _ := d.Claim(c.accept())
			if end == nil {
				t.Fatal("Claim = nil")
			}
			end.Close()
		},
	} {
		for client, comesBack := range map[string]func(c *connection){
			"before":    nil,
			"connected": (*connection).connect,
			"cancels":   func(c *connection) { c.client.send(testMessage(proto.Message{Kind: proto.KindCancel})) },
			"dies":      func(c *connection) { unix.Shutdown(c.client.fd, unix.SHUT_RDWR) },
		} {
			t.Run(server+", "+client, func(t *testing.T) {
				c := offered(t, server)
				if err := c.dial(); err != nil {
					t.Fatal(err)
				}
				fd := resetsOnLoopback(t)
				if comesBack == nil {
					c.connect()
				}
				claim(t, c)
				c.accepted.Close()
				if comesBack != nil {
					if info, err := unix.GetsockoptTCPInfo(c.fd, unix.IPPROTO_TCP, unix.TCP_INFO); err != nil || info.State != sockdiag.TCPEstablished {
						t.Errorf("the client's connection is in state %d, %v; want it established", info.State, err)
					}
					comesBack(c)
				}
				// It resets it again where the end of the client's is on its way.
				if byServer, byClient := resetsOf(t, fd, c.server.Port()); byServer == 0 || byClient != 0 {
					t.Errorf("reset %d times by the server and %d times by the client, want 1 or 2 and 0", byServer, byClient)
				}
			})
		}
	}
}
