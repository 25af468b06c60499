package stream

import (
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire/cdc"
)

// spots are the places in a ring at which the choice of pages can go wrong: around each page's
// start, where the header's 32 bytes put it, and around its middle.
func spots(capacity int) []int {
	var s []int
	for page := 0; page <= capacity+cdc.HeaderLen; page += pageSize {
		for _, off := range []int{-33, -32, -1, 0, 1, pageSize / 2} {
			if spot := page - cdc.HeaderLen + off; spot >= 0 && spot <= capacity {
				s = append(s, spot)
			}
		}
	}
	return s
}

// At every position and with every amount of free space exactly the right pages are given:
// those that hold no byte in use, but not the first and not the one at the cursor.
func TestReturnPages(t *testing.T) {
	for _, capacity := range []int{64, pageSize - cdc.HeaderLen, 4*pageSize - cdc.HeaderLen, 3*pageSize + 1000} {
		size := capacity + cdc.HeaderLen
		for _, count := range spots(capacity) {
			if count == capacity {
				continue
			}
			for _, free := range spots(capacity) {
				p := newPuppet(64, capacity)
				w := &p.conn.w
				w.cursor = at(uint64(5*capacity+count), capacity)
				w.at = count
				w.free = uint32(free)
				w.seen = at(uint64(4*capacity+count+free), capacity)
				p.consume(w.seen, 0, 0)
				w.seenWord = p.conn.inCons.Load()

				used := make([]bool, size)
				for i := range used {
					ahead := (i - cdc.HeaderLen - count + capacity) % capacity
					used[i] = i < cdc.HeaderLen || ahead >= free
				}
				given := make([]int, size/pageSize+1)
				err := p.conn.ReturnPages(func(from, to int) error {
					if from%pageSize != 0 || to%pageSize != 0 || from >= to || to > size {
						t.Fatalf("capacity %d, count %d, free %d: pages [%d, %d) given", capacity, count, free, from, to)
					}
					for i := from; i < to; i += pageSize {
						given[i/pageSize]++
					}
					return nil
				})
				if err != nil {
					t.Fatalf("ReturnPages = %v", err)
				}
				for page := range given {
					from, to := page*pageSize, (page+1)*pageSize
					want := 1
					if page == 0 || to > size || page == (count+cdc.HeaderLen)/pageSize {
						want = 0
					}
					for i := from; i < min(to, size); i++ {
						if used[i] {
							want = 0
						}
					}
					if given[page] != want {
						t.Errorf("capacity %d, count %d, free %d: page %d given %d times, want %d", capacity, count, free, page, given[page], want)
					}
				}
				if t.Failed() {
					return
				}
			}
		}
	}
}

// When pages are worth giving back, and the side that is told.
func TestIdle(t *testing.T) {
	watchdog(t)
	p := newPuppet(64, 64)
	check := func(when string, idle, dirty bool, told int) {
		t.Helper()
		if i, d := p.conn.Idle(); i != idle || d != dirty {
			t.Errorf("%s: Idle() = %v, %v, want %v, %v", when, i, d, idle, dirty)
		}
		if p.dirty != told {
			t.Errorf("%s: Dirty was called %d times, want %d", when, p.dirty, told)
		}
	}
	give := func(int, int) error { return nil }
	check("new", true, false, 0)
	p.conn.Write(make([]byte, 10))
	p.conn.Write(make([]byte, 10))
	check("after writes", false, true, 1)
	check("and nothing since", true, true, 1)
	p.consume(at(20, 64), 0, 0)
	p.conn.ReturnPages(give)
	check("after ReturnPages", true, false, 1)
	p.conn.WriteBuffers([][]byte{make([]byte, 3)})
	check("after another write", false, true, 2)
	p.conn.Write(make([]byte, 64-3))
	waiting := start(p.conn.Write, make([]byte, 1))
	p.asleep(t, 1)
	check("while a write waits", false, true, 2)
	if err := p.conn.ReturnPages(func(int, int) error { return errTest }); err != nil {
		t.Errorf("ReturnPages while a write waits = %v, want it to give way", err)
	}
	p.conn.Close()
	<-waiting
}

// ReturnPages passes on the first error of its caller, and does nothing for a peer whose
// cursor is broken.
func TestReturnPagesError(t *testing.T) {
	capacity := 8*pageSize - cdc.HeaderLen
	p := newPuppet(64, capacity)
	p.conn.Write(make([]byte, capacity/2))
	p.consume(at(uint64(capacity/2), capacity), 0, 0)
	calls := 0
	give := func(int, int) error { calls++; return errTest }
	if err := p.conn.ReturnPages(give); err != errTest || calls != 1 {
		t.Errorf("ReturnPages = %v after %d calls, want %v after 1", err, calls, errTest)
	}
	p.consume(at(uint64(capacity), capacity), 0, 0)
	if err := p.conn.ReturnPages(give); err != nil || calls != 1 {
		t.Errorf("ReturnPages with a broken cursor = %v after %d calls, want none", err, calls-1)
	}
}

// sharedMemory maps a new memfd, whose descriptor is returned too.
func sharedMemory(tb testing.TB, size int) (mem []byte, fd int) {
	tb.Helper()
	fd, err := unix.MemfdCreate("stream-test", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		tb.Fatal(err)
	}
	mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { unix.Munmap(mem) })
	return mem, fd
}

// On real shared memory no byte is lost while pages are removed all the time, and pages that are
// given back are really gone.
func TestReturnPagesConcurrent(t *testing.T) {
	watchdog(t)
	random := newRandom(t)
	size := 16 * pageSize
	local, _ := sharedMemory(t, pageSize)
	remote, fd := sharedMemory(t, size)
	var flags memory
	flags.element = [2][]byte{local, remote}
	var a, b *Conn
	ca := flags.config(0, func() { b.Wake() })
	cb := flags.config(1, func() { a.Wake() })
	a, b = New(ca), New(cb)

	given := 0
	remove := func(from, to int) error {
		given += (to - from) / pageSize
		return unix.Madvise(remote[from:to], unix.MADV_REMOVE)
	}
	total := 16 << 20
	if raceEnabled {
		total = 2 << 20
	}
	quit := make(chan struct{})
	var sweeping, writing sync.WaitGroup
	sweeping.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
				a.Idle()
				b.SayRead()
				if err := a.ReturnPages(remove); err != nil {
					t.Errorf("ReturnPages = %v", err)
					return
				}
			}
		}
	})
	writer := rand.New(rand.NewPCG(random.Uint64(), 1))
	writing.Go(func() {
		buf := make([]byte, 3*pageSize)
		for place := 0; place < total; {
			b := buf[:min(1+writer.IntN(len(buf)), total-place)]
			fillPattern(b, uint64(place))
			if n, err := a.Write(b); err != nil {
				t.Errorf("Write = %d, %v", n, err)
				return
			}
			place += len(b)
		}
	})
	buf := make([]byte, 5*pageSize)
	for place := 0; place < total; {
		n, err := b.Read(buf[:1+random.IntN(len(buf))])
		if err != nil {
			t.Fatal(err)
		}
		if err := checkPattern(buf[:n], uint64(place)); err != nil {
			t.Fatal(err)
		}
		place += n
	}
	writing.Wait()
	close(quit)
	sweeping.Wait()
	if given == 0 {
		t.Error("no pages were given back during the transfer")
	}
	b.SayRead()
	if err := a.ReturnPages(remove); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	if most := int64(2 * pageSize); st.Blocks*512 > most {
		t.Errorf("%d bytes are in use when all is read, want at most %d", st.Blocks*512, most)
	}
}
