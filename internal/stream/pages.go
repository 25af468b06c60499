package stream

import (
	"os"

	"github.com/gosmc/smc/wire/cdc"
)

// Only the producer may give back pages of the ring: the free part belongs to it, and the consumer
// never looks there. A consumer that did it would race with new bytes.

var pageSize = os.Getpagesize()

// Idle reports whether nothing was written since it was last called, and whether there
// are pages that were written to since they were last given back.
func (c *Conn) Idle() (idle, dirty bool) {
	w := &c.w
	if !w.mu.TryLock() {
		return false, true // a Write is under way or blocked
	}
	defer w.mu.Unlock()
	total := w.total.Load()
	idle = total == w.swept
	w.swept = total
	return idle, !w.clean
}

// ReturnPages, over a [Memory], calls give with ranges of the peer's element (offsets from its start)
// that hold nothing, so that their pages can be returned to the system; they read as zeroes
// afterwards. The page with the header and the one being written are kept. It gives way
// to a Write, and returns the first error of give.
func (c *Conn) ReturnPages(give func(from, to int) error) error {
	w := &c.w
	if !w.mu.TryLock() {
		return nil
	}
	defer w.mu.Unlock()
	if w.state.Load()&stClosed != 0 {
		return nil
	}
	if err := c.pollConsumer(); err != nil {
		return nil // the connection has failed, and its memory will go as a whole
	}
	// Free space starts at the cursor and may wrap. Offsets in the element are those in
	// the ring plus the header.
	start := w.at
	end := start + int(w.free)
	size := len(c.wdata)
	total := w.total.Load()
	if w.given == end && w.givenAt == total {
		return nil // nothing has changed since they were given back
	}
	w.given, w.givenAt = end, total
	// While the peer has not read everything, there is more to give back later.
	w.clean = end-start == size
	err := giveRange(give, start, min(end, size))
	if err == nil && end > size {
		err = giveRange(give, 0, end-size)
	}
	if err != nil {
		w.clean = true // it would fail again
	}
	return err
}

// giveRange gives the whole pages inside ring offsets [from, to), but not the one that holds
// from, even if it begins there: that is the first page or the next to be written.
func giveRange(give func(from, to int) error, from, to int) error {
	first := roundUp(from+cdc.HeaderLen+1, pageSize)
	last := (to + cdc.HeaderLen) / pageSize * pageSize
	if first >= last {
		return nil
	}
	return give(first, last)
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
