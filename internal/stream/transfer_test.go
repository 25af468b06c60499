package stream

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// capacities are ring sizes that are likely to go wrong; the random test adds others.
var capacities = []int{1, 2, 3, 15, 16, 17, 33, 100, 255, 1021, 4095, 4096, 4064, 16<<10 - 32, 64<<10 - 32, 64 << 10}

// A patternReader reads the bytes of a stream from place on, in pieces of random size.
type patternReader struct {
	random *rand.Rand
	place  uint64
	left   int
}

func (r *patternReader) Read(b []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := 1 + r.random.IntN(min(len(b), r.left, 70000))
	fillPattern(b[:n], r.place)
	r.place += uint64(n)
	r.left -= n
	return n, nil
}

// A patternWriter checks the bytes that are written to it.
type patternWriter struct{ place uint64 }

func (w *patternWriter) Write(b []byte) (int, error) {
	if err := checkPattern(b, w.place); err != nil {
		return 0, err
	}
	w.place += uint64(len(b))
	return len(b), nil
}

// patternFile is a regular file with the first n bytes of the stream.
func patternFile(tb testing.TB, n int) string {
	tb.Helper()
	b := make([]byte, n)
	fillPattern(b, 0)
	name := filepath.Join(tb.TempDir(), "pattern")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		tb.Fatal(err)
	}
	return name
}

// send writes total bytes of the pattern in every way there is, then closes that direction.
func send(c *Conn, random *rand.Rand, total, largest int, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, largest)
	for place := 0; place < total; {
		n := min(total-place, 1+random.IntN(largest))
		b := buf[:n]
		fillPattern(b, uint64(place))
		var got int64
		var err error
		way := random.IntN(6)
		switch way {
		default:
			var m int
			m, err = c.Write(b)
			got = int64(m)
		case 3:
			var bufs [][]byte
			for rest := b; len(rest) > 0; {
				k := random.IntN(len(rest) + 1) // may be 0
				bufs, rest = append(bufs, rest[:k]), rest[k:]
			}
			got, err = c.WriteBuffers(bufs)
		case 4:
			got, err = c.ReadFrom(&patternReader{random, uint64(place), n})
		case 5:
			if _, err := f.Seek(int64(place), io.SeekStart); err != nil {
				return err
			}
			limited := &io.LimitedReader{R: f, N: int64(n)}
			got, err = c.ReadFrom(limited)
			if err == nil && limited.N != 0 {
				err = fmt.Errorf("ReadFrom left LimitedReader.N = %d, want 0", limited.N)
			}
		}
		if err != nil || got != int64(n) {
			return fmt.Errorf("at %d, way %d: wrote %d of %d bytes, %v", place, way, got, n, err)
		}
		place += n
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	c.SendFlags(cdc.DoneWriting)
	return nil
}

// receive reads until the end and checks every byte and their number.
func receive(c *Conn, random *rand.Rand, total, largest int) error {
	copyFrom := total * random.IntN(3) / 2 // from here on with WriteTo: everything, half or nothing
	var w patternWriter
	buf := make([]byte, largest)
	for w.place < uint64(copyFrom) {
		n, err := c.Read(buf[:1+random.IntN(largest)])
		if err != nil && !(err == io.EOF && w.place == uint64(total)) {
			return fmt.Errorf("Read at %d = %d, %w", w.place, n, err)
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		if err == io.EOF {
			break
		}
	}
	if n, err := c.WriteTo(&w); err != nil {
		return fmt.Errorf("WriteTo at %d = %d, %w", w.place, n, err)
	}
	if w.place != uint64(total) {
		return fmt.Errorf("%d bytes came, want %d", w.place, total)
	}
	if n, err := c.Read(buf); n != 0 || err != io.EOF {
		return fmt.Errorf("Read after the end = %d, %v, want EOF", n, err)
	}
	return nil
}

// opSizes draws the largest write and the largest read of one direction, for a ring of this
// capacity.
func opSizes(random *rand.Rand, capacity int) (write, read int) {
	size := func() int {
		return []int{1, 1 + capacity/16, capacity, capacity + 1, 3*capacity + 7, 200 << 10}[random.IntN(6)]
	}
	return size(), size()
}

// exchange moves bytes both ways at once, in four goroutines. sizes are the largest write of
// a and read of b, and the largest write of b and read of a.
func exchange(tb testing.TB, random *rand.Rand, a, b *Conn, totalA, totalB int, sizes [4]int, file string) {
	tb.Helper()
	errs := make(chan error, 4)
	run := func(what string, f func(*rand.Rand) error) {
		random := rand.New(rand.NewPCG(random.Uint64(), 1))
		go func() {
			if err := f(random); err != nil {
				errs <- fmt.Errorf("%s: %w", what, err)
				// The other goroutines may wait for this one.
				a.Fail(errTest)
				b.Fail(errTest)
				return
			}
			errs <- nil
		}()
	}
	run("a sends", func(r *rand.Rand) error { return send(a, r, totalA, sizes[0], file) })
	run("b receives", func(r *rand.Rand) error { return receive(b, r, totalA, sizes[1]) })
	run("b sends", func(r *rand.Rand) error { return send(b, r, totalB, sizes[2], file) })
	run("a receives", func(r *rand.Rand) error { return receive(a, r, totalB, sizes[3]) })
	for range 4 {
		if err := <-errs; err != nil && !errors.Is(err, errTest) {
			tb.Error(err)
		}
	}
	if tb.Failed() {
		tb.Fatalf("sizes of writes and reads %d", sizes)
	}
	for _, end := range []struct {
		name       string
		c          *Conn
		sent, came int
	}{{"a", a, totalA, totalB}, {"b", b, totalB, totalA}} {
		if read, written := end.c.Totals(); read != uint64(end.came) || written != uint64(end.sent) {
			tb.Errorf("%s.Totals() = %d, %d, want %d, %d", end.name, read, written, end.came, end.sent)
		}
		if recv, _ := end.c.Queues(); recv != 0 {
			tb.Errorf("%s.Queues() = %d bytes unread, want 0", end.name, recv)
		}
		if unread := end.c.Close(); unread != 0 {
			tb.Errorf("%s.Close() = %d bytes unread, want 0", end.name, unread)
		}
	}
}

var errTest = errors.New("as the test wanted it")

func TestTransfer(t *testing.T) {
	watchdog(t)
	const most = 1 << 20
	file := patternFile(t, most)
	random := newRandom(t)
	rounds := 60
	if raceEnabled {
		rounds = 15
	}
	for _, procs := range []int{1, 2} {
		for _, spin := range []time.Duration{0, DefaultSpin} {
			withProcessors(procs, func() {
				for range rounds {
					capacity := func() int {
						if random.IntN(2) == 0 {
							return capacities[random.IntN(len(capacities))]
						}
						return 1 + random.IntN(64<<10)
					}
					ringA, ringB := capacity(), capacity()
					a, b := newUnequalPair(t, ringA, ringB, spin)
					var sizes [4]int
					sizes[0], sizes[1] = opSizes(random, ringB)
					sizes[2], sizes[3] = opSizes(random, ringA)
					total := func(capacity, write, read int) int {
						return random.IntN(1 + min(most, 100*capacity, 2000*min(write, read)))
					}
					totalA, totalB := total(ringB, sizes[0], sizes[1]), total(ringA, sizes[2], sizes[3])
					exchange(t, random, a, b, totalA, totalB, sizes, file)
					if t.Failed() {
						t.Fatalf("GOMAXPROCS %d, spin %v, rings of %d and %d", procs, spin, ringA, ringB)
					}
				}
			})
		}
	}
}

// A tiny ring goes round more often than the 16 bits of a cursor's wrap count, and more
// bytes pass than a lap-counting mistake of any power of two would need to show.
func TestWrapOfWrap(t *testing.T) {
	watchdog(t)
	for _, capacity := range []int{1, 3, 7, 8} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			a, b := newPair(t, capacity, 0)
			buf := make([]byte, capacity)
			var place uint64
			end := uint64(capacity) * (3<<16 + 5)
			for size := 1; place < end; size = size%capacity + 1 { // all sizes, so all positions
				fillPattern(buf[:size], place)
				if n, err := a.Write(buf[:size]); n != size || err != nil {
					t.Fatalf("Write(%d bytes) at %d = %d, %v", size, place, n, err)
				}
				if recv, _ := b.Queues(); recv != size {
					t.Fatalf("reader's Queues() at %d = %d unread, want %d", place, recv, size)
				}
				if _, send := a.Queues(); send < size || send > capacity {
					t.Fatalf("writer's Queues() at %d = %d sent, want %d to %d", place, send, size, capacity)
				}
				clear(buf)
				if n, err := b.Read(buf); n != size || err != nil {
					t.Fatalf("Read at %d = %d, %v, want %d", place, n, err, size)
				}
				if err := checkPattern(buf[:size], place); err != nil {
					t.Fatal(err)
				}
				b.SayRead()
				if _, send := a.Queues(); send != 0 {
					t.Fatalf("writer's Queues() at %d = %d sent, want 0", place, send)
				}
				place += uint64(size)
			}
		})
	}
}

// The same with both ends waiting for each other all the time.
func TestWrapOfWrapConcurrent(t *testing.T) {
	watchdog(t)
	random := newRandom(t)
	total := 3 * (1<<16 + 100)
	switch {
	case raceEnabled && joined != byMemory:
		total = 3 * 10000 // a few milliseconds each
	case raceEnabled || joined == byMessagesLate:
		total = 3 * 30000
	}
	file := patternFile(t, total)
	a, b := newPair(t, 3, 0)
	exchange(t, random, a, b, total, total, [4]int{3, 4, 3, 4}, file)
}

// A write of exactly the free window succeeds at every position without waiting, and one
// byte more waits.
func TestFullWindow(t *testing.T) {
	watchdog(t)
	const capacity = 61
	for position := range capacity {
		p := newPuppet(1, capacity)
		b := make([]byte, capacity)
		if position > 0 {
			p.conn.Write(b[:position])
			p.consume(at(uint64(position), capacity), 0, 0)
		}
		fillPattern(b, 5)
		if n, err := p.conn.Write(b); n != capacity || err != nil {
			t.Fatalf("Write(%d bytes) at %d = %d, %v", capacity, position, n, err)
		}
		if got, want := p.produced(), at(uint64(position+capacity), capacity); got != want {
			t.Errorf("producer cursor at %d = %v, want %v", position, got, want)
		}
		for i := range capacity {
			if got, want := p.element[1][cdc.HeaderLen+(position+i)%capacity], pattern(5+uint64(i)); got != want {
				t.Fatalf("byte %d of a write at %d = %#x, want %#x", i, position, got, want)
			}
		}
		more := start(p.conn.Write, b[:1])
		p.asleep(t, 1)
		if _, flags, _ := p.consumed(); flags&cdc.WriterBlocked == 0 {
			t.Errorf("flags of a blocked writer = %v, want WriterBlocked", flags)
		}
		p.consume(at(uint64(position+1), capacity), 0, 0)
		p.conn.Wake()
		if got := <-more; got.err != nil || got.n != 1 {
			t.Errorf("Write(1 byte) = %d, %v", got.n, got.err)
		}
		p.conn.Close()
	}
}

// Readers get the bytes that were written before, under the race detector too.
func TestReadHappensAfterWrite(t *testing.T) {
	watchdog(t)
	a, b := newPair(t, 100, 0)
	shared := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		shared = 1
		a.Write([]byte{1})
	}()
	b.Read(make([]byte, 1))
	if shared != 1 {
		t.Errorf("shared = %d, want 1", shared)
	}
	<-done
	runtime.KeepAlive(a)
}
