package dissect

import (
	"errors"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// An assembly puts a SEND of several packets together.
type assembly struct {
	active    bool
	next      wire.PSN // of the packet that is to be appended
	buf       []byte
	bad       bool // the capture lacks bytes, or there are too many
	doneKnown bool
	done      wire.PSN // of the last packet of the newest message
}

// sendPacket takes a packet of a SEND.
func (t *Tracker) sendPacket(e *Event, f *flow, where place) {
	p, a := e.RoCE.Packet, &f.send
	whole := len(p.Payload) == e.RoCE.PayloadLen
	if !whole {
		f.epoch++ // as if it were missing
	}
	switch op := p.Opcode; {
	case op.Starts() && op.Ends():
		if whole {
			t.message(e, f, p.Payload, where, true)
		}
		return
	case f.link == nil:
		return // its link is not known
	case op.Starts():
		*a = assembly{active: true, next: p.PSN, buf: a.buf[:0], doneKnown: a.doneKnown, done: a.done}
	}
	if !a.active || p.PSN != a.next {
		return // the packets before it are missing, or it is a repetition
	}
	a.next = p.PSN.Add(1)
	if !whole || len(a.buf)+len(p.Payload) > maxMessage {
		a.bad = true
	}
	if !a.bad {
		a.buf = append(a.buf, p.Payload...)
	}
	if !p.Opcode.Ends() {
		return
	}
	a.active = false
	if a.doneKnown && p.PSN.Sub(a.done) <= 0 {
		where = placeRepeat
	} else {
		a.doneKnown, a.done = true, p.PSN
		if where == placeRepeat {
			where = placeLate // it is a packet before this one that was sent again
		}
	}
	if !a.bad {
		t.message(e, f, a.buf, where, false)
	}
}

// message takes the payload of a SEND, which is an SMC message if the link is one of SMC, and else if
// it looks like one. One that was seen before changes nothing. only means that it was a single packet.
func (t *Tracker) message(e *Event, f *flow, b []byte, where place, only bool) {
	switch {
	case len(b) == cdc.MessageLen && b[0] == cdc.TypeMessage && (f.link != nil || only && likeCDC(b)):
		t.cdc(e, f, b, where)
	case f.link != nil || only && likeLLC(b):
		t.llc(e, f, b, where)
	}
}

// likeCDC reports whether 44 bytes of a SEND, of which nothing else is known, are a CDC message: length and
// reserved bytes are right.
func likeCDC(b []byte) bool {
	return b[1] == cdc.MessageLen && b[8]|b[9]|b[16]|b[17] == 0
}

// likeLLC reports whether the payload of a SEND of which nothing else is known can be an LLC message.
func likeLLC(b []byte) bool {
	if len(b) < llc.MinLen {
		return false
	}
	typ, version := llc.Type(b[0]&0x0f), int(b[0]>>4)
	switch {
	case version == 0:
		return typ.In(1) && b[1] == llc.MinLen && len(b) == llc.MinLen
	case version == 2 && typ.In(2):
		big, little := int(b[1])<<8|int(b[2]), int(b[2])<<8|int(b[1])
		return big == len(b) || little == len(b)
	}
	return false
}

// llc takes an LLC message.
func (t *Tracker) llc(e *Event, f *flow, b []byte, where place) {
	e.Family, e.Bytes, e.Message = LLC, b, nil
	m, err := llc.Parse(b)
	switch {
	case errors.Is(err, llc.ErrOptional):
		e.Name = "optional message"
		e.Text = "of a type that the receiver discards"
		return
	case err != nil:
		e.Name = "LLC message"
		e.problem(Malformed, err.Error(), "RFC 7609 p.142")
		return
	}
	e.Name, e.Message = m.Type().String(), m
	if where == placeRepeat {
		return
	}
	if f.link == nil {
		t.linkFromConfirm(e, f, m)
		t.setLink(e, f)
	}
	if f.link != nil {
		t.links.groups.touch(&f.link.Group.used)
		t.handleLLC(e, f, m)
	}
}

// cdc takes a CDC message.
func (t *Tracker) cdc(e *Event, f *flow, b []byte, where place) {
	e.Family, e.Name, e.Bytes, e.Message = CDC, "CDC", b, nil
	m, err := cdc.ParseMessage(b)
	if err != nil {
		e.problem(Malformed, err.Error(), "RFC 7609 p.126")
		return
	}
	t.cdcMsg = m
	e.Message = &t.cdcMsg
	if f.link == nil {
		return
	}
	c := f.link.Group.tokens[f.dir.index()][m.AlertToken]
	if c == nil {
		f.link.Group.early[f.dir.index()].add(m.AlertToken)
		e.Text = "of a connection that is not known"
		return
	}
	e.Conn = c
	t.conns.used.touch(&c.used)
	t.progressOf(e, f, c, &t.cdcMsg, where)
}

// A writeContext holds the facts about an RDMA WRITE that its first packet gives for the packets
// after it.
type writeContext struct {
	known  bool
	first  wire.PSN
	va     uint64
	length uint32
	mtu    int // payload of the first packet
	ring   *Ring
	inRing uint32 // where va is in the element
}

// writePacket takes a packet of an RDMA WRITE.
func (t *Tracker) writePacket(e *Event, f *flow, where place) {
	p, n, ctx := e.RoCE.Packet, e.RoCE.PayloadLen, &f.write
	w := &t.write
	*w = Write{Bytes: n}
	e.Write = w
	fresh := where != placeRepeat
	if p.Opcode.Starts() {
		*ctx = writeContext{known: true, first: p.PSN, va: p.RETH.VA, length: p.RETH.Length, mtu: n}
		w.Start = true
		t.startWrite(e, f, p.RETH, where)
	}
	into := p.PSN.Sub(ctx.first) * ctx.mtu
	if ctx.known && into >= 0 && into < int(ctx.length) {
		w.Known = true
		w.VA, w.Length = ctx.va+uint64(into), ctx.length
		if ctx.ring != nil {
			w.Ring, w.Offset = ctx.ring, ctx.inRing+uint32(into)
			e.Conn = ctx.ring.Conn
		}
		if into+n > int(ctx.length) || p.Opcode.Ends() && into+n < int(ctx.length) {
			e.problem(Malformed, "the RDMA WRITE does not have the length that its first packet tells", "IBTA 9.3")
		}
	}
	if !fresh {
		return
	}
	t.count.RDMABytes += uint64(n)
	if w.Ring != nil {
		w.Ring.Written += uint64(n)
		w.Total = w.Ring.Written
	}
}

// startWrite finds out where a WRITE goes, and whether it may.
func (t *Tracker) startWrite(e *Event, f *flow, h roce.RETH, where place) {
	if f.link == nil {
		return
	}
	r := f.link.rkeys[f.dir.index()][h.RKey]
	if r == nil {
		e.Text = "RKey not known"
		return
	}
	if where == placeNew {
		t.checkDeleted(f, r.rmb)
	}
	offset := h.VA - r.va
	ring := r.rmb.ring(offset)
	if ring == nil {
		e.Text = "to no element of the RMB that is known"
		if where == placeNew && len(r.rmb.rings) > 0 && !r.rmb.near(offset) {
			e.problem(Violation, "a write outside the RMB", "RFC 7609 p.60")
		}
		return
	}
	f.write.ring, f.write.inRing = ring, uint32(offset-ring.offset)
	if where == placeNew {
		t.checkWrite(e, f, ring, uint64(f.write.inRing), h.Length)
	}
}

// checkDeleted suspects a write to an RMB that was deleted. The owner may have announced it again,
// over any link.
func (t *Tracker) checkDeleted(f *flow, m *rmb) {
	r := f.reverse()
	if !m.deleted || r == nil || m.deletedAt != r.mark() {
		return
	}
	for _, other := range f.link.Group.Links {
		if other != f.link && other.State < LinkDeleting {
			return
		}
	}
	t.suspect(suspicion{
		link: f.link, dir: f.dir, awaited: r.mark(),
		text: "a write to an RMB that was deleted", rule: "RFC 7609 p.122",
	})
}

// near reports whether an offset can be the offset of an element: an index of 8 bits reaches it,
// with the size that all elements of an RMB have.
func (m *rmb) near(offset uint64) bool {
	return offset < 256*uint64(m.rings[0].Size)
}

// checkWrite checks that a WRITE goes where its sender may write.
func (t *Tracker) checkWrite(e *Event, f *flow, ring *Ring, offset uint64, length uint32) {
	switch {
	case offset+uint64(length) > uint64(ring.Size):
		e.problem(Violation, "a write beyond the end of the RMB element", "RFC 7609 p.60")
	case offset < uint64(ring.base):
		e.problem(Violation, "a write over the eyecatcher of the RMB element", "RFC 7609 p.60")
	case ring.ConnFlags&(cdc.DoneWriting|cdc.Closed|cdc.Abort) != 0 && ring.link == f.link && ring.Conn.Closed.IsZero():
		// The element cannot belong to another connection unless its owner is done, too.
		t.suspect(suspicion{
			link: f.link, dir: f.dir, conn: ring.Conn, awaited: ring.readerAt,
			text: "a write by a sender that has said to be done", rule: "RFC 7609 p.129",
		})
	}
	ring.pending += uint64(length)
	if ring.link != f.link || !ring.writerAt.holds() || !ring.readerAt.holds() || ring.Window() < 0 {
		return
	}
	if window := uint64(ring.Window()); ring.pending > window {
		t.tooFar(ring, ring.Dir, ring.pending-window, "a write into bytes that the reader has not freed",
			"RFC 7609 p.61")
	}
}
