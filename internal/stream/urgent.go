package stream

import (
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gosmc/smc/wire/cdc"
)

// urgent is the known state of the peer's urgent data: one byte at a time, as with TCP. The stream
// holds the mark, which is its place: see consumer.
//
//	urgentNone      there was none
//	urgentPending   the peer says that some will come
//	urgentHere      value has the byte
//	urgentTaken     ReadUrgent has returned it
//
// A byte that nobody takes stays until the next one is announced.
type urgent struct {
	inline atomic.Bool // the byte stays in the stream

	mu      sync.Mutex // the last of all locks
	state   urgentState
	value   byte
	news    bool // WaitUrgent has not told
	waiters int
	changed chan struct{} // closed and dropped by signal; nil if nobody waits
}

type urgentState uint8

const (
	urgentNone urgentState = iota
	urgentPending
	urgentHere
	urgentTaken
)

// signal makes all goroutines that wait for urgent data look again.
func (u *urgent) signal() {
	u.mu.Lock()
	if u.changed != nil {
		close(u.changed)
		u.changed = nil
	}
	u.mu.Unlock()
}

// await returns a channel that the next signal closes.
func (u *urgent) await() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.changed == nil {
		u.changed = make(chan struct{})
	}
	return u.changed
}

// set enters a state in which there is something to tell.
func (u *urgent) set(s urgentState, value byte, news bool) {
	u.mu.Lock()
	u.state, u.value, u.news = s, value, news
	u.mu.Unlock()
	u.signal()
}

// WriteUrgent is Write of data whose last byte is urgent. The peer is told at once that there is
// some, also while there is no room for it, and the bytes that are written afterwards wait until
// the peer has read everything before that byte: RFC 7609 §4.7.5, §4.7.6. With an error the peer
// was told in vain.
func (c *Conn) WriteUrgent(b []byte) (n int, err error) {
	raceRelease()
	c.w.mu.Lock()
	announced := false
	n, err = c.writeUrgent(b, &announced)
	if announced && n < len(b) {
		// A goroutine that detaches waits until we are done.
		c.publishUrgent(0) // rule: TestUrgentTakenBack
	}
	c.unlockWriter(err)
	return n, err
}

// writeUrgent is writeSlow for urgent data. w.mu must be locked.
func (c *Conn) writeUrgent(b []byte, announced *bool) (total int, err error) {
	w := &c.w
	for {
		if err := c.writeError(); err != nil {
			n, err := c.drop(len(b), err)
			return total + n, err
		}
		if len(b) == 0 {
			return 0, nil
		}
		if w.free < uint32(min(len(b), c.limit())) {
			if err := c.pollConsumer(); err != nil {
				return total, err
			}
		}
		switch n := min(len(b), int(w.free), publishChunk); {
		case n == len(b):
			c.put(b)
			w.urgent = true
			w.free, w.held = 0, w.held+w.free
			c.publishUrgent(cdc.UrgentPending | cdc.UrgentPresent)
			return total + n, nil
		case n > 0:
			c.put(b[:n])
			c.publishUrgent(cdc.UrgentPending)
			*announced = true
			b, total = b[n:], total+n
		case !*announced && !w.urgent: // else the peer would take one for the other
			c.publishUrgent(cdc.UrgentPending) // rule: TestUrgentScenario6
			*announced = true
		default:
			c.awaitRoom(len(b))
		}
	}
}

// publishUrgent is publish with flags. w.mu must be locked.
func (c *Conn) publishUrgent(flags cdc.ProducerFlags) {
	if c.w.clean {
		c.w.clean = false
		c.dirty()
	}
	c.rang(c.carrier.ProduceUrgent(c.w.cursor, flags))
}

// SetUrgentInline says whether urgent bytes stay in the stream, where Read finds them, and
// ReadUrgent does not. It is to be called before there are any.
func (c *Conn) SetUrgentInline(inline bool) error {
	if c.r.state.Load()&stClosed != 0 {
		return net.ErrClosed
	}
	c.urgent.inline.Store(inline)
	return nil
}

// ReadUrgent returns the newest urgent byte, which is taken once, and waits for it. It does not
// wait for a Read under way. It returns EINVAL if urgent bytes stay in the stream, io.EOF if none
// can follow, and else the errors of Read.
func (c *Conn) ReadUrgent() (value byte, err error) {
	u := &c.urgent
	err = c.waitUrgent(func() bool {
		if u.state != urgentHere || u.inline.Load() {
			return false
		}
		u.state, u.news = urgentTaken, false
		value = u.value
		return true
	}, true)
	return value, err
}

// WaitUrgent returns nil once for each time that the peer has announced urgent data which nobody
// has read: it may still be on its way. It waits for that, and returns the errors of ReadUrgent but
// for EINVAL.
func (c *Conn) WaitUrgent() error {
	u := &c.urgent
	return c.waitUrgent(func() bool {
		news := u.news
		u.news = false
		return news
	}, false)
}

// AtUrgentMark reports whether the next byte to be read is the urgent one, or the first behind one
// that does not stay in the stream. Read stops there once, and the next Read goes on.
func (c *Conn) AtUrgentMark() (bool, error) {
	r := &c.r
	if r.state.Load()&stClosed != 0 {
		return false, net.ErrClosed
	}
	if !r.mu.TryLock() {
		return false, nil // a Read is waiting, and passes it, or will say where it has stopped
	}
	defer r.mu.Unlock()
	if r.state.Load()&stClosed != 0 {
		return false, net.ErrClosed
	}
	c.pollProducer() // an error is for the next Read
	return r.marked && c.atMark(), nil
}

// waitUrgent waits until take, which is called with urgent.mu held, reports true.
func (c *Conn) waitUrgent(take func() bool, outOfLine bool) error {
	u, r := &c.urgent, &c.r
	u.mu.Lock()
	u.waiters++
	r.state.Or(stUrgentWaits)
	u.mu.Unlock()
	rings := c.told == nil && r.bell != nil
	if rings { // somebody has to wait for rings
		r.bell.Parked().Add(1)
		r.bell.Lead(func() bool { return true })
	}
	defer func() {
		if rings {
			r.bell.Parked().Add(-1)
		}
		u.mu.Lock()
		if u.waiters--; u.waiters == 0 {
			r.state.And(^uint32(stUrgentWaits))
		}
		u.mu.Unlock()
	}()
	for {
		changed := u.await()
		state := r.state.Load()
		if err := localError(state); err != nil {
			return err
		}
		flags, looked := c.lookForUrgent(changed)
		u.mu.Lock()
		done := take()
		u.mu.Unlock()
		if done {
			raceAcquire()
			return nil
		}
		if outOfLine && u.inline.Load() {
			return syscall.EINVAL
		}
		if err := c.urgentEnd(state, flags, looked); err != nil {
			return err
		}
		<-changed
	}
}

// urgentEnd returns why no urgent data can come any more, nil if it can, and gives the notice of
// that. looked says that the flags are the peer's.
func (c *Conn) urgentEnd(state uint32, flags cdc.ConnFlags, looked bool) error {
	switch {
	case state&stShut != 0:
		return io.EOF
	case looked && flags&endOfData != 0:
		c.notice(flags, nil)
		if flags&(cdc.Abort|cdc.DoneWriting) == cdc.Abort {
			return errReset
		}
		return io.EOF
	case state&stFailed == 0:
		return nil
	case c.failure == errEnded:
		return io.EOF
	}
	if broken, ok := c.failure.(*PeerError); ok {
		c.notice(0, broken) // rule: TestUrgentLies
	}
	return c.failure
}

// lookForUrgent takes note of the bytes that have come, unless a Read is parked, which does so once
// it is woken, or changed is closed. The flags are the peer's flags before that.
func (c *Conn) lookForUrgent(changed <-chan struct{}) (flags cdc.ConnFlags, looked bool) {
	r := &c.r
	for !r.mu.TryLock() {
		select {
		case <-changed:
			return 0, false
		default:
		}
		if r.parked.Load() {
			return 0, false
		}
		runtime.Gosched() // it has a copy to make, or spins
	}
	defer r.mu.Unlock()
	if r.state.Load()&stClosed != 0 {
		return 0, false // the memory may be gone
	}
	c.pollProducer()   // an error fails the connection
	if r.unread == 0 { // else a Read comes, which has the end of the stream told: see callUrgent
		r.sleeps.Store(1) // first, as in park
	}
	_, _, flags = cdc.UnpackConsumer(c.inCons.Load())
	c.pollProducer()
	return flags, true
}

// callUrgent is the end of a Read while another goroutine waits for urgent data. That goroutine
// then has to wait for rings alone. r.mu must be locked.
func (c *Conn) callUrgent(err error) {
	if err != nil {
		c.urgent.signal()
	} else if c.r.unread == 0 {
		c.r.sleeps.Store(1)
		if c.readable() {
			c.urgent.signal()
		}
	}
}

// urgentDue reports whether a goroutine that waits for urgent data has to look. It has to where
// that is not known without touching memory that may be gone.
func (c *Conn) urgentDue() bool {
	if c.told == nil {
		return true
	}
	_, urgent := cdc.UnpackUrgent(c.inProd.Load())
	_, _, flags := cdc.UnpackConsumer(c.inCons.Load())
	return urgent != 0 || flags&endOfData != 0
}

// sawUrgent takes note of the flags of a new producer cursor, which is n bytes ahead of the last
// one. r.mu must be locked.
//
// Both flags are levels, which a peer may repeat: only with new bytes are they about new data.
// Where a peer has not waited, as it has to, until the last urgent byte was read, that one becomes
// an ordinary byte, as with TCP.
func (c *Conn) sawUrgent(flags cdc.ProducerFlags, n uint32) {
	r := &c.r
	told := r.pending
	switch {
	case flags&cdc.UrgentPresent != 0 && n > 0:
		r.marked, r.skipped, r.pending = true, false, false
		r.mark = r.total.Load() + uint64(r.unread) - 1
		r.state.Or(stMarked)
		last := r.seen.Count
		if last == 0 { // rule: TestUrgentWrap
			last = uint32(len(c.rdata))
		}
		c.urgent.mu.Lock()
		news := !told || c.urgent.news
		c.urgent.mu.Unlock()
		c.urgent.set(urgentHere, c.rdata[last-1], news)
		c.reachMark()
	case flags&cdc.UrgentPresent != 0:
	case flags&cdc.UrgentPending != 0:
		if !told {
			r.pending = true
			c.urgent.set(urgentPending, 0, true)
		}
	case told:
		r.pending = false
		c.urgent.set(urgentNone, 0, false)
	}
}

// atMark reports whether everything before the urgent byte was read. r.mu must be locked, and
// r.marked be set.
func (c *Conn) atMark() bool { return c.r.skipped || c.r.total.Load() == c.r.mark }

// reachMark takes the urgent byte out of the stream when it comes next, and tells the peer, which
// may then go on. r.mu must be locked, and r.marked be set.
func (c *Conn) reachMark() {
	r := &c.r
	if r.skipped || r.total.Load() != r.mark || c.urgent.inline.Load() {
		return
	}
	r.skipped = true
	c.consume(1)
	c.sayRead() // rule: TestUrgentScenario5, TestUrgentScenario6
}

// consume takes n bytes out of the stream, or notes that they were. r.mu must be locked.
func (c *Conn) consume(n uint32) {
	r := &c.r
	r.cursor = r.cursor.Advance(n, uint32(len(c.rdata)))
	r.unread -= n
	r.unsaid += n
	read := r.total.Load() + uint64(n)
	storeRelease(&r.total, read)
	storeRelease(c.read, read) // first: a message takes it from there
}

// takeMarked is take up to the mark, or from there on. r.mu must be locked, and r.marked be set. A
// nil b takes nothing and leaves the mark where it is.
func (c *Conn) takeMarked(b []byte) (n int) {
	r := &c.r
	if len(b) == 0 {
		return 0
	}
	c.reachMark() // where bytes were to stay in the stream before
	if !c.atMark() {
		n = c.take(b[:min(uint64(len(b)), r.mark-r.total.Load())]) // rule: TestUrgentMark
		c.reachMark()
		return n
	}
	r.marked = false
	r.state.And(^uint32(stMarked))
	if r.unread == 0 {
		return 0
	}
	n = c.take(b)
	if !r.skipped {
		c.sayRead() // rule: TestUrgentInline
	}
	return n
}
