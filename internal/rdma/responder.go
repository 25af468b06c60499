package rdma

import (
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// A responder is the half of a queue pair that carries out the peer's requests.
//
// Each packet goes through the checks of IBTA 9.7.4.1 in this order; the first that fails decides:
//
//	PSN beyond the expected one    NAK sequence error, once until the expected one comes
//	PSN before it                  not carried out again; a SEND or WRITE is acknowledged again
//	not RC SEND or WRITE           NAK invalid request, ERR
//	opcode not the next one's      NAK invalid request, ERR
//	length of the packet           NAK invalid request, ERR
//	the peer may not WRITE         NAK invalid request, ERR
//	length of the WRITE            NAK invalid request, ERR
//	no receive posted              RNR NAK, and the packet is forgotten
//	length of the SEND             NAK invalid request, ERR
//	RKey, range, access            NAK remote access error, ERR
//	our receive's region is gone   NAK remote operation error, ERR
type responder struct {
	expected wire.PSN // of the next packet
	msn      uint32   // messages completed, mod 2^24

	// The message that has begun, if any.
	receiving receiving
	region    *MR    // of a WRITE with bytes
	addr      uint64 // where the next bytes of the WRITE go
	left      uint32 // bytes of the WRITE still to come
	received  uint32 // bytes of the message so far

	rq             []RecvWR // len is a power of two
	rqHead, rqTail uint32
	maxRecv        uint32

	// The answer that the peer is to get. One answer is enough: an ACK stands for all before it,
	// and a NAK too.
	answer      answer
	syndrome    roce.Syndrome // of a NAK
	nakPSN      wire.PSN      // of a NAK
	sinceAnswer int           // packets of ours that went out while it waited
	answerBy    time.Duration // when an ACK goes out at the latest
	ackAsked    int           // times that an ACK was asked for since one went out
	naked       bool          // a sequence or RNR NAK went out for the expected packet

	answersFirst bool // no packet of ours goes before an answer

	told      wire.PSN      // the first one of which the peer was never told that it has arrived
	heldUntil time.Duration // no answer goes out before; 0: as usual
	refuses   bool          // in ERR the peer is told that its requests are for nothing

	beyond int // packets beyond the expected one since then

	kept    *keeper // packets beyond the expected one; nil if there are none
	keepers *keeperPool
}

// A receiving is the kind of message that has begun.
type receiving uint8

const (
	receivingNothing receiving = iota
	receivingSend
	receivingWrite
)

// An answer is the kind of answer that the responder is to send.
type answer uint8

const (
	answerNone answer = iota
	answerAck
	answerNak
)

func (q *qpc) recv(i uint32) *RecvWR { return &q.rq[i&uint32(len(q.rq)-1)] }

// postRecv adds room for a message.
func (q *qpc) postRecv(wr *RecvWR) error {
	switch {
	case q.state == StateReset:
		return stateError("post a receive", q.state)
	case q.rqTail-q.rqHead >= q.maxRecv:
		return ErrQueueFull
	}
	if err := q.checkLocal(&wr.Local, LocalWrite); err != nil {
		return err
	}
	if q.state == StateError {
		q.completeRecv(Completion{ID: wr.ID, Op: Received, Status: StatusFlushed})
		return nil
	}
	*q.recv(q.rqTail) = *wr
	q.rqTail++
	return nil
}

// receiveRequest carries out a request packet, or says why not.
func (q *qpc) receiveRequest(now time.Duration, p *roce.Packet) {
	q.release(now)
	switch d := p.PSN.Sub(q.expected); {
	case d > 0:
		q.stats.OutOfSequence++
		q.keep(p, d)
		if q.beyond++; q.beyond >= nakAgain {
			q.naked = false
		}
		q.nakGap()
		return
	case d < 0: // rule: TestRequests
		q.stats.Duplicates++
		if p.Opcode.IsSend() || p.Opcode.IsWrite() {
			q.ack(now)
		}
		return
	}
	q.naked = false
	if q.answer == answerNak {
		q.answer, q.answerBy = answerAck, now // it asked for this packet, and has become wrong
	}
	q.carryOut(now, p)
	if q.kept != nil {
		q.carryOutKept(now)
	}
}

// carryOut executes the expected packet, or tells the peer why not. It reports whether the next one
// is expected now.
func (q *qpc) carryOut(now time.Duration, p *roce.Packet) bool {
	syndrome := q.execute(p)
	if syndrome == 0 {
		q.expected = q.expected.Add(1)
		if p.AckReq {
			q.ack(now)
		}
		return true
	}
	q.nak(syndrome)
	if syndrome.Kind() == roce.KindRNRNak {
		q.stats.SentRNRNaks++
		return false
	}
	q.stats.SentFatalNaks++
	q.failure = failure{happened: true, nak: syndrome}
	q.fail()
	return false
}

// keep keeps a packet that is ahead of the expected one by d, if there is room.
func (q *qpc) keep(p *roce.Packet, d int) {
	if d >= keepAhead || len(p.Payload) > q.mtu {
		return
	}
	if q.kept == nil {
		if q.kept = q.keepers.get(); q.kept == nil {
			return
		}
	}
	q.kept.put(p)
}

// carryOutKept goes on with packets that were kept, after the one before them has come. If there
// is another gap it is told at once: the peer knows already that it was overtaken.
func (q *qpc) carryOutKept(now time.Duration) {
	for q.kept.count > 0 {
		p := q.kept.take(q.expected)
		if p == nil {
			q.nakGap()
			return
		}
		if !q.carryOut(now, p) {
			break
		}
	}
	if q.kept != nil && q.kept.count == 0 { // nil after a failure
		q.letGo()
	}
}

func (q *qpc) nakGap() {
	if !q.naked { // rule: TestOneNak: !q.naked -> true
		q.nak(roce.NakSequence)
		q.stats.SentSeqNaks++
	}
}

// letGo gives the keeper back, and forgets its packets.
func (q *responder) letGo() {
	if q.kept != nil {
		q.keepers.put(q.kept)
		q.kept = nil
	}
}

// answerIsDue reports whether an answer is to go out now. An ACK that our own packets have overtaken
// waits for more to acknowledge, but not for long: the peer's application goes on with those packets,
// and an ACK costs both sides as much as one of them.
func (q *responder) answerIsDue(now time.Duration) bool {
	if q.heldUntil != 0 {
		return false
	}
	switch q.answer {
	case answerAck:
		return !q.answerWaits() || now >= q.answerBy
	case answerNak:
		return true
	}
	return false
}

// answerWaits reports whether there is an ACK that may wait until answerBy.
func (q *responder) answerWaits() bool {
	return q.answer == answerAck && !q.answersFirst && q.sinceAnswer > 0 && q.sinceAnswer < ackAfterPackets &&
		q.ackAsked < ackAfterAsked
}

func (q *qpc) ack(now time.Duration) {
	q.ackAsked++
	if q.answer == answerNone { // a NAK that waits says all that an ACK would
		q.answer, q.sinceAnswer, q.answerBy = answerAck, 0, now+maxAckDelay
	}
}

func (q *qpc) nak(s roce.Syndrome) {
	q.beyond = 0
	q.answer, q.syndrome, q.nakPSN, q.sinceAnswer, q.naked = answerNak, s, q.expected, ackAfterPackets, true
}

// hold has no answer go out for a while. That is no longer than a peer waits before it sends again:
// IBTA 9.7.5.1 leaves the time to the responder.
func (q *qpc) hold(now time.Duration) {
	if q.state == StateRTR || q.state == StateRTS {
		q.heldUntil = now + maxHold
	}
}

// release ends that when it is time.
func (q *responder) release(now time.Duration) {
	if q.heldUntil != 0 && now >= q.heldUntil { // rule: TestHoldAnswers: now >= q.heldUntil -> false
		q.heldUntil = 0
	}
}

// giveUp moves to ERR and flushes, as the owner wants. The peer gets a NAK for its requests from
// now on. It is not told that anything has arrived of which it does not know yet: it may have gone
// on elsewhere, and would count it twice.
func (q *qpc) giveUp() {
	q.refuses = q.state != StateReset
	if q.state == StateRTR || q.state == StateRTS { // rule: TestGiveUp
		q.answer = answerNone
	}
	q.fail()
}

// refuse tells the peer of a queue pair that was given up so. A NAK acknowledges all that was
// before it (IBTA 9.7.5.2.1). So this is for the first packet of which the peer was not told, or
// the first that it sends again, as it has not heard of it.
func (q *qpc) refuse(psn wire.PSN) {
	if psn.Sub(q.told) < 0 { // rule: TestGiveUp
		q.told = psn
	}
	q.nak(roce.NakRemoteOperation)
	q.nakPSN = q.told
}

// execute carries out the packet that was expected, and returns zero, or the syndrome of the NAK
// that it earns. In the latter case nothing was written by a WRITE, and the packet is still expected.
func (q *qpc) execute(p *roce.Packet) roce.Syndrome {
	op := p.Opcode
	// rule: TestRequestChecks
	if !op.IsSend() && !op.IsWrite() || op.HasIETH() { // READ, atomics, SEND with invalidate
		return roce.NakInvalidRequest
	}
	// rule: TestRequestChecks
	if op.Starts() != (q.receiving == receivingNothing) ||
		q.receiving == receivingSend && !op.IsSend() || q.receiving == receivingWrite && !op.IsWrite() {
		return roce.NakInvalidRequest
	}
	// Every packet has to be full unless it is the last.
	n := len(p.Payload)
	if op.Ends() {
		if n > q.mtu || n == 0 && !op.Starts() { // rule: TestRequestChecks
			return roce.NakInvalidRequest
		}
	} else if n != q.mtu { // rule: TestRequestChecks
		return roce.NakInvalidRequest
	}
	if op.IsWrite() {
		return q.executeWrite(p)
	}
	return q.executeSend(p)
}

func (q *qpc) executeWrite(p *roce.Packet) roce.Syndrome {
	if q.access&RemoteWrite == 0 { // rule: TestRequestChecks
		return roce.NakInvalidRequest
	}
	op, n := p.Opcode, uint32(len(p.Payload))
	region, addr, left := q.region, q.addr, q.left
	if op.Starts() {
		region, addr, left = nil, p.RETH.VA, p.RETH.Length
	}
	switch {
	case left > maxWriteLen: // rule: TestRequestChecks
		return roce.NakInvalidRequest
	// rule: TestRequestChecks
	case op.Ends() && n != left, !op.Ends() && n >= left:
		return roce.NakInvalidRequest // the packets and the announced length disagree
	case op.HasImm() && q.rqHead == q.rqTail: // rule: TestRequestChecks
		return roce.RNRNak(q.minRNR)
	}
	if op.Starts() && left > 0 { // a WRITE of nothing needs no key: IBTA 9.7.4.1.5
		region = q.pd.lookup(p.RETH.RKey)
		if region == nil || region.access&RemoteWrite == 0 { // rule: TestRequestChecks: region.access&RemoteWrite == 0 -> false
			return roce.NakRemoteAccess
		}
		if _, ok := region.slice(addr, uint64(left)); !ok { // rule: TestRequestChecks
			return roce.NakRemoteAccess
		}
	}
	if n > 0 && !region.Place(addr, p.Payload) {
		return roce.NakRemoteAccess
	}
	q.region, q.addr, q.left = region, addr+uint64(n), left-n
	if op.Starts() {
		q.receiving, q.received = receivingWrite, 0
	}
	q.received += n
	if op.Ends() {
		if region != nil { // rule: TestPlaced
			region.Arrived(uint64(q.received))
		}
		if op.HasImm() {
			q.completeRecv(Completion{
				ID: q.takeRecv().ID, Op: ReceivedWriteImm, Len: q.received,
				Imm: p.Imm, HasImm: true, Solicited: p.Solicited,
			})
		}
		q.endMessage()
	}
	return 0
}

func (q *qpc) executeSend(p *roce.Packet) roce.Syndrome {
	if q.rqHead == q.rqTail {
		return roce.RNRNak(q.minRNR)
	}
	wr, received := q.recv(q.rqHead), q.received
	if p.Opcode.Starts() {
		received = 0
	}
	// rule: TestRequestChecks, TestSendOf2GiB
	if uint64(received)+uint64(len(p.Payload)) > min(wr.Length(), maxWriteLen) { // no message is longer
		q.completeRecv(Completion{ID: q.takeRecv().ID, Op: Received, Status: StatusLocalLength})
		return roce.NakInvalidRequest
	}
	if !scatter(&wr.Local, received, p.Payload) {
		q.completeRecv(Completion{ID: q.takeRecv().ID, Op: Received, Status: StatusLocalProtection})
		return roce.NakRemoteOperation
	}
	q.receiving, q.received = receivingSend, received+uint32(len(p.Payload))
	if p.Opcode.Ends() {
		c := Completion{ID: q.takeRecv().ID, Op: Received, Len: q.received, Solicited: p.Solicited}
		if p.Opcode.HasImm() { // else p has a value of an earlier packet, of any connection
			c.Imm, c.HasImm = p.Imm, true
		}
		q.completeRecv(c)
		q.endMessage()
	}
	return 0
}

func (q *qpc) takeRecv() RecvWR {
	slot := q.recv(q.rqHead)
	wr := *slot
	*slot = RecvWR{}
	q.rqHead++
	return wr
}

func (q *qpc) endMessage() {
	q.receiving, q.region = receivingNothing, nil
	q.msn = (q.msn + 1) & (1<<24 - 1)
	q.stats.RcvdMessages++
}

// scatter copies b to the bytes from offset of the pieces, which have room for it. It reports false
// if a region of theirs is gone.
func scatter(pieces *[maxSGE]SGE, offset uint32, b []byte) bool {
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
		to, ok := bytesOf(s, offset, uint32(n))
		if !ok {
			return false
		}
		copy(to, b)
		b, offset = b[n:], 0
	}
	return true
}

// bytesOf returns the n bytes from offset of a piece, and false if its region is gone.
func bytesOf(s *SGE, offset, n uint32) ([]byte, bool) {
	m := s.MR.(*MR) // checkLocal has looked
	if m.dead.Load() {
		return nil, false
	}
	return m.slice(s.Addr+uint64(offset), uint64(n))
}

func (q *qpc) completeRecv(c Completion) { q.done = append(q.done, c) }

// transmitAnswer writes the ACK or NAK that waits.
func (q *qpc) transmitAnswer(b []byte) int {
	p := roce.Packet{
		BTH: roce.BTH{Opcode: roce.Acknowledge, PKey: roce.DefaultPKey, DestQPN: q.remoteQPN,
			PSN: q.expected.Add(-1)},
		AETH: roce.AETH{Syndrome: roce.AckUnlimited, MSN: q.msn},
	}
	if q.answer == answerNak {
		p.PSN, p.AETH.Syndrome = q.nakPSN, q.syndrome
	}
	if q.answer == answerAck {
		q.told = q.expected
	} else if p.PSN.Sub(q.told) > 0 {
		q.told = p.PSN
	}
	q.answer, q.ackAsked = answerNone, 0
	q.stats.SentAcks++
	q.stats.SentPackets++
	return len(p.Append(b[:0]))
}
