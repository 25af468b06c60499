package supervisor

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory of a ring, as docs/shared-memory.md, section 10, has it:
//
//	offset  size  field
//	     0     8  magic      with the version
//	     8     4  size       of the data, a power of two
//	    64     8  pub        see below
//	    72     4  processor  of the writer, counted from 1; 0: not known; bit 31: more is to follow
//	    80     8  base       added to the number of a byte it has its place, modulo size; changes while the ring is empty
//	   128     8  tail       bytes that the reader has taken, modulo 2^40
//	   192     4  wanted     the writer waits for room
//	   256     4  attached   see the constants
//	  4096  size  data
//
// Words are in host order.
const (
	ringMagic = 0x32306d7267736f67

	ringAtMagic     = 0
	ringAtSize      = 8
	ringAtPub       = 64
	ringAtProcessor = 72
	ringAtBase      = 80
	ringAtTail      = 128
	ringAtWanted    = 192
	ringAtAttached  = 256
	ringAtData      = 4096

	ringLeast = 4 << 10
	ringMost  = 16 << 20
	ringSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
)

// Bits of pub.
const (
	pubHead       = 1<<40 - 1 // how many bytes the writer has put there
	pubArmed      = 1 << 40   // the next publication is followed by a token
	pubCount      = 1 << 41   // one token more; 16 bits
	pubCounts     = 0xffff << 41
	pubWriterLeft = 1 << 57
	pubReaderLeft = 1 << 58
	pubWithdrawn  = 1 << 59
	pubLook       = 1 << 60 // 4 bits: n, the reader looks, and takes 2^(n-1) bytes without a token
	pubLooks      = 15 << 60
)

// Values of attached.
const (
	attachedNot      = 0
	attachedYes      = 1
	attachedTooLate  = 2 // the writer waits no more
	attachedNoMore   = 3 // the reader has changed its mind
	attachedSwitched = 4 // the second mark is on its way
)

// counted is pub with one token more.
func counted(pub uint64) uint64 { return pub&^pubCounts | (pub+pubCount)&pubCounts }

// tokens is how many were counted, modulo 65536.
func tokens(pub uint64) uint16 { return uint16(pub & pubCounts >> 41) }

// A ring is its memory, mapped. Its words may be used by several goroutines.
type ring struct {
	memory []byte
	size   uint64
}

// newRing makes a ring of so many bytes, and returns a descriptor of its memory, which is the caller's to close.
func newRing(size int, seals int) (*ring, int, error) {
	fd, err := unix.MemfdCreate("gosmc-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, err
	}
	if err = unix.Ftruncate(fd, ringAtData+int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	var r *ring
	if err == nil {
		r, err = mapRing(fd, size)
	}
	if err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	r.word32(ringAtSize).Store(uint32(size))
	r.word(ringAtPub).Store(pubArmed)
	r.word(ringAtMagic).Store(ringMagic)
	return r, fd, nil
}

// takeRing maps the memory that a writer has sent.
func takeRing(fd int) (*ring, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		return nil, err
	}
	size := int(st.Size) - ringAtData
	if seals&ringSeals != ringSeals || size < ringLeast || size > ringMost || size&(size-1) != 0 {
		return nil, fmt.Errorf("a ring of %d bytes with the seals %#x", size, seals)
	}
	r, err := mapRing(fd, size)
	if err != nil {
		return nil, err
	}
	if r.word(ringAtMagic).Load() != ringMagic || r.word32(ringAtSize).Load() != uint32(size) {
		r.close()
		return nil, errors.New("no ring")
	}
	return r, nil
}

func mapRing(fd, size int) (*ring, error) {
	memory, err := unix.Mmap(fd, 0, ringAtData+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return &ring{memory, uint64(size)}, err
}

func (r *ring) close() { unix.Munmap(r.memory) }

func (r *ring) word(at int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&r.memory[at])) }

func (r *ring) word32(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&r.memory[at])) }

func (r *ring) pub() uint64 { return r.word(ringAtPub).Load() }

func (r *ring) swap(have, want uint64) bool { return r.word(ringAtPub).CompareAndSwap(have, want) }

func (r *ring) attach(have, want uint32) bool {
	return r.word32(ringAtAttached).CompareAndSwap(have, want)
}

// place is where the data have byte n.
func (r *ring) place(n uint64) uint64 { return (n + r.word(ringAtBase).Load()) & (r.size - 1) }

// begin has an empty ring have byte n at a place.
func (r *ring) begin(n, place uint64) { r.word(ringAtBase).Store(place - n) }

// put copies bytes to where byte n of the ring is, round its end.
func (r *ring) put(n uint64, b []byte) {
	data := r.memory[ringAtData:]
	copy(data, b[copy(data[r.place(n):], b):])
}

// get is put, the other way.
func (r *ring) get(n uint64, b []byte) {
	data := r.memory[ringAtData:]
	copy(b[copy(b, data[r.place(n):]):], data)
}
