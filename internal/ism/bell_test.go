package ism

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// The layout is the one in docs/shared-memory.md.
func TestBellLayout(t *testing.T) {
	var s bellSegment
	var f slotFlags
	for _, tt := range []struct {
		name      string
		got, want uintptr
	}{
		{"magic", unsafe.Offsetof(s.magic), 0},
		{"version", unsafe.Offsetof(s.version), 8},
		{"slots", unsafe.Offsetof(s.slotCount), 12},
		{"nonce", unsafe.Offsetof(s.nonce), 16},
		{"sleeping", unsafe.Offsetof(s.sleeping), 128},
		{"L1", unsafe.Offsetof(s.l1), 256},
		{"L0", unsafe.Offsetof(s.l0), 4096},
		{"slot flags", unsafe.Offsetof(s.slots), 8192},
		{"size", unsafe.Sizeof(s), 8192 + 32768*128},
		{"reader sleeps", unsafe.Offsetof(f.reader), 0},
		{"writer sleeps", unsafe.Offsetof(f.writer), 64},
		{"read", unsafe.Offsetof(f.read), 72},
		{"slot size", unsafe.Sizeof(f), 128},
		{"bits of L0", unsafe.Sizeof(s.l0) * 8, SlotCount},
		{"bits of L1", unsafe.Sizeof(s.l1) * 8, SlotCount / 64},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}

// newLocalBell returns both ends of one bell, with the sleeper running.
func newLocalBell(t testing.TB) (*bell, ringer) {
	t.Helper()
	checkLeaks(t)
	var nonce [16]byte
	b, memFD, chimeFD, err := newBell(nonce, new(atomic.Uint64))
	if err != nil {
		t.Fatal(err)
	}
	o := offer{memFD: memFD, chimeFD: -1}
	r, err := openRinger(memFD, chimeFD, nonce)
	if err != nil {
		t.Fatal(err)
	}
	closeFD(t, o.memFD)
	ended := make(chan struct{})
	go func() {
		b.run()
		close(ended)
	}()
	t.Cleanup(func() {
		b.close()
		await(t, "end of the bell goroutine", ended)
		b.unmap()
		r.close()
	})
	return b, r
}

// Every slot's bit calls that slot's function and no other.
func TestBellSlots(t *testing.T) {
	b, r := newLocalBell(t)
	calls := make(chan uint32, 8)
	slots := []uint32{0, 1, 63, 64, 65, 4095, 4096, 4097, 20000, SlotCount - 65, SlotCount - 64, SlotCount - 1}
	for _, s := range slots {
		b.setUser(s, &DMB{ring: func() { calls <- s }})
	}
	for _, s := range slots {
		r.ring(s)
		if got := await(t, fmt.Sprintf("call of slot %d", s), calls); got != s {
			t.Errorf("ring(%d) called slot %d", s, got)
		}
	}
	b.setUser(slots[0], nil)
	r.ring(slots[0]) // calls nobody
	r.ring(slots[1])
	if got := await(t, "call", calls); got != slots[1] {
		t.Errorf("ring(%d) called slot %d, want %d", slots[0], got, slots[1])
	}
}

// Slots are given out lowest first, come back, run out, and have clear flags.
func TestBellTakeSlot(t *testing.T) {
	b, _ := newLocalBell(t)
	for want := range uint32(SlotCount) {
		b.seg.slots[want].reader.Store(7)
		b.seg.slots[want].writer.Store(7)
		got, ok := b.takeSlot()
		if f := &b.seg.slots[want]; !ok || got != want || f.reader.Load() != 0 || f.writer.Load() != 0 {
			t.Fatalf("takeSlot() = %d, %v with flags %d %d; want %d, true, 0 0", got, ok, f.reader.Load(), f.writer.Load(), want)
		}
	}
	if got, ok := b.takeSlot(); ok {
		t.Errorf("takeSlot() when all are taken = %d, true", got)
	}
	b.giveSlot(77)
	if got, ok := b.takeSlot(); !ok || got != 77 {
		t.Errorf("takeSlot() = %d, %v; want 77, true", got, ok)
	}
}

// The peer fills the segment with whatever it likes. The owner calls the functions that are there,
// and goes on.
func TestBellHostileSegment(t *testing.T) {
	b, r := newLocalBell(t)
	var called atomic.Int64
	b.setUser(4711, &DMB{ring: func() { called.Add(1) }})
	all := unsafe.Slice((*byte)(unsafe.Pointer(r.seg)), bellSize)
	rnd := rand.NewChaCha8([32]byte{1})
	for range 50 {
		rnd.Read(all[:8192]) // header, sleeping, both bitmaps
		strike(r.chime)
	}
	for i := range all {
		all[i] = 0xff
	}
	strike(r.chime)
	eventually(t, "call of the slot", func() bool { return called.Load() > 0 })
	clear(all)
	strike(r.chime) // the flag "sleeping" is gone, and only the peer's own rings suffer from that
	before := called.Load()
	r.ring(4711)
	strike(r.chime)
	eventually(t, "call after the flood", func() bool { return called.Load() > before })
}

// A peer that strikes the chime without ringing, and never stops, fills its own socket and no more.
func TestBellStrikeFlood(t *testing.T) {
	b, r := newLocalBell(t)
	var called atomic.Int64
	b.setUser(9, &DMB{ring: func() { called.Add(1) }})
	for range 5000 {
		strike(r.chime)
	}
	if called.Load() != 0 {
		t.Errorf("%d calls without a ring", called.Load())
	}
}

// The hunter: a wakeup that is lost leaves the ringer waiting for ever. The pauses between rings are
// of random length, so that rings fall on every step of the sleeper.
func TestBellLostWakeups(t *testing.T) {
	b, r := newLocalBell(t)
	const ringers = 4
	rings := 30000
	if testing.Short() {
		rings = 3000
	}
	var wg sync.WaitGroup
	for i := range ringers {
		var sent, seen atomic.Uint64
		woken := make(chan struct{}, 1)
		slot := uint32(i * 1111) // different words of L0, two words of L1
		b.setUser(slot, &DMB{ring: func() {
			seen.Store(sent.Load())
			select {
			case woken <- struct{}{}:
			default:
			}
		}})
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			giveUp := time.NewTimer(patience)
			defer giveUp.Stop()
			for n := uint64(1); n <= uint64(rings); n++ {
				if n%1000 == 0 {
					giveUp.Reset(patience)
				}
				sent.Store(n)
				r.ring(slot)
				// Nothing else rings this slot, so if this ring is lost it stays so.
				for seen.Load() != n {
					select {
					case <-woken:
					case <-giveUp.C:
						t.Errorf("ring %d of slot %d was lost: sleeping %d, L1 %#x", n, slot, r.seg.sleeping.Load(), r.seg.l1[0].Load())
						return
					}
				}
				for range rnd.IntN(300) {
					sent.Load()
				}
			}
		})
	}
	wg.Wait()
}

func TestBellAllocations(t *testing.T) {
	b, r := newLocalBell(t)
	done := make(chan struct{})
	b.setUser(5, &DMB{ring: func() { done <- struct{}{} }})
	n := testing.AllocsPerRun(1000, func() {
		r.ring(5)
		<-done
	})
	if n != 0 {
		t.Errorf("a ring and its delivery allocate %v times, want 0", n)
	}
}

// BenchmarkRing is the cost for the ringer when the sleeper is awake.
func BenchmarkRing(b *testing.B) {
	_, r := newLocalBell(b)
	b.ReportAllocs()
	for b.Loop() {
		r.ring(5)
	}
}

// BenchmarkRingToWake is half a round trip between two bell goroutines that both sleep in between.
func BenchmarkRingToWake(b *testing.B) {
	x, toX := newLocalBell(b)
	y, toY := newLocalBell(b)
	done := make(chan struct{}, 1)
	y.setUser(1, &DMB{ring: func() { toX.ring(2) }})
	x.setUser(2, &DMB{ring: func() { done <- struct{}{} }})
	b.ReportAllocs()
	for b.Loop() {
		toY.ring(1)
		<-done
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/wake")
}
