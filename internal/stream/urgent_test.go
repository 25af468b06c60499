package stream

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

const bothUrgent = cdc.UrgentPending | cdc.UrgentPresent

// producedUrgent is the producer half that the Conn has published.
func (p *puppet) producedUrgent() (cdc.Cursor, cdc.ProducerFlags) {
	return cdc.UnpackUrgent(word(p.element[1], cdc.ProducerOffset).Load())
}

// produceUrgent stores the peer's producer cursor with flags.
func (p *puppet) produceUrgent(total uint64, flags cdc.ProducerFlags) {
	capacity := len(p.element[0]) - cdc.HeaderLen
	word(p.element[0], cdc.ProducerOffset).Store(cdc.PackUrgent(at(total, capacity), flags))
	p.conn.Wake()
}

// place writes bytes of a stream into our element, as the peer does, from place total on.
func (p *puppet) place(total uint64, b []byte) {
	data := p.element[0][cdc.HeaderLen:]
	for i := range b {
		data[(total+uint64(i))%uint64(len(data))] = b[i]
	}
}

// wantPut checks the published cursor and flags of a stream of total bytes in a ring of a size.
func (p *puppet) wantPut(t *testing.T, total uint64, capacity int, want cdc.ProducerFlags) {
	t.Helper()
	cursor, flags := p.producedUrgent()
	if joined != byMemory && flags == cdc.UrgentPresent { // after a message that said no more than it had to
		flags = bothUrgent
	}
	if cursor != at(total, capacity) || flags != want {
		t.Errorf("published %v with %v, want %v with %v", cursor, flags, at(total, capacity), want)
	}
}

// wantRead reads at most n bytes and checks them.
func wantRead(t *testing.T, c *Conn, n int, want string) {
	t.Helper()
	b := make([]byte, n)
	if got, err := c.Read(b); err != nil || string(b[:got]) != want {
		t.Errorf("Read = %d bytes %.40q, %v, want %d: %.40q", got, b[:got], err, len(want), want)
	}
}

func wantUrgent(t *testing.T, c *Conn, want byte) {
	t.Helper()
	if got, err := c.ReadUrgent(); err != nil || got != want {
		t.Errorf("ReadUrgent = %q, %v, want %q", got, err, want)
	}
}

func wantMark(t *testing.T, c *Conn, want bool) {
	t.Helper()
	if got, err := c.AtUrgentMark(); err != nil || got != want {
		t.Errorf("AtUrgentMark = %v, %v, want %v", got, err, want)
	}
}

// TestUrgentScenario5 is RFC 7609 §4.7.5, window unconstrained: 500 urgent bytes and then 1000 others, from the places of Figure 20.
func TestUrgentScenario5(t *testing.T) {
	t.Run("Sender", func(t *testing.T) {
		watchdog(t)
		const capacity = 10_000
		p := newPuppet(100, capacity)
		if _, err := p.conn.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		p.consume(at(1000, capacity), 0, 0)
		if n, err := p.conn.WriteUrgent(make([]byte, 500)); n != 500 || err != nil {
			t.Fatalf("WriteUrgent = %d, %v", n, err)
		}
		p.wantPut(t, 1500, capacity, bothUrgent)
		done := start(p.conn.Write, make([]byte, 1000))
		p.asleep(t, 1)
		p.wantPut(t, 1500, capacity, bothUrgent) // nothing more, though there is room
		p.consume(at(1499, capacity), 0, 0)
		p.conn.Wake()
		p.wantPut(t, 1500, capacity, bothUrgent)
		p.consume(at(1500, capacity), 0, 0)
		p.conn.Wake()
		if r := <-done; r.n != 1000 || r.err != nil {
			t.Fatalf("Write = %d, %v", r.n, r.err)
		}
		p.wantPut(t, 2500, capacity, 0)
	})
	t.Run("Receiver", func(t *testing.T) {
		watchdog(t)
		const capacity = 10_000
		p := newPuppet(capacity, 100)
		p.place(0, bytes.Repeat([]byte{'.'}, 1000))
		p.produceUrgent(1000, 0)
		wantRead(t, p.conn, 2000, string(bytes.Repeat([]byte{'.'}, 1000)))
		p.place(1000, append(bytes.Repeat([]byte{'a'}, 499), '!'))
		p.produceUrgent(1500, bothUrgent)
		if err := p.conn.WaitUrgent(); err != nil {
			t.Errorf("WaitUrgent = %v", err)
		}
		wantUrgent(t, p.conn, '!')
		wantRead(t, p.conn, 10_000, string(bytes.Repeat([]byte{'a'}, 499)))
		if said, _, _ := p.consumed(); said != at(1500, capacity) {
			t.Errorf("the peer was told %v, want 1500: it waits for that, whatever the window is", said)
		}
		p.place(1500, bytes.Repeat([]byte{'b'}, 1000))
		p.produceUrgent(2500, 0)
		wantRead(t, p.conn, 10_000, string(bytes.Repeat([]byte{'b'}, 1000)))
	})
}

// TestUrgentScenario6 is RFC 7609 §4.7.6, window closed, with the places of Figure 21.
func TestUrgentScenario6(t *testing.T) {
	t.Run("Sender", func(t *testing.T) {
		watchdog(t)
		const capacity = 10_000
		p := newPuppet(100, capacity)
		p.conn.Write(make([]byte, 1000))
		p.consume(at(1000, capacity), 0, 0)
		for range 5 { // also through a send ring that is smaller
			p.conn.Write(make([]byte, capacity/5))
		}
		done := start(p.conn.WriteUrgent, make([]byte, 500))
		p.asleep(t, 1)
		p.wantPut(t, 1000+capacity, capacity, cdc.UrgentPending) // 1: it is announced
		if _, prod, _ := p.consumed(); prod&cdc.WriterBlocked == 0 {
			t.Errorf("flags %v, want also that the writer is blocked", prod)
		}
		p.consume(at(1000+capacity, capacity), 0, 0) // 2: a full window
		p.conn.Wake()
		if r := <-done; r.n != 500 || r.err != nil { // 3, 4
			t.Fatalf("WriteUrgent = %d, %v", r.n, r.err)
		}
		p.wantPut(t, 1500+capacity, capacity, bothUrgent)
		if _, prod, _ := p.consumed(); prod&cdc.WriterBlocked != 0 {
			t.Errorf("flags %v, want no blocked writer", prod)
		}
		next := start(p.conn.Write, make([]byte, 1000))
		p.asleep(t, 2)
		p.wantPut(t, 1500+capacity, capacity, bothUrgent)
		p.consume(at(1500+capacity, capacity), 0, 0) // 5
		p.conn.Wake()
		if r := <-next; r.n != 1000 || r.err != nil { // 6, 7
			t.Fatalf("Write = %d, %v", r.n, r.err)
		}
		p.wantPut(t, 2500+capacity, capacity, 0)
	})
	t.Run("Receiver", func(t *testing.T) {
		watchdog(t)
		const capacity = 10_000
		p := newPuppet(capacity, 100)
		p.place(0, bytes.Repeat([]byte{'.'}, 1000))
		p.produceUrgent(1000, 0)
		wantRead(t, p.conn, 2000, string(bytes.Repeat([]byte{'.'}, 1000)))
		p.conn.SayRead() // the window is a full one
		full := bytes.Repeat([]byte{'a'}, capacity)
		p.place(1000, full)
		p.produceUrgent(1000+capacity, 0)
		waited := start(func([]byte) (int, error) { return 0, p.conn.WaitUrgent() }, nil)
		p.produceUrgent(1000+capacity, cdc.UrgentPending)
		if r := <-waited; r.err != nil { // before there is room for it
			t.Errorf("WaitUrgent = %v", r.err)
		}
		wantMark(t, p.conn, false)
		wantRead(t, p.conn, capacity, string(full))
		p.place(1000+capacity, append(bytes.Repeat([]byte{'b'}, 499), '!'))
		p.produceUrgent(1500+capacity, bothUrgent)
		wantUrgent(t, p.conn, '!')
		wantRead(t, p.conn, capacity, string(bytes.Repeat([]byte{'b'}, 499)))
		if said, _, _ := p.consumed(); said != at(1500+capacity, capacity) {
			t.Errorf("the peer was told %v, want %v", said, at(1500+capacity, capacity))
		}
		p.conn.urgent.mu.Lock()
		news := p.conn.urgent.news
		p.conn.urgent.mu.Unlock()
		if news {
			t.Error("one announcement is told twice")
		}
	})
}

// TestUrgentMark checks that reads stop before the urgent byte, and that the mark stays until the next one.
func TestUrgentMark(t *testing.T) {
	watchdog(t)
	a, b := newPair(t, 1000, 0)
	a.WriteUrgent([]byte("abcU"))
	wantMark(t, b, false)
	wantRead(t, b, 2, "ab")
	wantMark(t, b, false)
	wantRead(t, b, 10, "c")
	wantMark(t, b, true)
	a.Write([]byte("def"))
	wantMark(t, b, true)
	wantUrgent(t, b, 'U')
	wantMark(t, b, true)
	wantRead(t, b, 10, "def")
	wantMark(t, b, false)
	if read, written := b.r.total.Load(), a.w.total.Load(); read != written {
		t.Errorf("read %d of %d bytes", read, written)
	}
}

// TestUrgentUnread checks that an urgent byte is there until the next one, and keeps nobody from reading on.
func TestUrgentUnread(t *testing.T) {
	watchdog(t)
	a, b := newPair(t, 1000, 0)
	a.WriteUrgent([]byte("U"))
	wantMark(t, b, true)
	a.Write([]byte("x"))
	wantRead(t, b, 10, "x")
	wantUrgent(t, b, 'U')
	a.WriteUrgent([]byte("V"))
	wantMark(t, b, true)
	a.WriteUrgent([]byte("W"))
	wantUrgent(t, b, 'W')
}

// TestUrgentInline checks that urgent bytes stay in the stream where that is asked for, and that reads stop there.
func TestUrgentInline(t *testing.T) {
	watchdog(t)
	a, b := newPair(t, 10_000, 0)
	if err := b.SetUrgentInline(true); err != nil {
		t.Fatal(err)
	}
	a.WriteUrgent([]byte("abU"))
	if _, err := b.ReadUrgent(); err != syscall.EINVAL {
		t.Errorf("ReadUrgent = %v, want EINVAL", err)
	}
	if err := b.WaitUrgent(); err != nil {
		t.Errorf("WaitUrgent = %v", err)
	}
	wantRead(t, b, 10, "ab")
	wantMark(t, b, true)
	wantRead(t, b, 10, "U")
	wantMark(t, b, false)
	if n, err := a.Write([]byte("cd")); n != 2 || err != nil { // it knows that the byte was read
		t.Errorf("Write = %d, %v", n, err)
	}
	wantRead(t, b, 10, "cd")
}

// TestUrgentWrap has the urgent byte at every place of the ring, also the last one.
func TestUrgentWrap(t *testing.T) {
	watchdog(t)
	const capacity = 10
	a, b := newPair(t, capacity, 0)
	for i := range 5 * capacity {
		data := []byte("....")[:i%4]
		value := byte('A' + i)
		if n, err := a.WriteUrgent(append(slices.Clone(data), value)); n != len(data)+1 || err != nil {
			t.Fatalf("round %d: WriteUrgent = %d, %v", i, n, err)
		}
		wantUrgent(t, b, value)
		if len(data) > 0 {
			wantRead(t, b, capacity, string(data))
		}
	}
}

// TestUrgentLong has urgent data that is longer than the peer's buffer, and is announced before it fits.
func TestUrgentLong(t *testing.T) {
	watchdog(t)
	const capacity = 1000
	a, b := newPair(t, capacity, 0)
	data := make([]byte, 50*capacity+1)
	fillPattern(data, 0)
	data[50*capacity] = '!'
	done := start(a.WriteUrgent, data)
	if err := b.WaitUrgent(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 50*capacity)
	if _, err := io.ReadFull(reader{b}, got); err != nil || checkPattern(got, 0) != nil {
		t.Fatalf("Read: %v, %v", err, checkPattern(got, 0))
	}
	wantUrgent(t, b, '!')
	if r := <-done; r.n != len(data) || r.err != nil {
		t.Fatalf("WriteUrgent = %d, %v", r.n, r.err)
	}
}

type reader struct{ *Conn }

func (r reader) Read(b []byte) (int, error) { return r.Conn.Read(b) }

// TestUrgentInARow has urgent bytes follow each other: each waits until the one before has arrived.
func TestUrgentInARow(t *testing.T) {
	watchdog(t)
	a, b := newPair(t, 1000, 0)
	const count = 200
	taken := make(chan byte)
	go func() {
		defer close(taken)
		for range count {
			v, err := b.ReadUrgent()
			if err != nil {
				t.Errorf("ReadUrgent: %v", err)
				return
			}
			taken <- v
		}
	}()
	for i := range count {
		if _, err := a.WriteUrgent([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if got := <-taken; got != byte(i) {
			t.Fatalf("urgent byte %d is %d", i, got)
		}
	}
}

// TestUrgentTakenBack checks that an announced byte that does not come is taken back.
func TestUrgentTakenBack(t *testing.T) {
	watchdog(t)
	const capacity = 300
	p := newPuppet(100, capacity)
	done := start(p.conn.WriteUrgent, make([]byte, capacity+100))
	p.asleep(t, 1)
	put, flags := p.producedUrgent()
	if flags != cdc.UrgentPending {
		t.Errorf("flags %v while it waits for room", flags)
	}
	p.conn.SetWriteDeadline(time.Unix(1, 0))
	if r := <-done; r.err != os.ErrDeadlineExceeded || uint32(r.n) != put.Count && put.Count != 0 {
		t.Errorf("WriteUrgent = %d, %v", r.n, r.err)
	}
	if again, flags := p.producedUrgent(); again != put || flags != 0 {
		t.Errorf("published %v with %v, want %v without flags", again, flags, put)
	}

	q := newPuppet(100, capacity)
	q.produceUrgent(0, cdc.UrgentPending)
	wantMark(t, q.conn, false) // looks
	q.produceUrgent(0, 0)
	wantMark(t, q.conn, false)
	q.conn.SetReadDeadline(time.Unix(1, 0))
	if err := q.conn.WaitUrgent(); err != os.ErrDeadlineExceeded {
		t.Errorf("WaitUrgent = %v, want that there is nothing", err)
	}
}

// TestReadUrgentAlone has nobody read while the byte comes: it rings.
func TestReadUrgentAlone(t *testing.T) {
	watchdog(t)
	a, b := newPair(t, 1000, 0)
	for i := range 20 {
		got := make(chan byte)
		go func() {
			v, err := b.ReadUrgent()
			if err != nil {
				t.Errorf("ReadUrgent: %v", err)
			}
			got <- v
		}()
		if i%2 == 0 {
			eventually(t, "it waits", func() bool {
				b.urgent.mu.Lock()
				defer b.urgent.mu.Unlock()
				return b.urgent.changed != nil
			})
		}
		a.WriteUrgent([]byte{byte(i)})
		if v := <-got; v != byte(i) {
			t.Errorf("ReadUrgent = %d, want %d", v, i)
		}
	}
}

// TestReadUrgentBesideRead has a Read wait all the time, which must neither end nor return the byte.
func TestReadUrgentBesideRead(t *testing.T) {
	for _, spin := range []time.Duration{0, DefaultSpin} {
		watchdog(t)
		a, b := newPair(t, 1000, spin)
		buf := make([]byte, 10)
		read := start(b.Read, buf)
		for i := range 20 {
			a.WriteUrgent([]byte{byte(i)})
			wantUrgent(t, b, byte(i))
		}
		a.Write([]byte("x"))
		if r := <-read; r.n != 1 || r.err != nil || buf[0] != 'x' {
			t.Errorf("Read = %d, %v, %q", r.n, r.err, buf[:1])
		}
	}
}

// TestUrgentTransfer has random writes, some of them urgent, random reads, and a goroutine that
// takes the urgent bytes.
func TestUrgentTransfer(t *testing.T) {
	watchdog(t)
	random := newRandom(t)
	for range 20 {
		capacity := 1 + random.IntN(3000)
		a, b := newPair(t, capacity, []time.Duration{0, DefaultSpin}[random.IntN(2)])
		const total = 100_000
		seedA, seedB := random.Uint64(), random.Uint64()
		taken := make(chan byte, 1)
		var working sync.WaitGroup
		working.Go(func() {
			random := rand.New(rand.NewPCG(seedA, 1))
			for sent := 0; sent < total; {
				n := min(random.IntN(2*capacity+100), total-sent)
				data := make([]byte, n, n+1)
				fillPattern(data, uint64(sent))
				write := a.Write
				urgent := random.IntN(3) == 0
				if urgent {
					data, write = append(data, byte(sent)), a.WriteUrgent
				}
				if m, err := write(data); m != len(data) || err != nil {
					t.Errorf("Write(%d bytes, urgent: %v) = %d, %v", len(data), urgent, m, err)
					return
				}
				if urgent && <-taken != byte(sent) {
					t.Errorf("after %d bytes another urgent byte", sent)
				}
				sent += n
			}
			a.CloseWrite()
			a.SendFlags(cdc.DoneWriting)
		})
		working.Go(func() {
			for {
				v, err := b.ReadUrgent()
				if err == io.EOF {
					return
				}
				if err != nil {
					t.Errorf("ReadUrgent: %v", err)
					return
				}
				taken <- v
			}
		})
		working.Go(func() {
			random := rand.New(rand.NewPCG(seedB, 2))
			for got := 0; ; {
				buf := make([]byte, 1+random.IntN(2*capacity))
				n, err := b.Read(buf)
				if err == nil {
					err = checkPattern(buf[:n], uint64(got))
				}
				got += n
				if err == io.EOF && got == total {
					return
				}
				if err != nil {
					t.Errorf("after %d bytes: %v", got, err)
					return
				}
			}
		})
		working.Wait()
		if t.Failed() {
			return
		}
	}
}
