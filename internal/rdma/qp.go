package rdma

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// A QP is a queue pair, one end of a reliable connection (RC). Its methods may be called by several
// goroutines; work is done in the order in which it was posted.
type QP struct {
	dev            *Device
	qpn            wire.QPN // the same for life
	pd             *PD
	sendCQ, recvCQ *CQ

	mu      sync.Mutex
	c       *qpc
	closed  bool
	sending bool // a goroutine is sending packets of it; others leave that to it
	timer   *time.Timer
	timerAt time.Duration // when timer fires; 0: not armed

	// Set on the way to RTR.
	remote netip.AddrPort
	path   *path
	share  share
	rxFlow roce.Flow // of packets from the peer's port rxPort: the device's own until another is seen
	rxPort uint16    // any: 0 is a port that a packet can come from

	inEvents bool // its failure is to be told; of the device's events, under their lock

	sendUnpolled, recvUnpolled atomic.Int32 // completions that wait in the queues
}

// QPConfig has the completion queues and the queue sizes of a queue pair.
type QPConfig struct {
	SendCQ, RecvCQ   *CQ // may be one
	MaxSend, MaxRecv int // work requests that may be posted and not yet taken out as completions
}

// NewQP makes a queue pair in [StateReset], with a number that nobody can guess.
func (pd *PD) NewQP(cfg QPConfig) (*QP, error) {
	switch {
	case cfg.SendCQ == nil || cfg.RecvCQ == nil:
		return nil, argError("a queue pair without completion queues")
	case cfg.MaxSend < 0 || cfg.MaxSend > maxQueueDepth || cfg.MaxRecv < 0 || cfg.MaxRecv > maxQueueDepth:
		return nil, argError("queues for %d sends and %d receives, more than %d", cfg.MaxSend, cfg.MaxRecv,
			maxQueueDepth)
	}
	if err := cfg.SendCQ.reserve(cfg.MaxSend); err != nil {
		return nil, err
	}
	if err := cfg.RecvCQ.reserve(cfg.MaxRecv); err != nil {
		cfg.SendCQ.release(nil, cfg.MaxSend)
		return nil, err
	}
	q := &QP{dev: pd.dev, pd: pd, sendCQ: cfg.SendCQ, recvCQ: cfg.RecvCQ,
		c: newQPC(0, pd, &pd.dev.keepers, cfg.MaxSend, cfg.MaxRecv)}
	q.share.qp = q
	if err := pd.dev.add(q); err != nil {
		cfg.SendCQ.release(nil, cfg.MaxSend)
		cfg.RecvCQ.release(nil, cfg.MaxRecv)
		return nil, err
	}
	pd.mu.Lock()
	pd.qps[q] = struct{}{}
	pd.mu.Unlock()
	return q, nil
}

// QPN returns the queue pair's number.
func (q *QP) QPN() wire.QPN { return q.qpn }

// State returns the state.
func (q *QP) State() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.c.state
}

// Stats returns the counters since the queue pair was made.
func (q *QP) Stats() QPStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.c.stats
	s.RoundTrip, s.Window = uint64(q.c.window.smoothed), uint64(q.c.window.size)
	s.Budget = uint64(q.dev.sched.budgetOf(&q.share))
	return s
}

// Init moves from RESET to INIT: access is the set of operations that the peer may do.
func (q *QP) Init(access Access) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.c.init(access)
}

// ReadyToReceive moves from INIT to RTR. Receives are best posted before.
func (q *QP) ReadyToReceive(a RTR) error {
	if a.PathMTU > q.dev.MTU() {
		return argError("path MTU %v is larger than the %v of device %v", a.PathMTU, q.dev.MTU(),
			q.dev.Addr())
	}
	remote := a.RemoteGID.Addr()
	if remote.Is4() != q.dev.Addr().Is4() || remote.IsUnspecified() || remote.IsMulticast() {
		return argError("remote GID %v, from device %v", a.RemoteGID, q.dev.Addr())
	}
	if remote.Is6() && remote.IsLinkLocalUnicast() {
		remote = remote.WithZone(q.dev.addr.Addr().Zone())
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return q.closedError()
	}
	if err := q.c.readyToReceive(a); err != nil {
		return err
	}
	q.remote = netip.AddrPortFrom(remote, q.dev.addr.Port())
	q.path = q.dev.sched.join(&q.share, q.dev.sock.SourceAddr(), q.remote, turnBytes/q.c.mtu+1)
	q.rxFlow, q.rxPort = roce.NewFlow(q.remote, q.dev.addr), q.remote.Port()
	return nil
}

// ReadyToSend moves from RTR to RTS.
func (q *QP) ReadyToSend(a RTS) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.c.readyToSend(a); err != nil {
		return err
	}
	q.share.una = a.SendPSN
	return nil
}

// Fail moves to ERR: posted work completes with [StatusFlushed]. From then on the peer gets a NAK,
// remote operation error, for its requests, also where the queue pair had failed before.
//
// IBTA 10.3.1 has packets dropped in ERR, and the peer run out of retries. But soft-RoCE retries
// without end if the retry count is 7, which Linux net/smc sets. Linux net/smc waits, with a lock
// on its link group, until all that it has sent over a link has completed.
func (q *QP) Fail() error {
	q.mu.Lock()
	if was := q.c.state; was == StateReset || was == StateError {
		defer q.mu.Unlock()
		q.c.giveUp()
		return stateError("to ERR", was)
	}
	q.c.giveUp()
	q.settle(q.dev.now())
	q.unlockAndTell()
	q.dev.kick()
	return nil
}

// HoldAnswers has the peer told of nothing that it has sent for a tenth of a second, unless the
// queue pair fails meanwhile. Afterwards it is told of all.
func (q *QP) HoldAnswers() {
	q.mu.Lock()
	now := q.dev.now()
	q.c.hold(now)
	if !q.closed {
		q.arm(now)
	}
	q.mu.Unlock()
}

// Drain has the completion handler called for all that has come of which the peer may know, and
// waits for one that is being called elsewhere, at most for limit. It reports whether it was. It
// may be called from another queue's handler, but not with a lock that the handler takes.
func (q *QP) Drain(limit time.Duration) bool {
	q.mu.Lock() // all acknowledged messages are in the queue before this lock is let go of
	cq := q.recvCQ
	q.mu.Unlock()
	return cq.handler == nil || cq.drain(limit)
}

// AnswerFirst has everything that the peer has sent acknowledged before anything else is sent to
// the peer from now on. Otherwise an acknowledgement lets some packets go first, as it costs as
// much as one of them.
func (q *QP) AnswerFirst() {
	q.mu.Lock()
	q.c.answersFirst = true
	q.mu.Unlock()
}

// Reset moves to RESET from any state: posted work is forgotten, without completions.
func (q *QP) Reset() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return q.closedError()
	}
	q.c.reset()
	q.leave()
	return nil
}

// Close ends the queue pair. Completions that nobody has taken out are gone. Closing twice is no
// error.
func (q *QP) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	q.c.reset()
	q.leave()
	if q.timer != nil {
		q.timer.Stop()
	}
	q.mu.Unlock()

	q.dev.events.drop(q)
	q.dev.remove(q)
	q.pd.mu.Lock()
	delete(q.pd.qps, q)
	q.pd.mu.Unlock()
	q.sendCQ.release(q, int(q.c.maxSend))
	q.recvCQ.release(q, int(q.c.maxRecv))
	return nil
}

// leave takes q off its path, after a reset. The caller holds mu.
func (q *QP) leave() {
	q.dev.sched.leave(&q.share)
	q.path = nil
	q.dev.kick() // its part of the budget is free
}

func (q *QP) closedError() error { return fmt.Errorf("rdma: queue pair %v: %w", q.qpn, ErrClosed) }

// PostSend adds work to the send queue and sends as much as the window allows. If one of wrs cannot
// be posted those after it are not, and the error, which says which one, wraps [ErrQueueFull],
// [ErrState], [ErrRegion] or [ErrArgument]. In [StateError] work is taken and flushed.
func (q *QP) PostSend(wrs ...SendWR) error {
	q.mu.Lock()
	if q.closed {
		defer q.mu.Unlock()
		return q.closedError()
	}
	var err error
	before := q.c.posted
	for i := range wrs {
		if q.c.tail-q.c.head+uint32(len(q.c.done))+uint32(q.sendUnpolled.Load()) >= q.c.maxSend {
			err = ErrQueueFull
		} else {
			err = q.c.postSend(&wrs[i])
		}
		if err != nil {
			err = fmt.Errorf("rdma: queue pair %v, send %d of %d: %w", q.c.qpn, i+1, len(wrs), err)
			break
		}
	}
	if len(q.c.done) > 0 { // flushed
		q.unlockAndTell()
		return err
	}
	idle := !q.sending && q.c.wantsToTransmit(q.dev.now())
	packets := int(q.c.posted-before) & int(wire.MaxPSN) // half of the sequence space fits into a message
	q.mu.Unlock()
	if idle {
		q.dev.send(q, max(packets, 1))
	}
	return err
}

// PostRecv adds room for messages. Errors are as with [QP.PostSend].
func (q *QP) PostRecv(wrs ...RecvWR) error {
	q.mu.Lock()
	if q.closed {
		defer q.mu.Unlock()
		return q.closedError()
	}
	var err error
	for i := range wrs {
		if q.c.rqTail-q.c.rqHead+uint32(len(q.c.done))+uint32(q.recvUnpolled.Load()) >= q.c.maxRecv {
			err = ErrQueueFull
		} else {
			err = q.c.postRecv(&wrs[i])
		}
		if err != nil {
			err = fmt.Errorf("rdma: queue pair %v, receive %d of %d: %w", q.c.qpn, i+1, len(wrs), err)
			break
		}
	}
	if len(q.c.done) > 0 { // flushed
		q.unlockAndTell()
		return err
	}
	q.mu.Unlock()
	return err
}

// deliver moves the completions of q to their queues and reports which ones have news. The caller
// holds mu, and calls notify for those once it has let go of it.
func (q *QP) deliver() (send, recv bool) {
	if q.c.failure.happened {
		q.dev.events.qpFailed(q, q.c.failure)
		q.c.failure = failure{}
	}
	var turn uint64
	for i := range q.c.done {
		done := &q.c.done[i]
		done.QP = q
		if done.Op.IsRecv() {
			if !recv {
				turn = verbs.Turns.Add(1) // before the peer is told
			}
			recv, done.Turn = true, turn
			q.recvCQ.put(*done)
		} else {
			send = true
			q.sendCQ.put(*done)
		}
		*done = Completion{}
	}
	q.c.done = q.c.done[:0]
	return send, recv
}

// unlockAndTell delivers, unlocks, and has handlers called by a goroutine of its own: the caller's
// may hold locks that a handler wants.
func (q *QP) unlockAndTell() {
	send, recv := q.deliver()
	q.mu.Unlock()
	if send || recv {
		go q.tell(send, recv)
	}
}

func (q *QP) tell(send, recv bool) {
	if recv {
		q.recvCQ.notify()
	}
	if send && (!recv || q.sendCQ != q.recvCQ) {
		q.sendCQ.notify()
	}
}

// arm sets the timer for the next deadline. A deadline that has moved away is found out when the
// timer fires, so that most packets do not touch it. The caller holds mu.
func (q *QP) arm(now time.Duration) {
	at := q.c.deadline()
	if at == 0 || q.timerAt != 0 && q.timerAt <= at || q.closed {
		return
	}
	q.timerAt = at
	if q.timer == nil {
		q.timer = time.AfterFunc(at-now, q.onTimer)
		return
	}
	q.timer.Reset(at - now)
}

func (q *QP) onTimer() {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return
	}
	now := q.dev.now()
	q.timerAt = 0
	if at := q.c.deadline(); at != 0 && now >= at {
		q.c.advance(now)
	}
	q.arm(now)
	q.settle(now)
	send, recv := q.deliver()
	wants := q.c.wantsToTransmit(now)
	q.mu.Unlock()
	q.tell(send, recv)
	if wants {
		q.dev.send(q, turnPackets)
	} else {
		q.dev.kick() // others' turn may have waited for the packets that it had on their way
	}
}
