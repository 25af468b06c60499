package rdma

import (
	"fmt"
	"math"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// A qpc is a queue pair context: all that a queue pair knows, as a value. Packets and time go in,
// packets and completions come out:
//
//	receive   takes a packet that is intact and from the peer
//	transmit  makes the next packet to send, as long as there is one
//	deadline  is when advance wants to be called, if nothing happens before
//	advance   does the work that is due
//	done      has the completions since the owner last took them out
//
// It does no I/O and knows no clock: times are durations since any one moment, never zero. The owner
// makes sure that one goroutine at a time is in it.
//
// State transitions, IBTA 10.3.1:
//
//	state       event           next   what happens
//	RESET       init            INIT   receives may be posted
//	INIT        readyToReceive  RTR    requests of the peer are answered
//	RTR         readyToSend     RTS    our requests go out
//	not RESET   fail            ERR    posted work completes as flushed
//	RTR, RTS    a bad request   ERR    the same, and the peer gets a NAK
//	RTS         a fatal NAK     ERR    the same, after the failed request's own completion
//	RTS         out of retries  ERR    the same
//	any         reset           RESET  posted work is forgotten, without completions
//	ERR         a request       ERR    the peer gets a NAK, if the owner has wanted the failure
type qpc struct {
	qpn   wire.QPN
	pd    *PD
	state State
	stats QPStats
	done  []Completion

	failure failure // that the owner has not taken out

	access    Access // of the peer to this queue pair
	remoteQPN wire.QPN
	mtu       int   // payload bytes of a full packet
	minRNR    uint8 // code of the time that a peer is to wait for a receive

	requester
	responder
}

func newQPC(qpn wire.QPN, pd *PD, keepers *keeperPool, maxSend, maxRecv int) *qpc {
	q := &qpc{qpn: qpn, pd: pd}
	q.sq = make([]sendEntry, powerOfTwo(maxSend))
	q.rq = make([]RecvWR, powerOfTwo(maxRecv))
	q.maxSend, q.maxRecv, q.keepers = uint32(maxSend), uint32(maxRecv), keepers
	q.quota = math.MaxInt
	return q
}

// powerOfTwo returns the smallest one that is at least n, and 1 for n of zero.
func powerOfTwo(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

func (q *qpc) setState(s State) { q.state = s }

func (q *qpc) init(access Access) error {
	switch {
	case q.state != StateReset:
		return stateError("to INIT", q.state)
	case access&^allAccess != 0:
		return argError("access %#x", uint8(access))
	}
	q.access = access
	q.setState(StateInit)
	return nil
}

func (q *qpc) readyToReceive(a RTR) error {
	switch {
	case q.state != StateInit:
		return stateError("to RTR", q.state)
	case !a.PathMTU.Valid():
		return argError("path MTU %v", a.PathMTU)
	case a.RemoteQPN < 2 || a.RemoteQPN >= wire.MaxQPN: // management, multicast
		return argError("remote queue pair %v", a.RemoteQPN)
	case a.RecvPSN > wire.MaxPSN:
		return argError("receive PSN %v", a.RecvPSN)
	case a.MinRNRTimer > maxRNRTimer:
		return argError("RNR timer code %d", a.MinRNRTimer)
	}
	q.remoteQPN, q.mtu, q.minRNR = a.RemoteQPN, a.PathMTU.Bytes(), a.MinRNRTimer
	q.expected, q.told = a.RecvPSN, a.RecvPSN
	q.setState(StateRTR)
	return nil
}

func (q *qpc) readyToSend(a RTS) error {
	switch {
	case q.state != StateRTR:
		return stateError("to RTS", q.state)
	case a.SendPSN > wire.MaxPSN:
		return argError("send PSN %v", a.SendPSN)
	case a.Timeout > maxTimeout || a.RetryCount > maxRetry || a.RNRRetry > retryForever:
		return argError("timeout %d, retry count %d, RNR retry %d", a.Timeout, a.RetryCount, a.RNRRetry)
	}
	q.una, q.next, q.max, q.posted = a.SendPSN, a.SendPSN, a.SendPSN, a.SendPSN
	q.runFirst, q.runEnd = a.SendPSN, a.SendPSN
	q.retryCount, q.rnrRetry = a.RetryCount, a.RNRRetry
	if a.Timeout > 0 {
		q.timeout = ackTimeoutUnit << a.Timeout
	}
	q.retries, q.rnrRetries = a.RetryCount, a.RNRRetry
	q.window.reset()
	q.setState(StateRTS)
	return nil
}

// fail moves to ERR and flushes. It does nothing in RESET and in ERR.
func (q *qpc) fail() {
	if q.state == StateReset || q.state == StateError {
		return
	}
	q.setState(StateError)
	q.heldUntil = 0
	for ; q.head != q.tail; q.head++ {
		e := q.entry(q.head)
		q.completeSend(&e.wr, StatusFlushed)
		*e = sendEntry{}
	}
	q.cur = q.head
	for ; q.rqHead != q.rqTail; q.rqHead++ {
		q.completeRecv(Completion{ID: q.recv(q.rqHead).ID, Op: Received, Status: StatusFlushed})
		*q.recv(q.rqHead) = RecvWR{}
	}
	q.stopTimers()
	q.letGo()
}

// reset moves to RESET from any state.
func (q *qpc) reset() {
	q.letGo()
	fresh := qpc{qpn: q.qpn, pd: q.pd, stats: q.stats, done: q.done}
	fresh.quota = q.quota
	fresh.sq, fresh.rq, fresh.maxSend, fresh.maxRecv, fresh.keepers = q.sq, q.rq, q.maxSend, q.maxRecv, q.keepers
	clear(fresh.sq)
	clear(fresh.rq)
	*q = fresh
}

// checkLocal looks whether a work request's pieces lie within regions that it may use.
func (q *qpc) checkLocal(pieces *[maxSGE]SGE, need Access) error {
	for i := range pieces {
		s := &pieces[i]
		if s.Len == 0 {
			continue
		}
		m, _ := s.MR.(*MR)
		if m == nil || m.pd != q.pd || m.dead.Load() || m.access&need != need {
			return fmt.Errorf("rdma: piece %d: %w", i, ErrRegion)
		}
		if _, ok := m.slice(s.Addr, uint64(s.Len)); !ok {
			return fmt.Errorf("rdma: piece %d, %d bytes from %#x of region %#x+%d: %w", i, s.Len, s.Addr,
				m.addr, len(m.mem), ErrRegion)
		}
	}
	return nil
}

// receive takes a packet whose ICRC is right and that comes from the address of the peer. It is the
// only way in for the peer's packets. p and its payload are not kept.
func (q *qpc) receive(now time.Duration, p *roce.Packet) {
	if q.state != StateRTR && q.state != StateRTS {
		q.stats.Dropped++
		if q.state == StateError && q.refuses && p.Opcode.IsRequest() && q.answer != answerNak {
			q.refuse(p.PSN) // rule: TestFailRefuses
		}
		return
	}
	q.stats.RcvdPackets++
	q.stats.RcvdBytes += uint64(len(p.Payload))
	switch {
	case p.Opcode == roce.Acknowledge:
		q.receiveAck(now, p)
	case p.Opcode.IsRequest():
		q.heard = true
		q.receiveRequest(now, p)
	default: // answers to READ and atomics, which we never send
		q.stats.Dropped++
	}
}

// transmit writes the next packet to b, from the BTH to the pad, without ICRC, and returns its
// length; 0 if there is none for now. b has room for maxPacketLen bytes.
func (q *qpc) transmit(now time.Duration, b []byte) int {
	if q.answer != answerNone && q.heldUntil == 0 &&
		(q.sinceAnswer >= ackAfterPackets || q.state != StateRTS || q.answersFirst) {
		return q.transmitAnswer(b)
	}
	if q.state == StateRTS {
		if n := q.transmitRequest(now, b); n > 0 {
			if q.answer != answerNone {
				q.sinceAnswer++
			}
			return n
		}
	}
	if q.answerIsDue(now) {
		return q.transmitAnswer(b)
	}
	return 0
}

// urgent reports whether transmit would make a packet even with a quota of zero.
func (q *qpc) urgent(now time.Duration) bool {
	return q.answerIsDue(now) || q.state == StateRTS && q.run == runWaiting
}

// wantsToTransmit reports whether transmit would make a packet, given a quota.
func (q *qpc) wantsToTransmit(now time.Duration) bool {
	return q.answerIsDue(now) || q.state == StateRTS && q.mayTransmit(now)
}

// expects reports whether a packet must be on its way to us: the rest of a message that has begun,
// or a lost packet, or the answer to packets that we have sent again.
func (q *qpc) expects() bool {
	return q.receiving != receivingNothing || q.kept != nil || q.keeps && q.recovering
}

// maxPacketLen is room for every packet we send, without ICRC.
func (q *qpc) maxPacketLen() int { return maxHeaderLen + q.mtu }

// maxHeaderLen is the length of the longest header that we send: BTH, RETH, ImmDt.
const maxHeaderLen = 12 + 16 + 4

// deadline returns when advance is due, 0 for never.
func (q *qpc) deadline() time.Duration {
	var at time.Duration
	if q.state == StateRTS {
		at = q.requester.deadline()
	}
	if q.heldUntil != 0 && q.answer != answerNone {
		if at == 0 || q.heldUntil < at {
			at = q.heldUntil
		}
	} else if q.answerWaits() && (at == 0 || q.answerBy < at) {
		at = q.answerBy
	}
	return at
}

// advance does the work that is due at time now. There may be something to transmit then.
func (q *qpc) advance(now time.Duration) {
	q.release(now)
	if q.answerWaits() && now >= q.answerBy {
		q.sinceAnswer = ackAfterPackets // it is due, and needs no timer any more
	}
	if q.state == StateRTS {
		q.onTimer(now)
	}
}
