package rdma

import (
	"errors"
	"net/netip"
	"time"

	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// An orphan is a queue pair of soft-RoCE whose peer is gone: a process that was killed, or ended
// without a word. With a retry count of 7, which Linux net/smc sets, soft-RoCE sends again without
// end. An adapter would give up, so it needs no answer, and IBTA 9.6.1 has packets for an unknown
// queue pair dropped in silence. The device that owns the address's port now answers an orphan with
// a NAK, remote operation error, which ends it. While nobody owns the port an [OrphanResponder] may.
//
// A NAK acknowledges all packets before its own (IBTA 9.7.5.2.1). The lowest packet that came three
// times is the oldest that the orphan has on its way: nothing before it is unacknowledged. So no
// byte counts as arrived that has not, even if the queue pair was one of this process, whose group
// goes on over another link.
//
// A packet does not say from which queue pair it comes. Soft-RoCE derives its source port from both
// numbers, see sourcePort, so a NAK goes to each of the some 64 numbers with that port. Those that
// are another queue pair's count as nobody's: their packets have other sequence numbers.
type orphan struct {
	from netip.AddrPort
	qpn  wire.QPN // the number that it sends to
	psn  wire.PSN // the lowest that it has sent
	seen uint8    // times that this one has come
}

const (
	maxOrphans   = 64 // that are watched at a time
	orphanRounds = 3  // times that a packet comes before it is answered

	// orphanPause is between two answers: to find the numbers takes a millisecond or two.
	orphanPause = 20 * time.Millisecond

	// maxRxeQPN is where soft-RoCE's numbers end: Linux rxe_param.h, RXE_MAX_QP_INDEX. They are
	// given in turn from 16.
	maxRxeQPN wire.QPN = 1 << 20
	// minRxePort is the lowest port that soft-RoCE sends from: Linux ib_verbs.h,
	// IB_ROCE_UDP_ENCAP_VALID_PORT_MIN.
	minRxePort = 0xc000

	nakLen = 12 + 4 // BTH, AETH
)

// orphans are the orphans that a device, or an [OrphanResponder], has noticed. They belong to the
// goroutine that has the turn to receive.
type orphans struct {
	list     []orphan
	next     int           // to be replaced by a new one
	pause    time.Duration // between two answers, if longer than orphanPause
	answered time.Duration // when one was last; 0: never
	tx       *sender       // nil until there was something
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

// orphan takes the packet at hand, datagram b of message m, which is for no queue pair.
func (r *receiver) orphan(m *udp.Message, b []byte, id uint16) {
	d, o := r.dev, &r.orphans
	x := o.look(r.now, m.From, d.addr.Addr(), &r.packet, func() bool { return r.intact(m, b, id) })
	if x == nil {
		return
	}
	if err := o.refuse(x, d.sock, d.addr.Port()); err != nil {
		d.stats.sendErrors.Add(1)
	}
}

// intact reports whether the ICRC of a packet that is for no queue pair is right, and counts it if not.
func (r *receiver) intact(m *udp.Message, b []byte, id uint16) bool {
	flow := roce.NewFlow(m.From, r.dev.addr)
	if _, v := flow.Verify(id, b); v != roce.Exact && v != roce.Solved {
		r.dev.stats.badICRC.Add(1)
		return false
	}
	return true
}

// look takes a packet from an address to a queue pair that is gone, and returns the orphan that is
// to be refused now, nil for none. local is the address that the packet came to; intact checks its
// ICRC, where that matters.
func (o *orphans) look(
	now time.Duration, from netip.AddrPort, local netip.Addr, p *roce.Packet, intact func() bool,
) *orphan {
	// rule: TestOrphanForeign: from.Port() < minRxePort -> false
	if !p.Opcode.IsSend() && !p.Opcode.IsWrite() || from.Port() < minRxePort || from.Addr() == local {
		return nil
	}
	x := o.find(from, p.DestQPN)
	if x == nil {
		if intact() {
			o.add(orphan{from: from, qpn: p.DestQPN, psn: p.PSN, seen: 1})
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
	if x.seen++; x.seen < orphanRounds || o.answered != 0 && now-o.answered < max(o.pause, orphanPause) {
		x.seen = min(x.seen, orphanRounds)
		return nil
	}
	if !intact() { // rule: TestOrphanRules
		return nil
	}
	x.seen, o.answered = 0, now
	return x
}

func (o *orphans) find(from netip.AddrPort, qpn wire.QPN) *orphan {
	for i := range o.list {
		if x := &o.list[i]; x.qpn == qpn && x.from == from {
			return x
		}
	}
	return nil
}

func (o *orphans) add(x orphan) {
	if len(o.list) < maxOrphans {
		o.list = append(o.list, x)
		return
	}
	o.list[o.next] = x
	o.next = (o.next + 1) % maxOrphans
}

// refuse sends the NAK from sock to each number that x may have, at a port of x's host. A NAK that
// the socket has no room for is lost: x sends again.
func (o *orphans) refuse(x *orphan, sock *udp.Socket, port uint16) error {
	if o.tx == nil {
		o.tx = &sender{batch: udp.NewTxBatch(4 << 10)}
	}
	t := o.tx
	t.begin()
	to := netip.AddrPortFrom(x.from.Addr(), port)
	t.to(&path{remote: to, flow: roce.NewFlow(sock.SourceAddr(), to)})
	for n := firstQPN; n < maxRxeQPN; n++ {
		if sourcePort(n, x.qpn) != x.from.Port() {
			continue
		}
		room := t.batch.Next(nakLen + roce.ICRCLen)
		if room == nil {
			break
		}
		p := roce.Packet{
			BTH:  roce.BTH{Opcode: roce.Acknowledge, PKey: roce.DefaultPKey, DestQPN: n, PSN: x.psn},
			AETH: roce.AETH{Syndrome: roce.NakRemoteOperation},
		}
		p.Append(room[:0])
		t.batch.Commit(nakLen + roce.ICRCLen)
	}
	all, err := sock.TrySend(t.batch, t)
	if err == nil && !all {
		err = errNoRoom
	}
	t.begin()
	return err
}

// errNoRoom is that the socket had no room for all NAKs.
var errNoRoom = errors.New("rdma: no room to send")
