package bench

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The limit: how fast one process can hand bytes to another at all, when nothing is
// negotiated, nothing sleeps and nobody checks. A ring in memory that both processes map; the writer
// copies in, the reader copies out, both spin. The bulk rows show SMC-D as a fraction of it.
//
//	offset  size  field
//	     0     8  bytes written so far, by the writer
//	   128     8  bytes read so far, by the reader
//	   256     8  1 once the writer has closed
//	  4096     n  the ring; n is a power of two

const (
	ringWritten = 0
	ringRead    = 128 // two cache lines on: adjacent lines are fetched in pairs
	ringClosed  = 256
	ringHeader  = 4096
	ringMinimum = 1 << 16
	ringDefault = 2 << 20 // when the buffer of SMC-D is not known
)

// newRingFile makes the shared memory for a ring of size bytes, rounded up to a power of two.
// The caller closes it.
func newRingFile(size int) (*os.File, error) {
	n := ringMinimum
	for n < size {
		n *= 2
	}
	fd, err := unix.MemfdCreate("gosmc-limit", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "limit ring")
	if err := f.Truncate(ringHeader + int64(n)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// A ringConn is one end of a ring: of one, only Read is used, of the other, only Write. It is a
// net.Conn so that the workloads need not know.
type ringConn struct {
	memory  []byte
	data    []byte
	mask    uint64
	written *atomic.Uint64
	read    *atomic.Uint64
	closed  *atomic.Uint64

	count uint64 // our own counter
	other uint64 // the other side's, when last looked at
}

// openRing maps the ring in f.
func openRing(f *os.File) (*ringConn, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size() - ringHeader
	if size < ringMinimum || size&(size-1) != 0 {
		return nil, errors.New("limit: not a ring")
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	word := func(offset int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&m[offset])) }
	return &ringConn{
		memory: m, data: m[ringHeader:], mask: uint64(size - 1),
		written: word(ringWritten), read: word(ringRead), closed: word(ringClosed),
	}, nil
}

// spinUntil looks at ready over and over. Now and then it lets other goroutines run, and other
// processes, because on a busy measure.Machine the other side may need this very processor.
func spinUntil(ready func() bool) {
	const looks = 2000 // some microseconds
	for {
		for range looks {
			if ready() {
				return
			}
		}
		runtime.Gosched()
		unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

func (c *ringConn) Write(b []byte) (int, error) {
	total := len(b)
	for len(b) > 0 {
		if c.count-c.other == uint64(len(c.data)) {
			spinUntil(func() bool { c.other = c.read.Load(); return c.count-c.other < uint64(len(c.data)) })
		}
		at := c.count & c.mask
		room := min(uint64(len(c.data))-(c.count-c.other), uint64(len(c.data))-at)
		n := copy(c.data[at:at+min(room, limitPiece)], b)
		b = b[n:]
		c.count += uint64(n)
		c.written.Store(c.count)
	}
	return total, nil
}

func (c *ringConn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	if c.other == c.count {
		end := false
		spinUntil(func() bool {
			end = c.closed.Load() != 0 // before the counter: bytes before Close are still read
			c.other = c.written.Load()
			return c.other != c.count || end
		})
		if c.other == c.count {
			return 0, io.EOF
		}
	}
	total := 0
	for total < len(b) && c.other != c.count {
		at := c.count & c.mask
		n := copy(b[total:], c.data[at:min(at+min(c.other-c.count, limitPiece), uint64(len(c.data)))])
		total += n
		c.count += uint64(n)
		c.read.Store(c.count)
	}
	return total, nil
}

// limitPiece is how much is copied before the other side may see it, in bytes: so the two
// copies of a large piece happen at the same time.
const limitPiece = 64 << 10

// Close tells the reader that nothing more comes. The mapping stays until the process ends.
func (c *ringConn) Close() error {
	c.closed.Store(1)
	return nil
}

func (c *ringConn) LocalAddr() net.Addr              { return ringAddr{} }
func (c *ringConn) RemoteAddr() net.Addr             { return ringAddr{} }
func (c *ringConn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *ringConn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *ringConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

type ringAddr struct{}

func (ringAddr) Network() string { return "ring" }
func (ringAddr) String() string  { return "ring" }

// A ringListener hands out its one connection once.
type ringListener struct {
	conn   *ringConn
	given  atomic.Bool
	closed chan struct{}
}

func (l *ringListener) Accept() (net.Conn, error) {
	if l.given.CompareAndSwap(false, true) {
		return l.conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *ringListener) Close() error   { close(l.closed); return nil }
func (l *ringListener) Addr() net.Addr { return ringAddr{} }
