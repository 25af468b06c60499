package stream

import (
	"fmt"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// When the consumer cursor is published. The examples are from RFC 7609 §4.5.1 p.63; the rest are
// the edges of its rules, p.64.
func TestWindowUpdate(t *testing.T) {
	const k = 1 << 10
	for _, tt := range []struct {
		name      string
		produced  int // bytes in the 64K ring when the reader starts
		read      int
		flags     cdc.ProducerFlags
		published bool
	}{
		{"example a: 50K window", 14 * k, 14 * k, 0, false},
		{"example b: 30K window, 1K more", 34 * k, 1 * k, 0, false},
		{"example c: 30K window, 34K more", 34 * k, 34 * k, 0, true},
		{"window of exactly half", 32 * k, 32 * k, 0, false},
		{"window of half less one byte", 32*k + 1, 32*k + 1, 0, true},
		{"less than a tenth more", 40 * k, 64*k/10 - 1, 0, false},
		{"a tenth more", 40 * k, 64*k/10 + 1, 0, true},
		{"full, one byte", 64 * k, 1, 0, false},
		{"full, all", 64 * k, 64 * k, 0, true},
		{"writer blocked, wide window", 14 * k, 1, cdc.WriterBlocked, true},
		{"writer blocked, full", 64 * k, 1, cdc.WriterBlocked, true},
		{"update requested", 100, 1, cdc.CursorUpdateRequested, true},
		{"flags that ask for nothing", 100, 1, cdc.UrgentPending | cdc.UrgentPresent | cdc.FailoverValidation, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPuppet(64*k, 64)
			p.produce(at(uint64(tt.produced), 64*k))
			p.consume(cdc.Cursor{}, tt.flags, 0)
			if n, err := p.conn.Read(make([]byte, tt.read)); n != tt.read || err != nil {
				t.Fatalf("Read(%d bytes) = %d, %v", tt.read, n, err)
			}
			want := cdc.Cursor{}
			if tt.published {
				want = at(uint64(tt.read), 64*k)
			}
			if got, _, _ := p.consumed(); got != want {
				t.Errorf("consumer cursor = %v, want %v", got, want)
			}
		})
	}
}

// Every read is published while the writer is blocked, none of the small ones afterwards.
func TestWindowUpdateFollowsBlocked(t *testing.T) {
	p := newPuppet(1000, 64)
	p.produce(at(300, 1000))
	read := uint64(0)
	said := uint64(0)
	for i, flags := range []cdc.ProducerFlags{0, cdc.WriterBlocked, cdc.WriterBlocked, 0, 0, cdc.WriterBlocked} {
		p.consume(cdc.Cursor{}, flags, 0)
		p.conn.Read(make([]byte, 7))
		read += 7
		if flags != 0 {
			said = read
		}
		if got, _, _ := p.consumed(); got != at(said, 1000) {
			t.Errorf("consumer cursor after read %d, flags %v = %v, want %v", i, flags, got, at(said, 1000))
		}
	}
}

// A reader that is about to park says how far it is, and wakes a writer that waits for room.
func TestWindowUpdateBeforePark(t *testing.T) {
	watchdog(t)
	p := newPuppet(1000, 64)
	p.produce(at(100, 1000))
	p.conn.Read(make([]byte, 100))
	if got, _, _ := p.consumed(); got != (cdc.Cursor{}) {
		t.Fatalf("consumer cursor after a small read = %v, want none published", got)
	}
	p.sleeps[1][1].Store(1) // the peer's writer
	waiting := start(p.conn.Read, make([]byte, 1))
	p.asleep(t, 1)
	if got, _, _ := p.consumed(); got != at(100, 1000) {
		t.Errorf("consumer cursor of a parked reader = %v, want %v", got, at(100, 1000))
	}
	if n := p.ringCount(); n != 1 || p.sleeps[1][1].Load() != 0 {
		t.Errorf("rings = %d, peer's sleep word = %d, want 1, 0", n, p.sleeps[1][1].Load())
	}
	if p.sleeps[0][0].Load() != 1 {
		t.Errorf("our sleep word = 0 while parked, want 1")
	}
	p.conn.Close()
	<-waiting
	if p.sleeps[0][0].Load() != 0 {
		t.Errorf("our sleep word = 1 when awake, want 0")
	}
}

// SayRead publishes, but not twice, not from a closed Conn, and without waiting for a Read.
func TestSayRead(t *testing.T) {
	watchdog(t)
	p := newPuppet(1000, 64)
	p.produce(at(100, 1000))
	p.conn.Read(make([]byte, 60))
	p.conn.SayRead()
	if got, _, _ := p.consumed(); got != at(60, 1000) {
		t.Errorf("consumer cursor after SayRead = %v, want %v", got, at(60, 1000))
	}
	p.conn.Read(make([]byte, 40))
	waiting := start(p.conn.Read, make([]byte, 1))
	p.asleep(t, 1)
	p.conn.SayRead() // returns although the Read is under way
	p.conn.Close()
	<-waiting
	p.consume(cdc.Cursor{}, 0, 0)
	word(p.element[1], cdc.ConsumerOffset).Store(0)
	p.conn.SayRead()
	if got, _, _ := p.consumed(); got != (cdc.Cursor{}) {
		t.Errorf("consumer cursor after Close and SayRead = %v, want it untouched", got)
	}
}

// A reader of single bytes wakes a blocked writer once, when a sixteenth of the ring is free:
// no silly windows.
func TestSillyWindow(t *testing.T) {
	watchdog(t)
	const capacity = 16 << 10
	m := newMemory(capacity+cdc.HeaderLen, capacity+cdc.HeaderLen)
	var a, b *Conn
	var writer, reader Stats
	ca := m.config(0, func() { b.Wake() })
	cb := m.config(1, func() { a.Wake() })
	ca.Spin, ca.Stats = 0, &writer
	cb.Spin, cb.Stats = 0, &reader
	a, b = New(ca), New(cb)

	a.Write(make([]byte, capacity))
	more := start(a.Write, make([]byte, capacity/2))
	eventually(t, "parked writer", func() bool { return writer.Sleeps.Load() == 1 })
	buf := make([]byte, 1)
	for i := 1; i < capacity/16; i++ {
		b.Read(buf)
		if n := reader.Rings.Load(); n != 0 {
			t.Fatalf("rings after %d bytes were read = %d, want 0 before %d", i, n, capacity/16)
		}
	}
	b.Read(buf)
	if n := reader.Rings.Load(); n != 1 {
		t.Fatalf("rings after %d bytes were read = %d, want 1", capacity/16, n)
	}
	// The writer writes a sixteenth, and waits for the next.
	eventually(t, "writer parked again", func() bool { return writer.Sleeps.Load() == 2 })
	if _, written := a.Totals(); written != capacity+capacity/16 {
		t.Errorf("bytes written = %d, want %d", written, capacity+capacity/16)
	}
	b.Read(make([]byte, capacity))
	if got := <-more; got.n != capacity/2 || got.err != nil {
		t.Errorf("Write(%d bytes) = %d, %v", capacity/2, got.n, got.err)
	}
}

// How much room a spinning or parked writer needs to see before it tries again.
func TestWritable(t *testing.T) {
	const capacity = 1 << 20
	for _, tt := range []struct{ write, room, want int }{
		{1, 0, 0}, {1, 1, 1},
		{100, 99, 0}, {100, 100, 1},
		{capacity / 16, capacity/16 - 1, 0}, {capacity / 16, capacity / 16, 1},
		{capacity, blockedSlack - 1, 0}, {capacity, blockedSlack, 1},
	} {
		p := newPuppet(64, capacity)
		p.conn.Write(make([]byte, capacity))
		p.consume(at(uint64(tt.room), capacity), 0, 0)
		p.conn.w.want = slack(capacity, tt.write)
		if got := p.conn.writable(); got != (tt.want == 1) {
			t.Errorf("writable() for a write of %d with room for %d = %v, want %v", tt.write, tt.room, got, !got)
		}
	}
}

// WriterBlocked is set when a write finds no room, and withdrawn once half the ring is free.
// TestStatsFull checks that writes which find no room are counted, and others are not.
func TestStatsFull(t *testing.T) {
	watchdog(t)
	const capacity = 1000
	p := newPuppet(64, capacity)
	if n, err := p.conn.Write(make([]byte, capacity)); n != capacity || err != nil || p.stats.Full.Load() != 0 {
		t.Fatalf("Write that just fits = %d, %v, and counted %d times", n, err, p.stats.Full.Load())
	}
	more := start(p.conn.Write, make([]byte, 1))
	p.asleep(t, 1)
	if n := p.stats.Full.Load(); n != 1 {
		t.Errorf("a write that waits is counted %d times, want once", n)
	}
	p.consume(at(300, capacity), 0, 0)
	p.conn.Wake()
	<-more
}

func TestWriterBlockedFlag(t *testing.T) {
	watchdog(t)
	const capacity = 1000
	p := newPuppet(64, capacity)
	blocked := func() bool {
		_, flags, _ := p.consumed()
		return flags&cdc.WriterBlocked != 0
	}
	write := func(n int) {
		t.Helper()
		if m, err := p.conn.Write(make([]byte, n)); m != n || err != nil {
			t.Fatalf("Write(%d bytes) = %d, %v", n, m, err)
		}
	}
	write(capacity)
	if blocked() {
		t.Error("WriterBlocked is set by a write that just fits")
	}
	more := start(p.conn.Write, make([]byte, 1))
	p.asleep(t, 1)
	if !blocked() {
		t.Error("WriterBlocked is not set while a write waits")
	}
	p.consume(at(300, capacity), 0, 0)
	p.conn.Wake()
	<-more
	if !blocked() {
		t.Error("WriterBlocked was withdrawn with 300 of 1000 bytes free")
	}
	write(299)
	p.consume(at(900, capacity), 0, 0)
	write(1)
	if blocked() {
		t.Error("WriterBlocked is still set with 600 of 1000 bytes free")
	}
}

// No sizes of ring, write and read make the two wait for each other.
func TestNoDeadlock(t *testing.T) {
	watchdog(t)
	for _, spin := range []time.Duration{0, DefaultSpin} {
		for _, capacity := range []int{1, 2, 3, 16, 17, 33, 100, 1000} {
			for _, write := range []int{1, 2, capacity/2 + 1, capacity - 1, capacity, capacity + 1, 3 * capacity} {
				for _, read := range []int{1, capacity} {
					if write == 0 {
						continue
					}
					name := fmt.Sprintf("ring %d, write %d, read %d", capacity, write, read)
					a, b := newPair(t, capacity, spin)
					total := 10 * max(capacity, write)
					done := make(chan error, 1)
					go func() {
						buf := make([]byte, write)
						for left := total; left > 0; left -= write {
							if n, err := a.Write(buf[:min(write, left)]); err != nil {
								done <- fmt.Errorf("Write = %d, %w", n, err)
								return
							}
						}
						done <- nil
					}()
					buf := make([]byte, read)
					for left := total; left > 0; {
						n, err := b.Read(buf)
						if err != nil || n == 0 {
							t.Fatalf("%s: Read = %d, %v", name, n, err)
						}
						left -= n
					}
					if err := <-done; err != nil {
						t.Fatalf("%s: %v", name, err)
					}
				}
			}
		}
	}
}
