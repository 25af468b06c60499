package stream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// The values that a peer may not put into its cursors, and their effect: an error that is the
// Conn's end, and a notice.
func TestBrokenCursor(t *testing.T) {
	const capacity = 1000
	c := func(wrap uint16, count uint32) cdc.Cursor { return cdc.Cursor{Wrap: wrap, Count: count} }
	for _, tt := range []struct {
		name string
		from uint64 // bytes produced, or consumed, correctly before
		next cdc.Cursor
		want error // nil: a correct cursor
	}{
		{"all of the window", 0, c(1, 0), nil},
		{"one byte more", 0, c(1, 1), cdc.ErrAdvance},
		{"count of the capacity", 0, c(0, capacity), cdc.ErrCount},
		{"largest count", 0, c(0, 1<<32-1), cdc.ErrCount},
		{"count outside after a wrap", 600, c(1, capacity), cdc.ErrCount},
		{"one back", 600, c(0, 599), cdc.ErrAdvance},
		{"back to the start", 600, c(0, 0), cdc.ErrAdvance},
		{"wrap back", 1600, c(0, 600), cdc.ErrAdvance},
		{"wrap back over zero", 600, c(65535, 600), cdc.ErrAdvance},
		{"two wraps", 600, c(2, 0), cdc.ErrAdvance},
		{"half the wraps", 600, c(1<<15, 600), cdc.ErrAdvance},
		{"same count, next wrap", 600, c(1, 600), nil},
	} {
		t.Run("producer/"+tt.name, func(t *testing.T) {
			p := newPuppet(capacity, 64)
			for produced := uint64(0); produced < tt.from; {
				produced += min(capacity, tt.from-produced)
				p.produce(at(produced, capacity))
				if n, err := p.conn.Read(make([]byte, capacity)); err != nil {
					t.Fatalf("Read = %d, %v", n, err)
				}
				p.conn.SayRead()
			}
			p.produce(tt.next)
			n, err := p.conn.Read(make([]byte, 2*capacity))
			p.checkBroken(t, "producer cursor", n, err, tt.want)
		})
		t.Run("consumer/"+tt.name, func(t *testing.T) {
			p := newPuppet(64, capacity)
			for written := uint64(0); written < tt.from; {
				n, err := p.conn.Write(make([]byte, min(capacity, tt.from-written)))
				if err != nil {
					t.Fatalf("Write = %d, %v", n, err)
				}
				written += uint64(n)
				p.consume(at(written, capacity), 0, 0)
			}
			p.conn.Write(make([]byte, capacity))
			p.consume(tt.next, 0, 0)
			p.conn.SetWriteDeadline(time.Now().Add(patience))
			n, err := p.conn.Write(make([]byte, capacity))
			if tt.want == nil && n != capacity {
				t.Errorf("Write = %d, want %d", n, capacity)
			}
			p.checkBroken(t, "consumer cursor", n, err, tt.want)
			p.conn.Close()
		})
	}
}

// checkBroken checks the outcome of an operation that met a cursor with this error.
func (p *puppet) checkBroken(t *testing.T, field string, n int, err, want error) {
	t.Helper()
	if want == nil {
		if n == 0 || err != nil {
			t.Errorf("result = %d, %v, want some bytes", n, err)
		}
		return
	}
	var broken *PeerError
	if n != 0 || !errors.As(err, &broken) || broken.Field != field || !errors.Is(err, want) {
		t.Fatalf("result = %d, %v, want a PeerError of the %s, %v", n, err, field, want)
	}
	if got := p.noticed(); len(got) != 1 || got[0].err != err {
		t.Errorf("notices = %v, want one of %v", got, err)
	}
	// The connection is of no further use, in both directions.
	for name, op := range writeOps(p.conn) {
		if n, err := op([]byte("x")); n != 0 || !errors.Is(err, want) {
			t.Errorf("%s afterwards = %d, %v, want %v", name, n, err, want)
		}
	}
	if n, err := p.conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, want) {
		t.Errorf("Read afterwards = %d, %v, want %v", n, err, want)
	}
}

// The consumer may not claim to have read bytes that were not written.
func TestConsumerAheadOfProducer(t *testing.T) {
	for consumed, want := range map[uint64]error{9: nil, 10: nil, 11: cdc.ErrAdvance, 50: cdc.ErrAdvance} {
		p := newPuppet(64, 64)
		p.conn.Write(make([]byte, 10))
		p.consume(at(consumed, 64), 0, 0)
		n, err := p.conn.Write(make([]byte, 60-int(10-min(consumed, 10))))
		p.checkBroken(t, "consumer cursor", n, err, want)
	}
}

// The producer may not overwrite bytes before we have said that we have read them.
func TestProducerAheadOfConsumer(t *testing.T) {
	p := newPuppet(1000, 64)
	p.produce(at(100, 1000))
	p.conn.Read(make([]byte, 90)) // not published
	p.produce(at(1001, 1000))
	n, err := p.conn.Read(make([]byte, 1000))
	p.checkBroken(t, "producer cursor", n, err, cdc.ErrAdvance)
}

// A peer that takes its broken cursor back has broken the protocol all the same, and the owner of
// the connection learns of it no matter which operation saw it.
func TestBrokenCursorTakenBack(t *testing.T) {
	for _, seenBy := range []string{"ReturnPages", "Read"} {
		p := newPuppet(64, 64)
		p.consume(at(5, 64), 0, 0)
		p.produce(cdc.Cursor{Wrap: 7})
		if seenBy == "ReturnPages" {
			p.conn.ReturnPages(func(int, int) error { return nil })
		} else {
			p.conn.r.mu.Lock()
			p.conn.fill(1)
			p.conn.r.mu.Unlock()
		}
		p.consume(cdc.Cursor{}, 0, 0)
		p.produce(cdc.Cursor{})
		_, err := p.conn.Read(make([]byte, 1))
		var broken *PeerError
		if !errors.As(err, &broken) {
			t.Errorf("seen by %s: Read = %v, want a PeerError", seenBy, err)
		}
		if got := p.noticed(); len(got) != 1 || got[0].err != err {
			t.Errorf("seen by %s: notices = %v, want one of %v", seenBy, got, err)
		}
	}
}

// Bits without a meaning change nothing, and nothing that was checked is looked at again.
func TestReservedBits(t *testing.T) {
	p := newPuppet(64, 64)
	for i := range p.element[0][:8] {
		p.element[0][i] = 0xff
	}
	for i := range p.element[0][24:32] {
		p.element[0][24+i] = 0xff
	}
	header := cdc.Header{Producer: at(3, 64)}.Append(nil)
	header[14], header[15], header[22], header[23] = 0x9f, 0xff, 0x07, 0x1f
	word(p.element[0], cdc.ProducerOffset).Store(binary.NativeEndian.Uint64(header[8:]))
	word(p.element[0], cdc.ConsumerOffset).Store(binary.NativeEndian.Uint64(header[16:]))
	if n, err := p.conn.Read(make([]byte, 9)); n != 3 || err != nil {
		t.Errorf("Read = %d, %v, want 3", n, err)
	}
	if n, err := p.conn.Write(make([]byte, 9)); n != 9 || err != nil {
		t.Errorf("Write = %d, %v, want 9", n, err)
	}
	expireWhenIdle(p.conn)
	if n, err := p.conn.Read(make([]byte, 9)); n != 0 || err != os.ErrDeadlineExceeded {
		t.Errorf("Read = %d, %v, want to wait", n, err)
	}
}

// A flag that is withdrawn makes a Conn wait again; it does not hang, nor lose bytes.
func TestFlagWithdrawn(t *testing.T) {
	p := newPuppet(64, 64)
	expireWhenIdle(p.conn)
	buf := make([]byte, 4)
	p.consume(cdc.Cursor{}, 0, cdc.DoneWriting|cdc.Closed)
	if _, err := p.conn.Read(buf); err != io.EOF {
		t.Errorf("Read = %v, want EOF", err)
	}
	if _, err := p.conn.Write(buf); err != nil {
		t.Errorf("first Write = %v, want it taken", err)
	}
	if _, err := p.conn.Write(buf); err != syscall.EPIPE {
		t.Errorf("second Write = %v, want EPIPE", err)
	}
	p.consume(cdc.Cursor{}, 0, 0)
	copy(p.element[0][cdc.HeaderLen:], "more")
	p.produce(at(4, 64))
	if n, err := p.conn.Read(buf); string(buf[:n]) != "more" || err != nil {
		t.Errorf("Read = %q, %v, want more", buf[:n], err)
	}
	if _, err := p.conn.Read(buf); err != os.ErrDeadlineExceeded {
		t.Errorf("Read = %v, want to wait", err)
	}
}

// allowedErrors are the errors with which an operation on a Conn with a hostile peer may end.
var allowedErrors = []error{nil, io.EOF, os.ErrDeadlineExceeded, syscall.EPIPE, syscall.ECONNRESET, net.ErrClosed}

func allowed(err error) bool {
	return slices.Contains(allowedErrors, err) || errors.As(err, new(*PeerError))
}

// A peer that changes its words all the time does no harm: every operation ends by its
// deadline, and gives no more than the rings can hold.
func TestScribbledHeader(t *testing.T) {
	watchdog(t)
	random := newRandom(t)
	rounds := 150
	if raceEnabled {
		rounds = 40
	}
	var broken int
	var moved uint64
	for round := range rounds {
		capacity := 1 + random.IntN(3000)
		m := newMemory(capacity+cdc.HeaderLen, capacity+cdc.HeaderLen)
		var c *Conn
		cfg := m.config(0, func() { c.Wake() }) // as a peer would that rings back at once
		if round%2 == 0 {
			cfg.Spin = 0
		}
		var notices atomic.Int64
		cfg.Notice = func(cdc.ConnFlags, error) { notices.Add(1) }
		c = New(cfg)
		quit := make(chan struct{})
		var scribbling, working sync.WaitGroup
		s := &scribbler{memory: m, random: rand.New(rand.NewPCG(random.Uint64(), 2)), capacity: capacity}
		s.honest = []int{20, 500, 10_000}[round%3]
		scribbling.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
					s.scribble()
					if s.random.IntN(8) == 0 {
						c.Wake()
					}
				}
			}
		})
		c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		c.SetWriteDeadline(time.Now().Add(5 * time.Millisecond))
		var isBroken atomic.Bool
		work := func(name string, op func([]byte) (int, error)) {
			working.Go(func() {
				b := make([]byte, 2*capacity)
				for {
					n, err := op(b)
					if n < 0 || n > len(b) || !allowed(err) {
						t.Errorf("%s(%d bytes) = %d, %v", name, len(b), n, err)
						return
					}
					if errors.As(err, new(*PeerError)) {
						isBroken.Store(true)
					}
					if err == os.ErrDeadlineExceeded || errors.As(err, new(*PeerError)) {
						return
					}
				}
			})
		}
		work("Read", c.Read)
		work("Write", c.Write)
		if round%4 == 1 {
			work("WriteUrgent", c.WriteUrgent)
			work("ReadUrgent", func(b []byte) (n int, err error) {
				c.AtUrgentMark()
				b[0], err = c.ReadUrgent()
				return 0, err
			})
			work("WaitUrgent", func([]byte) (int, error) { return 0, c.WaitUrgent() })
		}
		working.Go(func() { c.Queues(); c.SayRead(); c.Idle(); c.PeerFlags() })
		working.Wait()
		close(quit)
		scribbling.Wait()
		if unread := c.Close(); unread < 0 || unread > capacity {
			t.Errorf("Close = %d bytes unread in a ring of %d", unread, capacity)
		}
		read, written := c.Totals()
		moved += read + written
		if isBroken.Load() {
			broken++
			if notices.Load() == 0 {
				t.Errorf("a PeerError without a notice")
			}
		}
	}
	if broken == 0 {
		t.Errorf("in %d rounds no broken cursor was seen", rounds)
	}
	t.Logf("%d of %d rounds broken, %d bytes moved", broken, rounds, moved)
}

// A scribbler is a peer that mostly moves its cursors as it may, without looking at any
// bytes, and now and then writes something else.
type scribbler struct {
	*memory
	random             *rand.Rand
	capacity           int
	honest             int // one of so many words is a lie
	produced, consumed uint64
}

// scribble changes one shared word that the peer may write.
func (s *scribbler) scribble() {
	lie := s.random.IntN(s.honest) == 0
	w := s.random.Uint64()
	switch s.random.IntN(7) {
	case 0, 1:
		if !lie {
			said, _, _ := cdc.UnpackConsumer(word(s.element[1], cdc.ConsumerOffset).Load())
			held := cdc.Diff(said, at(s.produced, s.capacity), uint32(s.capacity))
			s.produced += s.random.Uint64N(uint64(s.capacity) - uint64(held) + 1)
			w = cdc.PackProducer(at(s.produced, s.capacity))
		}
		word(s.element[0], cdc.ProducerOffset).Store(w)
	case 2, 3:
		if !lie {
			sent := cdc.UnpackProducer(word(s.element[1], cdc.ProducerOffset).Load())
			waiting := cdc.Diff(at(s.consumed, s.capacity), sent, uint32(s.capacity))
			s.consumed += s.random.Uint64N(uint64(waiting) + 1)
			var flags cdc.ConnFlags
			if s.random.IntN(50) == 0 {
				flags = cdc.ConnFlags(s.random.Uint32())
			}
			w = cdc.PackConsumer(at(s.consumed, s.capacity), cdc.ProducerFlags(s.random.Uint32()), flags)
		}
		word(s.element[0], cdc.ConsumerOffset).Store(w)
	case 4:
		word(s.element[0], cdc.TypeOffset).Store(w)
	case 5:
		s.sleeps[0][s.random.IntN(2)].Store(uint32(w) & 3)
	case 6:
		s.sleeps[1][s.random.IntN(2)].Store(uint32(w) & 3)
	}
}

// FuzzHostileHeader plays a peer whose words, and the operations between them, come from the
// input: 9 bytes each, a kind and an argument.
func FuzzHostileHeader(f *testing.F) {
	step := func(kind byte, arg uint64) []byte {
		return binary.NativeEndian.AppendUint64([]byte{kind}, arg)
	}
	const capacity = 100
	f.Add(slices.Concat(step(0, cdc.PackProducer(at(60, capacity))), step(2, 40), step(2, 40), step(0, cdc.PackProducer(at(130, capacity))), step(2, 100)))
	f.Add(slices.Concat(step(3, 100), step(1, cdc.PackConsumer(at(100, capacity), 0, 0)), step(3, 250)))
	f.Add(slices.Concat(step(3, 10), step(1, cdc.PackConsumer(at(11, capacity), 0, 0)), step(3, 100), step(2, 1)))
	f.Add(slices.Concat(step(1, cdc.PackConsumer(cdc.Cursor{}, 0xff, cdc.DoneWriting)), step(2, 1), step(4, 3), step(5, 1)))
	f.Add(slices.Concat(step(3, 10), step(1, cdc.PackConsumer(cdc.Cursor{}, 0, cdc.Closed)), step(3, 100), step(3, 5)))
	f.Fuzz(func(t *testing.T, script []byte) {
		p := newPuppet(capacity, capacity)
		// The bytes beyond the elements must stay: the elements are cut out of larger memory.
		const margin = 64
		large := [2][]byte{alignedBytes(capacity + cdc.HeaderLen + 2*margin), alignedBytes(capacity + cdc.HeaderLen + 2*margin)}
		for i := range large {
			for j := range large[i] {
				large[i][j] = byte(j * 7)
			}
			p.element[i] = large[i][margin : margin+capacity+cdc.HeaderLen]
			clear(p.element[i][:cdc.HeaderLen])
		}
		p.conn = New(p.puppetConfig(p.countRing))
		p.conn.SetUrgentInline(true) // an urgent byte is counted as any other
		data := bytes.Clone(p.element[0][cdc.HeaderLen:])
		expireWhenIdle(p.conn)
		var read, written uint64
		dropped := false
		for len(script) >= 9 {
			kind, arg := script[0], binary.NativeEndian.Uint64(script[1:])
			script = script[9:]
			switch kind % 7 {
			case 0:
				word(p.element[0], cdc.ProducerOffset).Store(arg)
			case 1:
				word(p.element[0], cdc.ConsumerOffset).Store(arg)
			case 2:
				b := make([]byte, arg%(3*capacity))
				n, err := p.conn.Read(b)
				if !allowed(err) || n > 0 && err != nil {
					t.Fatalf("Read(%d bytes) = %d, %v", len(b), n, err)
				}
				for i := range n {
					if want := data[(read+uint64(i))%capacity]; b[i] != want {
						t.Fatalf("byte %d = %#x, want %#x", read+uint64(i), b[i], want)
					}
				}
				read += uint64(n)
			case 3:
				b := bytes.Repeat([]byte{byte(arg >> 32)}, int(arg%(3*capacity)))
				before := p.produced()
				n, err := p.conn.Write(b)
				given := int(cdc.Diff(before, p.produced(), capacity))
				if !allowed(err) || n < len(b) && err == nil || given > n {
					t.Fatalf("Write(%d bytes) = %d, %v, and %d are given", len(b), n, err, given)
				}
				if given < n { // for a peer that has closed one write is taken
					if dropped || p.conn.PeerFlags()&cdc.Closed == 0 {
						t.Fatalf("Write(%d bytes) = %d, %v, and %d are given, with flags %v", len(b), n, err, given, p.conn.PeerFlags())
					}
					dropped = true
				}
				written += uint64(given)
			case 4:
				p.sleeps[arg&1][arg>>1&1].Store(uint32(arg >> 2))
			case 5:
				p.conn.SayRead()
				p.conn.Queues()
				p.conn.ReturnPages(func(from, to int) error { t.Fatalf("pages %d to %d given", from, to); return nil })
			case 6:
				p.conn.SetReadDeadline(time.Time{})
				p.conn.SetWriteDeadline(time.Time{})
			}
			if got := p.produced(); got != at(written, capacity) {
				t.Fatalf("producer cursor after %d bytes = %v", written, got)
			}
			said, _, _ := p.consumed()
			if behind := cdc.Diff(said, at(read, capacity), capacity); behind > capacity {
				t.Fatalf("consumer cursor after %d bytes = %v", read, said)
			}
			if r, w := p.conn.Totals(); r != read || w != written {
				t.Fatalf("Totals = %d, %d, want %d, %d", r, w, read, written)
			}
		}
		if unread := p.conn.Close(); unread < 0 || unread > capacity {
			t.Fatalf("Close = %d", unread)
		}
		for i := range large {
			for j, got := range large[i] {
				if outside := j < margin || j >= margin+capacity+cdc.HeaderLen; outside && got != byte(j*7) {
					t.Fatalf("byte %d outside element %d was written", j-margin, i)
				}
			}
		}
		if !bytes.Equal(data, p.element[0][cdc.HeaderLen:]) {
			t.Fatal("our own element was written")
		}
	})
}
