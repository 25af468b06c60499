package link

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/roce"
)

const bothUrgent = cdc.UrgentPending | cdc.UrgentPresent

// A tap hears the CDC messages that a device gets.
type tap struct {
	mu    sync.Mutex
	heard []cdc.Message
	shut  bool // nothing arrives
}

func (p *tap) config() *rdma.Config {
	return &rdma.Config{Drop: func(b []byte) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		if h, pad, err := roce.ParseBTH(b); err == nil && h.Opcode == roce.SendOnly {
			end := len(b) - roce.ICRCLen - pad
			if m, err := cdc.ParseMessage(b[roce.BTHLen:end]); err == nil && !slices.Contains(p.heard, m) { // else it was sent again
				p.heard = append(p.heard, m)
			}
		}
		return p.shut
	}}
}

// said returns the messages so far, as "producer flags".
func (p *tap) said() (list []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.heard {
		list = append(list, fmt.Sprintf("%d %v", m.Producer.Count, m.ProducerFlags&^cdc.WriterBlocked))
	}
	return list
}

func (p *tap) set(shut bool) {
	p.mu.Lock()
	p.shut = shut
	p.mu.Unlock()
}

// tapped joins two sides, with a tap on the packets of the first one.
func tapped(t testing.TB) (*tap, sides) {
	t.Helper()
	p := &tap{}
	return p, joinSides(t, openDevice(t, randomLoopback(), nil), openDevice(t, randomLoopback(), p.config()))
}

func wantUrgent(t *testing.T, e *end, want byte) {
	t.Helper()
	if got, err := e.ReadUrgent(); err != nil || got != want {
		t.Errorf("ReadUrgent = %q, %v, want %q", got, err, want)
	}
}

func wantRead(t *testing.T, e *end, want string) {
	t.Helper()
	b := make([]byte, 100)
	if n, err := e.Read(b); err != nil || string(b[:n]) != want {
		t.Errorf("Read = %q, %v, want %q", b[:n], err, want)
	}
}

// TestUrgentMessages checks the messages that tell of urgent data: the one with its last byte,
// once, those before it that some will come, and no other one, as a Linux peer takes each for news.
func TestUrgentMessages(t *testing.T) {
	watchdog(t)
	p, s := tapped(t)
	a, b := s.connect(t, settings{})
	a.Write([]byte("ab"))
	wantRead(t, b, "ab")
	a.WriteUrgent([]byte("cdU"))
	wantUrgent(t, b, 'U')
	wantRead(t, b, "cd")
	b.Write([]byte("x"))
	wantRead(t, a, "x")
	a.carrier.Consume(cdc.Cursor{}, 0, 0) // as for a window update
	a.Write([]byte("e"))
	wantRead(t, b, "e")
	a.WriteUrgent([]byte("V"))
	wantUrgent(t, b, 'V')
	size := wire.SizeCode(0).Bytes()
	a.Write(make([]byte, size-7))
	io.ReadFull(b, make([]byte, size-7))
	want := []string{"2 0", "5 UrgentPending|UrgentPresent", "5 0", "6 0", "7 UrgentPending|UrgentPresent"}
	eventually(t, "all messages", func() bool { return len(p.said()) > len(want) })
	var got []string
	for _, m := range p.said() {
		if len(got) < len(want) && (got == nil || m != got[len(got)-1]) {
			got = append(got, m)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("said %q, want %q", got, want)
	}
}

// TestUrgentFlags has the messages that tell of an urgent byte which was put behind others. A
// message that does not tell of the byte itself yet says that some will come (RFC 7609 p.128). No
// message after the byte says anything.
func TestUrgentFlags(t *testing.T) {
	o := outOfBand{state: oobPut, end: 100}
	for _, m := range []struct {
		posted uint64
		size   uint32
		want   cdc.ProducerFlags
	}{
		{60, 60, cdc.UrgentPending},
		{60, 0, cdc.UrgentPending},
		{100, 40, bothUrgent},
		{100, 0, 0},
	} {
		if got := o.flags(m.posted, m.size); got != m.want {
			t.Errorf("%d bytes up to %d, where the urgent one ends at %d: %v, want %v", m.size, m.posted, o.end, got, m.want)
		}
	}
}

// TestUrgentWindow has the peer's buffer full: the coming byte is announced, at once and although a
// message is on its way.
func TestUrgentWindow(t *testing.T) {
	watchdog(t)
	p, s := tapped(t)
	a, b := s.connect(t, settings{})
	size := wire.SizeCode(0).Bytes()
	a.Write(make([]byte, size))
	done := make(chan error)
	go func() { _, err := a.WriteUrgent([]byte("cdU")); done <- err }()
	if err := b.WaitUrgent(); err != nil {
		t.Fatal(err)
	}
	if at, err := b.AtUrgentMark(); at || err != nil {
		t.Errorf("AtUrgentMark = %v, %v", at, err)
	}
	if said, want := p.said(), fmt.Sprintf("%d UrgentPending", size-probeBytes); said[len(said)-1] != want {
		t.Errorf("said %q, want %q at last", said, want)
	}
	if n, err := io.ReadFull(b, make([]byte, size+2)); err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	wantUrgent(t, b, 'U')
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestUrgentTransfer has urgent bytes among others, through connections that share a link, and with eyecatchers.
func TestUrgentTransfer(t *testing.T) {
	for _, set := range []settings{{}, {eyecatcher: [2]bool{true, true}}, {code: sizes(0, 3), sendBuffer: 16 << 10}} {
		watchdog(t)
		s := newSides(t, nil)
		var all sync.WaitGroup
		for i := range 4 {
			a, b := s.connect(t, set)
			all.Go(func() { exchangeUrgent(t, a, b, uint64(i)) })
		}
		all.Wait()
	}
}

// exchangeUrgent sends bytes from a to b, some of them urgent, and checks that each arrives once and at its place.
func exchangeUrgent(t *testing.T, a, b *end, seed uint64) {
	const total = 300_000
	taken := make(chan byte, 1)
	var all sync.WaitGroup
	all.Go(func() {
		r := rand.New(rand.NewPCG(seed, 5))
		for sent := 0; sent < total; {
			n := min(r.IntN(1<<r.IntN(17)), total-sent)
			data := make([]byte, n, n+1)
			for i := range data {
				data[i] = byte((sent + i) * 7)
			}
			write, urgent := a.Write, r.IntN(2) == 0
			if urgent {
				data, write = append(data, byte(sent)), a.WriteUrgent
			}
			if m, err := write(data); m != len(data) || err != nil {
				t.Errorf("write of %d bytes, urgent %v: %d, %v", len(data), urgent, m, err)
				return
			}
			if urgent {
				if got := <-taken; got != byte(sent) {
					t.Errorf("after %d bytes the urgent one is %d", sent, got)
				}
			}
			sent += n
		}
		a.CloseWrite()
		a.SendFlags(cdc.DoneWriting)
	})
	all.Go(func() {
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
	got, err := io.ReadAll(b)
	want := make([]byte, total)
	for i := range want {
		want[i] = byte(i * 7)
	}
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("read %d bytes, %v, as they were written: %v", len(got), err, bytes.Equal(got, want))
	}
	all.Wait()
}

// TestUrgentBeforeAttach has the peer speak before we know where it is.
func TestUrgentBeforeAttach(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	ends := [2]*end{s[0].prepare(t, 0, 0), s[1].prepare(t, 0, 0)}
	if err := ends[0].carrier.Attach(s[0].link, ends[1].as(t, false), false); err != nil {
		t.Fatal(err)
	}
	ends[0].open(0)
	ends[0].WriteUrgent([]byte("abU"))
	ends[0].carrier.Consume(cdc.Cursor{}, 0, 0)
	eventually(t, "both messages", func() bool { return s[1].link.Stats().ReceivedCDC == 2 })
	if err := ends[1].carrier.Attach(s[1].link, ends[0].as(t, false), false); err != nil {
		t.Fatal(err)
	}
	ends[1].open(0)
	wantUrgent(t, ends[1], 'U')
	wantRead(t, ends[1], "ab")
}

// TestMoveUrgent has a link fail with urgent data on its way: all of it comes once, whether or not the message had arrived, and
// where it may have, is said again without UrgentPending, for which Linux would forget the byte.
func TestMoveUrgent(t *testing.T) {
	for _, arrived := range []bool{false, true} {
		watchdog(t)
		p := &tap{}
		var forth, back tap
		w := &twins{t: t, cut: nil, done: make(chan struct{})}
		w.sides = joinSides(t, openDevice(t, randomLoopback(), back.config()), openDevice(t, randomLoopback(), forth.config()))
		w.links = [2][]*Link{{w.sides[0].link}, {w.sides[1].link}}
		w.addLink(openDevice(t, randomLoopback(), nil), openDevice(t, randomLoopback(), p.config()))
		for i := range w.sides {
			w.all.Go(func() { w.own(i) })
		}
		t.Cleanup(func() { close(w.done); w.all.Wait() })

		a, b := w.connect(settings{})
		a.Write([]byte("ab"))
		wantRead(t, b, "ab")
		eventually(t, "the completion", func() bool { return a.carrier.Arrived() == 2 })
		if arrived {
			back.set(true) // its acknowledgement does not come
		} else {
			forth.set(true)
		}
		a.WriteUrgent([]byte("cdU"))
		if arrived {
			if err := b.WaitUrgent(); err != nil {
				t.Fatal(err)
			}
		}
		w.links[0][0].Fail(io.ErrClosedPipe)
		wantUrgent(t, b, 'U')
		wantRead(t, b, "cd")
		a.WriteUrgent([]byte("efV"))
		wantUrgent(t, b, 'V')
		wantRead(t, b, "ef")
		b.SetReadDeadline(time.Now())
		if v, err := b.ReadUrgent(); err == nil {
			t.Errorf("arrived %v: a byte more, %q", arrived, v)
		}
		said := p.said()
		if i := slices.Index(said, "5 UrgentPresent"); i < 0 || slices.Contains(said, "5 "+bothUrgent.String()) {
			t.Errorf("arrived %v: said %q, want 5 UrgentPresent", arrived, said)
		}
		if !slices.Contains(said, "8 "+bothUrgent.String()) {
			t.Errorf("arrived %v: said %q, want both flags for the next one", arrived, said)
		}
	}
}

// TestMoveUrgentPending has a link fail after urgent data was announced, and before there is room for it.
func TestMoveUrgentPending(t *testing.T) {
	watchdog(t)
	w := newTwins(t, 2)
	a, b := w.connect(settings{})
	size := wire.SizeCode(0).Bytes()
	a.Write(make([]byte, size))
	done := make(chan error)
	go func() { _, err := a.WriteUrgent([]byte("cdU")); done <- err }()
	if err := b.WaitUrgent(); err != nil {
		t.Fatal(err)
	}
	w.links[0][0].Fail(io.ErrClosedPipe)
	if n, err := io.ReadFull(b, make([]byte, size+2)); err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	wantUrgent(t, b, 'U')
	if err := <-done; err != nil {
		t.Error(err)
	}
	go a.WriteUrgent([]byte("ghV"))
	wantUrgent(t, b, 'V')
}

// TestMoveUrgentTransfer has links fail in the middle of a transfer with urgent bytes.
func TestMoveUrgentTransfer(t *testing.T) {
	watchdog(t)
	for round := range 4 {
		w := newTwins(t, 3)
		var ends []*end
		var all sync.WaitGroup
		for i := range 4 {
			a, b := w.connect(settings{})
			ends = append(ends, a)
			all.Go(func() { exchangeUrgent(t, a, b, uint64(round*10+i)) })
		}
		for k := range 2 {
			goal := uint64(rand.IntN(600_000) * (k + 1))
			eventually(t, "some of it", func() (enough bool) {
				var n uint64
				for _, e := range ends {
					_, sent := e.Totals()
					n += sent
				}
				return n >= goal
			})
			w.links[rand.IntN(2)][k].Fail(io.ErrClosedPipe)
		}
		all.Wait()
	}
}

// TestUrgentLies has urgent cursors that no correct peer sends: the connection ends, with a reason, and the link does not.
func TestUrgentLies(t *testing.T) {
	watchdog(t)
	size := uint32(wire.SizeCode(0).Bytes())
	for _, tt := range []struct {
		name   string
		cursor cdc.Cursor
		want   error
	}{
		{"outside the element", cdc.Cursor{Count: size}, cdc.ErrCount},
		{"far outside", cdc.Cursor{Count: 1<<32 - 1}, cdc.ErrCount},
		{"from the future", cdc.Cursor{Wrap: 1, Count: 6}, cdc.ErrAdvance},
		{"backwards", cdc.Cursor{Count: 4}, cdc.ErrAdvance},
	} {
		l, _ := newLiar(t, settings{})
		l.say(t, cdc.Message{Seq: 10, Producer: cdc.Cursor{Count: 5}})
		io.ReadFull(l.Conn, make([]byte, 5))
		l.say(t, cdc.Message{Seq: 11, Producer: tt.cursor, ProducerFlags: bothUrgent})
		_, err := l.ReadUrgent()
		if broken, ok := errors.AsType[*stream.PeerError](err); !ok || broken.Field != "urgent cursor" || !errors.Is(err, tt.want) {
			t.Errorf("%s: ReadUrgent = %v, want a broken urgent cursor: %v", tt.name, err, tt.want)
		}
		if l.side.link.Err() != nil {
			t.Errorf("%s: the link failed for %v", tt.name, l.side.link.Err())
		}
	}
}
