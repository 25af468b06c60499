package uverbs

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A fake is a device whose kernel takes every command and answers zeros, since the file is /dev/null. The tests play
// the driver on the rings.
type fake struct {
	c  *Context
	pd *PD
	cq *CQ
	mr *MR
	qp *QP
}

// fakeRing makes a queue as the kernel shares it.
func fakeRing(t *testing.T, log2, mask uint32, depth, size int) *ring {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, ringHeaderLen+int(mask+1)<<log2, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	host.PutUint32(mem, log2)
	host.PutUint32(mem[4:], mask)
	r, err := newRing(mem, depth, size)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const (
	fakeDepth = 4 // of both queues; the rings have 8 places
	fakeMask  = 7
	fakeQPN   = 0x11
)

func newFake(t *testing.T) *fake {
	t.Helper()
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &Context{
		name: "fake0", node: "uverbs-none", deviceFile: deviceFile{fd: fd}, limits: Limits{Ports: 1, MaxSGE: 32},
		pds: make(map[*PD]struct{}), cqs: make(map[*CQ]struct{}), mrs: make(map[*MR]struct{}), qps: make(map[uint64]*QP),
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &fake{c: c}
	if f.pd, err = c.NewPD(); err != nil {
		t.Fatal(err)
	}
	if f.mr, err = f.pd.AllocMR(1000, LocalWrite); err != nil {
		t.Fatal(err)
	}
	f.mr.lkey = 0x77
	f.addCQ(t)
	f.qp = f.addQP(t, 5)
	return f
}

func (f *fake) addCQ(t *testing.T) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { writer.Close() })
	f.cq = &CQ{c: f.c, depth: 2 * fakeDepth, channel: reader, qps: make(map[uint32]*QP)}
	f.cq.ring = fakeRing(t, elementLog2(cqeLen), 15, 2*fakeDepth, cqeLen)
	f.c.cqs[f.cq] = struct{}{}
}

func (f *fake) addQP(t *testing.T, id uint32) *QP {
	t.Helper()
	q := &QP{pd: f.pd, qpn: fakeQPN, id: id, sendCQ: f.cq, recvCQ: f.cq, state: StateRTS}
	var err error
	q.page, err = unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err = errors.Join(err, f.pd.hold(), f.cq.reserve(2*fakeDepth)); err != nil {
		t.Fatal(err)
	}
	q.send.init(fakeRing(t, 8, fakeMask, fakeDepth, sendElement), fakeDepth)
	q.recv.init(fakeRing(t, 7, fakeMask, fakeDepth, recvElement), fakeDepth)
	f.cq.add(id, q)
	f.c.qps[uint64(id)] = q
	return q
}

// complete puts a completion in, as the driver does, and takes the request out of the queue.
func (f *fake) complete(e cqe) {
	r := f.cq.ring
	at := r.producer.Load()
	b := r.place(at)
	host.PutUint64(b, e.id)
	host.PutUint32(b[8:], uint32(e.status))
	host.PutUint32(b[12:], e.opcode)
	host.PutUint32(b[20:], e.len)
	putBig32(b[24:], e.imm)
	host.PutUint32(b[28:], e.qpn)
	host.PutUint32(b[36:], e.flags)
	r.producer.Store((at + 1) & r.mask)
}

// consume takes n requests out of a queue, as the driver does.
func consume(r *ring, n uint32) { r.consumer.Store((r.consumer.Load() + n) & r.mask) }
