package dissect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

const udpHeaderLen = 8

// udp takes a UDP datagram.
func (t *Tracker) udp(l *layers) {
	b := l.body
	if binary.BigEndian.Uint16(b[2:]) != roce.Port {
		return
	}
	t.count.RoCEPackets++
	src := netip.AddrPortFrom(l.src, binary.BigEndian.Uint16(b))
	dst := netip.AddrPortFrom(l.dst, roce.Port)
	length := int(binary.BigEndian.Uint16(b[4:]))
	if length == 0 && !l.v4 {
		length = l.bodyLen // a jumbogram
	}
	if length < udpHeaderLen || length > l.bodyLen {
		e := t.begin(RoCE, nameMalformed, src, dst)
		e.Bytes = b[udpHeaderLen:]
		e.problem(Malformed, "the UDP length does not fit the IP packet", "")
		t.send(e)
		return
	}
	payload := b[udpHeaderLen:min(length, len(b))]
	t.roce(l, payload, length-udpHeaderLen, src, dst)
}

const nameMalformed = "malformed packet"

// roce takes the payload of a datagram to port 4791, of which n bytes were on the wire.
func (t *Tracker) roce(l *layers, b []byte, n int, src, dst netip.AddrPort) {
	p := &t.rocePkt
	tr := &t.transport
	*tr = Transport{Packet: p}
	truncated := len(b) < n
	var err error
	if truncated {
		t.count.Truncated++
		err = parseTruncated(p, b, n)
	} else {
		err = p.Parse(b)
	}
	if err != nil {
		t.badPacket(b, truncated, err, src, dst)
		return
	}
	tr.PayloadLen = n - p.Opcode.HeaderLen() - roce.ICRCLen - int(b[1]>>4&3)

	f := t.flow(flowKey{l.src.As16(), l.dst.As16(), p.DestQPN})
	if f.src != src || f.dst != dst {
		f.src, f.dst = src, dst
		f.icrc = roce.NewFlow(src, dst)
	}
	if !truncated && !t.opts.NoICRC && l.plain {
		tr.ICRC = f.verify(l, b)
	}
	name := opcodeNames[p.Opcode]
	if p.Opcode == roce.Acknowledge {
		name = ackName(p.AETH.Syndrome)
	}
	e := t.begin(RoCE, name, src, dst)
	e.RoCE, e.Message, e.Bytes = tr, p, b
	t.setLink(e, f)
	if f.link != nil {
		f.link.Packets++
	}
	if !l.plain {
		e.Text = "in an IP packet with options, which is none of RoCEv2: IBTA A17.3.1.1"
	}
	switch tr.ICRC {
	case ICRCGood:
		f.goodICRC |= 1 << t.seen.lastAt
	case ICRCBad:
		e.problem(BadICRC, "the ICRC is wrong", "IBTA A17.3.3")
		if f.goodICRC&(1<<t.seen.lastAt) != 0 || t.seen.differs {
			// The host drops it. Where no packet of the place has a good one, adapters add them later, behind
			// the capture.
			t.send(e)
			return
		}
	}
	if truncated && p.Opcode.IsSend() {
		e.problem(Truncated, "the capture does not have the whole packet", "")
	}
	where := placeRepeat
	switch {
	case p.Opcode.IsRequest():
		where = t.request(e, f)
	case p.Opcode.IsResponse():
		t.response(e, f)
	}
	t.send(e)
	if len(f.suspicions) > 0 && p.Opcode.IsRequest() {
		t.settle(f, where)
	}
}

// setLink notes link and direction of the flow.
func (t *Tracker) setLink(e *Event, f *flow) {
	e.Link, e.Dir = f.link, f.dir
}

// parseTruncated decodes the headers of a packet of n bytes of which only b was captured. Payload
// is the captured part of the payload.
func parseTruncated(p *roce.Packet, b []byte, n int) error {
	if len(b) < roce.BTHLen {
		return p.Parse(b)
	}
	headerLen := roce.Opcode(b[0]).HeaderLen()
	if headerLen == 0 || len(b) < headerLen || n < headerLen+roce.ICRCLen+int(b[1]>>4&3) {
		return &wire.DecodeError{Message: "roce.Packet", Field: "message", Offset: len(b),
			Err: wire.ErrTruncated}
	}
	var whole [roce.MaxHeaderLen + roce.ICRCLen]byte
	copy(whole[:], b[:headerLen])
	whole[1] &^= 0x30 // no pad
	if err := p.Parse(whole[:headerLen+roce.ICRCLen]); err != nil {
		return err
	}
	payloadLen := n - headerLen - roce.ICRCLen - int(b[1]>>4&3)
	p.Payload = b[headerLen:min(len(b), headerLen+payloadLen)]
	return nil
}

// badPacket reports a packet that does not parse.
func (t *Tracker) badPacket(b []byte, truncated bool, err error, src, dst netip.AddrPort) {
	e := t.begin(RoCE, nameMalformed, src, dst)
	e.Bytes = b
	switch {
	case truncated:
		e.Name = "truncated packet"
		e.problem(Truncated, "the capture ends within the headers", "")
	case errors.Is(err, wire.ErrType):
		e.Name = "other packet"
		e.Text = roce.Opcode(b[0]).String() + ", not of a reliable connection"
	case len(b) == 1 && b[0] == 0:
		// of this module: package host asks so whether the peer's process has ended
		e.Name = "knock"
		e.Text = "asks the kernel whether anybody has the port"
	case len(b) == 8 && binary.BigEndian.Uint32(b) == 0 && b[4] == 0: // the same, of a queue pair
		e.Name = "knock"
		e.Text = fmt.Sprintf("asks the kernel whether anybody has queue pair 0x%x",
			binary.BigEndian.Uint32(b[4:]))
	default:
		e.problem(Malformed, err.Error(), "IBTA 9.2")
	}
	t.send(e)
}

// verify checks the ICRC of a whole packet. [roce.Flow] is the fast way; where it says no, as for a
// packet without DF, the other counts.
func (f *flow) verify(l *layers, b []byte) ICRC {
	if _, v := f.icrc.Verify(l.id, b); v == roce.Exact {
		return ICRCGood
	}
	if computed, carried, err := roce.PacketICRC(l.ip); err == nil && computed == carried {
		return ICRCGood
	}
	return ICRCBad
}

// opcodeNames has the names of events of family RoCE.
var opcodeNames = func() (names [256]string) {
	for i := range names {
		names[i] = roce.Opcode(i).String()
	}
	for op, name := range map[roce.Opcode]string{
		roce.SendFirst: "SEND FIRST", roce.SendMiddle: "SEND MIDDLE", roce.SendLast: "SEND LAST",
		roce.SendLastImm: "SEND LAST with immediate", roce.SendOnly: "SEND",
		roce.SendOnlyImm: "SEND with immediate", roce.SendLastInvalidate: "SEND LAST with invalidate",
		roce.SendOnlyInvalidate: "SEND with invalidate",
		roce.WriteFirst:         "RDMA WRITE FIRST", roce.WriteMiddle: "RDMA WRITE MIDDLE",
		roce.WriteLast: "RDMA WRITE LAST", roce.WriteLastImm: "RDMA WRITE LAST with immediate",
		roce.WriteOnly: "RDMA WRITE", roce.WriteOnlyImm: "RDMA WRITE with immediate",
		roce.ReadRequest: "RDMA READ", roce.ReadResponseFirst: "RDMA READ RESPONSE FIRST",
		roce.ReadResponseMiddle: "RDMA READ RESPONSE MIDDLE", roce.ReadResponseLast: "RDMA READ RESPONSE LAST",
		roce.ReadResponseOnly: "RDMA READ RESPONSE", roce.Acknowledge: "ACK",
		roce.AtomicAcknowledge: "ATOMIC ACK", roce.CompareSwap: "COMPARE SWAP", roce.FetchAdd: "FETCH ADD",
		roce.CNP: "CNP",
	} {
		names[op] = name
	}
	return names
}()

// ackName returns the name of an acknowledgement.
func ackName(s roce.Syndrome) string {
	switch s.Kind() {
	case roce.KindAck:
		return "ACK"
	case roce.KindRNRNak:
		return "RNR NAK"
	case roce.KindNak:
		switch s & 0x7f {
		case roce.NakSequence:
			return "NAK PSN sequence error"
		case roce.NakInvalidRequest:
			return "NAK invalid request"
		case roce.NakRemoteAccess:
			return "NAK remote access error"
		case roce.NakRemoteOperation:
			return "NAK remote operational error"
		}
	}
	return "NAK reserved"
}

// A place tells whether the number of a request is new, repeated or late.
type place uint8

const (
	placeNew    place = iota // not seen before; Transport.Gap says how many are missing before it
	placeRepeat              // seen before
	placeLate                // before others that were seen, but not seen itself
)

// number takes the number of a request, and notes gaps and repetitions.
func (f *flow) number(tr *Transport, psn wire.PSN) place {
	if !f.started || f.resync {
		if !f.started {
			f.epoch++ // the packets before it are not known
			clear(f.seen[:])
		}
		f.started, f.resync = true, false
		f.next = psn
	}
	ahead := psn.Sub(f.next)
	switch {
	case ahead == 0:
		f.note(psn)
		f.next = psn.Add(1)
		return placeNew
	case ahead > 0 && ahead <= MaxGap:
		tr.Gap = ahead
		f.epoch++
		if ahead >= seenPSNs {
			clear(f.seen[:])
		} else {
			for q := f.next; q != psn; q = q.Add(1) {
				f.seen[q%seenPSNs/64] &^= 1 << (q % 64)
			}
		}
		f.note(psn)
		f.next = psn.Add(1)
		return placeNew
	case ahead < 0 && ahead >= -maxBehind:
		if ahead >= -seenPSNs && f.seen[psn%seenPSNs/64]&(1<<(psn%64)) == 0 {
			f.note(psn)
			return placeLate
		}
		tr.Retransmission = true
		return placeRepeat
	}
	tr.Gap = -1
	f.epoch++
	clear(f.seen[:])
	f.send.active, f.write.known = false, false
	f.note(psn)
	f.next = psn.Add(1)
	return placeNew
}

func (f *flow) note(psn wire.PSN) { f.seen[psn%seenPSNs/64] |= 1 << (psn % 64) }

// request takes a packet that goes to the responder: SEND, WRITE, READ or an atomic operation.
func (t *Tracker) request(e *Event, f *flow) place {
	p, tr := e.RoCE.Packet, e.RoCE
	where := f.number(tr, p.PSN)
	switch {
	case tr.Retransmission:
		t.count.Retransmissions++
	case tr.Gap > 0:
		t.count.Gaps += uint64(tr.Gap)
	}
	if l := f.link; l != nil {
		if tr.Retransmission {
			l.Retransmissions++
		}
		if tr.Gap > 0 {
			l.Gaps += uint64(tr.Gap)
		}
		if where == placeNew && (l.State == LinkDeleted || l.State == LinkRejected) {
			e.problem(Violation, "a message on a link that was deleted", "RFC 7609 p.46")
		}
	}
	t.awaitAck(e, f, where)
	switch {
	case p.Opcode.IsSend():
		t.sendPacket(e, f, where)
	case p.Opcode.IsWrite():
		t.writePacket(e, f, where)
	case p.Opcode == roce.ReadRequest:
		f.resync = true
	}
	return where
}

// awaitAck notes that a request asks for an acknowledgement, and reports one that gets none for long.
func (t *Tracker) awaitAck(e *Event, f *flow, where place) {
	p := e.RoCE.Packet
	now := t.now.UnixNano()
	if where == placeNew && p.AckReq {
		if !f.awaits {
			f.awaits, f.awaitSince, f.stalled = true, now, false
		}
		f.awaitPSN = p.PSN
		return
	}
	if where == placeRepeat && f.awaits && f.acknowledged && !f.stalled &&
		now-f.awaitSince >= int64(silence) {
		f.stalled = true
		e.problem(Timeout, "sent again and again without an acknowledgement for "+silence.String(), "")
	}
}

// response takes a packet that answers requests of the other direction.
func (t *Tracker) response(e *Event, f *flow) {
	p := e.RoCE.Packet
	if p.Opcode.HasAETH() {
		switch s := p.AETH.Syndrome; s.Kind() {
		case roce.KindAck:
		case roce.KindRNRNak:
			e.problem(Nak, "the receiver has no buffer for a message: "+s.String(), "IBTA 9.7.5")
		default:
			e.problem(Nak, s.String(), "IBTA 9.7.5")
		}
		if p.AETH.Syndrome.Kind() != roce.KindAck && f.link != nil {
			f.link.Naks++
		}
	}
	r := f.reverse()
	if r == nil {
		return
	}
	r.acknowledged = true
	psn := p.PSN
	if p.AETH.Syndrome.Kind() != roce.KindAck && p.Opcode == roce.Acknowledge {
		psn = psn.Add(-1) // a NAK has the number that is missing
	}
	if r.awaits {
		r.awaitSince = t.now.UnixNano()
		if psn.Sub(r.awaitPSN) >= 0 {
			r.awaits = false
		}
	}
	// An acknowledgement of packets that were not seen tells of a gap.
	if n := psn.Sub(r.next); r.started && !r.resync && n >= 0 && n <= MaxGap && p.Opcode == roce.Acknowledge {
		r.epoch++
	}
}
