package ring

import (
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory of a ring:
//
//	offset  size  field      written by
//	     0     8  magic      writer, with the version
//	     8     4  size       writer: of the data, a power of two
//	    64     8  pub        both, see below
//	    72     4  processor  writer: one more than its processor; 0: not known
//	    80     8  base       writer: added to the number of a byte it has its place, modulo size;
//	                         changes while the ring is empty
//	   128     8  tail       reader: bytes that it has taken, modulo 2^40
//	   192     4  wanted     writer: it waits for room
//	   256     4  attached   both, see the constants
//	   320     4  shut       reader: it has shut receiving down
//	   384     4  here       reader: it has the memory of a ring from the beginning
//	  4096  size  data       writer
//
// Words are in host order. docs/shared-memory.md, section 10.
const (
	atMagic    = 0
	atSize     = 8
	atPub      = 64
	atBase     = 80
	atTail     = 128
	atWanted   = 192
	atAttached = 256
	atShut     = 320
	atHere     = 384
	headerLen  = 4096

	magic = 0x32306d7267736f67
)

// Bits of pub.
const (
	pubHead       = 1<<40 - 1 // how many bytes the writer has put there
	pubArmed      = 1 << 40   // the next publication is followed by a token
	pubCount      = 1 << 41   // one token more; 16 bits
	pubCountShift = 41
	pubCounts     = 0xffff << pubCountShift
	pubWriterLeft = 1 << 57 // bytes behind the head are in-band
	pubReaderLeft = 1 << 58 // the same; nothing can be published any more
	pubLeft       = pubWriterLeft | pubReaderLeft
	pubWithdrawn  = 1 << 59 // the writer has not switched, and will not
	pubLookShift  = 60
	pubLooks      = 15 << pubLookShift // n: the reader looks, and takes 2^(n-1) bytes without a token
)

// Values of attached.
const (
	attachedNot      = 0
	attachedYes      = 1 // the reader has mapped the ring
	attachedTooLate  = 2 // the writer waits no more
	attachedNoMore   = 3 // the reader has changed its mind
	attachedSwitched = 4 // the writer has switched
	attachedIdle     = 5 // the reader has left, as nothing came for long
)

// counted is pub with one token more.
func counted(pub uint64) uint64 { return pub&^pubCounts | (pub+pubCount)&pubCounts }

// tokens is how many were counted, modulo 65536.
func tokens(pub uint64) uint16 { return uint16(pub & pubCounts >> pubCountShift) }

// A memory is a ring, mapped. The other process can change all of it at any time, but its length.
type memory struct {
	mapped []byte // header and data
	size   uint64 // of the data, as it was mapped
	gift   bool   // both sides have it from the beginning: it is no mapping of its own
}

func (m *memory) word(at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&m.mapped[at]))
}

func (m *memory) half(at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&m.mapped[at]))
}

func (m *memory) pub() *atomic.Uint64      { return m.word(atPub) }
func (m *memory) tail() *atomic.Uint64     { return m.word(atTail) }
func (m *memory) wanted() *atomic.Uint32   { return m.half(atWanted) }
func (m *memory) attached() *atomic.Uint32 { return m.half(atAttached) }

// place is where the data have byte n. The base is loaded once for each copy: both sides can change it.
func (m *memory) place(n uint64) uint64 { return (n + m.word(atBase).Load()) & (m.size - 1) }

// put copies b to a place, round the end. It is no longer than the data.
func (m *memory) put(place uint64, b []byte) {
	data := m.mapped[headerLen : headerLen+m.size]
	n := copyBytes(data[place:], b)
	copyBytes(data, b[n:])
}

// get copies to b from a place, round the end. b is no longer than the data.
func (m *memory) get(place uint64, b []byte) {
	data := m.mapped[headerLen : headerLen+m.size]
	n := copyBytes(b, data[place:])
	copyBytes(b[n:], data)
}

// copyBytes is copy, in pieces for which no processor takes a slow path: from some 2,048 bytes on copy
// uses "rep movsb", which takes long from memory that another processor has just written.
func copyBytes(to, from []byte) int {
	n := min(len(to), len(from))
	for at := 0; at < n; at += 1024 {
		end := min(at+1024, n)
		copy(to[at:end], from[at:end])
	}
	return n
}

// mappedBytes is the data of all rings of the process, and mappings how many these are.
var mappedBytes, mappings atomic.Int64

func afford(size uint64) bool {
	bytes, count := mappedBytes.Add(int64(size)), mappings.Add(1)
	if bytes <= maxBytes && count <= maxRings { // rule: TestAfford
		return true
	}
	giveUp(size)
	return false
}

func giveUp(size uint64) {
	mappedBytes.Add(-int64(size))
	mappings.Add(-1)
}

var errMemory = errors.New("ring: the memory of a ring is not as it has to be")

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// strict reports whether the kernel may refuse pages when they are touched first, which is SIGBUS. If
// that cannot be read it is so.
func strict() bool {
	text, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	return err != nil || len(text) == 0 || text[0] == '2'
}

// sealedLen returns the length of a file in memory that can never change. An error means that it is another
// kind of file. Only files of tmpfs and hugetlbfs know seals, and huge pages can run out: SIGBUS.
func sealedLen(fd int) (uint64, error) {
	have, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || have&seals != seals { // rule: TestTakeHostile: have&seals != seals -> have&0 != 0
		return 0, errMemory
	}
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		return 0, errMemory
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Size < 0 {
		return 0, errMemory
	}
	return uint64(st.Size), nil
}

// mapMemory maps a file for as many bytes of data. The caller closes the file.
func mapMemory(fd int, size, data uint64) ([]byte, error) {
	if !afford(data) {
		return nil, errMemory
	}
	p, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		giveUp(data)
		return nil, err
	}
	return unsafe.Slice((*byte)(p), size), nil
}

func unmap(b []byte, data uint64) {
	unix.MunmapPtr(unsafe.Pointer(&b[0]), uintptr(len(b)))
	giveUp(data)
}

// free unmaps a ring that was made or taken.
func (m *memory) free() {
	if !m.gift {
		unmap(m.mapped, m.size)
	}
}

// newMemory makes a ring. The caller closes the file.
func newMemory(size uint64, name string) (m *memory, fd int, err error) {
	fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, err
	}
	if err = unix.Ftruncate(fd, int64(headerLen+size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err == nil && strict() {
		err = unix.Fallocate(fd, 0, 0, int64(headerLen+size))
	}
	var b []byte
	if err == nil {
		b, err = mapMemory(fd, headerLen+size, size)
	}
	if err != nil {
		unix.Close(fd)
		return nil, -1, err
	}
	m = &memory{mapped: b, size: size}
	m.begin()
	return m, fd, nil
}

// begin writes the words that a reader looks for. The magic is the last one.
func (m *memory) begin() {
	m.half(atSize).Store(uint32(m.size))
	m.pub().Store(pubArmed)
	m.word(atMagic).Store(magic)
}

// takeMemory maps a ring that the writer has sent. The caller closes the file. Where the kernel promises no
// memory all of it is reserved first; its writer is of this user.
func takeMemory(fd int) (*memory, error) {
	all, err := sealedLen(fd)
	if err != nil {
		return nil, err
	}
	size := all - headerLen
	// rule: TestTakeHostile
	if all <= headerLen || size < leastBytes || size > mostBytes || size&(size-1) != 0 {
		return nil, errMemory
	}
	if strict() {
		if err := unix.Fallocate(fd, 0, 0, int64(all)); err != nil {
			return nil, err
		}
	}
	b, err := mapMemory(fd, all, size)
	if err != nil {
		return nil, err
	}
	m := &memory{mapped: b, size: size}
	if m.word(atMagic).Load() != magic || m.half(atSize).Load() != uint32(size) { // rule: TestTakeHostile
		m.free()
		return nil, errMemory
	}
	return m, nil
}

// takeGift maps the rings of both directions that the agent has made; the client's is the first. Where the
// kernel promises no memory nobody uses them: a process of another user could punch holes into them.
func takeGift(fd int) (mapped []byte, client, server *memory, err error) {
	const ring = headerLen + giftBytes
	all, err := sealedLen(fd)
	if err != nil || all != 2*ring || strict() { // rule: TestTakeHostile: all != 2*ring -> false
		return nil, nil, nil, errMemory
	}
	b, err := mapMemory(fd, all, 2*giftBytes)
	if err != nil {
		return nil, nil, nil, err
	}
	client = &memory{mapped: b[:ring:ring], size: giftBytes, gift: true}
	server = &memory{mapped: b[ring:], size: giftBytes, gift: true}
	return b, client, server, nil
}
