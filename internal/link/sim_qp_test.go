package link

// The queue pairs of the simulation: the work that was posted and not delivered, the work that was
// delivered and not completed, and the seed's choices.

import (
	"time"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// A simQP is a queue pair.
type simQP struct {
	w         *world
	link      *simLink
	side      int
	dead      bool
	held      int          // times that answers were held back
	wire      []simPacket  // posted, and not at the peer's
	posted    []simPost    // posted, and not completed
	sent      int          // work requests in all
	delivered int          // of them
	arrived   []simMessage // messages of the peer that it knows to be here, and that were not looked at
	handling  bool
}

type simMessage struct {
	data []byte
	turn uint64
}

type simPacket struct {
	write bool
	addr  uint64
	rkey  wire.RKey
	data  []byte
}

type simPost struct {
	place, n int // n: which work request it is
}

func (q *simQP) Init(verbs.Access) error        { return nil }
func (q *simQP) ReadyToReceive(verbs.RTR) error { return nil }
func (q *simQP) ReadyToSend(verbs.RTS) error    { return nil }
func (q *simQP) PostRecv(...verbs.RecvWR) error { return nil }
func (q *simQP) Fail() error                    { q.dead = true; return nil }
func (q *simQP) Close() error {
	q.dead, q.wire, q.posted, q.arrived = true, nil, nil, nil
	return nil
}
func (q *simQP) AnswerFirst()             {}
func (q *simQP) HoldAnswers()             { q.held++ }
func (q *simQP) Drain(time.Duration) bool { return q.handle() }
func (q *simQP) QPN() wire.QPN            { return wire.QPN(q.link.name*2 + q.side) }
func (q *simQP) Stats() verbs.QPStats     { return verbs.QPStats{} }

// PostSend copies the bytes to be sent out of memory at once. One that has failed flushes it.
func (q *simQP) PostSend(wrs ...verbs.SendWR) error {
	for i := range wrs {
		wr := &wrs[i]
		q.sent++
		if wr.Signaled {
			q.posted = append(q.posted, simPost{int(wr.ID &^ idKind), q.sent})
		}
		if q.dead {
			continue
		}
		p := simPacket{write: wr.Op == verbs.OpWrite, addr: wr.Remote, rkey: wr.RKey}
		for _, s := range wr.Local {
			if s.Len > 0 {
				p.data = append(p.data, q.w.memory(q.side, q.link.ends[q.side], s)...)
			}
		}
		q.wire = append(q.wire, p)
	}
	return nil
}

// memory returns the bytes that a side's own work request names.
func (w *world) memory(side int, l *Link, s verbs.SGE) []byte {
	at := s.Addr - s.MR.Addr()
	if s.MR == l.mr {
		return l.area[at:][:s.Len]
	}
	for _, m := range w.sides[side].group.memories {
		if m.region(l) == s.MR {
			return m.bytes[at:][:s.Len]
		}
	}
	panic(simFailure("a work request of memory that is not registered"))
}

// deliver takes the oldest packet to the peer, and reports whether there was a way.
func (q *simQP) deliver() bool {
	w, to := q.w, q.link.ends[1-q.side]
	if len(q.wire) == 0 || q.link.cut || q.link.qps[1-q.side].dead {
		return false
	}
	p := q.wire[0]
	q.wire = q.wire[1:]
	q.delivered++
	if !p.write {
		m, err := cdc.ParseMessage(p.data)
		if err != nil {
			w.failf("message %x: %v", p.data, err)
		}
		w.say("%d:%d arrives %v", q.side, q.link.name, m)
		at := q.link.qps[1-q.side]
		w.turns++
		at.arrived = append(at.arrived, simMessage{p.data, w.turns})
		if m.IsFailoverValidation() {
			w.total["validations"]++
			if w.rng.IntN(4) == 0 {
				at.arrived = append(at.arrived, simMessage{p.data, w.turns})
			}
		}
		if w.rng.IntN(4) > 0 {
			at.handle()
		}
		return true
	}
	for _, m := range w.sides[1-q.side].group.memories {
		if mr, ok := m.region(to).(*rdma.MR); ok && mr.RKey() == p.rkey && m.access&verbs.RemoteWrite != 0 {
			at := p.addr - mr.Addr()
			if at+uint64(len(p.data)) > uint64(len(m.bytes)) {
				w.failf("a WRITE of %d bytes to offset %d of %d", len(p.data), at, len(m.bytes))
			}
			w.spoil(1-q.side, m, at, p.data)
			mr.Place(p.addr, p.data)
			mr.Arrived(uint64(len(p.data)))
			return true
		}
	}
	w.failf("side %d, link %d: a WRITE with an RKey of nobody", q.side, q.link.name)
	return false
}

// handle has all looked at that has arrived, as a completion handler does. It reports whether it was its turn.
func (q *simQP) handle() bool {
	if q.handling {
		return false
	}
	q.handling = true
	for len(q.arrived) > 0 {
		b := q.arrived[0]
		q.arrived = q.arrived[1:]
		q.link.ends[q.side].receiveCDC(b.data, b.turn)
	}
	q.handling = false
	return true
}

// complete takes the oldest acknowledgement to the link that has posted, or flushes all.
func (q *simQP) complete() bool {
	l := q.link.ends[q.side]
	switch {
	case len(q.posted) == 0:
		return false
	case q.dead:
		for len(q.posted) > 0 {
			p := q.posted[0]
			q.posted = q.posted[1:]
			l.completed(p.place, false)
		}
	case q.posted[0].n > q.delivered || q.link.cut || q.link.qps[1-q.side].dead:
		return false
	default:
		p := q.posted[0]
		q.posted = q.posted[1:]
		l.completed(p.place, true)
	}
	l.pumpLLC()
	l.pump()
	return true
}

// expire is the end of the retries.
func (q *simQP) expire() bool {
	if q.dead || len(q.posted) == 0 || !q.link.cut && !q.link.qps[1-q.side].dead {
		return false
	}
	q.w.fail(q.side, q.link, "retries")
	return true
}

// spoil makes other bytes of those that a side has been told of and has not read, as Linux does when it writes them once more.
func (w *world) spoil(side int, m *memory, at uint64, data []byte) {
	for _, sc := range w.conns {
		x := sc.ends[side]
		if x.rmb.mem != m {
			continue
		}
		c := x.carrier
		size, read := uint64(c.ownSize()), c.read.Load()
		unread := uint64(cdc.Diff(cursor(read, uint32(size)), cdc.UnpackProducer(c.inProd.Load()), uint32(size)))
		ahead := (at - uint64(c.in.base) + size - read%size) % size // of read, as a ring place
		for k := range data {
			if ahead < unread {
				data[k] ^= 0xff
				w.total["spoiled"]++
			}
			if ahead++; ahead == size {
				ahead = 0
			}
		}
	}
}
