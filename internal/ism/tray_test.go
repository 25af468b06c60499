package ism

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"unsafe"
)

// The layout is the one in docs/shared-memory.md.
func TestTrayLayout(t *testing.T) {
	var s bellSegment
	for _, tt := range []struct {
		name      string
		got, want uintptr
	}{
		{"put", unsafe.Offsetof(s.tray) + unsafe.Offsetof(s.tray.put), 320},
		{"sent", unsafe.Offsetof(s.tray) + unsafe.Offsetof(s.tray.sent), 324},
		{"taken", unsafe.Offsetof(s.tray) + unsafe.Offsetof(s.tray.taken), 448},
		{"letters", unsafe.Offsetof(s.tray) + unsafe.Offsetof(s.tray.letters), 512},
		{"size of all letters", unsafe.Sizeof(s.tray.letters), 2048},
		{"end", unsafe.Offsetof(s.tray) + unsafe.Sizeof(s.tray), 4096},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}

// Poll delivers the letters, all of them and in order, though they fit into the tray only in part.
func TestLeave(t *testing.T) {
	x := newPair(t)
	var want []string
	for round := range 200 {
		for i := range round % 50 {
			s := fmt.Sprintf("letter %d of round %d", i, round)
			if err := x.pa.Leave([]byte(s)); err != nil {
				t.Fatalf("Leave = %v", err)
			}
			want = append(want, s)
		}
		x.b.Poll()
		got := x.rb.received()
		slices.Sort(got) // those that did not fit may overtake the others
		sorted := slices.Sorted(slices.Values(want))
		if !slices.Equal(got, sorted) {
			t.Fatalf("round %d: %d letters delivered, want %d", round, len(got), len(want))
		}
	}
}

// A letter wakes nobody, is there before a signal that was sent after it, and of any length that a
// signal may have.
func TestLeaveBeforeSend(t *testing.T) {
	x := newPair(t)
	for i := range 100 {
		letter, signal := fmt.Sprintf("letter %d", i), fmt.Sprintf("signal %d", i)
		if err := x.pa.Leave([]byte(letter)); err != nil {
			t.Fatalf("Leave = %v", err)
		}
		if got := len(x.rb.received()); got != 2*i {
			t.Fatalf("%d delivered before anything was sent, want %d", got, 2*i)
		}
		if err := x.pa.Send([]byte(signal)); err != nil {
			t.Fatalf("Send = %v", err)
		}
		if got := x.rb.next(t, 2*i); got != letter {
			t.Fatalf("delivered %q, want %q first", got, letter)
		}
		if got := x.rb.next(t, 2*i+1); got != signal {
			t.Fatalf("delivered %q, want %q", got, signal)
		}
	}
	for _, n := range []int{0, maxLetter, maxLetter + 1, MaxSignal} {
		before := len(x.rb.received())
		if err := x.pa.Leave(make([]byte, n)); err != nil {
			t.Fatalf("Leave of %d bytes = %v", n, err)
		}
		x.b.Poll()
		if got := x.rb.received(); len(got) != before+1 || len(got[before]) != n {
			t.Errorf("%d letters after one of %d bytes, want %d, the last as long", len(got), n, before+1)
		}
	}
	if err := x.pa.Leave(make([]byte, MaxSignal+1)); !errors.Is(err, ErrSize) {
		t.Errorf("Leave of %d bytes = %v, want ErrSize", MaxSignal+1, err)
	}
	x.b.Close()
	await(t, "PeerGone", x.ra.gone)
	if err := x.pa.Leave(nil); !errors.Is(err, ErrPeerGone) {
		t.Errorf("Leave for a peer that is gone = %v, want ErrPeerGone", err)
	}
}

// Poll makes no system call where nothing was sent by socket, and does not believe numbers.
func TestPollCounts(t *testing.T) {
	x := newPair(t)
	tray := &x.pb.bell.seg.tray
	for _, lie := range []uint32{1, 1 << 31, ^uint32(0)} {
		tray.sent.Add(lie)
		x.b.Poll()
		if err := x.pb.Err(); err != nil {
			t.Fatalf("after a lie of %d: %v", lie, err)
		}
		before := len(x.rb.received())
		if err := x.pa.Send([]byte("still here")); err != nil {
			t.Fatal(err)
		}
		x.b.Poll()
		x.rb.next(t, before)
	}
}

// A peer that puts anything into our tray loses its peering, or delivers nonsense; nothing else.
func TestHostileTray(t *testing.T) {
	for _, tt := range []struct {
		name string
		put  func(*tray)
		want error // nil: the peering stands
	}{
		{"more than fits", func(y *tray) { y.put.Store(trayLetters + 1) }, ErrProtocol},
		{"goes back", func(y *tray) { y.put.Store(^uint32(0)) }, ErrProtocol},
		{"full of nothing", func(y *tray) { y.put.Store(trayLetters) }, nil},
		{"longer than a letter", func(y *tray) { y.letters[0][0] = maxLetter + 1; y.put.Store(1) }, ErrProtocol},
		{"taken is changed", func(y *tray) { y.taken.Store(12345); y.put.Store(1) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newPair(t)
			tt.put(&x.pb.bell.seg.tray)
			x.b.Poll()
			if err := x.pb.Err(); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Errorf("Err = %v, want %v", err, tt.want)
			}
		})
	}
}

// A peer that does not know of trays gets everything by socket, and need not count.
func TestNoTray(t *testing.T) {
	d, r, p, s := newVictim(t) // its Hello has no options
	if p.trays {
		t.Fatal("a tray for a peer that has none")
	}
	if err := p.Leave([]byte("by socket")); err != nil {
		t.Fatal(err)
	}
	if m, err := s.recv(); err != nil || m.kind != kindSignal || string(m.payload) != "by socket" {
		t.Errorf("received %+v, %v; want the signal", m, err)
	}
	s.sendMessage(message{kind: kindSignal, payload: []byte("uncounted")})
	d.Poll()
	if got := r.received(); len(got) != 1 || got[0] != "uncounted" {
		t.Errorf("delivered %q, want the one that was sent", got)
	}
}
