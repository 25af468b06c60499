package rdma

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/gosmc/smc/wire/roce"
)

// TestGuardLarge has numbers that 32 bits do not hold.
func TestGuardLarge(t *testing.T) {
	mem := make([]byte, 100)
	m := &MR{mem: mem}
	var read atomic.Uint64
	g := &Guard{Read: &read}
	read.Store(1<<40*100 + 90)
	g.Written.Store(1<<40*100 + 110)
	m.SetGuard(g)
	m.Place(0, bytes.Repeat([]byte{1}, 100))
	if n, k := bytes.IndexByte(mem, 1), bytes.Count(mem, []byte{1}); n != 10 || k != 80 {
		t.Errorf("%d bytes were placed, from %d; want 80 from 10", k, n)
	}
}

// TestGuardedWrite has a WRITE of several packets that goes over guarded bytes: these stay, the
// rest is written, and the peer is told that all is well.
func TestGuardedWrite(t *testing.T) {
	s := newRTS(t)
	b := bytes.Repeat([]byte{0xa5}, 700)
	first := s.request(roce.WriteFirst, 0, b[:256])
	first.RETH.Length = uint32(len(b))
	clear(s.mr.mem)
	want := bytes.Clone(s.mr.mem)
	copy(want, b)
	clear(want[200:300])
	var read atomic.Uint64
	g := &Guard{Read: &read}
	read.Store(200)
	g.Written.Store(300)
	s.mr.SetGuard(g)
	s.take(first)
	s.take(s.request(roce.WriteMiddle, 1, b[:256]))
	s.take(s.request(roce.WriteLast, 2, b[:188]))
	if !bytes.Equal(s.mr.mem, want) {
		t.Errorf("%d bytes were placed, want 600, all but 200 to 299", bytes.Count(s.mr.mem, b[:1]))
	}
	if s.state != StateRTS || s.msn != 1 {
		t.Errorf("state %v, %d messages", s.state, s.msn)
	}
}

// TestPlaced has the bytes of a WRITE counted when its last packet is placed, in one amount.
func TestPlaced(t *testing.T) {
	s := newRTS(t)
	b := bytes.Repeat([]byte{0xa5}, 256)
	write := func(op roce.Opcode, psn, n, length int) roce.Packet {
		p := s.request(op, psn, b[:n])
		p.RETH.Length = uint32(length)
		return p
	}
	for i, step := range []struct {
		packet roce.Packet
		want   uint64
	}{
		{write(roce.WriteFirst, 0, 256, 700), 0},
		{write(roce.WriteMiddle, 1, 256, 0), 0},
		{write(roce.WriteLast, 2, 188, 0), 700},
		{write(roce.WriteLast, 2, 188, 0), 700}, // again
		{write(roce.WriteOnly, 3, 0, 0), 700},
		{write(roce.WriteOnly, 4, 30, 30), 730},
	} {
		if s.take(step.packet); s.mr.Placed() != step.want {
			t.Errorf("%d bytes after packet %d, want %d", s.mr.Placed(), i, step.want)
		}
	}
}

// BenchmarkPlace places one packet after the other into a ring, as they come.
func BenchmarkPlace(b *testing.B) {
	for _, guarded := range []bool{false, true} {
		b.Run(fmt.Sprint("guarded=", guarded), func(b *testing.B) {
			var read atomic.Uint64
			m := &MR{mem: make([]byte, 64<<10)}
			g := &Guard{Read: &read}
			if guarded {
				m.SetGuard(g)
			}
			packet := make([]byte, 1024)
			for n := uint64(0); b.Loop(); n += 1024 {
				m.Place(n%(64<<10), packet)
				g.Written.Store(n + 1024)
				read.Store(n)
			}
		})
	}
}
