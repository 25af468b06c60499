package uverbs

import (
	"math/bits"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The layout of the queues that rxe shares with a process: rdma_user_rxe.h of the kernel's user
// interface.

// An mmInfo says where a queue can be mapped.
//
//	offset  size  field
//	     0     8  offset for mmap(2)
//	     8     4  bytes
//	    12     4  reserved
type mmInfo struct {
	offset uint64
	size   uint32
}

const mmInfoLen = 16

func parseMMInfo(b []byte) (mmInfo, error) {
	if err := needs("place of a queue", b, mmInfoLen); err != nil {
		return mmInfo{}, err
	}
	m := mmInfo{host.Uint64(b), host.Uint32(b[8:])}
	switch {
	case m.offset > 1<<62 || m.offset%uint64(os.Getpagesize()) != 0: // rule: TestMMInfo
		return mmInfo{}, kernelError("a queue at offset %#x", m.offset)
	case m.size < ringHeaderLen || m.size > maxRing:
		return mmInfo{}, kernelError("a queue of %d bytes", m.size)
	}
	return m, nil
}

// The header of a queue. Both indexes are places, not counts: from 0 to the mask. The queue is
// empty when they are equal, so it holds one element less than it has places.
//
//	offset  size  field
//	     0     4  logarithm of the size of an element
//	     4     4  mask: the number of places, a power of two, less one
//	   128     4  producer's index: the next place to fill
//	   256     4  consumer's index: the next place to take
//	   384    ..  places
const (
	ringProducer  = 128
	ringConsumer  = 256
	ringHeaderLen = 384
)

// A ring is a queue that the kernel shares. Its shape was read once and checked; later reads are of
// the indexes.
type ring struct {
	mem      []byte // the mapping
	places   []byte
	log2     uint32 // of the size of an element
	mask     uint32
	producer *atomic.Uint32
	consumer *atomic.Uint32
}

// mapRing maps a queue that has at least depth elements of at least size bytes.
func (c *deviceFile) mapRing(m mmInfo, depth, size int) (*ring, error) {
	c.fdMu.RLock()
	defer c.fdMu.RUnlock()
	if c.fd < 0 {
		return nil, ErrClosed
	}
	mem, err := unix.Mmap(c.fd, int64(m.offset), int(m.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, commandError("mmap of a queue", err)
	}
	unix.Madvise(mem, unix.MADV_DONTFORK) // A child has no use for it, and nothing breaks if it has it.
	r, err := newRing(mem, depth, size)
	if err != nil {
		unix.Munmap(mem)
		return nil, err
	}
	return r, nil
}

// newRing checks the header of a queue in mem.
func newRing(mem []byte, depth, size int) (*ring, error) {
	if err := needs("queue", mem, ringHeaderLen); err != nil {
		return nil, err
	}
	r := &ring{
		mem: mem, log2: host.Uint32(mem), mask: host.Uint32(mem[4:]),
		producer: (*atomic.Uint32)(unsafe.Pointer(&mem[ringProducer])),
		consumer: (*atomic.Uint32)(unsafe.Pointer(&mem[ringConsumer])),
	}
	room := uint64(len(mem) - ringHeaderLen)
	switch {
	case r.log2 > 16 || 1<<r.log2 < size:
		return nil, kernelError("a queue with elements of 2^%d bytes, less than %d", r.log2, size)
	case r.mask&(r.mask+1) != 0: // rule: TestRing
		return nil, kernelError("a queue with mask %#x", r.mask)
	case uint64(r.mask) < uint64(depth):
		return nil, kernelError("a queue for %d elements, not %d", r.mask, depth)
	case (uint64(r.mask)+1)<<r.log2 > room: // rule: TestRing
		return nil, kernelError("a queue of %d elements of 2^%d bytes in %d bytes",
			uint64(r.mask)+1, r.log2, room)
	}
	r.places = mem[ringHeaderLen:][:(uint64(r.mask)+1)<<r.log2]
	return r, nil
}

// place returns the memory of the place with an index. Indexes beyond the mask wrap around.
func (r *ring) place(index uint32) []byte {
	at := int(index&r.mask) << r.log2
	return r.places[at : at+1<<r.log2]
}

// free returns how many places the producer may fill, given the producer's index.
func (r *ring) free(producer uint32) uint32 { return (r.consumer.Load() - producer - 1) & r.mask }

// close unmaps the queue. Its places must not be used any more.
func (r *ring) close() error { return unix.Munmap(r.mem) }

// elementLog2 returns the logarithm of the size of an element that has at least n bytes, as rxe
// rounds it.
func elementLog2(n int) uint32 { return uint32(bits.Len(uint(n - 1))) }

// Lengths of work requests, without SGEs.
const (
	sendWQELen = 208
	recvWQELen = 40
	sgeLen     = 16

	sendElement = sendWQELen + MaxSGE*sgeLen
	recvElement = recvWQELen + MaxSGE*sgeLen
)

// Operations and flags of a send work request: enum ib_uverbs_wr_opcode, enum ib_send_flags.
const (
	wrWrite    = 0
	wrWriteImm = 1
	wrSend     = 2
	wrSendImm  = 3

	sendSignaled  = 1 << 1
	sendSolicited = 1 << 2
)

// wrOpcodes has the kernel's numbers of operations.
var wrOpcodes = [...]uint32{OpSend: wrSend, OpSendImm: wrSendImm, OpWrite: wrWrite, OpWriteImm: wrWriteImm}

// putSendWQE fills a place of a send queue.
//
//	offset  size  field
//	     0     8  identifier
//	     8     4  reserved
//	    12     4  operation
//	    16     4  flags: 2 = signaled, 4 = solicited
//	    20     4  immediate data, big-endian
//	    24     8  virtual address at the peer
//	    32     4  the peer's key
//	    36   108  of other operations
//	   144     8  of the kernel: status, state (0: posted)
//	   152     8  virtual address at the peer, once more
//	   160    24  of the kernel
//	   184     4  bytes of the message
//	   188     4  bytes that are left: all
//	   192     4  SGE to begin with: 0
//	   196     4  number of SGEs
//	   200     8  offset in the SGE: 0; reserved
//	   208    ..  SGEs of 16 bytes: virtual address (8), length (4), local key (4)
func putSendWQE(b []byte, id uint64, w *SendWR) {
	clear(b[:sendElement])
	flags := uint32(0)
	if w.Signaled {
		flags |= sendSignaled
	}
	if w.Solicited {
		flags |= sendSolicited
	}
	host.PutUint64(b, id)
	host.PutUint32(b[12:], wrOpcodes[w.Op])
	host.PutUint32(b[16:], flags)
	if w.Op.hasImm() {
		putBig32(b[20:], w.Imm)
	}
	if w.Op.isWrite() {
		host.PutUint64(b[24:], w.Remote)
		host.PutUint32(b[32:], uint32(w.RKey))
		host.PutUint64(b[152:], w.Remote)
	}
	putSGEs(b[184:], &w.Local)
}

// putRecvWQE fills a place of a receive queue.
//
//	offset  size  field
//	     0     8  identifier
//	     8     8  reserved
//	    16    24  lengths and SGEs, as from offset 184 of a send
//	    40    ..  SGEs of 16 bytes
func putRecvWQE(b []byte, id uint64, w *RecvWR) {
	clear(b[:recvElement])
	host.PutUint64(b, id)
	putSGEs(b[16:], &w.Local)
}

// putSGEs fills the part of a work request that says where the bytes are.
func putSGEs(b []byte, local *[MaxSGE]SGE) {
	total, n := uint32(0), uint32(0)
	for i := range local {
		s := &local[i]
		if s.Len == 0 {
			continue
		}
		e := b[24+sgeLen*int(n):]
		host.PutUint64(e, s.Addr)
		host.PutUint32(e[8:], s.Len)
		host.PutUint32(e[12:], s.MR.lkey)
		total += s.Len
		n++
	}
	host.PutUint32(b, total)
	host.PutUint32(b[4:], total)
	host.PutUint32(b[12:], n)
}

func putBig32(b []byte, v uint32) {
	_ = b[3]
	b[0], b[1], b[2], b[3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
}

// Operations and flags of a completion: enum ib_uverbs_wc_opcode, and those of receives.
const (
	wcSend    = 0
	wcWrite   = 1
	wcRecv    = 128
	wcRecvImm = 129

	wcWithImm = 1 << 1
)

// A cqe is a completion as the kernel writes it.
//
//	offset  size  field
//	     0     8  identifier of the work request
//	     8     4  status
//	    12     4  operation, if the status is 0
//	    16     4  vendor's error
//	    20     4  bytes
//	    24     4  immediate data, big-endian
//	    28     4  number of the queue pair
//	    32     4  number of the peer's queue pair
//	    36     4  flags: 2 = with immediate data
//	    40     8  of other services
type cqe struct {
	id     uint64
	status Status
	opcode uint32
	len    uint32
	imm    uint32
	qpn    uint32
	flags  uint32
}

const cqeLen = 48

// parseCQE decodes a completion, which has at least cqeLen bytes: the ring was checked for that.
func parseCQE(b []byte) cqe {
	_ = b[cqeLen-1]
	return cqe{
		id: host.Uint64(b), status: Status(host.Uint32(b[8:])), opcode: host.Uint32(b[12:]),
		len: host.Uint32(b[20:]),
		imm: uint32(b[24])<<24 | uint32(b[25])<<16 | uint32(b[26])<<8 | uint32(b[27]),
		qpn: host.Uint32(b[28:]), flags: host.Uint32(b[36:]),
	}
}
