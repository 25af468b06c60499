package provider

import (
	"errors"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/uverbs"
	"github.com/gosmc/smc/internal/verbs"
)

// pollBatch is how many completions are taken at a time.
const pollBatch = 32

// drainPause is between two looks whether another goroutine has left the handler.
const drainPause = 20 * time.Microsecond

// queue is a completion queue with its handler.
type queue struct {
	d       *device
	q       *uverbs.CQ
	handler func(verbs.CQ)
	running sync.Mutex // held in the handler

	mu    sync.Mutex
	batch [pollBatch]uverbs.Completion
}

// NewCQ implements [verbs.Device].
func (d *device) NewCQ(depth int, handler func(verbs.CQ)) (verbs.CQ, error) {
	q, err := d.c.NewCQ(depth)
	if err != nil {
		return nil, d.failure(err)
	}
	c := &queue{d: d, q: q, handler: handler}
	if handler != nil {
		d.all.Go(c.serve)
	}
	return c, nil
}

// serve calls the handler when completions come, until the queue is closed. The kernel tells of the
// next completion after Arm, so the queue is looked at between Arm and the wait.
func (c *queue) serve() {
	for {
		err := c.q.Arm(false)
		if err == nil {
			c.run()
			err = c.q.Wait(time.Time{})
		}
		if err == nil {
			err = c.q.Err()
		}
		switch {
		case errors.Is(err, uverbs.ErrClosed):
			return
		case err != nil:
			c.d.broken()
			return
		}
	}
}

func (c *queue) run() {
	c.running.Lock()
	c.handler(c)
	c.running.Unlock()
}

// drain is run, with a bound for the wait for another goroutine.
func (c *queue) drain(limit time.Duration) bool {
	for start := time.Now(); !c.running.TryLock(); time.Sleep(drainPause) {
		if time.Since(start) >= limit {
			return false
		}
	}
	c.handler(c)
	c.running.Unlock()
	return true
}

// Poll implements [verbs.CQ]. It takes at most [pollBatch] at a time.
func (c *queue) Poll(dst []verbs.Completion) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.q.Poll(c.batch[:min(len(dst), len(c.batch))])
	turn := uint64(0)
	for i := range c.batch[:n] {
		dst[i] = completion(&c.batch[i])
		if dst[i].Op.IsRecv() {
			if turn == 0 {
				turn = verbs.Turns.Add(1)
			}
			dst[i].Turn = turn
		}
		c.batch[i] = uverbs.Completion{}
	}
	return n
}

// Close implements [verbs.CQ].
func (c *queue) Close() error { return c.q.Close() }

// completion translates. The queue pair stays out, as its owner has one in each queue.
func completion(c *uverbs.Completion) verbs.Completion {
	return verbs.Completion{
		ID: c.ID, Op: verbs.CompletionOp(c.Op), Status: status(c.Status),
		Len: c.Len, Imm: c.Imm, HasImm: c.HasImm,
	}
}

// statuses has the statuses of package verbs. All others are errors of our own device.
var statuses = map[uverbs.Status]verbs.Status{
	uverbs.StatusOK:              verbs.StatusOK,
	uverbs.StatusLocalLength:     verbs.StatusLocalLength,
	uverbs.StatusLocalProtection: verbs.StatusLocalProtection,
	uverbs.StatusFlushed:         verbs.StatusFlushed,
	uverbs.StatusRemoteInvalid:   verbs.StatusRemoteInvalid,
	uverbs.StatusRemoteAccess:    verbs.StatusRemoteAccess,
	uverbs.StatusRemoteOperation: verbs.StatusRemoteOperation,
	uverbs.StatusRetryExceeded:   verbs.StatusRetryExceeded,
	uverbs.StatusRNRExceeded:     verbs.StatusRNRExceeded,
}

func status(s uverbs.Status) verbs.Status {
	if s == uverbs.StatusOK {
		return verbs.StatusOK
	}
	if known, ok := statuses[s]; ok {
		return known
	}
	return verbs.StatusLocalProtection
}
