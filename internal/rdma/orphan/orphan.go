// Package orphan answers queue pairs of soft-RoCE whose peers are gone, so that they end. An RDMA
// device answers with a [List] those that send to it. A [Responder] answers those that send to an
// address at which no device is left.
package orphan

import (
	"errors"
	"net/netip"
	"time"

	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// A QP is an orphan: a queue pair of soft-RoCE whose peer is gone, a process that was killed, or ended
// without a word. With a retry count of 7, which Linux net/smc sets, soft-RoCE sends again without
// end. An adapter would give up, so it needs no answer, and IBTA 9.6.1 has packets for an unknown
// queue pair dropped in silence. The device that owns the address's port now answers an orphan with
// a NAK, remote operation error, which ends it. While nobody owns the port a [Responder] may.
//
// A NAK acknowledges all packets before its own (IBTA 9.7.5.2.1). The lowest packet that came three
// times is the oldest that the orphan has on its way: nothing before it is unacknowledged. So no
// byte counts as arrived that has not, even if the queue pair was one of this process, whose group
// goes on over another link.
//
// A packet does not say from which queue pair it comes. Soft-RoCE derives its source port from both
// numbers, see sourcePort, so a NAK goes to each of the some 64 numbers with that port. Those that
// are another queue pair's count as nobody's: their packets have other sequence numbers.
type QP struct {
	from netip.AddrPort
	qpn  wire.QPN // the number that it sends to
	psn  wire.PSN // the lowest that it has sent
	seen uint8    // times that this one has come
}

const (
	maxQPs = 64 // orphans that are watched at a time
	rounds = 3  // times that a packet comes before it is answered

	// minPause is between two answers: to find the numbers takes a millisecond or two.
	minPause = 20 * time.Millisecond

	// minRxeQPN is soft-RoCE's first number, and maxRxeQPN where they end: Linux rxe_param.h,
	// RXE_MIN_QP_INDEX and RXE_MAX_QP_INDEX. They are given in turn.
	minRxeQPN wire.QPN = 16
	maxRxeQPN wire.QPN = 1 << 20
	// minRxePort is the lowest port that soft-RoCE sends from: Linux ib_verbs.h,
	// IB_ROCE_UDP_ENCAP_VALID_PORT_MIN.
	minRxePort = 0xc000

	nakLen = 12 + 4 // BTH, AETH
)

// A List has the orphans that a device, or a [Responder], has noticed. The zero value is an empty
// list. A List serves one goroutine at a time.
type List struct {
	qps      []QP
	next     int           // to be replaced by a new one
	pause    time.Duration // between two answers, if longer than minPause
	answered time.Duration // when one was last; 0: never
	naks     *udp.TxBatch  // nil until there was something
}

// sourcePort returns the UDP port that the queue pair own of soft-RoCE sends from to the queue pair
// remote. Observed at Linux 6.12; the formula is the one of the flow label (Linux ib_verbs.h,
// rdma_calc_flow_label and rdma_flow_label_to_udp_sport).
func sourcePort(own, remote wire.QPN) uint16 {
	v := uint64(own) * uint64(remote)
	v ^= v >> 20
	v ^= v >> 40
	return minRxePort | uint16(v&0x3fff^v>>14&0x3f)
}

// Look takes a packet from an address to a queue pair that is gone, and returns the orphan that is
// to be refused now, nil for none. The orphan stays in the list, and is valid until the next Look.
// now is the time since any one moment, never 0. local is the address that the packet came to.
// intact checks the packet's ICRC; it is called where that matters.
func (l *List) Look(
	now time.Duration, from netip.AddrPort, local netip.Addr, p *roce.Packet, intact func() bool,
) *QP {
	// rule: TestOrphanForeign: from.Port() < minRxePort -> false
	if !p.Opcode.IsSend() && !p.Opcode.IsWrite() || from.Port() < minRxePort || from.Addr() == local {
		return nil
	}
	x := l.find(from, p.DestQPN)
	if x == nil {
		if intact() {
			l.add(QP{from: from, qpn: p.DestQPN, psn: p.PSN, seen: 1})
		}
		return nil
	}
	switch d := p.PSN.Sub(x.psn); {
	case d > 0: // rule: TestOrphanRules
		return nil
	case d < 0:
		// rule: TestOrphanDamaged
		if !intact() { // a sequence number that nobody has sent would never come again
			return nil
		}
		x.psn, x.seen = p.PSN, 0
	}
	if x.seen++; x.seen < rounds || l.answered != 0 && now-l.answered < max(l.pause, minPause) {
		x.seen = min(x.seen, rounds)
		return nil
	}
	if !intact() { // rule: TestOrphanRules
		return nil
	}
	x.seen, l.answered = 0, now
	return x
}

func (l *List) find(from netip.AddrPort, qpn wire.QPN) *QP {
	for i := range l.qps {
		if x := &l.qps[i]; x.qpn == qpn && x.from == from {
			return x
		}
	}
	return nil
}

func (l *List) add(x QP) {
	if len(l.qps) < maxQPs {
		l.qps = append(l.qps, x)
		return
	}
	l.qps[l.next] = x
	l.next = (l.next + 1) % maxQPs
}

// A sealer writes the ICRCs of packets that all go to one address.
type sealer struct{ flow roce.Flow }

// Seal writes the ICRC of a packet, now that its IPv4 identification is known.
func (s *sealer) Seal(_ int, id uint16, datagram []byte) { s.flow.Seal(id, datagram) }

// batchBytes is room for the NAKs of one answer.
const batchBytes = 4 << 10

// Refuse sends the NAK from sock to each number that x may have, at a port of x's host. A NAK that
// the socket has no room for is lost: x sends again.
func (l *List) Refuse(x *QP, sock *udp.Socket, port uint16) error {
	if l.naks == nil {
		l.naks = udp.NewTxBatch(batchBytes)
	}
	b := l.naks
	b.Reset()
	to := netip.AddrPortFrom(x.from.Addr(), port)
	b.To(to, 0)
	for n := minRxeQPN; n < maxRxeQPN; n++ {
		if sourcePort(n, x.qpn) != x.from.Port() {
			continue
		}
		room := b.Next(nakLen + roce.ICRCLen)
		if room == nil {
			break
		}
		p := roce.Packet{
			BTH:  roce.BTH{Opcode: roce.Acknowledge, PKey: roce.DefaultPKey, DestQPN: n, PSN: x.psn},
			AETH: roce.AETH{Syndrome: roce.NakRemoteOperation},
		}
		p.Append(room[:0])
		b.Commit(nakLen + roce.ICRCLen)
	}
	all, err := sock.TrySend(b, &sealer{roce.NewFlow(sock.SourceAddr(), to)})
	if err == nil && !all {
		err = errNoRoom
	}
	b.Reset()
	return err
}

// errNoRoom is that the socket had no room for all NAKs.
var errNoRoom = errors.New("rdma: no room to send")
