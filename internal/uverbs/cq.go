package uverbs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// A CQ is a completion queue, with a completion channel of its own.
//
// It cannot overflow. A work request keeps its place in its queue until its completion was taken out
// here, or a later one of the same queue. The completion queue has room for all places of its queue
// pairs.
type CQ struct {
	c       *Context
	depth   int
	handle  uint32
	channel *os.File // of the kernel's completion events

	waitMu sync.Mutex // one goroutine reads the channel at a time
	event  [compEventLen]byte

	mu       sync.Mutex
	closed   bool
	ring     *ring
	consumer uint32         // our index: the kernel gets a copy of it
	reserved int            // places promised to queue pairs
	qps      map[uint32]*QP // by the identifier in work requests
	err      error          // the kernel has broken the queue
}

const createCompChannelLen = 4

// parseCreateCompChannel decodes the answer to CREATE_COMP_CHANNEL.
//
//	offset  size  field
//	     0     4  descriptor
func parseCreateCompChannel(b []byte) (fd uint32, err error) {
	if err := needs("answer to CREATE_COMP_CHANNEL", b, createCompChannelLen); err != nil {
		return 0, err
	}
	return host.Uint32(b), nil
}

// appendCreateCQ appends the body of CREATE_CQ.
//
//	offset  size  field
//	     0     8  handle for events
//	     8     4  completions
//	    12     4  completion vector: 0
//	    16     4  descriptor of the completion channel
//	    20     4  reserved
func appendCreateCQ(b []byte, depth uint32, channel int32) []byte {
	b = host.AppendUint64(b, 0)
	b = host.AppendUint32(b, depth)
	b = host.AppendUint32(b, 0)
	b = host.AppendUint32(b, uint32(channel))
	return host.AppendUint32(b, 0)
}

const createCQLen = 8 + mmInfoLen

// parseCreateCQ decodes the answer to CREATE_CQ of rxe.
//
//	offset  size  field
//	     0     4  handle
//	     4     4  completions, at least those asked for
//	     8    16  place of the queue
func parseCreateCQ(b []byte) (handle, depth uint32, place mmInfo, err error) {
	if err := needs("answer to CREATE_CQ", b, createCQLen); err != nil {
		return 0, 0, mmInfo{}, err
	}
	place, err = parseMMInfo(b[8:])
	return host.Uint32(b), host.Uint32(b[4:]), place, err
}

// NewCQ makes a queue for depth completions, which has to be at least the sum of the queues of its
// queue pairs.
func (c *Context) NewCQ(depth int) (*CQ, error) {
	if depth <= 0 || depth > min(maxCQDepth, c.limits.MaxCQE) {
		return nil, argError("a completion queue of depth %d, which is not in 1 to %d", depth,
			min(maxCQDepth, c.limits.MaxCQE))
	}
	response := make([]byte, createCompChannelLen)
	if err := c.command(cmdCreateCompChannel, nil, response); err != nil {
		return nil, err
	}
	fd, err := parseCreateCompChannel(response)
	if err != nil {
		return nil, err
	}
	q := &CQ{c: c, depth: depth, qps: make(map[uint32]*QP)}
	if q.channel, err = openAnswer(fd, "completion channel"); err != nil {
		return nil, err
	}
	if err := q.create(int32(fd)); err != nil {
		q.channel.Close()
		return nil, err
	}
	if err := register(c, c.cqs, q, struct{}{}); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

func (q *CQ) create(channel int32) error {
	response := make([]byte, createCQLen)
	if err := q.c.command(cmdCreateCQ, appendCreateCQ(nil, uint32(q.depth), channel), response); err != nil {
		return err
	}
	handle, depth, place, err := parseCreateCQ(response)
	if err == nil && depth < uint32(q.depth) {
		err = kernelError("a completion queue of depth %d, not %d", depth, q.depth)
	}
	if err == nil {
		q.ring, err = q.c.mapRing(place, q.depth, cqeLen)
	}
	if err != nil {
		q.c.destroy(cmdDestroyCQ, appendDestroy(nil, handle), make([]byte, destroyCQLen))
		return err
	}
	q.handle = handle
	return nil
}

// reserve promises n places to a queue pair, and add has completions find it.
func (q *CQ) reserve(n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return ErrClosed
	case n > q.depth-q.reserved: // rule: TestReserve
		return fmt.Errorf("uverbs: %w: %d places are free, and %d are needed",
			ErrCQTooSmall, q.depth-q.reserved, n)
	}
	q.reserved += n
	return nil
}

func (q *CQ) release(n int) {
	q.mu.Lock()
	q.reserved -= n
	q.mu.Unlock()
}

func (q *CQ) add(id uint32, qp *QP) {
	q.mu.Lock()
	q.qps[id] = qp
	q.mu.Unlock()
}

// remove forgets a queue pair that is gone and had n places. Its completions that wait in the queue
// keep theirs until [CQ.Poll] drops them.
func (q *CQ) remove(id uint32, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.qps, id)
	if q.closed {
		return
	}
	waiting := 0
	producer := q.ring.producer.Load() & q.ring.mask
	for consumer := q.consumer; consumer&q.ring.mask != producer; consumer++ {
		if owner, _, _ := splitID(parseCQE(q.ring.place(consumer)).id); owner == id {
			waiting++
		}
	}
	q.reserved -= n - min(n, waiting)
}

// Poll moves up to len(dst) completions to dst, oldest first, and returns how many. It allocates
// nothing. Completions of queue pairs that were closed are dropped.
func (q *CQ) Poll(dst []Completion) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || q.err != nil {
		return 0
	}
	r := q.ring
	producer := r.producer.Load()
	if producer > r.mask { // rule: TestPollIndex
		q.err = kernelError("index %d of a completion queue with mask %#x", producer, r.mask)
		return 0
	}
	for n < len(dst) && q.consumer != producer {
		e := parseCQE(r.place(q.consumer))
		q.consumer = (q.consumer + 1) & r.mask
		done, ok := q.take(e)
		if ok {
			dst[n] = done
			n++
		}
		if q.err != nil {
			break
		}
	}
	r.consumer.Store(q.consumer)
	return n
}

// take finds the work request of a completion. A completion of a queue pair that is gone gives its
// place back.
func (q *CQ) take(e cqe) (Completion, bool) {
	id, recv, seq := splitID(e.id)
	qp := q.qps[id]
	if qp == nil {
		q.reserved = max(0, q.reserved-1)
		return Completion{}, false
	}
	done := Completion{QP: qp, Status: e.status, Op: CompletedSend}
	w := &qp.send
	if recv {
		done.Op, w = Received, &qp.recv
	}
	room, ok := w.retire(seq, &done.ID)
	if ok && e.status == StatusOK {
		ok = done.result(e, recv, room)
	}
	if !ok || e.qpn != uint32(qp.qpn) { // rule: TestPollLies
		q.err = kernelError("a completion of queue pair %#x for work %#x that was not posted", e.qpn, e.id)
		return Completion{}, false
	}
	return done, true
}

// result fills in the result of work that went well. It reports whether the operation fits the
// queue, and the bytes of a SEND fit the room of the receive.
func (d *Completion) result(e cqe, recv bool, room uint32) bool {
	switch {
	case !recv && e.opcode == wcSend:
	case !recv && e.opcode == wcWrite:
		d.Op = CompletedWrite
	case recv && e.opcode == wcRecv && e.len <= room:
		d.Len = e.len
	case recv && e.opcode == wcRecvImm:
		d.Op, d.Len = ReceivedWriteImm, e.len
	default:
		return false
	}
	if recv && e.flags&wcWithImm != 0 {
		d.Imm, d.HasImm = e.imm, true
	}
	return true
}

// Err returns the reason for which the queue cannot be used any more, and nil if it can: the
// kernel's entries were impossible ([ErrKernel]), or the queue is closed ([ErrClosed]).
func (q *CQ) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ErrClosed
	}
	return q.err
}

// appendReqNotify appends the body of REQ_NOTIFY_CQ.
//
//	offset  size  field
//	     0     4  handle of the completion queue
//	     4     4  1: only for solicited completions
func appendReqNotify(b []byte, handle uint32, solicited bool) []byte {
	b = host.AppendUint32(b, handle)
	if solicited {
		return host.AppendUint32(b, 1)
	}
	return host.AppendUint32(b, 0)
}

// Arm asks the kernel for one event in the completion channel when the next completion is put in.
// With solicited, it must be of a message with the SE bit, or of an error. Poll once more after Arm
// and before [CQ.Wait]: a completion that was put in before Arm gives no event. The error is
// [ErrClosed] if the queue is closed, also where Close came between and the kernel has no such queue.
func (q *CQ) Arm(solicited bool) error {
	err := q.c.command(cmdReqNotifyCQ, appendReqNotify(nil, q.handle, solicited), nil)
	if err != nil && errors.Is(q.Err(), ErrClosed) { // rule: TestArmClosed
		return ErrClosed
	}
	return err
}

// A completion event, as read(2) returns it from a completion channel.
//
//	offset  size  field
//	     0     8  handle for events, of CREATE_CQ
const compEventLen = 8

// Wait waits for one event of the completion channel, in Go's poller. deadline bounds the wait
// unless it is zero; then the error is [os.ErrDeadlineExceeded]. Other errors are [ErrClosed] and
// [ErrRemoved]. One goroutine waits at a time.
func (q *CQ) Wait(deadline time.Time) error {
	q.waitMu.Lock()
	defer q.waitMu.Unlock()
	if err := setDeadline(q.channel, deadline); err != nil {
		return err
	}
	n, err := q.channel.Read(q.event[:])
	switch {
	case err != nil:
		return fileError(err)
	case n != compEventLen:
		return kernelError("a completion event of %d bytes", n)
	}
	return nil
}

// setDeadline bounds the next read of events.
func setDeadline(f *os.File, deadline time.Time) error {
	err := f.SetReadDeadline(deadline)
	if err != nil && !errors.Is(err, os.ErrNoDeadline) {
		return ErrClosed // Package os has no error of its own for it.
	}
	return err
}

// fileError says why a read of events failed.
func fileError(err error) error {
	switch {
	case errors.Is(err, os.ErrClosed):
		return ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		return os.ErrDeadlineExceeded
	case errors.Is(err, io.EOF):
		return ErrRemoved
	}
	return commandError("reading events", err)
}

// Close ends the queue. The error is [ErrBusy] while it has queue pairs. A wait ends with
// [ErrClosed].
func (q *CQ) Close() error { return q.end(false) }

// end closes the queue. With force it does so in the middle of the making of a queue pair as well,
// which fails then: its context is closed.
func (q *CQ) end(force bool) error {
	q.mu.Lock()
	switch {
	case q.closed:
		q.mu.Unlock()
		return nil
	case len(q.qps) != 0 && !force: // rule: TestBusy
		q.mu.Unlock()
		return ErrBusy
	}
	q.closed = true
	r := q.ring
	q.ring = nil
	q.mu.Unlock()
	forget(q.c, q.c.cqs, q)
	return errors.Join(
		q.channel.Close(),
		q.c.destroy(cmdDestroyCQ, appendDestroy(nil, q.handle), make([]byte, destroyCQLen)),
		r.close())
}
