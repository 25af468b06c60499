package uverbs

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// A State is the state of a queue pair: IBTA 10.3.1. The values are the kernel's.
type State uint8

// The states that SMC uses.
const (
	StateReset State = 0 // just made; nothing may be posted
	StateInit  State = 1 // receives may be posted
	StateRTR   State = 2 // ready to receive: the peer is known
	StateRTS   State = 3 // ready to send
	StateError State = 6 // all work is flushed
)

// String returns the name as rdma(8) spells it.
func (s State) String() string {
	switch s {
	case StateReset:
		return "RESET"
	case StateInit:
		return "INIT"
	case StateRTR:
		return "RTR"
	case StateRTS:
		return "RTS"
	case StateError:
		return "ERR"
	}
	return "state?"
}

// A QP is a queue pair, one end of a reliable connection (RC). Its methods may be called by several
// goroutines; work is done in the order in which it was posted.
type QP struct {
	pd             *PD
	qpn            wire.QPN
	id             uint32 // in identifiers of work requests: 31 bits, never used twice
	handle         uint32
	sendCQ, recvCQ *CQ

	mu     sync.Mutex
	state  State // as this side has set it: the kernel may have gone to ERR
	closed bool

	send, recv queue
	doorbell   [doorbellLen]byte
	page       []byte // for the answer to the doorbell: a mapping, whose address does not change
}

// A queue is a send or a receive queue: the ring, and the work requests that were posted and not
// yet retired.
type queue struct {
	ring     *ring
	producer uint32        // our index: the kernel gets a copy of it
	max      uint32        // work requests that may be posted and not retired
	posted   atomic.Uint32 // sequence number of the next work request; written under QP.mu
	retired  atomic.Uint32 // all before are retired; written under CQ.mu
	ids      []uint64      // the owner's identifiers, by sequence number; length a power of two
	room     []uint32      // bytes of receives
}

// init gives the queue its ring, and tables for depth work requests.
func (q *queue) init(r *ring, depth int) {
	size := 1 << elementLog2(depth)
	q.ring, q.max, q.ids, q.room = r, uint32(depth), make([]uint64, size), make([]uint32, size)
}

// retire takes a work request, and those before it, out of the queue. It reports whether the
// request was posted, and returns the bytes of its room. The caller holds the lock of the
// completion queue.
func (q *queue) retire(seq uint32, id *uint64) (room uint32, ok bool) {
	retired := q.retired.Load()
	if seq-retired >= q.posted.Load()-retired { // rule: TestPollLies
		return 0, false
	}
	at := seq & uint32(len(q.ids)-1)
	*id, room = q.ids[at], q.room[at]
	q.retired.Store(seq + 1)
	return room, true
}

// The identifier of a work request has a bit for receives (63), the queue pair (32 to 62) and the
// sequence number in its queue (0 to 31).
func joinID(qp uint32, recv bool, seq uint32) uint64 {
	id := uint64(qp)<<32 | uint64(seq)
	if recv {
		id |= 1 << 63
	}
	return id
}

func splitID(id uint64) (qp uint32, recv bool, seq uint32) {
	return uint32(id>>32) &^ (1 << 31), id>>63 != 0, uint32(id)
}

// QPConfig has the completion queues and the queue sizes of a queue pair.
type QPConfig struct {
	SendCQ, RecvCQ   *CQ // may be one
	MaxSend, MaxRecv int // work requests that may be posted and not yet taken out as completions
}

// NewQP makes a queue pair in [StateReset].
func (p *PD) NewQP(cfg QPConfig) (*QP, error) {
	limit := min(maxQueueDepth, p.c.limits.MaxQPWR)
	switch {
	case cfg.SendCQ == nil || cfg.RecvCQ == nil || cfg.SendCQ.c != p.c || cfg.RecvCQ.c != p.c:
		return nil, argError("a queue pair without completion queues of its device")
	case cfg.MaxSend < 1 || cfg.MaxSend > limit || cfg.MaxRecv < 1 || cfg.MaxRecv > limit:
		return nil, argError("queues for %d sends and %d receives, not 1 to %d",
			cfg.MaxSend, cfg.MaxRecv, limit)
	case p.c.limits.MaxSGE < MaxSGE:
		return nil, argError("a device with %d SGEs, less than %d", p.c.limits.MaxSGE, MaxSGE)
	}
	if err := p.hold(); err != nil {
		return nil, err
	}
	if err := cfg.SendCQ.reserve(cfg.MaxSend); err != nil {
		p.release()
		return nil, err
	}
	if err := cfg.RecvCQ.reserve(cfg.MaxRecv); err != nil {
		cfg.SendCQ.release(cfg.MaxSend)
		p.release()
		return nil, err
	}
	q, err := p.newQP(cfg)
	if err != nil {
		cfg.SendCQ.release(cfg.MaxSend)
		cfg.RecvCQ.release(cfg.MaxRecv)
		p.release()
		return nil, err
	}
	return q, nil
}

func (p *PD) newQP(cfg QPConfig) (*QP, error) {
	id, err := p.c.nextID()
	if err != nil {
		return nil, err
	}
	q := &QP{pd: p, sendCQ: cfg.SendCQ, recvCQ: cfg.RecvCQ, id: id}
	q.page, err = unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	if err := q.create(cfg); err != nil {
		unix.Munmap(q.page)
		return nil, err
	}
	putDoorbell(q.doorbell[:], uintptr(unsafe.Pointer(&q.page[0])), q.handle)
	q.sendCQ.add(id, q)
	q.recvCQ.add(id, q)
	if err := register(p.c, p.c.qps, uint64(id), q); err != nil {
		q.closed = true
		q.sendCQ.remove(id, 0)
		q.recvCQ.remove(id, 0)
		return nil, errors.Join(err, q.destroy())
	}
	return q, nil
}

// create makes the queue pair in the kernel, and maps its queues.
func (q *QP) create(cfg QPConfig) error {
	c := q.pd.c
	command := createQP{
		user: uint64(q.id), pd: q.pd.handle, sendCQ: q.sendCQ.handle, recvCQ: q.recvCQ.handle,
		maxSend: uint32(cfg.MaxSend), maxRecv: uint32(cfg.MaxRecv),
	}
	response := make([]byte, createQPLen)
	if err := c.command(cmdCreateQP, command.append(nil), response); err != nil {
		return err
	}
	made, err := parseCreateQP(response)
	q.handle, q.qpn = made.handle, made.qpn
	var send, recv *ring
	if err == nil {
		send, err = c.mapRing(made.sendRing, cfg.MaxSend, sendElement)
	}
	if err == nil {
		recv, err = c.mapRing(made.recvRing, cfg.MaxRecv, recvElement)
	}
	if err != nil {
		c.destroy(cmdDestroyQP, appendDestroy(nil, made.handle), make([]byte, destroyQPLen))
		if send != nil {
			send.close()
		}
		return err
	}
	q.send.init(send, cfg.MaxSend)
	q.recv.init(recv, cfg.MaxRecv)
	return nil
}

// QPN returns the queue pair's number.
func (q *QP) QPN() wire.QPN { return q.qpn }

// Close destroys the queue pair. Completions that were not taken out are dropped.
func (q *QP) Close() error {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.closed = true
	q.mu.Unlock()
	forget(q.pd.c, q.pd.c.qps, uint64(q.id))
	err := q.pd.c.destroy(cmdDestroyQP, appendDestroy(nil, q.handle), make([]byte, destroyQPLen))
	// The kernel has put in the last completion. Poll finds no queue pair for those from now on.
	if q.sendCQ == q.recvCQ {
		q.sendCQ.remove(q.id, int(q.send.max+q.recv.max))
	} else {
		q.sendCQ.remove(q.id, int(q.send.max))
		q.recvCQ.remove(q.id, int(q.recv.max))
	}
	q.pd.release()
	return errors.Join(err, q.unmap())
}

func (q *QP) unmap() error {
	return errors.Join(q.send.ring.close(), q.recv.ring.close(), unix.Munmap(q.page))
}

// destroy ends a queue pair that was never given out.
func (q *QP) destroy() error {
	err := q.pd.c.destroy(cmdDestroyQP, appendDestroy(nil, q.handle), make([]byte, destroyQPLen))
	return errors.Join(err, q.unmap())
}
