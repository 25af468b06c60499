package stream

import (
	"io"

	"github.com/gosmc/smc/wire/cdc"
)

// Read copies the bytes that have arrived into b, waiting for at least one byte. It returns io.EOF
// after the peer's last byte or after CloseRead, os.ErrDeadlineExceeded, net.ErrClosed, ECONNRESET
// after an abort, or the error given to Fail. It allocates nothing.
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 { // as package net: only a closed connection is an error
		return 0, localError(c.r.state.Load() & stClosed)
	}
	r := &c.r
	r.mu.Lock()
	// The state comes first: after Close the memory may be gone.
	if r.state.Load() != 0 || !c.fill(len(b)) {
		return c.readSlow(b) // unlocks
	}
	n := c.take(b)
	r.mu.Unlock()
	raceAcquire()
	return n, nil
}

// fill looks for news if less than want bytes are known to be unread, and reports whether
// there are any. r.mu must be locked.
func (c *Conn) fill(want int) bool {
	if c.r.unread < uint32(min(want, len(c.rdata))) && (c.pollProducer() != nil || c.r.marked) {
		return false // readSlow will find it again
	}
	return c.r.unread > 0
}

// readSlow is Read where the first look did not find bytes and nothing else. It is
// entered with r.mu locked and leaves it unlocked.
// With a nil b it waits until there is something to read, and takes nothing.
func (c *Conn) readSlow(b []byte) (n int, err error) {
	r := &c.r
	var tell cdc.ConnFlags // news for the notice, given once the lock is gone
	var broken error
	for {
		state := r.state.Load()
		if err = localError(state); err != nil {
			break
		}
		if state&stShut != 0 {
			err = io.EOF
			break
		}
		// The flags are loaded before the cursor: the peer stores them in the other order, so that
		// the bytes that it wrote before it was done are not missed.
		_, _, flags := cdc.UnpackConsumer(c.inCons.Load())
		if broken = c.pollProducer(); broken != nil {
			err = broken
			break
		}
		if r.marked {
			if n = c.takeMarked(b); n > 0 {
				break
			}
		}
		if r.unread > 0 {
			if !r.marked {
				n = c.take(b)
			}
			break
		}
		if flags&endOfData != 0 { // rule: TestPeerFlags
			tell = flags
			err = io.EOF
			if flags&(cdc.Abort|cdc.DoneWriting) == cdc.Abort { // rule: TestPeerFlags
				err = errReset // with DoneWriting, we have all that was to come
			}
			break
		}
		if state&stFailed != 0 {
			if err = c.failure; err == errEnded {
				err = io.EOF
			}
			if _, ok := err.(*PeerError); ok {
				broken = err // if it was found taken back at a second look, nobody was told
			}
			break
		}
		if !r.spin(c.stats) {
			// rule: TestWindowUpdateBeforePark
			c.sayIdle()
			r.park(c.stats)
		}
	}
	if r.state.Load()&stUrgentWaits != 0 {
		c.callUrgent(err)
	}
	r.mu.Unlock()
	if tell != 0 || broken != nil {
		c.notice(tell, broken)
	}
	raceAcquire()
	return n, err
}

const endOfData = cdc.DoneWriting | cdc.Closed | cdc.Abort

// readable says whether a reader that found nothing should look again. It takes no lock
// and is called from the goroutine that holds r.mu.
func (c *Conn) readable() bool {
	if c.inProd.Load() != c.r.seenWord || c.r.state.Load()&stEnds != 0 {
		return true
	}
	_, _, flags := cdc.UnpackConsumer(c.inCons.Load())
	return flags&endOfData != 0
}

// pollProducer takes note of how far the peer has written. r.mu must be locked.
func (c *Conn) pollProducer() error {
	r := &c.r
	word := c.inProd.Load()
	if word == r.seenWord {
		return nil
	}
	next, urgent := cdc.UnpackUrgent(word)
	capacity := uint32(len(c.rdata))
	c.learnTold()
	n, err := cdc.Check(r.seen, next, capacity-r.unread-r.unsaid, capacity)
	if err != nil {
		field := "producer cursor"
		if urgent&cdc.UrgentPresent != 0 {
			field = "urgent cursor"
		}
		return c.violation(field, err)
	}
	r.seen, r.seenWord = next, word
	r.unread += n
	if urgent != 0 || r.pending {
		c.sawUrgent(urgent, n)
	}
	return nil
}

// take copies unread bytes into b and publishes the consumer cursor where that is due.
// r.mu must be locked and r.unread > 0.
func (c *Conn) take(b []byte) int {
	r := &c.r
	total := 0
	read := r.total.Load()
	for total < len(b) && r.unread > 0 {
		at := r.cursor.Count
		n := copy(b[total:], c.rdata[at:at+min(r.unread, uint32(len(c.rdata))-at, publishChunk)])
		r.cursor = r.cursor.Advance(uint32(n), uint32(len(c.rdata)))
		r.unread -= uint32(n)
		r.unsaid += uint32(n)
		total += n
		read += uint64(n)
		storeRelease(&r.total, read)
		storeRelease(c.read, read) // first: a message takes it from there
		if c.windowDue() {
			c.sayRead()
		}
	}
	return total
}

// windowDue is the rule of RFC 7609 §4.5.1: the consumer cursor is published when the window, as
// the writer knows it, is less than half the buffer and would grow by a tenth of it. It is also
// published after any read while the writer says that it is blocked.
func (c *Conn) windowDue() bool {
	r := &c.r
	c.learnTold()
	capacity := uint32(len(c.rdata))
	if r.unread+r.unsaid > capacity/2 && r.unsaid >= capacity/10 { // rule: TestWindowUpdate
		return true
	}
	_, prod, _ := cdc.UnpackConsumer(c.inCons.Load())
	// rule: TestWindowUpdate: |cdc.CursorUpdateRequested -> |0
	return prod&(cdc.WriterBlocked|cdc.CursorUpdateRequested) != 0 // rule: TestWindowUpdateFollowsBlocked: cdc.WriterBlocked -> 0
}

// learnTold takes note of the count of read bytes that messages have told the peer meanwhile. r.mu
// must be locked.
func (c *Conn) learnTold() {
	if c.told != nil {
		c.r.unsaid = uint32(c.r.total.Load() - c.told.Load())
	}
}

// sayIdle is sayRead for a reader that waits, or closes: it lets the peer know how far we are,
// unless that costs a message that nobody waits for. r.mu must be locked.
func (c *Conn) sayIdle() {
	if c.told == nil || c.windowDue() {
		c.sayRead()
	}
}

// sayRead publishes the consumer cursor, if there is anything new to say, and wakes a
// writer that sleeps for want of room once there is enough of it. r.mu must be locked.
func (c *Conn) sayRead() {
	r := &c.r
	c.out.Lock()
	defer c.out.Unlock()
	if c.out.detached {
		return
	}
	if r.unsaid > 0 {
		r.unsaid = 0
		c.out.cursor = r.cursor
		c.storeConsumer()
	}
	if r.unread == 0 || uint32(len(c.rdata))-r.unread >= slack(len(c.rdata), blockedSlack) {
		c.wakeWriter()
	}
}

// SayRead publishes how far we have read, as the sweeper of idle connections does so
// that the peer's view and its free pages are up to date. It gives way to a Read.
func (c *Conn) SayRead() {
	if c.r.mu.TryLock() {
		if c.r.unsaid > 0 && c.r.state.Load()&stClosed == 0 {
			c.sayRead()
		}
		c.r.mu.Unlock()
	}
}
