package stream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// newBellPair is a pair whose rings go through a goroutine each, as they go through an
// eventfd between processes: they come late, and several become one. stop ends the goroutines.
func newBellPair(capacity int, spin time.Duration) (a, b *Conn, stats *Stats, stop func()) {
	m := newMemory(capacity+cdc.HeaderLen, capacity+cdc.HeaderLen)
	stats = new(Stats)
	var bells [2]chan struct{}
	var conns [2]*Conn
	for i := range conns {
		cfg := m.config(i, func() {
			select {
			case bells[1-i] <- struct{}{}:
			default:
			}
		})
		cfg.Spin, cfg.Stats = spin, stats
		bells[i] = make(chan struct{}, 1)
		conns[i] = New(cfg)
	}
	quit := make(chan struct{})
	var running sync.WaitGroup
	for i, c := range conns {
		running.Go(func() {
			for {
				select {
				case <-bells[i]:
					c.Wake()
				case <-quit:
					return
				}
			}
		})
	}
	return conns[0], conns[1], stats, func() { close(quit); running.Wait() }
}

// huntRounds is how many waits the hunters make.
func huntRounds() int {
	if raceEnabled || testing.Short() {
		return 30_000
	}
	return 300_000
}

// Every byte of a ping-pong is waited for. If a wakeup is lost, both sides sleep for ever and
// the watchdog tells.
func TestNoLostWakeup(t *testing.T) {
	watchdog(t)
	for _, tt := range []struct {
		name  string
		spin  time.Duration
		delay bool
	}{{"sleep", 0, false}, {"sleep, delays", 0, true}, {"spin", DefaultSpin, false}, {"spin, delays", DefaultSpin, true}} {
		t.Run(tt.name, func(t *testing.T) {
			random := newRandom(t)
			a, b, _, stop := newBellPair(64, tt.spin)
			defer stop()
			rounds := huntRounds()
			seedA, seedB := random.Uint32()|1, random.Uint32()|1
			lag := func(x *uint32) { // xorshift: cheap enough to hit every instruction of the other side
				if !tt.delay {
					return
				}
				*x ^= *x << 13
				*x ^= *x >> 17
				*x ^= *x << 5
				pause(*x & 63)
			}
			echoed := make(chan error, 1)
			go func() {
				var buf [1]byte
				for range rounds {
					if _, err := b.Read(buf[:]); err != nil {
						echoed <- err
						return
					}
					lag(&seedB)
					if _, err := b.Write(buf[:]); err != nil {
						echoed <- err
						return
					}
				}
				echoed <- nil
			}()
			var buf [1]byte
			for i := range rounds {
				buf[0] = byte(i)
				if _, err := a.Write(buf[:]); err != nil {
					t.Fatal(err)
				}
				lag(&seedA)
				if _, err := a.Read(buf[:]); err != nil || buf[0] != byte(i) {
					t.Fatalf("Read in round %d = %d, %v", i, buf[0], err)
				}
			}
			if err := <-echoed; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// In a ring of a byte or two both the reader and the writer wait nearly every time.
func TestNoLostWakeupOfWriter(t *testing.T) {
	watchdog(t)
	for _, capacity := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			a, b, _, stop := newBellPair(capacity, 0)
			defer stop()
			rounds := huntRounds()
			written := make(chan result, 1)
			go func() {
				buf := make([]byte, rounds)
				fillPattern(buf, 0)
				n, err := a.Write(buf)
				written <- result{n, err}
			}()
			buf := make([]byte, 3)
			for place := 0; place < rounds; {
				n, err := b.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				if err := checkPattern(buf[:n], uint64(place)); err != nil {
					t.Fatal(err)
				}
				place += n
			}
			if got := <-written; got.n != rounds || got.err != nil {
				t.Errorf("Write(%d bytes) = %d, %v", rounds, got.n, got.err)
			}
		})
	}
}

// While the peer is awake no bell is rung, however much is written.
func TestNoRingsWhileAwake(t *testing.T) {
	watchdog(t)
	a, b, stats, stop := newBellPair(4096, 0)
	defer stop()
	const total = 200_000
	done := make(chan struct{})
	go func() { // neither side calls Read or Write when it would have to wait
		defer close(done)
		buf := make([]byte, 700)
		for read := 0; read < total; {
			if recv, _ := b.Queues(); recv == 0 {
				runtime.Gosched()
				continue
			}
			n, _ := b.Read(buf)
			read += n
			b.SayRead()
		}
	}()
	buf := make([]byte, 100)
	for written := 0; written < total; {
		if _, send := a.Queues(); send > 4096-len(buf) {
			runtime.Gosched()
			continue
		}
		a.Write(buf)
		written += len(buf)
	}
	<-done
	if rings, sleeps := stats.Rings.Load(), stats.Sleeps.Load(); rings != 0 || sleeps != 0 {
		t.Errorf("after %d bytes: rings = %d, sleeps = %d, want 0, 0", total, rings, sleeps)
	}
}

// One ring ends one sleep, whatever is written while the sleeper wakes up.
func TestOneRingPerSleep(t *testing.T) {
	watchdog(t)
	p := newPuppet(64, 64)
	p.sleeps[1][0].Store(1)
	for range 10 {
		p.conn.Write([]byte{1})
	}
	if n := p.ringCount(); n != 1 {
		t.Errorf("rings for 10 writes to a peer that went to sleep once = %d, want 1", n)
	}
}

// The events that end a wait, and with which error, for readers and writers that are parked or
// spin.
func TestWakeBy(t *testing.T) {
	watchdog(t)
	past := time.Unix(1, 0)
	for _, event := range []struct {
		name   string
		do     func(c, peer *Conn)
		reader error // errTest: the wait goes on
		writer error
	}{
		{"deadline in the past", func(c, _ *Conn) { c.SetReadDeadline(past); c.SetWriteDeadline(past) },
			os.ErrDeadlineExceeded, os.ErrDeadlineExceeded},
		{"deadline soon", func(c, _ *Conn) {
			soon := time.Now().Add(time.Millisecond)
			c.SetReadDeadline(soon)
			c.SetWriteDeadline(soon)
		}, os.ErrDeadlineExceeded, os.ErrDeadlineExceeded},
		{"Close", func(c, _ *Conn) { c.Close() }, net.ErrClosed, net.ErrClosed},
		{"CloseRead", func(c, _ *Conn) { c.CloseRead() }, io.EOF, errTest},
		{"CloseWrite", func(c, _ *Conn) { c.CloseWrite() }, errTest, syscall.EPIPE},
		{"Fail", func(c, _ *Conn) { c.Fail(errFailed) }, errFailed, errFailed},
		{"Detach", func(c, _ *Conn) { c.Detach() }, errTest, syscall.ECONNRESET},
		{"peer: DoneWriting", func(_, p *Conn) { p.SendFlags(cdc.DoneWriting) }, io.EOF, errTest},
		{"peer: Closed", func(_, p *Conn) { p.SendFlags(cdc.Closed) }, io.EOF, syscall.ECONNRESET},
		{"peer: Abort", func(_, p *Conn) { p.SendFlags(cdc.Abort) }, syscall.ECONNRESET, syscall.ECONNRESET},
		{"peer: DoneWriting and Abort", func(_, p *Conn) { p.SendFlags(cdc.DoneWriting | cdc.Abort) },
			io.EOF, syscall.ECONNRESET},
	} {
		for _, spin := range []time.Duration{0, time.Second} {
			for _, side := range []string{"reader", "writer"} {
				t.Run(fmt.Sprintf("%s/%s/spin %v", event.name, side, spin), func(t *testing.T) {
					a, b, stats, stop := newBellPair(64, spin)
					defer stop()
					op, want, lock := a.Read, event.reader, &a.r.mu
					if side == "writer" {
						a.Write(make([]byte, 64))
						op, want, lock = a.Write, event.writer, &a.w.mu
					}
					spinNow(a)
					sleeps := stats.Sleeps.Load()
					waiting := start(op, make([]byte, 8))
					eventually(t, "a wait", func() bool {
						if lock.TryLock() {
							lock.Unlock()
							return false
						}
						return spin > 0 || stats.Sleeps.Load() > sleeps
					})
					event.do(a, b)
					if want == errTest {
						// This event must not end the wait: the next one does.
						a.Fail(errTest)
					}
					if got := <-waiting; got.n != 0 || !errors.Is(got.err, want) {
						t.Errorf("result = %d, %v, want 0, %v", got.n, got.err, want)
					}
				})
			}
		}
	}
}

var errFailed = errors.New("failed by the test")

// Of several readers and writers each gets whole pieces, and all end when the Conn does.
func TestConcurrentReadersAndWriters(t *testing.T) {
	watchdog(t)
	const writers, records, size = 4, 400, 37
	a, b := newPair(t, 500, DefaultSpin)
	var writing sync.WaitGroup
	for id := range writers {
		writing.Go(func() {
			record := make([]byte, size)
			for i := range records {
				for j := range record {
					record[j] = byte(id<<6 | (i+j)&0x3f)
				}
				if n, err := a.Write(record); n != size || err != nil {
					t.Errorf("Write = %d, %v", n, err)
				}
			}
		})
	}
	var next [writers]int
	record := make([]byte, size)
	for range writers * records {
		if _, err := io.ReadFull(b, record); err != nil {
			t.Fatal(err)
		}
		id := int(record[0] >> 6)
		for j := range record {
			if want := byte(id<<6 | (next[id]+j)&0x3f); record[j] != want {
				t.Fatalf("byte %d of record %d of writer %d = %#x, want %#x", j, next[id], id, record[j], want)
			}
		}
		next[id]++
	}
	writing.Wait()

	// Each byte goes to exactly one of several readers.
	var sums [256]atomic.Int32
	var reading sync.WaitGroup
	for range 4 {
		reading.Go(func() {
			buf := make([]byte, 5)
			for {
				n, err := b.Read(buf)
				for _, x := range buf[:n] {
					sums[x].Add(1)
				}
				if err != nil {
					if !errors.Is(err, io.EOF) {
						t.Errorf("Read = %v, want EOF", err)
					}
					return
				}
			}
		})
	}
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for range 50 {
		a.Write(all)
	}
	a.CloseWrite()
	a.SendFlags(cdc.DoneWriting)
	reading.Wait()
	for i := range sums {
		if n := sums[i].Load(); n != 50 {
			t.Errorf("byte %d came %d times, want 50", i, n)
		}
	}
}

// Close ends all waits, also those that wait for another of their kind.
func TestCloseWakesAll(t *testing.T) {
	watchdog(t)
	a, _, stats, stop := newBellPair(64, 0)
	defer stop()
	a.Write(make([]byte, 64))
	var waiting []<-chan result
	for range 8 {
		waiting = append(waiting, start(a.Read, make([]byte, 1)), start(a.Write, make([]byte, 1)))
	}
	eventually(t, "a parked reader and writer", func() bool { return stats.Sleeps.Load() >= 2 })
	a.Close()
	for _, c := range waiting {
		if got := <-c; got.n != 0 || got.err != net.ErrClosed {
			t.Errorf("result = %d, %v, want 0, %v", got.n, got.err, net.ErrClosed)
		}
	}
}
