package ism

import (
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A bellSegment is the memory by which a device is woken by one peer. It belongs to the device
// that sleeps; the peer rings. Both map it; neither ever trusts it.
//
//	offset     size  field
//	     0        8  magic       "gosmcBEL"
//	     8        4  version     1
//	    12        4  slots       32768
//	    16       16  nonce       the nonce of the owner's Hello
//	    32       96  reserved    zero
//	   128        4  sleeping    1: the owner's bell goroutine sleeps, strike its chime
//	   132        4  seat        processor on which the ringer struck last, counted from 1; 0: unknown
//	   136      120  reserved
//	   256       64  L1          8 words of 64 bits: bit w of word w/64 set: look into word w of L0
//	   320     3776  tray        the peer's signals that wake nobody, see [tray]
//	  4096     4096  L0          512 words of 64 bits: bit i of word i/64 set: slot i was rung
//	  8192  4194304  slots       128 bytes each, see [slotFlags]
//
// Words are in host order and accessed atomically. Everything is 128 bytes apart that different
// processors write at the same time: adjacent-line prefetch pairs lines of 64 bytes.
type bellSegment struct {
	magic     [8]byte
	version   uint32
	slotCount uint32
	nonce     [16]byte
	_         [96]byte
	sleeping  atomic.Uint32
	seat      atomic.Uint32
	_         [120]byte
	l1        [l1Words]atomic.Uint64
	tray      tray
	l0        [l0Words]atomic.Uint64
	slots     [SlotCount]slotFlags
}

// A slotFlags tells the peer whether the two ends of a connection sleep, and how far the owner has read.
//
//	offset  size  field
//	     0     4  reader sleeps  the owner waits for data in its DMB
//	     4    60  reserved
//	    64     4  writer sleeps  the owner waits for space in the peer's DMB
//	    68     4  reserved
//	    72     8  read           bytes that the owner has read from its DMB in this connection
//	    80    48  reserved
//
// The owner sets a flag; the peer swaps it to zero and, if it was set, rings the slot. The cursor
// that the owner publishes may be behind the bytes that it has read. A side that outlives the owner
// finds the true count in read.
type slotFlags struct {
	reader atomic.Uint32
	_      [60]byte
	writer atomic.Uint32
	_      [4]byte
	read   atomic.Uint64
	_      [48]byte
}

const (
	bellMagic = "gosmcBEL"
	l0Words   = SlotCount / 64
	l1Words   = l0Words / 64
	bellSize  = int(unsafe.Sizeof(bellSegment{}))
)

// A ringer is this side's end of the peer's bell: the peer sleeps, we ring.
// Its methods may be called from any goroutine.
type ringer struct {
	seg   *bellSegment // the peer may write it at any time
	chime int          // see chime.go
}

// ring makes the peer's bell goroutine call the function of the slot, which is below SlotCount.
// It does not block and does not allocate. If the peer is awake it makes no system call.
//
// No wakeup is lost. Go's atomic operations are sequentially consistent, so all processes agree
// on one order of the operations named here. The ringer does
//
//	R1  or L0    R2  or L1    R3  read sleeping, and swap it to 0    R4  if it was set: strike the chime
//
// and the sleeper, see [bell.run],
//
//	S1  swap L1 to 0    S2  swap L0 to 0, call    S3  set sleeping    S4  read L1    S5  wait for the chime
//
// and after S4, if it saw a bit, or else after S5, clears sleeping and begins again. Take one
// ring, and the first S4 after its R2.
//
// If there is one: when an S1 came between R2 and S4, it took the bit of L1, and the S2 after it,
// being after R1, took the bit of L0 unless another S2 since R1 had; either way the function is
// called after R1. When none did, S4 sees the bit, and the next S1 and S2 do the same.
//
// If there is none, the sleeper stays in S5 for ever, and its last S4 came before R2. Then the S3
// before that S4 came before R3, and nobody but ringers clears the flag after it. So R3 finds it
// set and R4 strikes, or another ringer has swapped it since S3, and strikes. A stroke ends S5
// because the sleeper then looks at the flag as well as at L1, and the flag is clear; the bit of
// the ringer that has struck may be gone, taken by an S1 before S3. So the sleeper does not stay
// there. A stroke that comes before S5 has begun does the same: see [chimeWaiter.sleep]. The test
// TestBellModel tries all orders.
func (r *ringer) ring(slot uint32) {
	r.seg.l0[slot/64].Or(1 << (slot % 64))
	w := slot / 64
	r.seg.l1[w/64].Or(1 << (w % 64))
	// Reading first spares the cache line a write for each ring while the peer is awake.
	if r.seg.sleeping.Load() != 0 && r.seg.sleeping.Swap(0) != 0 {
		r.seg.seat.Store(seat())
		strike(r.chime)
	}
}

// openRinger maps a peer's bell, whose header must have the nonce. It takes over the chime unless
// there is an error; the memory's descriptor stays the caller's.
func openRinger(fd, chime int, nonce [16]byte) (ringer, error) {
	if err := checkChime(chime); err != nil {
		return ringer{}, err
	}
	mem, err := mapReceived(fd, bellSize)
	if err != nil {
		return ringer{}, fmt.Errorf("bell: %w", err)
	}
	seg := (*bellSegment)(unsafe.Pointer(unsafe.SliceData(mem)))
	// The header has no further use after this, so it does not matter that it may change.
	switch {
	case string(seg.magic[:]) != bellMagic:
		err = violation("bell has another magic")
	case seg.version != version || seg.slotCount != SlotCount:
		err = violation("bell has another layout")
	case seg.nonce != nonce:
		err = violation("bell is not that of the Hello")
	}
	if err != nil {
		unmap(mem)
		return ringer{}, err
	}
	return ringer{seg: seg, chime: chime}, nil
}

// close ends the use of the peer's bell.
func (r *ringer) close() {
	unmapBell(r.seg)
	empty(r.chime)
	unix.Close(r.chime)
}

func unmapBell(seg *bellSegment) {
	unmap(unsafe.Slice((*byte)(unsafe.Pointer(seg)), bellSize))
}

// A bell is this side's own: we sleep, the peer rings.
type bell struct {
	seg    *bellSegment // the peer may write it at any time
	waiter chimeWaiter
	wakes  *atomic.Uint64 // counts calls of ring functions

	// table has the DMB whose function a slot calls, in leaves that are made when needed. It is
	// our own memory: the segment only says which entries to look at.
	table [l0Words]atomic.Pointer[bellLeaf]

	lead    atomic.Bool   // somebody leads
	follows bool          // its sleepers move to where the ringer runs: one of two sides does
	shorts  int           // short waits in a row; the goroutine that leads owns it
	asleep  atomic.Bool   // and waits for the chime, or is about to
	shared  atomic.Bool   // others than the bell goroutine may lead
	crowded atomic.Int64  // when several waited, in nanoseconds since bellEpoch; 0: not lately
	parked  atomic.Int32  // goroutines that wait for a ring function
	relief  chan struct{} // has room for one call of the bell goroutine
	done    chan struct{} // closed when the bell is

	mu    sync.Mutex // guards free and next; may be taken with Peer.mu held
	free  []uint16   // slots given back
	next  int        // slots from here on were never used
	ended atomic.Bool
}

type bellLeaf [64]atomic.Pointer[DMB]

// newBell makes a bell. The two descriptors, of the memory and of the end of the chime that the peer
// strikes, are the caller's to send and to close.
func newBell(nonce [16]byte, wakes *atomic.Uint64) (b *bell, memFD, chimeFD int, err error) {
	memFD, mem, err := newMemory("gosmc-bell", bellSize)
	if err != nil {
		return nil, -1, -1, fmt.Errorf("bell: %w", err)
	}
	b = &bell{seg: (*bellSegment)(unsafe.Pointer(unsafe.SliceData(mem))), wakes: wakes,
		relief: make(chan struct{}, 1), done: make(chan struct{})}
	chimeFD, err = b.waiter.open()
	if err != nil {
		unmap(mem)
		unix.Close(memFD)
		return nil, -1, -1, fmt.Errorf("bell: %w", err)
	}
	b.waiter.ready = b.ready
	copy(b.seg.magic[:], bellMagic)
	b.seg.version = version
	b.seg.slotCount = SlotCount
	b.seg.nonce = nonce
	return b, memFD, chimeFD, nil
}

// takeSlot reserves a slot with both flags clear. The lowest ones come first, so that few pages
// of the segment are touched.
func (b *bell) takeSlot() (uint32, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var slot uint32
	switch n := len(b.free); {
	case n > 0:
		slot = uint32(b.free[n-1])
		b.free = b.free[:n-1]
	case b.next < SlotCount:
		slot = uint32(b.next)
		b.next++
	default:
		return 0, false
	}
	b.clearFlags(slot)
	return slot, true
}

// giveSlot undoes takeSlot. A peer that still uses the slot can wake its next user for nothing, and
// cannot lose its wakeups, because the side that clears a flag rings.
func (b *bell) giveSlot(slot uint32) {
	b.mu.Lock()
	b.free = append(b.free, uint16(slot))
	b.mu.Unlock()
}

func (b *bell) clearFlags(slot uint32) {
	b.seg.slots[slot].reader.Store(0)
	b.seg.slots[slot].writer.Store(0)
	b.seg.slots[slot].read.Store(0)
}

// setUser makes d's function the one that the slot calls; nil for none.
func (b *bell) setUser(slot uint32, d *DMB) {
	leaf := b.table[slot/64].Load()
	if leaf == nil {
		if d == nil {
			return
		}
		// Two users of neighbouring slots may come at the same time.
		leaf = new(bellLeaf)
		if !b.table[slot/64].CompareAndSwap(nil, leaf) {
			leaf = b.table[slot/64].Load()
		}
	}
	leaf[slot%64].Store(d)
}

// Waiting for rings. One goroutine at a time leads: it waits for the chime and calls the functions
// of the slots that were rung. The bell goroutine leads, unless the goroutines that wait for ring
// functions take part, see [Peer.Lead]. Then such a goroutine leads as long as it is the only one,
// which spares it being woken by another goroutine. The bell goroutine leads where several wait at
// a time, and keeps the lead until none has had company for crowdTime. Each time that one of them
// led and was woken itself, the others would wait until another goroutine has taken over.
//
// parked counts the goroutines that wait. It is raised before Lead is called, and lowered when one
// is woken. The goroutine that gives up the lead looks at parked afterwards, and the one that
// raised it tries to lead afterwards. So there is no time at which somebody is parked and nobody
// leads.

// run is the bell goroutine. It ends after close.
func (b *bell) run() {
	for !b.ended.Load() {
		if b.lead.CompareAndSwap(false, true) {
			b.listen(b.unneeded, false)
			b.lead.Store(false)
		}
		if !b.unneeded() && !b.lead.Load() {
			continue
		}
		select {
		case <-b.relief:
		case <-b.done:
		}
	}
}

// unneeded reports whether the bell goroutine need not lead, because all parked goroutines do that
// themselves.
func (b *bell) unneeded() bool { return b.shared.Load() && b.parked.Load() == 0 }

// leadUntil leads until until says that it is enough, or the bell was closed, or not at all if
// somebody else does or is to.
func (b *bell) leadUntil(until func() bool) {
	if b.isCrowded() { // rule: TestLeadOfACrowd: b.isCrowded() -> false
		b.shared.Store(false)
		if !b.lead.Load() {
			b.relieve()
		}
		return
	}
	if !b.shared.Load() && b.shared.CompareAndSwap(false, true) {
		b.interrupt() // the bell goroutine has led so far
	}
	if !b.lead.CompareAndSwap(false, true) {
		return
	}
	b.listen(until, true)
	b.lead.Store(false)
	if b.parked.Load() > 0 {
		b.relieve()
	}
}

// relieve calls the bell goroutine.
func (b *bell) relieve() {
	select {
	case b.relief <- struct{}{}:
	default: // it has been called
	}
}

// isCrowded reports whether several wait now, or did within crowdTime.
func (b *bell) isCrowded() bool {
	if b.parked.Load() > 1 {
		b.crowded.Store(int64(time.Since(bellEpoch)) + 1)
		return true
	}
	at := b.crowded.Load()
	if at == 0 {
		return false
	}
	if time.Since(bellEpoch)-time.Duration(at) < crowdTime {
		return true
	}
	b.crowded.Store(0)
	return false
}

// bellEpoch is the time from which bell.crowded counts.
var bellEpoch = time.Now()

// listen is the loop of the goroutine that leads. With mayBlock it waits in the kernel while waits
// are short.
func (b *bell) listen(until func() bool, mayBlock bool) {
	for !b.ended.Load() {
		b.drain()
		if until() {
			return
		}
		b.waiter.arm()
		b.asleep.Store(true)
		b.seg.sleeping.Store(1)
		// The goroutine that makes until true interrupts afterwards, if asleep is set.
		var err error
		if !b.ready() && !until() {
			err = b.wait(mayBlock)
		}
		b.seg.sleeping.Store(0) // a peer that only struck the chime has left it set
		b.asleep.Store(false)
		if err != nil && !b.waiter.resume(err) {
			return
		}
	}
}

// wait waits for the chime. The goroutine that leads calls it.
func (b *bell) wait(mayBlock bool) error {
	start := time.Now()
	if other := b.apart(); mayBlock && other != 0 && takeBlocker() {
		struck := b.waiter.block(other)
		blockers.Add(-1)
		if !struck {
			b.shorts = 0
			return nil
		}
	} else if err := b.waiter.sleep(); err != nil {
		return err
	}
	if b.shorts++; time.Since(start) >= shortWait {
		b.shorts = 0
	}
	return nil
}

// apart returns the processor of the peer, if this side is the one that follows, waits have been
// short for a while, and this thread runs on another processor; else 0.
func (b *bell) apart() uint32 {
	if !b.follows || b.shorts < blockAfter {
		return 0
	}
	if other := b.seg.seat.Load(); other != seat() {
		return other
	}
	return 0
}

// blockers counts the threads of this process that block in a wait.
var blockers atomic.Int32

// takeBlocker reports whether one more thread may block.
func takeBlocker() bool {
	if blockers.Add(1) <= maxBlockers && runtime.GOMAXPROCS(0) > 1 {
		return true
	}
	blockers.Add(-1)
	return false
}

// interrupt makes the goroutine that leads ask until again.
func (b *bell) interrupt() {
	if b.asleep.Load() {
		b.waiter.interrupt()
	}
}

// ready reports whether the sleeper may have been woken: something was rung, or the flag was
// taken by a ringer, or the bell was closed.
func (b *bell) ready() bool {
	if b.seg.sleeping.Load() == 0 {
		return true
	}
	for i := range b.seg.l1 {
		if b.seg.l1[i].Load() != 0 {
			return true
		}
	}
	return b.ended.Load()
}

// drain calls the function of every slot that was rung. Whatever the peer has written, one call
// looks at each slot at most once, and the indexes come from our own counting.
func (b *bell) drain() {
	for i := range b.seg.l1 {
		if b.seg.l1[i].Load() == 0 {
			continue
		}
		for l1 := b.seg.l1[i].Swap(0); l1 != 0; l1 &= l1 - 1 {
			w := i*64 + bits.TrailingZeros64(l1)
			leaf := b.table[w].Load()
			for l0 := b.seg.l0[w].Swap(0); l0 != 0 && leaf != nil; l0 &= l0 - 1 {
				if d := leaf[bits.TrailingZeros64(l0)].Load(); d != nil && d.ring != nil {
					b.wakes.Add(1)
					d.ring()
				}
			}
		}
	}
}

// close makes run end, soon. The memory stays until unmap.
func (b *bell) close() {
	b.ended.Store(true)
	close(b.done)
	b.waiter.close()
}

func (b *bell) unmap() { unmapBell(b.seg) }
