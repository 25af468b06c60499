package stream

import (
	"github.com/gosmc/smc/wire/cdc"
)

// Write copies all of b to the peer, waiting for room. It returns early with
// os.ErrDeadlineExceeded, net.ErrClosed, EPIPE after CloseWrite, ECONNRESET after an abort and
// where the peer closes while we wait for room, or the error given to Fail. The count is always of
// the bytes that the peer was given. An event after the last byte was taken is the next Write's
// affair. It allocates nothing.
//
// The first Write that meets a peer which has closed is taken, and its bytes go nowhere; further
// ones get EPIPE. So it is with TCP, where only the answer to that Write, a reset, tells that
// nobody reads any more. Programs rely on it that say good-bye to a peer which does not wait for
// it, as TLS does.
func (c *Conn) Write(b []byte) (int, error) {
	raceRelease()
	w := &c.w
	w.mu.Lock()
	// An empty one is for writeSlow, which publishes nothing.
	if uint32(len(b)) <= w.free && uint(len(b)-1) < publishChunk && w.state.Load() == 0 &&
		!peerGone(c.inCons.Load()) {
		c.put(b)
		c.publish()
		w.mu.Unlock()
		return len(b), nil
	}
	n, err := c.writeSlow(b)
	c.unlockWriter(err)
	return n, err
}

// WriteBuffers writes several buffers as one, and lets the peer see small ones together.
func (c *Conn) WriteBuffers(bufs [][]byte) (total int64, err error) {
	raceRelease()
	w := &c.w
	w.mu.Lock()
	pending := 0
	if err = c.writeError(); err == errPeerClosed {
		err = nil // for writeSlow
	} else if err != nil {
		bufs = nil
	}
	for _, b := range bufs {
		if c.w.noticed == 0 && len(b) <= publishChunk-pending && uint32(len(b)) <= w.free &&
			w.state.Load() == 0 {
			c.put(b)
			pending += len(b)
			total += int64(len(b))
			continue
		}
		if pending > 0 {
			c.publish()
			pending = 0
		}
		var n int
		n, err = c.writeSlow(b)
		total += int64(n)
		if err != nil {
			break
		}
	}
	if pending > 0 {
		c.publish()
	}
	c.unlockWriter(err)
	return total, err
}

// writeSlow writes b piece by piece, waiting for room. w.mu must be locked.
func (c *Conn) writeSlow(b []byte) (total int, err error) {
	w := &c.w
	for {
		if err := c.writeError(); err != nil {
			n, err := c.drop(len(b), err)
			return total + n, err
		}
		if len(b) == 0 { // from the beginning
			return 0, nil
		}
		if w.free < uint32(min(len(b), c.limit())) {
			if err := c.pollConsumer(); err != nil {
				return total, err
			}
		}
		if n := min(len(b), int(w.free), publishChunk); n > 0 {
			c.put(b[:n])
			c.publish()
			if b, total = b[n:], total+n; len(b) == 0 {
				w.waits = false
				return total, nil
			}
			continue
		}
		c.awaitRoom(len(b))
	}
}

// limit is the most that there can be room for.
func (c *Conn) limit() int { return min(len(c.wdata), int(c.capacity)) }

// awaitRoom waits until some of n bytes may find room. w.mu must be locked.
func (c *Conn) awaitRoom(n int) {
	w := &c.w
	w.want = slack(c.limit(), n)
	// Unless it is the carrier that we wait for.
	c.setBlocked(w.free+w.held < w.want || w.urgent) // rule: TestWriterBlockedFlag
	w.waits = true
	c.stats.Full.Add(1) // rule: TestStatsFull
	w.wait(c.stats)
}

// slack is how much room a writer of n bytes waits for in a buffer of the given size.
func slack(capacity, n int) uint32 {
	return uint32(max(1, min(n, capacity/16, blockedSlack)))
}

// drop takes the rest of a write, n bytes, for a peer that has closed, unless an earlier write had
// that. err is the error of writeError; drop returns the one for the application. It does not take
// more than there can be room for, nor would TCP take that before it knows. w.mu must be locked.
func (c *Conn) drop(n int, err error) (int, error) {
	w := &c.w
	switch {
	case err != errPeerClosed:
		return 0, err
	case w.dropped: // rule: TestOneMore
		return 0, errPipe
	}
	if room := c.limit() - w.dropping; n > room {
		n, err = room, errPipe
	} else {
		err = nil
	}
	w.dropping += n
	return n, err
}

// writeError is the reason why nothing may be written, or nil. It is errPeerClosed, which is for drop, if
// the peer has closed in order. w.mu must be locked.
func (c *Conn) writeError() error {
	state := c.w.state.Load()
	if err := localError(state); err != nil {
		return err
	}
	if state&stShut != 0 {
		return errPipe
	}
	if state&stFailed != 0 {
		if c.failure == errEnded { // rule: TestEnd
			return errPeerClosed
		}
		return c.failure
	}
	if state&stDetached != 0 {
		return errReset
	}
	_, _, flags := cdc.UnpackConsumer(c.inCons.Load())
	switch {
	case flags&cdc.Abort != 0: // rule: TestPeerFlags
		c.w.noticed = flags
		return errReset
	case flags&cdc.Closed != 0: // rule: TestPeerFlags
		c.w.noticed = flags
		if c.w.waits { // rule: TestClosedInWrite
			c.w.unsent.Store(true)
			c.w.dropped = true
			return errReset
		}
		return errPeerClosed
	}
	return nil
}

// unlockWriter ends a write, and gives the notice of the event that it ran into.
func (c *Conn) unlockWriter(err error) {
	flags := c.w.noticed
	c.w.dropped = c.w.dropped || c.w.dropping > 0
	c.w.noticed, c.w.waits, c.w.dropping = 0, false, 0
	c.w.mu.Unlock()
	if broken, ok := err.(*PeerError); ok {
		c.notice(0, broken)
	} else if flags != 0 {
		c.notice(flags, nil)
	}
}

// writable says whether a writer that found no room should look again.
func (c *Conn) writable() bool {
	w := &c.w
	word := c.inCons.Load()
	if w.state.Load() != 0 || peerGone(word) {
		return true
	}
	if word == w.seenWord && (w.held == 0 || w.urgent) {
		return false
	}
	// More room, but enough of it? A cursor that is out of bounds is looked at too, and refused.
	cons, _, _ := cdc.UnpackConsumer(word)
	window := w.free + w.held
	n, err := cdc.Check(w.seen, cons, c.capacity-window, c.capacity)
	if w.urgent && window+n < c.capacity {
		return err != nil
	}
	return err != nil || c.carrier.Room(window+n) >= w.want
}

// peerGone says whether a consumer half has a flag after which nothing may be written.
func peerGone(word uint64) bool {
	_, _, flags := cdc.UnpackConsumer(word)
	return flags&(cdc.Closed|cdc.Abort) != 0
}

// pollConsumer takes note of how far the peer has read, and of how much the carrier can take. w.mu
// must be locked, and everything that was put be published.
func (c *Conn) pollConsumer() error {
	w := &c.w
	window := w.free + w.held
	if word := c.inCons.Load(); word != w.seenWord {
		next, _, _ := cdc.UnpackConsumer(word)
		n, err := cdc.Check(w.seen, next, c.capacity-window, c.capacity)
		if err != nil {
			return c.violation("consumer cursor", err)
		}
		w.seen, w.seenWord = next, word
		window += n
		if w.blocked && window >= c.capacity/2 && (!w.urgent || window == c.capacity) {
			c.setBlocked(false) // rule: TestWriterBlockedFlag
		}
	} else if w.held == 0 {
		return nil
	}
	if w.urgent {
		if window < c.capacity { // rule: TestUrgentScenario5, TestUrgentScenario6
			// nothing may follow an urgent byte before the peer has it: RFC 7609 p.78
			w.free, w.held = 0, window
			return nil
		}
		w.urgent = false
	}
	c.setRoom(window)
	return nil
}

// setRoom takes note of how much of the window the carrier can take. w.mu must be locked.
func (c *Conn) setRoom(window uint32) {
	c.w.free = c.carrier.Room(window)
	c.w.held = window - c.w.free
}

// put copies b behind the producer cursor. It must fit. w.mu must be locked.
func (c *Conn) put(b []byte) {
	n := copy(c.wdata[c.w.at:], b)
	if n < len(b) {
		copy(c.wdata, b[n:])
	}
	c.advance(len(b))
}

// advance takes note of n bytes put. w.mu must be locked.
func (c *Conn) advance(n int) {
	w := &c.w
	if w.at += n; w.at >= len(c.wdata) {
		w.at -= len(c.wdata)
	}
	w.cursor = w.cursor.Advance(uint32(n), c.capacity)
	w.free -= uint32(n)
	storeRelease(&w.total, w.total.Load()+uint64(n))
}

// publish lets the peer see the bytes that were put, and wakes its reader. w.mu must be locked.
func (c *Conn) publish() {
	if c.w.clean {
		c.w.clean = false
		c.dirty()
	}
	c.rang(c.carrier.Produce(c.w.cursor))
}

// setBlocked tells the peer whether it should publish every read. w.mu must be locked.
func (c *Conn) setBlocked(blocked bool) {
	if c.w.blocked == blocked {
		return
	}
	c.w.blocked = blocked
	c.out.Lock()
	defer c.out.Unlock()
	c.out.prod &^= cdc.WriterBlocked
	if blocked {
		c.out.prod |= cdc.WriterBlocked
	}
	if !c.out.detached {
		c.storeConsumer()
	}
}
