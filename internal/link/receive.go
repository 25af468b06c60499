package link

import (
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire/cdc"
)

// receiveWork is the work request of a receive. A short message stays in its head.
func (l *Link) receiveWork(i int) verbs.RecvWR {
	return verbs.RecvWR{ID: uint64(i), Local: [2]verbs.SGE{
		{MR: l.mr, Addr: l.at + uint64(headsAt+i*headLen), Len: headLen},
		{MR: l.mr, Addr: l.at + uint64(tailsAt+i*tailLen), Len: tailLen},
	}}
}

// handle is the completion handler. It runs on the device's goroutine, and must not wait for anybody.
func (l *Link) handle(cq verbs.CQ) {
	for {
		n := cq.Poll(l.batch[:])
		if n == 0 {
			return
		}
		received, sent := 0, false
		for i := range l.batch[:n] {
			c := &l.batch[i]
			ok := c.Status == verbs.StatusOK
			if !ok {
				l.Fail(&WorkError{Op: c.Op, Status: c.Status})
			}
			switch {
			case c.Op == verbs.CompletedSend && c.ID&idKind == idCDC:
				l.completed(int(c.ID&^idKind), ok)
				sent = true
			case c.Op == verbs.CompletedSend && c.ID&idKind == idLLC:
				l.completedLLC(int(c.ID&^idKind), ok)
				sent = true
			case c.Op == verbs.Received && ok:
				l.receive(int(c.ID), int(c.Len), c.Turn)
				l.repost[received] = l.receiveWork(int(c.ID))
				received++
			case c.Op == verbs.ReceivedWriteImm && ok: // rule: TestImmediate
				l.stats.malformed.Add(1) // SMC has none, but it has used up a receive
				l.repost[received] = l.receiveWork(int(c.ID))
				received++
			}
		}
		if received > 0 {
			l.heard.Add(uint64(received))
			if err := l.qp.PostRecv(l.repost[:received]...); err != nil {
				l.Fail(l.error(err))
			}
		}
		if sent {
			l.pumpLLC() // first: these are few, and somebody is waiting
			l.pump()
		}
	}
}

// receive takes the message of n bytes in a receive, whose turn is the turn of its completion.
func (l *Link) receive(i, n int, turn uint64) {
	head := l.area[headsAt+i*headLen:][:min(n, headLen)]
	if len(head) > 0 && head[0] == cdc.TypeMessage {
		l.receiveCDC(head, turn)
		return
	}
	l.stats.receivedLLC.Add(1)
	message := make([]byte, n)
	copy(message, head)
	if n > headLen {
		copy(message[headLen:], l.area[tailsAt+i*tailLen:][:n-headLen])
	}
	if !l.group.tell(Event{Kind: EventLLC, Link: l, Message: message}) {
		l.Fail(l.error(ErrFlood))
	}
}

// receiveCDC takes a CDC message to its connection.
func (l *Link) receiveCDC(b []byte, turn uint64) {
	if len(b) < cdc.MessageLen || b[1] != cdc.MessageLen {
		// looked at here, as an error would cost memory each time
		l.stats.malformed.Add(1)
		return
	}
	m, err := cdc.ParseMessage(b)
	if err != nil {
		l.stats.malformed.Add(1)
		return
	}
	c := l.group.carrier(m.AlertToken)
	if c == nil {
		l.stats.unknownToken.Add(1) // of a connection that has ended, RFC 7609 p.10
		return
	}
	l.stats.receivedCDC.Add(1)
	if !c.receive(l, turn, &m) {
		l.stats.stale.Add(1)
	}
}
