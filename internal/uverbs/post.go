package uverbs

import (
	"fmt"
	"runtime"
)

// The doorbell of rxe is POST_SEND with no work request: the kernel looks at the send queue.
//
//	offset  size  field
//	     0     8  header; see appendCommand
//	     8     8  address of the answer
//	    16     4  handle of the queue pair
//	    20     4  work requests: 0
//	    24     4  SGEs: 0
//	    28     4  bytes of a work request, which the kernel checks: 56
const (
	doorbellLen   = 32
	doorbellWQE   = 56
	doorbellReply = 4
)

// putDoorbell fills b with the doorbell of a queue pair.
func putDoorbell(b []byte, answer uintptr, handle uint32) {
	var body [doorbellLen - headerLen - addressLen]byte
	host.PutUint32(body[:], handle)
	host.PutUint32(body[12:], doorbellWQE)
	appendCommand(b[:0], cmdPostSend, answer, doorbellReply, body[:])
}

// check returns an error unless the pieces of memory are the region's, and allow access.
func (q *QP) check(local *[MaxSGE]SGE, access Access) error {
	sum := uint64(0)
	for i := range local {
		s := &local[i]
		switch {
		case s.Len == 0:
			continue
		case s.MR != nil && s.MR.dead.Load(): // rule: TestPostArguments
			return fmt.Errorf("uverbs: SGE %d: %w: the region was deregistered", i, ErrRegion)
		case s.MR == nil || s.MR.pd != q.pd:
			return fmt.Errorf("uverbs: SGE %d: %w: no region of the queue pair's domain", i, ErrRegion)
		case !s.MR.has(s.Addr, s.Len): // rule: TestPostArguments
			return fmt.Errorf("uverbs: SGE %d: %w: %d bytes from %#x", i, ErrRegion, s.Len, s.Addr)
		case s.MR.access&access != access:
			return fmt.Errorf("uverbs: SGE %d: %w: no local write", i, ErrRegion)
		}
		sum += uint64(s.Len)
	}
	if sum > MaxMessage {
		return argError("a message of %d bytes", sum)
	}
	return nil
}

// PostSend posts work to the send queue, all of it or none, with one write to the kernel for all.
// It allocates nothing. A request whose completion is not signaled keeps its place until a later
// completion of this queue was taken out. The errors are [ErrState], [ErrQueueFull], [ErrRegion],
// [ErrArgument], [ErrClosed] and [ErrRemoved].
//
// After an error of the kernel the work may have been posted, and the queue pair is of no more use.
func (q *QP) PostSend(work ...SendWR) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return ErrClosed
	case q.state != StateRTS && q.state != StateError: // rule: TestState
		return fmt.Errorf("uverbs: posting a send in %v: %w", q.state, ErrState)
	}
	for i := range work {
		w := &work[i]
		if w.Op < OpSend || w.Op > OpWriteImm {
			return argError("%v", w.Op)
		}
		if err := q.check(&w.Local, 0); err != nil {
			return err
		}
	}
	if err := q.send.fits(len(work)); err != nil {
		return err
	}
	index := q.send.producer
	for i := range work {
		w, seq := &work[i], q.send.posted.Load()
		q.send.ids[seq&uint32(len(q.send.ids)-1)] = w.ID
		putSendWQE(q.send.ring.place(index), joinID(q.id, false, seq), w)
		index = (index + 1) & q.send.ring.mask
		q.send.posted.Store(seq + 1)
	}
	q.send.producer = index
	q.send.ring.producer.Store(index)
	err := q.pd.c.write(cmdPostSend, q.doorbell[:])
	runtime.KeepAlive(q)
	return err
}

// fits returns an error unless n more work requests fit.
func (q *queue) fits(n int) error {
	posted := q.posted.Load() - q.retired.Load()
	if n > int(q.max-posted) || uint32(n) > q.ring.free(q.producer) { // rule: TestQueueFull
		return ErrQueueFull
	}
	return nil
}

// PostRecv posts receives, all of them or none. It needs no system call, and allocates nothing. The
// errors are those of [QP.PostSend].
func (q *QP) PostRecv(work ...RecvWR) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return ErrClosed
	case q.state == StateReset:
		return fmt.Errorf("uverbs: posting a receive in %v: %w", q.state, ErrState)
	}
	for i := range work {
		if err := q.check(&work[i].Local, LocalWrite); err != nil {
			return err
		}
	}
	if err := q.recv.fits(len(work)); err != nil {
		return err
	}
	index := q.recv.producer
	for i := range work {
		w, seq := &work[i], q.recv.posted.Load()
		at := seq & uint32(len(q.recv.ids)-1)
		q.recv.ids[at] = w.ID
		q.recv.room[at] = w.Local[0].Len + w.Local[1].Len
		putRecvWQE(q.recv.ring.place(index), joinID(q.id, true, seq), w)
		index = (index + 1) & q.recv.ring.mask
		q.recv.posted.Store(seq + 1)
	}
	q.recv.producer = index
	q.recv.ring.producer.Store(index)
	return nil
}
