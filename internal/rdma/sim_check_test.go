package rdma

import (
	"time"

	"github.com/gosmc/smc/wire/roce"
)

// check checks the invariants.
func (d *simSide) check() {
	q := d.q
	if q == nil {
		return
	}
	s, seen := d.s, d.peer.end.expectedPSN()
	if q.state == StateError {
		if !s.broken {
			s.failf("side %d is in ERR", d.i)
		}
		if q.head != q.tail || q.rqHead != q.rqTail || q.deadline() != 0 && !q.answerWaits() {
			s.failf("side %d keeps %d sends, %d receives, and deadline %v in ERR", d.i, q.tail-q.head, q.rqTail-q.rqHead, q.deadline())
		}
		return
	}
	if q.next.Sub(q.una) < 0 || q.max.Sub(q.next) < 0 || q.posted.Sub(q.max) < 0 || q.posted != d.posted {
		s.failf("side %d: una %v, next %v, max %v, posted %v are not in order, posted should be %v", d.i, q.una, q.next, q.max, q.posted, d.posted)
	}
	if seen.Sub(q.una) < 0 || seen.Sub(q.max) > 0 {
		s.failf("side %d: una %v, max %v, but the peer expects %v", d.i, q.una, q.max, seen)
	}
	if out := q.next.Sub(q.una); out > maxWindow || q.window.size < 1 || q.window.size > maxWindow {
		s.failf("side %d: %d packets are unacknowledged, of a window of %d", d.i, out, q.window.size)
	}
	if n := q.tail - q.head; n > q.maxSend || int(n) != len(d.msgs)-d.doneMessages() {
		s.failf("side %d: %d messages in the queue, %d posted, %d done", d.i, n, len(d.msgs), d.doneMessages())
	}
	if q.head != q.tail { // una and next are where head and cur say
		e := q.entry(q.head)
		if o := q.una.Sub(e.first); o < 0 || o >= int(e.packets) {
			s.failf("side %d: una %v is not in the message from %v with %d packets", d.i, q.una, e.first, e.packets)
		}
	}
	if q.cur != q.tail {
		e := q.entry(q.cur)
		if o := q.next.Sub(e.first); o < 0 || o >= int(e.packets) {
			s.failf("side %d: next %v is not in the message from %v with %d packets", d.i, q.next, e.first, e.packets)
		}
	}
	if q.retries > q.retryCount || q.rnrRetries > q.rnrRetry {
		s.failf("side %d: %d retries, %d RNR retries are left", d.i, q.retries, q.rnrRetries)
	}
}

// doneMessages counts the messages that are acknowledged.
func (d *simSide) doneMessages() int {
	for i := d.completed; i < len(d.msgs); i++ {
		m := &d.msgs[i]
		if d.q.una.Sub(m.first) < m.packets {
			return i
		}
	}
	return len(d.msgs)
}

// pump sends the side's packets, or a burst of them.
func (d *simSide) pump() {
	s := d.s
	if d.pumping {
		return
	}
	room := s.room[:]
	for range s.cfg.burst {
		n := d.end.transmit(s.now, room[:len(room)-roce.ICRCLen])
		if n == 0 {
			d.drained()
			return
		}
		b := room[:n+roce.ICRCLen]
		d.flow.Seal(0, b)
		d.sent(b)
		s.send(d, b)
	}
	d.pumping = true
	s.at(s.now+s.cfg.gap+time.Microsecond, event{kind: eventPump, side: d})
}

// sent looks at a packet that the side has made.
func (d *simSide) sent(b []byte) {
	s, q := d.s, d.q
	p := &s.out
	if err := p.Parse(b); err != nil {
		s.failf("side %d sends %x: %v", d.i, b, err)
	}
	if s.trace {
		s.t.Logf("%12v side %d sends %v", s.now-simStart, d.i, p)
	}
	if q == nil {
		return
	}
	if p.DestQPN != d.peer.qpn || p.PKey != roce.DefaultPKey {
		s.failf("side %d sends %v", d.i, p)
	}
	if p.Opcode == roce.Acknowledge {
		d.owed = -1
		return
	}
	if p.PSN.Sub(q.una) < 0 || p.PSN.Sub(q.max) >= 0 || p.PSN.Sub(q.una) >= q.window.size {
		s.failf("side %d sends %v, una %v max %v window %d", d.i, p, q.una, q.max, q.window.size)
	}
	d.ackBits[int(p.PSN)%len(d.ackBits)] = p.AckReq
	if q.answer != answerNone {
		if d.owed++; d.owed > ackAfterPackets {
			s.failf("side %d has sent %d packets while an answer waits", d.i, d.owed)
		}
	}
}

// drained looks at a side that has nothing more to send.
func (d *simSide) drained() {
	q, s := d.q, d.s
	if d.end.wantsToTransmit(s.now) {
		s.failf("side %d wants to transmit and does not", d.i)
	}
	if q == nil {
		return
	}
	if q.answer != answerNone && (!q.answerWaits() || s.now >= q.answerBy || q.answerBy > s.now+maxAckDelay) {
		s.failf("side %d keeps its answer", d.i)
	}
	if q.state != StateRTS {
		return
	}
	switch {
	case q.una == q.next && q.rnrUntil == 0:
		if q.head != q.tail || q.deadline() != 0 && !q.answerWaits() {
			s.failf("side %d waits for nothing, with %d messages and deadline %v", d.i, q.tail-q.head, q.deadline())
		}
	case q.deadline() == 0:
		s.failf("side %d waits without a timer", d.i)
	case q.una != q.next && !d.hasAsked():
		s.failf("side %d waits for an acknowledgement that it has not asked for", d.i)
	}
}

// hasAsked reports whether an acknowledgement was asked for that lets the side go on: of the last
// packet if it is the last of the queue, else of any.
func (d *simSide) hasAsked() bool {
	q := d.q
	if q.cur == q.tail {
		return d.ackBits[int(q.next.Add(-1))%len(d.ackBits)]
	}
	for psn := q.una; psn != q.next; psn = psn.Add(1) {
		if d.ackBits[int(psn)%len(d.ackBits)] {
			return true
		}
	}
	return false
}

// arm sees to it that advance is called.
func (d *simSide) arm() {
	if at := d.end.deadline(); at != 0 && (d.timerAt == 0 || at < d.timerAt) {
		d.timerAt = max(at, d.s.now)
		d.s.at(d.timerAt, event{kind: eventTimer, side: d})
	}
}

// checkEnd looks at a side when nothing moves any more.
func (d *simSide) checkEnd() {
	s := d.s
	d.compare(0, simMem)
	if d.toPost > 0 {
		s.failf("side %d has %d messages still to post", d.i, d.toPost)
	}
	if d.end.busy() || d.end.deadline() != 0 || d.q != nil && d.q.answer != answerNone || d.end.wantsToTransmit(s.now) {
		s.failf("side %d is not at rest", d.i)
	}
	if d.q != nil && d.q.state == StateError {
		if d.completed != len(d.msgs) && !d.restExecuted() {
			s.failf("side %d: %d of %d messages completed", d.i, d.completed, len(d.msgs))
		}
		if len(d.recvs) > 0 {
			s.failf("side %d: %d receives have not completed", d.i, len(d.recvs))
		}
		return
	}
	if !d.restExecuted() {
		s.failf("side %d: messages have not completed", d.i)
	}
}

// restExecuted reports whether all messages without a completion were not to have one.
func (d *simSide) restExecuted() bool {
	for _, m := range d.msgs[d.completed:] {
		if m.wr.Signaled {
			return false
		}
	}
	return d.executed == len(d.msgs)
}
