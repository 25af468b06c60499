package rdma

import (
	"crypto/subtle"
	"encoding/binary"
	"net/netip"
	"os"

	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// A Share is a part of a UDP port that several processes share: a socket that gets the packets for
// a range of queue pair numbers.
//
// The kernel joins packets of one flow to super-packets, whatever their queue pairs, and gives them
// as a whole to the process that the first of them is for. Processes that share a port send from
// ports of their own. So their flows are not joined, and none of them joins packets for different
// processes itself. A packet that comes merged all the same, since a peer sends to several of them
// from one port, is handed on: see [handedOn].
type Share struct {
	// bound to the device's address and port; [Open] takes it over, also when there is an error
	Socket *os.File
	First  wire.QPN // the first number of the range
	Count  int      // length of the range, 64 at least
	Key    [16]byte // known to the processes that share the port, and to nobody else
}

const (
	minShare = 64 // numbers, of which half are used
	// shareBits is the most lower bits in which the queue pair numbers of one process differ.
	shareBits = 16
)

// take checks a share and makes it the device's own: nil stays nil. After an error the socket is closed.
func (s *Share) take() (*Share, error) {
	if s == nil {
		return nil, nil
	}
	switch own := *s; {
	case own.Socket == nil:
		return nil, argError("a share without a socket")
	case own.Count < minShare || own.First < firstQPN || uint64(own.First)+uint64(own.Count) > uint64(wire.MaxQPN):
		own.Socket.Close()
		return nil, argError("a share of %d queue pairs from %v", own.Count, own.First)
	default:
		return &own, nil
	}
}

// socket returns the socket, which its receiver takes over.
func (s *Share) socket() *os.File {
	if s == nil {
		return nil
	}
	f := s.Socket
	s.Socket = nil
	return f
}

// release closes the socket if nobody has taken it over.
func (s *Share) release() {
	if s != nil && s.Socket != nil {
		s.Socket.Close()
		s.Socket = nil
	}
}

// numbers returns the range that queue pairs get their numbers from. MaxQPN, which is multicast, is
// never in it.
func (s *Share) numbers() (first wire.QPN, count int) {
	if s == nil {
		return firstOwnQPN, int(wire.MaxQPN - firstOwnQPN) // rule: TestOwnNumbers: firstOwnQPN, int(wire.MaxQPN - firstOwnQPN) -> firstQPN, int(wire.MaxQPN - firstQPN)
	}
	return s.First, s.Count
}

// ofOthers reports whether a number may belong to a queue pair of another process that shares the
// port.
func (s *Share) ofOthers(n wire.QPN) bool {
	return s != nil && n >= firstQPN && (n < s.First || n-s.First >= wire.QPN(s.Count))
}

// A packet that is handed on goes over the loopback interface to the address and port that it came
// to, where it is steered as any packet, by the number at offset 5.
//
//	offset  size  field
//	     0     1  opcode          0xfd, of those that manufacturers may use
//	     1     1  version         1
//	     2     2  P_Key           as in the packet
//	     4     1  reserved
//	     5     3  destination QPN as in the packet
//	     8    16  key             of the share
//	    24    16  source address  IPv4 as ::ffff:a.b.c.d
//	    40     2  source port
//	    42     2  identification  of the IPv4 header, as far as it is known
//	    44        the packet
//
// Only the processes that share a port know the key, and only packets from the port's own address
// are looked at. A packet is handed on once.
const (
	handedOn         = 0xfd
	handedOnVersion  = 1
	handedOnLen      = 44
	relayBatchBytes  = 128 << 10
	maxHandedOnBytes = 9 << 10 // a packet with the largest path MTU has less
)

// isHandedOn reports whether b, which is no packet, may hold one that was handed on.
func isHandedOn(b []byte) bool {
	return len(b) >= handedOnLen+roce.MinPacketLen && b[0] == handedOn && b[1] == handedOnVersion
}

// A relay holds the receiving goroutine's state for handing packets on.
type relay struct {
	batch  *udp.TxBatch // nil until there was something
	last   byte         // the slot of its last packet
	taking bool         // a packet that was handed on is being looked at
	inner  udp.Message  // that packet
}

// handOn puts datagram b of message m into the batch for others. It is sent when the messages at
// hand are done.
func (r *receiver) handOn(m *udp.Message, b []byte, id uint16) {
	s := &r.dev.stats
	if len(b) > maxHandedOnBytes || m.Truncated {
		s.handOnErrors.Add(1)
		return
	}
	y := &r.relay
	if y.batch == nil {
		y.batch = udp.NewTxBatch(relayBatchBytes)
	}
	y.batch.To(r.dev.addr, 0)
	room := y.batch.Next(handedOnLen + len(b))
	if room == nil {
		r.handOnRest()
		y.batch.To(r.dev.addr, 0)
		if room = y.batch.Next(handedOnLen + len(b)); room == nil {
			s.handOnErrors.Add(1)
			return
		}
	}
	if b[5] != y.last {
		y.batch.Break() // for somebody else
		y.last = b[5]
	}
	copy(room, b[:8])
	room[0], room[1], room[4] = handedOn, handedOnVersion, 0
	copy(room[8:], r.dev.share.Key[:])
	from := m.From.Addr().As16()
	copy(room[24:], from[:])
	binary.BigEndian.PutUint16(room[40:], m.From.Port())
	binary.BigEndian.PutUint16(room[42:], id)
	copy(room[handedOnLen:], b)
	y.batch.Commit(handedOnLen + len(b))
	s.handedOn.Add(1)
}

// handOnRest sends the packets in the batch. A packet that the socket has no room for is lost, as
// on any network.
func (r *receiver) handOnRest() {
	b := r.relay.batch
	if b == nil || b.Len() == 0 {
		return
	}
	if all, err := r.dev.sock.TrySend(b, nil); !all || err != nil {
		r.dev.stats.handOnErrors.Add(1)
	}
	b.Reset()
}

// takeOver takes a packet that another one has handed on: datagram b of message m.
func (r *receiver) takeOver(m *udp.Message, b []byte) {
	s := &r.dev.stats
	if r.relay.taking || m.From.Addr() != r.dev.addr.Addr() ||
		subtle.ConstantTimeCompare(b[8:24], r.dev.share.Key[:]) != 1 {
		s.handOnErrors.Add(1)
		return
	}
	from := netip.AddrFrom16([16]byte(b[24:40])).Unmap()
	if from.Is6() && from.IsLinkLocalUnicast() {
		from = from.WithZone(r.dev.addr.Addr().Zone())
	}
	s.handedOver.Add(1)
	r.relay.inner = udp.Message{From: netip.AddrPortFrom(from, binary.BigEndian.Uint16(b[40:]))}
	r.relay.taking = true
	r.datagram(&r.relay.inner, b[handedOnLen:], binary.BigEndian.Uint16(b[42:]))
	r.relay.taking = false
}
