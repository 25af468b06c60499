package dissect

import (
	"testing"

	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/roce"
)

// bulk returns a tracker that has seen a first contact, and the packets of one round of the buffer of
// 16 KiB, with everything that belongs to it: WRITEs of 1024 bytes, CDC messages both ways,
// acknowledgements.
func bulk(tb testing.TB) (*Tracker, []Packet) {
	s := dissecttest.NewScript()
	s.Handshake()
	before := len(s.Packets)
	ack := func(d dissecttest.Direction) {
		s.RoCE(d, 0, roce.Packet{
			BTH: roce.BTH{Opcode: roce.Acknowledge, PSN: s.Links[0].PSN[d.Reverse()].Add(-1)}, AETH: roce.AETH{Syndrome: roce.AckUnlimited},
		})
	}
	const size = 16384
	for i := range 8 {
		s.Write(c2s, i*2048, 2048)
		next := cdc.Cursor{Count: uint32(i * 2048)}.Advance(2048, size)
		s.CDC(c2s, func(m *cdc.Message) { m.Producer = next })
		ack(s2c)
		s.CDC(s2c, func(m *cdc.Message) { m.Consumer = next })
		ack(c2s)
	}
	t := New(Options{})
	for _, p := range s.Packets[:before] {
		t.Packet(p, func(*Event) {})
	}
	return t, s.Packets[before:]
}

// again prepares for another round of the same packets: the tracker forgets their numbers.
func (t *Tracker) again(l *Link, psn [2]int) {
	for i, f := range l.flows {
		f.next = f.next.Add(-psn[i])
		clear(f.seen[:])
	}
}

// rounds returns a function that plays a round of packets.
func rounds(tb testing.TB) (play func(), packets []Packet) {
	t, packets := bulk(tb)
	l := t.links.groups.newest.of.Links[0]
	start := [2]int{}
	for i, f := range l.flows {
		start[i] = int(f.next)
	}
	problems := 0
	emit := func(e *Event) { problems += len(e.Problems) }
	return func() {
		for i := range packets {
			t.Packet(packets[i], emit)
		}
		var n [2]int
		for i, f := range l.flows {
			n[i] = f.next.Sub(0) - start[i]
		}
		t.again(l, [2]int{n[0] & 0xffffff, n[1] & 0xffffff})
		for _, c := range l.Group.tokens[0] {
			c.ToServer.Seq, c.ToClient.Seq = 0, 0
			for _, r := range []*Ring{&c.ToServer, &c.ToClient} {
				r.Producer, r.Consumer = cdc.Cursor{}, cdc.Cursor{}
			}
		}
		if problems > 0 {
			tb.Fatalf("%d problems in packets that have none", problems)
		}
	}, packets
}

// TestAllocs checks that packets of a known connection allocate nothing.
func TestAllocs(t *testing.T) {
	play, packets := rounds(t)
	play()
	if n := testing.AllocsPerRun(20, play); n > 0 {
		t.Errorf("%v allocations for %d packets, want none", n, len(packets))
	}
}

func BenchmarkTracker(b *testing.B) {
	play, packets := rounds(b)
	n := 0
	for i := range packets {
		n += len(packets[i].Data)
	}
	b.SetBytes(int64(n))
	b.ReportAllocs()
	for b.Loop() {
		play()
	}
	b.ReportMetric(float64(b.N)*float64(len(packets))/b.Elapsed().Seconds(), "packets/s")
}
