package rdma

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/verbs"
)

// A CQ is a completion queue. It may be used by several goroutines.
//
// It cannot overflow: a queue pair's work request keeps its place in the queue pair until its
// completion has been taken out here, and the queue has room for all that its queue pairs can hold.
type CQ struct {
	depth   int
	handler func(verbs.CQ)
	news    chan struct{}

	mu       sync.Mutex
	ring     []Completion // len is a power of two
	head     uint32       // next to take
	tail     uint32       // next to put
	reserved int          // places promised to queue pairs

	running atomic.Int32 // see notify
}

// NewCQ makes a queue for depth completions, which has to be at least the sum of the queues of its
// queue pairs.
//
// handler, if not nil, is called after completions were put in, on a goroutine of the device, never
// twice at a time. It is to take out all there is with [CQ.Poll]. It may post work and must not
// block: everything else of the device waits. Without a handler use [CQ.Channel].
func (d *Device) NewCQ(depth int, handler func(verbs.CQ)) (*CQ, error) {
	if depth <= 0 || depth > maxCQDepth {
		return nil, argError("a completion queue of depth %d, which is not in 1 to %d", depth, maxCQDepth)
	}
	return &CQ{depth: depth, handler: handler, news: make(chan struct{}, 1)}, nil
}

// Channel returns a channel that has a value if completions were put in since the last one was
// taken out of it. Take the value, then [CQ.Poll] until there is nothing. With a handler the channel
// stays empty.
func (c *CQ) Channel() <-chan struct{} { return c.news }

// Poll moves up to len(dst) completions to dst, oldest first, and returns how many.
func (c *CQ) Poll(dst []Completion) int {
	c.mu.Lock()
	n := min(len(dst), int(c.tail-c.head))
	for i := range n {
		dst[i] = c.take()
	}
	c.mu.Unlock()
	return n
}

// take removes the oldest completion. The caller holds mu and has looked that there is one.
func (c *CQ) take() Completion {
	slot := &c.ring[c.head&uint32(len(c.ring)-1)]
	done := *slot
	*slot = Completion{}
	c.head++
	if q := done.QP.(*QP); done.Op.IsRecv() {
		q.recvUnpolled.Add(-1)
	} else {
		q.sendUnpolled.Add(-1)
	}
	return done
}

// put adds a completion. The caller holds the lock of its queue pair.
func (c *CQ) put(done Completion) {
	if q := done.QP.(*QP); done.Op.IsRecv() {
		q.recvUnpolled.Add(1)
	} else {
		q.sendUnpolled.Add(1)
	}
	c.mu.Lock()
	if int(c.tail-c.head) == len(c.ring) {
		c.mu.Unlock()
		panic("rdma: impossible: a completion queue overflows")
	}
	c.ring[c.tail&uint32(len(c.ring)-1)] = done
	c.tail++
	c.mu.Unlock()
}

// drain calls the handler on this goroutine, which takes out the completions that were put in.
// While another goroutine is in the handler it waits for that, at most for limit, and reports
// whether it has come to its turn.
func (c *CQ) drain(limit time.Duration) bool {
	for start := time.Now(); !c.running.CompareAndSwap(handlerIdle, handlerRunning); time.Sleep(drainPause) {
		if time.Since(start) >= limit { // rule: TestDrain: >= limit -> < 0
			return false
		}
	}
	c.run()
	return true
}

// reserve promises n more places.
func (c *CQ) reserve(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > c.depth-c.reserved {
		return fmt.Errorf("rdma: depth %d, %d in use, %d more wanted: %w", c.depth, c.reserved, n,
			ErrCQTooSmall)
	}
	c.reserved += n
	size := max(len(c.ring), 16)
	for size < c.reserved {
		size *= 2
	}
	if size > len(c.ring) {
		ring := make([]Completion, size)
		for i := c.head; i != c.tail; i++ {
			ring[i&uint32(size-1)] = c.ring[i&uint32(len(c.ring)-1)]
		}
		c.ring = ring
	}
	return nil
}

// release takes back the room that was promised to q, and throws away the completions that q still
// has in the queue.
func (c *CQ) release(q *QP, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved -= n
	kept := c.head
	for i := c.head; i != c.tail; i++ {
		slot := &c.ring[i&uint32(len(c.ring)-1)]
		if slot.QP != q {
			c.ring[kept&uint32(len(c.ring)-1)] = *slot
			kept++
		}
	}
	for i := kept; i != c.tail; i++ {
		c.ring[i&uint32(len(c.ring)-1)] = Completion{}
	}
	c.tail = kept
}

// States of CQ.running.
const (
	handlerIdle    = iota
	handlerRunning // a goroutine is in the handler
	handlerAgain   // the same, and more was put in since it was called
)

// notify tells the goroutine that waits, or calls the handler, after completions were put in. No
// lock may be held.
func (c *CQ) notify() {
	if c.handler == nil {
		select {
		case c.news <- struct{}{}:
		default:
		}
		return
	}
	if !c.running.CompareAndSwap(handlerIdle, handlerRunning) {
		if c.running.Swap(handlerAgain) != handlerIdle {
			return // the goroutine in the handler will see it
		}
	}
	c.run()
}

// run calls the handler, and once more as long as there is news. Running says that it is this
// goroutine's turn.
func (c *CQ) run() {
	for {
		c.running.Store(handlerRunning)
		c.handler(c)
		if c.running.CompareAndSwap(handlerRunning, handlerIdle) {
			return
		}
	}
}
