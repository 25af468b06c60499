package link

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// A Link is one RC queue pair of ours, and, once it is told of it, the peer's at the other end. Its
// methods may be called by several goroutines.
type Link struct {
	group *Group
	dev   verbs.Device
	pd    verbs.PD
	cq    verbs.CQ
	qp    verbs.QP
	psn   wire.PSN
	area  []byte // see limits.go. It lives as long as the Link: a late goroutine touches nothing that is gone
	mr    verbs.MR
	at    uint64 // the virtual address of area

	endOnce sync.Once
	failed  chan struct{}
	err     error       // why failed is closed; written before it
	over    atomic.Bool // the same, and all that had come was looked at

	heard atomic.Uint64
	stats counters

	users   atomic.Int32 // connections that write over it
	leaving atomic.Bool  // Leave was called, and EventLeft is to come

	// mu guards the sending side: see send.go.
	mu         sync.Mutex
	ready      bool
	gone       bool // failed or closed: nothing is posted any more
	places     [cdcSends]place
	free       []uint8 // indexes of places
	waiting    queue   // connections for a place
	llc        [llcSends]llcPlace
	llcOut     int
	large      bool // a message longer than any of version 1 is on its way
	llcQueue   []llcMessage
	llcPosting bool

	// Of the completion handler.
	round  round
	batch  [pollBatch]verbs.Completion
	repost [pollBatch]verbs.RecvWR

	unpolled int // events with messages; guarded by the group's mu
}

// NewLink makes a link on a device, with a queue pair in [verbs.StateInit] whose receives are
// posted. All RMBs of the group are registered with it.
func (g *Group) NewLink(dev verbs.Device) (*Link, error) {
	l := &Link{group: g, dev: dev, psn: verbs.RandomPSN(), failed: make(chan struct{})}
	if err := l.open(); err != nil {
		l.Close()
		return nil, fmt.Errorf("smc: link on %v: %w", dev.Addr(), err)
	}
	return l, nil
}

// open makes the parts of the link. After an error Close takes away the parts that there are.
func (l *Link) open() (err error) {
	if l.pd, err = l.dev.NewPD(); err != nil {
		return err
	}
	const sendWork = cdcSends*workPerPost + llcSends
	if l.cq, err = l.dev.NewCQ(sendWork+receives, l.handle); err != nil {
		return err
	}
	if l.area, err = newArea(l); err != nil {
		return err
	}
	if l.mr, err = l.pd.RegisterMR(l.area, verbs.LocalWrite); err != nil {
		return err
	}
	l.at = l.mr.Addr()
	l.qp, err = l.pd.NewQP(verbs.QPConfig{SendCQ: l.cq, RecvCQ: l.cq, MaxSend: sendWork, MaxRecv: receives})
	if err != nil {
		return err
	}
	if err = l.qp.Init(verbs.LocalWrite | verbs.RemoteWrite); err != nil {
		return err
	}
	for i := range receives {
		if err = l.qp.PostRecv(l.receiveWork(i)); err != nil {
			return err
		}
	}
	l.free = make([]uint8, cdcSends)
	for i := range l.free {
		l.free[i] = uint8(i)
	}
	return l.join()
}

// join makes the link one of its group.
func (l *Link) join() error {
	g := l.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return ErrClosed
	}
	for _, m := range g.memories {
		if err := m.register(l); err != nil {
			return err
		}
	}
	g.links = append(g.links, l)
	if len(g.links) > 1 {
		// Linux's net/smc counts its send buffer wrongly in one case (smc_switch_cursor, and
		// smc_cdc_tx_handler afterwards): a connection moves after we have said that we have read
		// its bytes, and its queue pair does not know yet that they have arrived: its program then
		// writes over bytes that are not sent.
		for _, x := range g.links {
			x.qp.AnswerFirst() // rule: TestJoinAnswersFirst
		}
	}
	return nil
}

// Device returns the device.
func (l *Link) Device() verbs.Device { return l.dev }

// QPN returns the number of the queue pair.
func (l *Link) QPN() wire.QPN { return l.qp.QPN() }

// PSN returns the PSN of our first packet, which nobody can guess.
func (l *Link) PSN() wire.PSN { return l.psn }

// MTU returns the largest path MTU that the device and [Group.LimitMTU] permit now.
func (l *Link) MTU() wire.MTU {
	m := l.dev.MTU()
	if limit := wire.MTU(l.group.limitMTU.Load()); limit != 0 {
		m = min(m, limit)
	}
	return m
}

// QPStats returns the counters of the queue pair.
func (l *Link) QPStats() verbs.QPStats { return l.qp.Stats() }

// A Peer is the other end of a link, as its owner has told in Accept, Confirm or ADD LINK.
type Peer struct {
	GID wire.GID
	QPN wire.QPN
	PSN wire.PSN // of its first packet
	MTU wire.MTU // the smaller one of the peer's and the link's is used
}

// The attributes of queue pairs, as Linux net/smc has them.
const (
	// rule: TestQueuePair: 5 -> 6
	rnrTimerCode = 5 // 60 µs
	// rule: TestQueuePair: 15 -> 17
	ackTimeoutCode = 15 // 134 ms
	// rule: TestQueuePair: 7 -> 3
	retryCount = 7
	// rule: TestQueuePair: 7 -> 3
	rnrRetryCount = 7 // without end
)

// ReadyToReceive takes the queue pair to [verbs.StateRTR]: messages of the peer arrive from now on.
func (l *Link) ReadyToReceive(p Peer) error {
	if !p.MTU.Valid() {
		return l.error(fmt.Errorf("%w: path MTU %v", ErrArgument, p.MTU))
	}
	err := l.qp.ReadyToReceive(verbs.RTR{
		RemoteGID: p.GID, RemoteQPN: p.QPN, PathMTU: min(p.MTU,
			l.MTU()), RecvPSN: p.PSN, MinRNRTimer: rnrTimerCode,
	})
	if err != nil {
		return l.error(err)
	}
	return nil
}

// ReadyToSend takes the queue pair to [verbs.StateRTS]. Nothing can be sent before.
func (l *Link) ReadyToSend() error {
	err := l.qp.ReadyToSend(verbs.RTS{SendPSN: l.psn, Timeout: ackTimeoutCode, RetryCount: retryCount,
		RNRRetry: rnrRetryCount})
	if err != nil {
		return l.error(err)
	}
	l.mu.Lock()
	l.ready = true
	l.mu.Unlock()
	return nil
}

// Heard counts the messages that have come, of any kind: where it has not changed the link was idle.
func (l *Link) Heard() uint64 { return l.heard.Load() }

// Failed returns a channel that is closed when the link is of no more use. A message that was sent
// and not acknowledged may or may not have arrived.
func (l *Link) Failed() <-chan struct{} { return l.failed }

// Err returns why the link has failed: a [*WorkError], [ErrFlood], [ErrClosed], or the reason given
// to Fail; nil if it has not.
func (l *Link) Err() error {
	select {
	case <-l.failed:
		return l.err
	default:
		return nil
	}
}

// Fail makes the link fail: posted work is flushed, and the peer is not told. An EventFailed
// follows. The first reason counts. Any goroutine may call it, with any lock of its own.
func (l *Link) Fail(reason error) {
	if l.end(reason) {
		l.qp.Fail() // the error is that it had failed already, or was never ready
		l.group.spawn(func() {
			l.qp.Drain(drainTime)
			l.isOver()
		})
		l.group.tell(Event{Kind: EventFailed, Link: l, Err: reason})
	}
}

// isOver tells connections that nothing more comes over the link.
func (l *Link) isOver() {
	l.over.Store(true)
	for _, c := range l.group.carriers() {
		c.endedOver(l)
	}
}

// end marks the link as failed, and reports whether it had not been.
func (l *Link) end(reason error) (first bool) {
	l.endOnce.Do(func() {
		l.mu.Lock()
		l.gone = true
		l.llcQueue = nil
		waiting := l.waiting
		l.waiting = queue{}
		l.mu.Unlock()
		l.err = reason
		close(l.failed)
		first = true
		for c := waiting.pop(); c != nil; c = waiting.pop() {
			c.abandon()
		}
		if !l.group.survives(l) {
			l.group.giveUp()
		}
	})
	return first
}

// Close ends the link. There are no events of it afterwards but those that wait to be polled. Its connections
// have to be told by the owner. Closing twice is no error.
func (l *Link) Close() {
	if l.qp != nil {
		l.qp.Drain(drainTime) // rule: TestCloseDrains
	}
	l.end(ErrClosed)
	g := l.group
	g.mu.Lock()
	if i := slices.Index(g.links, l); i >= 0 {
		g.links = slices.Delete(g.links, i, i+1)
	}
	g.mu.Unlock()
	if l.qp != nil {
		l.qp.Close()
	}
	l.isOver()
	for i := range l.places { // whose completions will not come any more
		l.completed(i, false)
	}
	g.mu.Lock()
	for _, m := range g.memories {
		m.forget(l)
	}
	g.mu.Unlock()
	// The errors are that they were closed before, or that the device is gone.
	if l.mr != nil {
		l.mr.Deregister()
	}
	if l.cq != nil {
		l.cq.Close()
	}
	if l.pd != nil {
		l.pd.Close()
	}
}
