package ism

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"testing"
	"unsafe"

	"github.com/gosmc/smc/wire"
)

func TestDMB(t *testing.T) {
	for code := wire.SizeCode(0); code <= wire.MaxSizeCode; code++ {
		t.Run(code.String(), func(t *testing.T) {
			x := newPair(t)
			size := code.Bytes()
			rung := make(chan struct{}, 1)
			d := mustDMB(t, x.pa, size, func() { rung <- struct{}{} })
			if len(d.Mem()) != size || uintptr(unsafe.Pointer(&d.Mem()[0]))%4096 != 0 {
				t.Errorf("Mem() has %d bytes at %p, want %d at a page", len(d.Mem()), d.Mem(), size)
			}
			if d.Peer() != x.pa || d.Token() == 0 {
				t.Errorf("Peer() = %p, Token() = %v", d.Peer(), d.Token())
			}
			if size > maxWindow {
				if _, err := x.pb.Attach(testContext(t), d.Token(), size); !errors.Is(err, ErrSize) {
					t.Errorf("Attach of %d bytes = %v, want ErrSize", size, err)
				}
				d.Release(false)
				return
			}
			w := mustAttach(t, x.pb, d)
			if len(w.Mem()) != size || w.Peer() != x.pb || w.Token() != d.Token() {
				t.Errorf("window of %d bytes, token %v; want %d, %v", len(w.Mem()), w.Token(), size, d.Token())
			}
			for _, i := range []int{0, HeaderLen, size / 2, size - 1} {
				if d.Mem()[i] != 0 {
					t.Errorf("fresh Mem()[%d] = %d, want 0", i, d.Mem()[i])
				}
				w.Mem()[i] = 0xee
				if d.Mem()[i] != 0xee {
					t.Errorf("Mem()[%d] = %#x, want 0xee", i, d.Mem()[i])
				}
			}
			d.ReaderSleeps().Store(1)
			if w.PeerReaderSleeps().Swap(0) != 1 || w.PeerWriterSleeps().Load() != 0 || d.ReaderSleeps().Load() != 0 {
				t.Error("reader's sleep word is not shared")
			}
			d.WriterSleeps().Store(1)
			if w.PeerWriterSleeps().Swap(0) != 1 || w.PeerReaderSleeps().Load() != 0 || d.WriterSleeps().Load() != 0 {
				t.Error("writer's sleep word is not shared")
			}
			w.Ring()
			await(t, "ring", rung)
			w.Release(false)
			d.Release(false)
		})
	}
}

func TestDMBSizes(t *testing.T) {
	x := newPair(t)
	for _, size := range []int{-1, 0, 1, 4096, 16<<10 - 1, 16<<10 + 1, 24 << 10, 1<<29 + 1, 1 << 30} {
		if _, err := x.pa.NewDMB(size, nil); !errors.Is(err, ErrSize) {
			t.Errorf("NewDMB(%d) = %v, want ErrSize", size, err)
		}
		if _, err := x.pa.Attach(testContext(t), 1, size); !errors.Is(err, ErrSize) {
			t.Errorf("Attach(1, %d) = %v, want ErrSize", size, err)
		}
	}
}

// A connection costs no descriptor once its buffers are attached, and little heap.
func TestDMBCost(t *testing.T) {
	x := newPair(t)
	const n = 1000
	fds := countFDs(t)
	ctx := testContext(t)
	dmbs, windows := make([]*DMB, n), make([]*Window, n)
	heap := heapBytes()
	for i := range n {
		dmbs[i] = mustDMB(t, x.pa, 16<<10, nil)
		var err error
		if windows[i], err = x.pb.Attach(ctx, dmbs[i].Token(), 16<<10); err != nil {
			t.Fatal(err)
		}
	}
	if got := countFDs(t); got > fds+4 { // a file of /proc may be open just now, or the end of an earlier test
		t.Errorf("%d DMBs take %d descriptors, want 0", n, got-fds)
	}
	if perDMB := (heapBytes() - heap) / n; perDMB > 400 { // both sides are in this process, tables included
		t.Errorf("a DMB and a Window take %d bytes of heap, want at most 400", perDMB)
	} else {
		t.Logf("a DMB and a Window take %d bytes of heap", perDMB)
	}
	if size := unsafe.Sizeof(DMB{}) + unsafe.Sizeof(segment{}) + unsafe.Sizeof(Window{}) + unsafe.Sizeof(remote{}); size > 300 {
		t.Errorf("structs of a DMB and a Window have %d bytes, want at most 300", size)
	}
	runtime.KeepAlive(dmbs)
	for i := range n {
		windows[i].Release(true)
		dmbs[i].Release(false)
	}
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Memory that was released in order on both sides serves the next connection, without a message and
// without a mapping.
func TestReuse(t *testing.T) {
	x := newPair(t)
	d := mustDMB(t, x.pa, 64<<10, nil)
	w := mustAttach(t, x.pb, d)
	copy(w.Mem(), bytes.Repeat([]byte{0xab}, 100))
	token, slot := d.Token(), d.Slot()
	d.ReaderSleeps().Store(1)
	d.WriterSleeps().Store(1)
	d.Release(true)
	w.Release(true)

	if other := mustDMB(t, x.pa, 32<<10, nil); other.Token() == token {
		t.Errorf("DMB of another size has the same memory")
	} else {
		other.Release(true) // never attached: destroyed
	}
	if s := x.a.Stats(); s.CachedDMBs != 1 || s.DMBs != 0 || s.Bytes != 64<<10 {
		t.Errorf("Stats() = %+v, want one cached DMB of 64 KiB", s)
	}
	rung := make(chan struct{}, 1)
	d2 := mustDMB(t, x.pa, 64<<10, func() { rung <- struct{}{} })
	if d2.Token() != token || d2.Slot() != slot {
		t.Errorf("new DMB has token %v, slot %d; want those of the old, %v, %d", d2.Token(), d2.Slot(), token, slot)
	}
	if !bytes.Equal(d2.Mem()[:HeaderLen], make([]byte, HeaderLen)) || d2.Mem()[HeaderLen] != 0xab {
		t.Errorf("Mem() starts with %x, want a zero header and then the old bytes", d2.Mem()[:HeaderLen+2])
	}
	if d2.ReaderSleeps().Load() != 0 || d2.WriterSleeps().Load() != 0 {
		t.Error("sleep words are not clear")
	}
	w2 := mustAttach(t, x.pb, d2)
	w2.Ring()
	await(t, "ring", rung)
	if s := x.b.Stats(); s.WindowsAttached != 1 || s.WindowsReattached != 1 || s.Windows != 1 {
		t.Errorf("Stats() = %+v, want one attached, one reattached, one in use", s)
	}
	d.Release(true) // the old handles have no say
	w.Release(true)
	if s := x.a.Stats(); s.DMBs != 1 || s.CachedDMBs != 0 || s.DMBsReused != 1 {
		t.Errorf("Stats() = %+v, want one in use", s)
	}
	w2.Release(true)
	d2.Release(true)
}

// The owner may be faster: the new connection's Attach waits until the old one has released its
// window.
func TestAttachWaitsForRelease(t *testing.T) {
	x := newPair(t)
	d := mustDMB(t, x.pa, 16<<10, nil)
	w := mustAttach(t, x.pb, d)
	d.Release(true)
	d2 := mustDMB(t, x.pa, 16<<10, nil)
	if d2.Token() != d.Token() {
		t.Fatalf("Token() = %v, want %v again", d2.Token(), d.Token())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.pb.Attach(ctx, d2.Token(), 16<<10); !errors.Is(err, context.Canceled) {
		t.Errorf("Attach with a context that has ended = %v, want context.Canceled", err)
	}
	type result struct {
		w   *Window
		err error
	}
	results := make(chan result, 1)
	go func() {
		w, err := x.pb.Attach(testContext(t), d2.Token(), 16<<10)
		results <- result{w, err}
	}()
	eventually(t, "Attach that waits", func() bool {
		x.pb.mu.Lock()
		defer x.pb.mu.Unlock()
		return x.pb.remotes[d2.Token()].waiter != nil
	})
	if _, err := x.pb.Attach(testContext(t), d2.Token(), 16<<10); !errors.Is(err, ErrToken) {
		t.Errorf("second Attach that would wait = %v, want ErrToken", err)
	}
	w.Release(true)
	r := await(t, "Attach", results)
	if r.err != nil {
		t.Fatalf("Attach = %v", r.err)
	}
	r.w.Mem()[99] = 5
	if d2.Mem()[99] != 5 {
		t.Error("the window is not of this DMB")
	}

	// And when the old connection ends badly, the waiter is told.
	d2.Release(true)
	d3 := mustDMB(t, x.pa, 16<<10, nil)
	go func() {
		w, err := x.pb.Attach(testContext(t), d3.Token(), 16<<10)
		results <- result{w, err}
	}()
	eventually(t, "Attach that waits", func() bool {
		x.pb.mu.Lock()
		defer x.pb.mu.Unlock()
		return x.pb.remotes[d3.Token()].waiter != nil
	})
	r.w.Release(false)
	if r := await(t, "Attach", results); !errors.Is(r.err, ErrToken) {
		t.Errorf("Attach = %v, want ErrToken", r.err)
	}
	// The owner was told, too, and the token is of no more use.
	if _, err := x.pb.Attach(testContext(t), d3.Token(), 16<<10); !errors.Is(err, ErrToken) {
		t.Errorf("Attach of a dropped DMB = %v, want ErrToken", err)
	}
	d3.Release(true)
	if s := x.a.Stats(); s.CachedDMBs != 0 || s.Bytes != 0 {
		t.Errorf("Stats() = %+v, want nothing cached", s)
	}
	if err := x.pb.Err(); err != nil {
		t.Errorf("Err() = %v, want nil: no guess was made", err)
	}
}

// The release that an Attach waits for may come together with the end of the peering. Whatever
// Attach then says, a mapping that it was given must not be lost.
func TestAttachWaitsAtTheEnd(t *testing.T) {
	for range 50 {
		x := newPair(t)
		d := mustDMB(t, x.pa, 16<<10, nil)
		w := mustAttach(t, x.pb, d)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if w, err := x.pb.Attach(testContext(t), d.Token(), 16<<10); err == nil {
				w.Release(true)
			} else if !errors.Is(err, ErrPeerGone) && !errors.Is(err, ErrToken) {
				t.Errorf("Attach = %v, want ErrPeerGone or ErrToken", err)
			}
		}()
		eventually(t, "Attach that waits", func() bool {
			x.pb.mu.Lock()
			defer x.pb.mu.Unlock()
			return x.pb.remotes[d.Token()].waiter != nil
		})
		x.pb.mu.Lock() // so that all three come to it while it is held
		released := make(chan struct{})
		go func() {
			w.Release(true)
			close(released)
		}()
		eventually(t, "Release", w.released.Load)
		x.pb.Close()
		runtime.Gosched()
		x.pb.mu.Unlock()
		await(t, "end of Release", released)
		await(t, "end of Attach", ended)
		d.Release(true)
		x.a.Close()
		x.b.Close()
		if got := x.b.Stats().Windows; got != 0 {
			t.Fatalf("%d windows in use at the end, want 0", got)
		}
		x.pb.mu.Lock()
		refs := x.pb.refs.Load()
		x.pb.mu.Unlock()
		if refs != 0 {
			t.Fatalf("%d references on the peer at the end, want 0", refs)
		}
	}
}

// Releasing without order destroys the memory, and the peer's mapping when it is released, too.
func TestRevoke(t *testing.T) {
	for _, ownerFirst := range []bool{true, false} {
		for _, clean := range []bool{true, false} {
			x := newPair(t)
			maps := countMaps(t)
			d := mustDMB(t, x.pa, 16<<10, nil)
			w := mustAttach(t, x.pb, d)
			if ownerFirst {
				d.Release(false)
				x.pa.Send([]byte("after the Revoke"))
				x.rb.next(t, 0)
				w.Mem()[7] = 1 // still there
				w.Release(clean)
			} else {
				w.Release(clean)
				x.pb.Send([]byte("after the Drop"))
				x.ra.next(t, 0)
				d.Mem()[7] = 1
				d.Release(false)
			}
			eventually(t, "unmapping on both sides", func() bool { return countMaps(t) == maps })
			if _, err := x.pb.Attach(testContext(t), d.Token(), 16<<10); !errors.Is(err, ErrToken) {
				t.Errorf("Attach after the end = %v, want ErrToken", err)
			}
			if x.pa.Err() != nil || x.pb.Err() != nil {
				t.Errorf("Err() = %v, %v, want nil", x.pa.Err(), x.pb.Err())
			}
		}
	}
}

// The user of a window learns that the owner of the DMB has given it up, also when the window was
// released already. A user that had it in an earlier connection does not, nor does one that does
// not want to know any more.
func TestOnRevoke(t *testing.T) {
	x := newPair(t)
	told := make(chan string, 10)
	tell := func(name string) func() { return func() { told <- name } }
	attach := func() (*DMB, *Window) {
		d := mustDMB(t, x.pa, 16<<10, nil)
		return d, mustAttach(t, x.pb, d)
	}

	d, w := attach()
	w.OnRevoke(tell("in use"))
	d.Release(false)
	if got := await(t, "the news of memory in use", told); got != "in use" {
		t.Errorf("%q was told", got)
	}
	w.OnRevoke(tell("late"))
	if got := await(t, "late news", told); got != "late" {
		t.Errorf("%q was told", got)
	}
	w.Release(true)

	d, w = attach()
	w.OnRevoke(tell("released"))
	w.Release(true)
	d.Release(false)
	if got := await(t, "the news of memory that was released", told); got != "released" {
		t.Errorf("%q was told", got)
	}

	d, w = attach()
	w.OnRevoke(tell("earlier"))
	d.Release(true)
	w.Release(true)
	again, w2 := attach()
	if again.Token() != d.Token() {
		t.Fatal("the memory was not used again")
	}
	w.OnRevoke(tell("too early"))
	again.Release(false)
	w2.Release(true)

	d, w = attach()
	w.OnRevoke(tell("not wanted"))
	w.OnRevoke(nil)
	d.Release(false)
	w.Release(true)
	x.pa.Send([]byte("after all Revokes"))
	x.rb.next(t, 0)
	select {
	case got := <-told:
		t.Errorf("%q was told", got)
	default:
	}
}

// A peer that has dropped a DMB makes its owner forget it, in the cache as well.
func TestDropOfCached(t *testing.T) {
	x := newPair(t)
	d := mustDMB(t, x.pa, 16<<10, nil)
	w := mustAttach(t, x.pb, d)
	d.Release(true)
	w.Release(false)
	eventually(t, "empty cache", func() bool { return x.a.Stats().CachedDMBs == 0 })
	if d2 := mustDMB(t, x.pa, 16<<10, nil); d2.Token() == d.Token() {
		t.Error("dropped memory was used again")
	} else {
		d2.Release(false)
	}
}

func TestBudget(t *testing.T) {
	checkLeaks(t)
	dir := t.TempDir()
	d, r := openDevice(t, Config{Dir: dir, Budget: 100 << 10})
	p := dialPeer(t, d, d)
	q := await(t, "PeerUp", r.ups)
	a, b := mustDMB(t, p, 32<<10, nil), mustDMB(t, q, 64<<10, nil)
	if _, err := p.NewDMB(16<<10, nil); !errors.Is(err, ErrBudget) {
		t.Errorf("NewDMB beyond the budget = %v, want ErrBudget", err)
	}
	if _, err := p.NewDMB(512<<20, nil); !errors.Is(err, ErrBudget) {
		t.Errorf("NewDMB of more than the budget = %v, want ErrBudget", err)
	}
	if got := d.Stats().Bytes; got != 96<<10 {
		t.Errorf("Bytes = %d, want %d", got, 96<<10)
	}
	mustAttach(t, q, a).Release(true)
	a.Release(true) // cached: still counted, but can be had
	c := mustDMB(t, q, 32<<10, nil)
	if s := d.Stats(); s.DMBsEvicted != 1 || s.Bytes != 96<<10 {
		t.Errorf("Stats() = %+v, want one evicted for the new one", s)
	}
	b.Release(false)
	c.Release(false)
	if got := d.Stats().Bytes; got != 0 {
		t.Errorf("Bytes = %d, want 0", got)
	}

	none, err := Open(Config{Dir: dir, Budget: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	pn := dialPeer(t, none, none)
	var all []*DMB
	for range 20 { // 10 GiB, of which no page is touched
		all = append(all, mustDMB(t, pn, 512<<20, nil))
	}
	for _, d := range all {
		d.Release(false)
	}
}

// A device does not keep more descriptors for DMBs that nobody attaches than it says.
func TestUnattachedLimit(t *testing.T) {
	x := newPair(t)
	x.pa.mu.Lock()
	x.pa.unattached += maxUnattached - 1
	x.pa.mu.Unlock()
	d := mustDMB(t, x.pa, 16<<10, nil)
	if _, err := x.pa.NewDMB(16<<10, nil); !errors.Is(err, ErrLimit) {
		t.Errorf("NewDMB = %v, want ErrLimit", err)
	}
	w := mustAttach(t, x.pb, d)
	d2 := mustDMB(t, x.pa, 16<<10, nil)
	d2.Release(true)
	d3 := mustDMB(t, x.pa, 16<<10, nil)
	d3.Release(false)
	w.Release(false)
	d.Release(false)
}

func TestReturnPages(t *testing.T) {
	x := newPair(t)
	d := mustDMB(t, x.pa, 64<<10, nil)
	w := mustAttach(t, x.pb, d)
	for _, tt := range []struct{ from, to, zeroFrom, zeroTo int }{
		{0, 64 << 10, 0, 64 << 10},
		{1, 4096, 0, 0},
		{1, 8191, 0, 0},
		{1, 8192, 4096, 8192},
		{4096, 12288 + 4095, 4096, 12288},
		{5000, 5000, 0, 0},
		{64 << 10, 64 << 10, 0, 0},
	} {
		for i := range w.Mem() {
			w.Mem()[i] = 1
		}
		if err := w.ReturnPages(tt.from, tt.to); err != nil {
			t.Errorf("ReturnPages(%d, %d) = %v", tt.from, tt.to, err)
		}
		for i, got := range d.Mem() {
			want := byte(1)
			if tt.zeroFrom <= i && i < tt.zeroTo {
				want = 0
			}
			if got != want {
				t.Fatalf("after ReturnPages(%d, %d) byte %d = %d, want %d", tt.from, tt.to, i, got, want)
			}
		}
	}
	for _, r := range [][2]int{{-1, 5}, {5, 4}, {0, 64<<10 + 1}, {1 << 29, 1 << 30}} {
		if err := w.ReturnPages(r[0], r[1]); !errors.Is(err, ErrSize) {
			t.Errorf("ReturnPages(%d, %d) = %v, want ErrSize", r[0], r[1], err)
		}
	}
	w.Release(true)
	d.Release(true)
}

// Ten thousand connections, 40,000 mappings in this process, three descriptors for each end of
// the peering.
func TestManyDMBs(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 10,000 DMBs on each side")
	}
	x := newPair(t)
	const n = 10000
	fds := countFDs(t)
	type end struct {
		d *DMB
		w *Window
	}
	as, bs := make([]end, n), make([]end, n)
	rung := make(chan int, 1)
	for i := range n {
		as[i].d = mustDMB(t, x.pa, 128<<10, nil)
		bs[i].d = mustDMB(t, x.pb, 128<<10, func() { rung <- i })
		bs[i].w = mustAttach(t, x.pb, as[i].d)
		as[i].w = mustAttach(t, x.pa, bs[i].d)
	}
	if got := countFDs(t) - fds; got > 4 { // a file of /proc may be open just now, or the end of an earlier test
		t.Errorf("%d connections take %d descriptors, want none", n, got)
	}
	for i := 0; i < n; i += 97 {
		as[i].w.Ring()
		if got := await(t, "ring", rung); got != i {
			t.Errorf("ring of %d came to %d", i, got)
		}
	}
	for i := range n {
		as[i].w.Release(i%2 == 0)
		bs[i].w.Release(i%2 == 0)
		as[i].d.Release(i%3 == 0)
		bs[i].d.Release(i%3 == 0)
	}
	if x.pa.Err() != nil || x.pb.Err() != nil {
		t.Errorf("Err() = %v, %v; want nil", x.pa.Err(), x.pb.Err())
	}
}
