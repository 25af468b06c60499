package supervisor

import (
	"fmt"
	"math"
	"math/bits"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
)

// A tally is memory in which the programs of a supervisor count the bytes of their connections:
// preload/src/tally.c.
//
//	offset  size  field
//	     0     8  magic 0x31796c74736f67
//	    64    16  bytes received and sent by ends that are gone
//	    80     8  ends for which no slot was free
//	  4096  2 Mi  32768 slots of 64 bytes
//
// A slot belongs to one end:
//
//	offset  size  field
//	     0     8  cookie of its socket; 0: free, all ones: about to be used, or cleared
//	     8    16  bytes received and sent in-band
//	    24    16  bytes received and sent by rings
//	    40     4  descriptors that were given to programs which have not said that they count, signed
//	    44     4  processes that are being made; bit 31: there are some that are not in the list
//	    48     4  inode of the namespace of the process IDs; 0: they say nothing
//	    52    12  3 processes that have the end; 0: none
//
// Every program of the supervisor can write there. No value is an index, and a sum is never less than it was.
type tally struct {
	fd        int
	namespace uint32 // of our process IDs

	mu     sync.Mutex
	memory []byte // nil: closed
	most   control.ByteCount
}

// Of the memory.
const (
	tallyMagic = 0x31796c74736f67
	tallyGone  = 64
	tallySlots = 4096
	tallies    = 32768
	tallySize  = tallySlots + tallyLen*tallies

	tallyLen     = 64 // of a slot
	tallyInBand  = 8
	tallyRings   = 24
	tallyLent    = 40
	tallyForks   = 44
	tallyNS      = 48
	tallyHolders = 52
	tallyBusy    = math.MaxUint64

	tallyMost = 1 << 62 // bytes that no connection carries
)

// newTally makes the memory of a tally. Pages are taken when they are first written, unless the
// kernel overcommits nothing.
func newTally() (t *tally, err error) {
	fd, err := unix.MemfdCreate("gosmc-tally", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	t = &tally{fd: fd}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if err := unix.Ftruncate(fd, tallySize); err != nil {
		return nil, os.NewSyscallError("ftruncate", err)
	}
	if mode, _ := os.ReadFile("/proc/sys/vm/overcommit_memory"); strings.HasPrefix(string(mode), "2") {
		if err := unix.Fallocate(fd, 0, 0, tallySize); err != nil {
			return nil, os.NewSyscallError("fallocate", err)
		}
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	if t.memory, err = unix.Mmap(fd, 0, tallySize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) == nil {
		t.namespace = uint32(st.Ino)
	}
	t.word(0).Store(tallyMagic)
	return t, nil
}

// mark is the text of the supervisor's mark: where programs find the tally.
func (t *tally) mark() string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), t.fd)
}

func (t *tally) close() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.memory != nil {
		unix.Munmap(t.memory)
		t.memory = nil
	}
	unix.Close(t.fd)
}

func (t *tally) word(at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&t.memory[at]))
}

func (t *tally) word32(at int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&t.memory[at]))
}

// read returns the bytes of all connections so far, and of each end that there may be. It
// reports false if nobody counts.
func (t *tally) read() (all control.ByteCount, ends []control.StatusTally, counted bool) {
	if t == nil {
		return all, nil, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.memory == nil {
		return all, nil, false
	}
	// Ends that go meanwhile are in neither sum, in place of both.
	all = control.ByteCount{In: t.word(tallyGone).Load(), Out: t.word(tallyGone + 8).Load()}
	alive := make(map[int32]bool)
	t.eachSlot(func(at int) {
		e := control.StatusTally{Cookie: t.word(at).Load()}
		if e.Cookie == 0 || e.Cookie == tallyBusy {
			return
		}
		e.In = addBytes(t.word(at+tallyInBand).Load(), t.word(at+tallyRings).Load())
		e.Out = addBytes(t.word(at+tallyInBand+8).Load(), t.word(at+tallyRings+8).Load())
		e.Lent = int32(t.word32(at + tallyLent).Load())
		held := t.held(at, alive)
		if t.word(at).Load() != e.Cookie {
			return
		}
		if e.In > tallyMost || e.Out > tallyMost { // rule: TestTallyHostile
			e.In, e.Out, e.Lent = 0, 0, math.MaxInt32
		}
		all.In, all.Out = addBytes(all.In, e.In), addBytes(all.Out, e.Out)
		if held {
			ends = append(ends, e)
		}
	})
	// rule: TestTallyHostile: max(t.most.In, all.In) -> all.In
	t.most.In = max(t.most.In, all.In)
	t.most.Out = max(t.most.Out, all.Out)
	return t.most, ends, true
}

// addBytes adds, up to the largest number.
func addBytes(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 { // rule: TestTallyHostile
		return math.MaxUint64
	}
	return sum
}

// eachSlot calls f with the slots that have memory: to look at others would give them some.
func (t *tally) eachSlot(f func(at int)) {
	for at := int64(tallySlots); ; {
		from, err := unix.Seek(t.fd, at, unix.SEEK_DATA)
		if err != nil || from >= tallySize {
			return
		}
		to, err := unix.Seek(t.fd, from, unix.SEEK_HOLE)
		if err != nil {
			return
		}
		for at = max(from, tallySlots); at < min(to, tallySize); at += tallyLen {
			f(int(at))
		}
	}
}

// held reports whether a process may have the end of a slot. alive has those that were looked for.
func (t *tally) held(at int, alive map[int32]bool) bool {
	if t.word32(at+tallyForks).Load() != 0 || t.word32(at+tallyNS).Load() != t.namespace {
		return true
	}
	for i := range 3 {
		pid := int32(t.word32(at + tallyHolders + 4*i).Load())
		if pid <= 0 {
			continue
		}
		lives, known := alive[pid]
		if !known {
			lives = unix.Kill(int(pid), 0) != unix.ESRCH
			alive[pid] = lives
		}
		if lives {
			return true
		}
	}
	return int32(t.word32(at+tallyLent).Load()) > 0
}
