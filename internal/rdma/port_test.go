package rdma

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire/roce"
)

// TestSourcePorts has a peer send from any port, 0 among them, as the first ones or after others.
// All are taken, and damaged ones are not.
func TestSourcePorts(t *testing.T) {
	for _, ports := range [][]uint16{{0}, {0, 0, roce.Port, 0}, {1, 0}, {roce.Port, 65535, 0, 49152}} {
		s, peer := victim(t)
		r := &receiver{dev: s.dev, tx: newSender()}
		take := func(m *udp.Message) {
			defer r.release() // also after a panic, or the test hangs on the queue pair
			r.datagram(m, m.Data, 0)
		}
		for i, port := range ports {
			from := netip.AddrPortFrom(peer.sock.LocalAddr().Addr(), port)
			flow := roce.NewFlow(from, s.dev.addr)
			p := s.write([]byte{byte(i + 1)})
			p.PSN = testRecvPSN.Add(i)
			b := append(p.Append(nil), 0, 0, 0, 0)
			flow.Seal(0, b)
			m := &udp.Message{Data: b, SegmentSize: len(b), From: from}
			b[len(b)-3] ^= 0x40
			take(m)
			b[len(b)-3] ^= 0x40
			take(m)
			if got := s.mr.Bytes()[512]; got != byte(i+1) {
				t.Errorf("ports %v: packet %d, from port %d, is not carried out: %+v", ports, i, port, s.dev.Stats())
			}
		}
		if got := s.dev.Stats().BadICRC; got != uint64(len(ports)) {
			t.Errorf("ports %v: %d packets with a wrong ICRC are counted, want %d", ports, got, len(ports))
		}
	}
}

// TestSourcePortZero sends a real packet from port 0, which no UDP socket can, first thing.
func TestSourcePortZero(t *testing.T) {
	s, peer := victim(t)
	src, dst := peer.sock.LocalAddr().Addr(), s.dev.addr
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		t.Skipf("needs CAP_NET_RAW: %v", err)
	}
	defer unix.Close(fd)
	p := s.write([]byte{1, 2, 3})
	b := append(p.Append(nil), 0, 0, 0, 0)
	flow := roce.NewFlow(netip.AddrPortFrom(src, 0), dst)
	flow.Seal(1, b)
	ip := make([]byte, 28, 28+len(b))
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[4:], 1) // the kernel would replace a 0
	from, to := src.As4(), dst.Addr().As4()
	copy(ip[12:], from[:])
	copy(ip[16:], to[:])
	binary.BigEndian.PutUint16(ip[22:], dst.Port()) // the source port and the checksum are 0
	binary.BigEndian.PutUint16(ip[24:], uint16(8+len(b)))
	if err := unix.Sendto(fd, append(ip, b...), 0, &unix.SockaddrInet4{Addr: to}); err != nil {
		t.Fatal(err)
	}
	if got := peer.receive(); got.AETH.Syndrome != roce.AckUnlimited || got.PSN != testRecvPSN {
		t.Errorf("the answer is %v", &got)
	}
	if got := s.mr.Bytes()[511:516]; string(got) != "\x00\x01\x02\x03\x00" {
		t.Errorf("memory %x", got)
	}
}
