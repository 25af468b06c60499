package rdma

import (
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// A requester is the half of a queue pair that carries out the work posted to its send queue.
//
// The send queue is a row of messages, and each message a row of packets with consecutive PSNs:
//
//	     una              next             max                posted
//	------|----------------|----------------|------------------|--------
//	acked   sent, unacked    to be sent again  to be sent at all
//
// All packets from una can be made again from the messages. After a loss next goes back to una, and
// everything from there is sent again: go-back-N, which responders of RC expect.
type requester struct {
	sq             []sendEntry // len is a power of two
	head, cur      uint32      // entries of una and of next
	tail           uint32
	maxSend        uint32
	una, next, max wire.PSN
	posted         wire.PSN // one past the last of the queue

	window      window
	quota       int      // packets allowed beside the window's; for all that share the path
	sinceAckReq int      // packets sent since one asked for an acknowledgement
	recovering  bool     // a loss has shrunk the window, and recoverPSN is not acknowledged
	recoverPSN  wire.PSN // one past the newest packet when that happened

	timeout             time.Duration // of verbs; 0: none
	retryCount          uint8
	rnrRetry            uint8
	retries, rnrRetries uint8 // left until progress is made

	progressAt time.Duration // start of the verbs timer: last progress, or first waiting packet
	// when the probe's timer was started: last answer, or the first packet that asks for one
	activeAt   time.Duration
	asked      bool // a packet that asks is unacknowledged, the newest has askPSN
	askPSN     wire.PSN
	heard      bool          // the peer has sent messages since activeAt: an answer may wait behind them
	timedOut   bool          // the timeout of verbs has passed since progress was made
	repairedAt time.Duration // when next last went back, or the packet at una was sent again
	rnrUntil   time.Duration // no packet goes out before; 0: free to go
	probes     uint8         // since something came back

	// The packets from runFirst to before runEnd are to be sent again, or were, without going back; runNext,
	// of entry runCur, is the first that has to.
	run                       runState
	runFirst, runNext, runEnd wire.PSN
	runCur                    uint32
	runSentAt                 time.Duration

	// keeps: the peer keeps packets that come after a gap, as a keeper does. Then it is enough to
	// send the packets that it misses. It shows in that, after we went back for a gap, packets are
	// acknowledged that were not sent again. wentBack: we did, and next has not reached max again.
	keeps, wentBack bool

	timing   bool // the packet timedPSN, sent at timedAt, measures a round trip
	timedPSN wire.PSN
	timedAt  time.Duration
}

// A runState is the progress of packets that are to be sent again without going back.
type runState uint8

const (
	runNone    runState = iota // there are none, or something has come back since
	runWaiting                 // not all have gone out
	runSent                    // all have
)

// A sendEntry is a message.
type sendEntry struct {
	wr      SendWR
	first   wire.PSN
	packets uint32 // at least 1
	length  uint32 // bytes
}

// end returns the PSN after the message's last one.
func (e *sendEntry) end() wire.PSN { return e.first.Add(int(e.packets)) }

func (q *requester) entry(i uint32) *sendEntry { return &q.sq[i&uint32(len(q.sq)-1)] }

// postSend adds a message.
func (q *qpc) postSend(wr *SendWR) error {
	if q.state != StateRTS && q.state != StateError {
		return stateError("post a send", q.state)
	}
	if q.tail-q.head >= q.maxSend {
		return ErrQueueFull
	}
	if wr.Op < OpSend || wr.Op > OpWriteImm {
		return argError("operation %v", wr.Op)
	}
	length := wr.Length()
	if length > MaxMessage { // rule: TestPostSend
		return argError("a message of %d bytes", length)
	}
	if err := q.checkLocal(&wr.Local, 0); err != nil {
		return err
	}
	if q.state == StateError {
		q.completeSend(wr, StatusFlushed)
		return nil
	}
	e := q.entry(q.tail)
	e.wr, e.first, e.length = *wr, q.posted, uint32(length)
	e.packets = max(1, (e.length+uint32(q.mtu)-1)/uint32(q.mtu))
	q.tail++
	q.posted = e.end()
	return nil
}

func (q *qpc) completeSend(wr *SendWR, status Status) {
	op := CompletedSend
	if wr.Op.IsWrite() {
		op = CompletedWrite
	}
	q.done = append(q.done, Completion{ID: wr.ID, Op: op, Status: status})
}

// mayTransmit reports whether transmitRequest would make a packet.
func (q *requester) mayTransmit(now time.Duration) bool {
	switch {
	case q.run == runWaiting:
		return true
	case q.cur == q.tail, q.rnrUntil > now: // PSNs may have gone round once between next and posted
		return false
	}
	return q.next.Sub(q.una) < q.window.size
}

// flight returns how many packets are to count as being on their way. A queue pair that gets no answer
// to its probes counts ever less, so that peers that are gone do not take the path from others.
func (q *qpc) flight() int {
	if q.state != StateRTS || q.rnrUntil != 0 {
		return 0
	}
	return q.next.Sub(q.una) >> min(max(q.probes, 1)-1, 16)
}

// short reports whether all that there is to send are a packet or two.
func (q *requester) short() bool {
	return q.tail-q.cur <= expressPackets && q.posted.Sub(q.next) <= expressPackets
}

// beginsLong reports whether the next packet is the first of several of a message.
func (q *requester) beginsLong() bool {
	if q.cur == q.tail {
		return false
	}
	e := q.entry(q.cur)
	return q.next == e.first && e.packets > 1
}

// transmitRequest writes the next packet, 0 bytes if there is none for now.
func (q *qpc) transmitRequest(now time.Duration, b []byte) int {
	if !q.mayTransmit(now) {
		return 0
	}
	if q.run == runWaiting {
		return q.transmitRun(now, b)
	}
	if q.quota == 0 {
		return 0
	}
	q.rnrUntil = 0
	if q.next == q.una { // nothing was unacknowledged: the timer of verbs starts here
		q.progressAt = now
	}
	psn, e := q.next, q.entry(q.cur)
	q.sinceAckReq++
	asks := q.quota == 1 || q.asksForAck(psn, e)
	n := q.makePacket(now, e, psn, asks, b)
	if n == 0 {
		return 0
	}
	q.quota--
	if asks {
		q.sinceAckReq = 0
	}
	q.next = psn.Add(1)
	if q.next == e.end() {
		q.cur++
	}
	if q.next.Sub(q.max) > 0 {
		q.max = q.next
		if asks && !q.timing {
			q.timing, q.timedPSN, q.timedAt = true, psn, now
		}
	} else {
		q.stats.Retransmitted++
	}
	return n
}

// transmitRun writes the next packet of a run. The last one asks for an acknowledgement.
func (q *qpc) transmitRun(now time.Duration, b []byte) int {
	psn, e := q.runNext, q.entry(q.runCur)
	q.runNext = psn.Add(1)
	if q.runNext == e.end() {
		q.runCur++
	}
	last := q.runNext == q.runEnd
	if last {
		q.run, q.runSentAt = runSent, now
	}
	q.timing = false // an answer may be to this packet: the time says nothing
	q.stats.Retransmitted++
	return q.makePacket(now, e, psn, last, b)
}

// asksForAck decides about the acknowledge bit. It has to be set where the queue or the window ends,
// for nothing else would move on. In between it is set [windowAcks] times per window, and at the end of
// messages whose completion somebody waits for, unless many follow: each acknowledgement costs both
// sides more than a packet does.
func (q *requester) asksForAck(psn wire.PSN, e *sendEntry) bool {
	after := psn.Add(1)
	out := after.Sub(q.una)
	switch {
	case after == e.end() && q.cur+1 == q.tail, out >= q.window.size:
		return true
	case q.sinceAckReq*windowAcks >= q.window.size:
		return true
	}
	return e.wr.Signaled && after == e.end() && q.sinceAckReq*4 >= q.posted.Sub(q.una)
}

// makePacket writes the packet psn of message e. If the message's memory is gone the queue pair
// fails, and 0 is returned.
func (q *qpc) makePacket(now time.Duration, e *sendEntry, psn wire.PSN, ackReq bool, b []byte) int {
	index := uint32(psn.Sub(e.first))
	offset := index * uint32(q.mtu)
	n := min(int(e.length-offset), q.mtu)
	last := index == e.packets-1
	// Field by field: a literal is built elsewhere and copied, and the processor waits for that.
	var p roce.Packet
	p.Opcode, p.PKey, p.DestQPN = opcodeOf(e.wr.Op, index == 0, last), roce.DefaultPKey, q.remoteQPN
	p.PSN, p.AckReq, p.Solicited = psn, ackReq, last && e.wr.Solicited
	p.RETH.VA, p.RETH.RKey, p.RETH.Length = e.wr.Remote, e.wr.RKey, e.length // not sent with a SEND
	p.Imm = e.wr.Imm
	b = p.AppendHeader(b[:0], n)
	headerLen := len(b)
	b = b[:headerLen+n+roce.Pad(n)]
	clear(b[headerLen+n:])
	if !gather(&e.wr.Local, offset, b[headerLen:headerLen+n]) {
		q.failSend(psn, StatusLocalProtection)
		return 0
	}
	if !q.asked { // else a packet that goes out does not put the probe off
		q.activeAt, q.heard = now, false
	}
	if ackReq && (!q.asked || psn.Sub(q.askPSN) > 0) {
		q.asked, q.askPSN = true, psn
	}
	q.stats.SentPackets++
	q.stats.SentBytes += uint64(n)
	return len(b)
}

// opcodes of a message's packets, by operation: first, middle, last, only.
var sendOpcodes = [OpWriteImm + 1][4]roce.Opcode{
	OpSend:     {roce.SendFirst, roce.SendMiddle, roce.SendLast, roce.SendOnly},
	OpSendImm:  {roce.SendFirst, roce.SendMiddle, roce.SendLastImm, roce.SendOnlyImm},
	OpWrite:    {roce.WriteFirst, roce.WriteMiddle, roce.WriteLast, roce.WriteOnly},
	OpWriteImm: {roce.WriteFirst, roce.WriteMiddle, roce.WriteLastImm, roce.WriteOnlyImm},
}

func opcodeOf(op Op, first, last bool) roce.Opcode {
	set := &sendOpcodes[op]
	switch {
	case first && last:
		return set[3]
	case first:
		return set[0]
	case last:
		return set[2]
	}
	return set[1]
}

// gather copies from the bytes at offset of the pieces, which have them all. It reports false if a
// region of theirs is gone.
func gather(pieces *[maxSGE]SGE, offset uint32, b []byte) bool {
	for i := range pieces {
		s := &pieces[i]
		if offset >= s.Len {
			offset -= s.Len
			continue
		}
		n := min(int(s.Len-offset), len(b))
		if n == 0 {
			return true
		}
		from, ok := bytesOf(s, offset, uint32(n))
		if !ok {
			return false
		}
		copy(b, from)
		b, offset = b[n:], 0
	}
	return true
}

// receiveAck takes an ACKNOWLEDGE packet: an ACK, or a NAK of any kind. One for a packet that is not
// on its way is nobody's: it is counted and dropped.
func (q *qpc) receiveAck(now time.Duration, p *roce.Packet) {
	q.stats.RcvdAcks++
	psn := p.PSN
	if q.state != StateRTS || psn.Sub(q.una) < 0 || psn.Sub(q.max) >= 0 { // rule: TestForgedAcks: psn.Sub(q.max) >= 0 -> false
		q.stats.AckUnexpected++
		return
	}
	switch s := p.AETH.Syndrome; s.Kind() {
	case roce.KindAck:
		ofRun := q.run == runSent && psn.Add(1) == q.runEnd
		q.acked(now, psn.Add(1))
		if ofRun && q.una != q.max {
			// The peer has the packets that were sent again and nothing after them.
			q.keeps = false
			q.lost(now)
		}
	case roce.KindRNRNak:
		q.stats.RcvdRNRNaks++
		if psn == q.una && q.rnrUntil > now {
			return // a copy of the one that we are waiting for
		}
		q.acked(now, psn)
		q.retries = q.retryCount // the packet itself has arrived
		if q.rnrRetries == 0 {
			q.failSend(psn, StatusRNRExceeded)
			return
		}
		if q.rnrRetry != retryForever {
			q.rnrRetries--
		}
		q.rewind(now)
		q.rnrUntil = now + time.Duration(roce.RNRTimer(s.Value()))*time.Microsecond
	case roce.KindNak:
		q.receiveNak(now, psn, s)
	default:
		q.stats.Dropped++ // reserved
	}
}

func (q *qpc) receiveNak(now time.Duration, psn wire.PSN, s roce.Syndrome) {
	switch s {
	case roce.NakSequence:
		q.stats.RcvdSeqNaks++
		progress := psn != q.una
		q.acked(now, psn)
		if !progress {
			if q.next == q.una {
				// Nothing has gone out since we went back, so it is of before: one more copy, or an
				// answer that rxe sends after an RNR NAK for the packets behind.
				return
			}
			if q.repairedAt != 0 && now-q.repairedAt < q.window.smoothed/2 {
				return // of before we went back
			}
			if q.retries == 0 {
				q.failSend(psn, StatusRetryExceeded)
				return
			}
			q.retries--
		}
		if q.keeps {
			if !progress || psn.Sub(q.runEnd) >= 0 || psn.Sub(q.runFirst) <= 0 {
				q.repair(now)
			} // else it was told when a packet of the run came, and the next ones are behind it
			return
		}
		q.lost(now)
		q.wentBack = true
	case roce.NakInvalidRequest:
		q.fatalNak(now, psn, StatusRemoteInvalid)
	case roce.NakRemoteAccess:
		q.fatalNak(now, psn, StatusRemoteAccess)
	case roce.NakRemoteOperation:
		q.fatalNak(now, psn, StatusRemoteOperation)
	default:
		q.stats.Dropped++ // not of RC, or reserved
	}
}

func (q *qpc) fatalNak(now time.Duration, psn wire.PSN, status Status) {
	q.stats.RcvdFatalNaks++
	q.acked(now, psn)
	q.failSend(psn, status)
}

// acked takes that the peer has all packets before psn, which is in una to max.
func (q *qpc) acked(now time.Duration, psn wire.PSN) {
	q.activeAt, q.heard, q.probes = now, false, 0
	if q.run == runSent {
		q.run = runNone
	}
	n := psn.Sub(q.una)
	if n == 0 {
		return
	}
	q.asked = q.asked && q.askPSN.Sub(psn) >= 0
	if q.timing && psn.Sub(q.timedPSN) > 0 {
		q.timing = false
		q.window.onRoundTrip(now - q.timedAt)
	}
	q.una, q.progressAt, q.timedOut = psn, now, false
	q.retries, q.rnrRetries = q.retryCount, q.rnrRetry
	if q.recovering && psn.Sub(q.recoverPSN) >= 0 {
		q.recovering = false
	}
	q.window.onAcked(n)
	for q.head != q.tail {
		e := q.entry(q.head)
		if psn.Sub(e.end()) < 0 {
			break
		}
		if e.wr.Signaled {
			q.completeSend(&e.wr, StatusOK)
		}
		e.wr.Local = [maxSGE]SGE{} // lets go of the regions
		q.head++
		q.stats.Messages++
	}
	if q.run == runWaiting && psn.Sub(q.runNext) > 0 {
		q.runNext, q.runCur = psn, q.head
		if psn.Sub(q.runEnd) >= 0 {
			q.run = runNone
		}
	}
	if q.next.Sub(psn) < 0 { // the packets to be sent again have come through after all
		q.next, q.cur, q.rnrUntil = psn, q.head, 0
		if q.wentBack { // and more of it will have, or we hear of the next gap
			q.keeps = true
			for q.cur != q.tail && q.max.Sub(q.entry(q.cur).end()) >= 0 {
				q.cur++
			}
			q.next = q.max
		}
	}
}

// rewind makes everything unacknowledged be sent again.
func (q *qpc) rewind(now time.Duration) {
	q.next, q.cur, q.repairedAt, q.timing = q.una, q.head, now, false
	q.run, q.runFirst, q.runEnd = runNone, q.una, q.una
	q.asked, q.wentBack = false, false
	q.stats.Rewinds++
}

// lost takes that the packet at una was lost, and that the packets after it were dropped.
func (q *qpc) lost(now time.Duration) {
	q.noteLoss()
	q.rewind(now)
}

// repair takes that the packet at una was lost, and that the packets after it were kept. If that is
// just where the last run ended more is missing than one packet, such as a whole super-packet: each
// run in a row is twice as long as the one before, for a NAK and a round trip each.
func (q *qpc) repair(now time.Duration) {
	n := 1
	if q.una == q.runEnd {
		n = min(max(2*q.runEnd.Sub(q.runFirst), 1), maxRun)
	}
	q.noteLoss()
	q.timing, q.repairedAt = false, now
	q.startRun(n)
}

// startRun has up to n packets from una on sent again, as far as they were sent at all.
func (q *qpc) startRun(n int) {
	if n = min(n, q.next.Sub(q.una)); n > 0 { // else una goes out as it is
		q.run, q.runFirst, q.runNext, q.runEnd, q.runCur = runWaiting, q.una, q.una, q.una.Add(n), q.head
	}
}

// noteLoss makes the window smaller: one loss, one reaction, however many packets it cost.
func (q *qpc) noteLoss() {
	if !q.recovering {
		q.recovering, q.recoverPSN = true, q.max
		q.window.onLoss(q.keeps)
	}
}

// failSend ends the queue pair because of the message with packet psn.
func (q *qpc) failSend(psn wire.PSN, status Status) {
	for i := q.head; i != q.tail; i++ {
		e := q.entry(i)
		if psn.Sub(e.end()) >= 0 {
			continue
		}
		// Messages before it, if there are any, are on their way: they are flushed first, so
		// that completions keep their order.
		for ; q.head != i; q.head++ {
			q.completeSend(&q.entry(q.head).wr, StatusFlushed)
		}
		q.completeSend(&e.wr, status)
		q.head++
		break
	}
	q.failure = failure{happened: true, status: status}
	q.fail()
}

func (q *requester) stopTimers() {
	q.run, q.timing, q.recovering, q.rnrUntil = runNone, false, false, 0
}

// waiting reports whether packets are unacknowledged, and may be answered.
func (q *requester) waiting() bool { return q.next != q.una && q.rnrUntil == 0 }

// probeAt returns when the next probe is due.
func (q *requester) probeAt() time.Duration {
	from := q.activeAt
	if q.run == runSent {
		from = q.runSentAt
	}
	wait := q.window.probeAfter()
	if q.heard { // see answerWaits
		wait += maxAckDelay
	}
	return from + wait<<min(q.probes, 16)
}

// timeoutAt returns when the timeout of verbs is due. A peer that is stopped for a while, or a network that
// is full, must not end the queue pair: verbs let a requester take up to four times the time.
// IBTA 9.7.6.1.3.
func (q *requester) timeoutAt() time.Duration {
	if !q.timedOut {
		return q.progressAt + 2*q.timeout
	}
	return q.progressAt + 4*q.timeout
}

func (q *requester) deadline() time.Duration {
	switch {
	case q.rnrUntil != 0:
		return q.rnrUntil
	case !q.waiting():
		return 0
	}
	at := q.probeAt()
	if q.timeout > 0 {
		at = min(at, q.timeoutAt())
	}
	return at
}

// onTimer does the work that is due: it ends the wait for a receive, gives up or goes back after
// the timeout of verbs, or sends a probe.
func (q *qpc) onTimer(now time.Duration) {
	switch {
	case q.rnrUntil != 0:
		if now >= q.rnrUntil {
			q.rnrUntil = 0
		}
	case !q.waiting():
	case q.timeout > 0 && now >= q.timeoutAt():
		q.stats.Timeouts++
		q.timedOut = true
		if q.retries == 0 {
			q.failSend(q.una, StatusRetryExceeded)
			return
		}
		q.retries--
		q.progressAt, q.activeAt = now, now
		q.recovering, q.recoverPSN = true, q.max
		q.window.onTimeout()
		q.rewind(now)
	case now >= q.probeAt():
		q.probes++
		q.activeAt = now
		if q.run != runWaiting {
			q.startRun(1)
		}
		q.stats.Probes++
	}
}
