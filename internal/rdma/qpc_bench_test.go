package rdma

import (
	"testing"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// BenchmarkQueuePairs carries a WRITE of 64 KiB through both queue pairs, packets and
// acknowledgements, without a socket.
func BenchmarkQueuePairs(b *testing.B) {
	for _, bb := range []struct {
		name string
		mtu  wire.MTU
		icrc bool
	}{
		{"mtu=1024", wire.MTU1024, false}, {"mtu=1024/icrc", wire.MTU1024, true},
		{"mtu=4096", wire.MTU4096, false}, {"mtu=4096/icrc", wire.MTU4096, true},
	} {
		b.Run(bb.name, func(b *testing.B) {
			c := newCouple(b, bb.mtu)
			if bb.icrc {
				flow := roce.NewFlow(simAddrs[0], simAddrs[1])
				c.flow = &flow
			}
			b.SetBytes(testSize)
			b.ReportAllocs()
			for b.Loop() {
				c.write(testSize)
			}
		})
	}
}

// BenchmarkReceiveMiddle carries out a packet in the middle of a WRITE.
func BenchmarkReceiveMiddle(b *testing.B) {
	s := newRTS(b)
	first := s.request(roce.WriteFirst, 0, make([]byte, 256))
	first.RETH.Length = 1 << 10
	s.take(first)
	p := s.request(roce.WriteMiddle, 1, make([]byte, 256))
	p.AckReq = false
	b.SetBytes(256)
	b.ReportAllocs()
	for b.Loop() {
		s.left, s.addr, s.received = 1<<10, s.mr.addr, 0 // so that it stays in the middle
		p.PSN = s.expected
		s.receive(s.now, &p)
	}
	if s.state != StateRTS || s.stats.OutOfSequence+s.stats.Duplicates > 0 {
		b.Fatalf("state %v, %+v", s.state, s.stats)
	}
}

// BenchmarkAck posts, sends and has acknowledged a WRITE of one byte.
func BenchmarkAck(b *testing.B) {
	s := newRTS(b)
	room := make([]byte, s.maxPacketLen())
	ack := roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge}, AETH: roce.AETH{Syndrome: roce.AckUnlimited}}
	wr := SendWR{Op: OpWrite, Signaled: true, Local: [2]SGE{s.sge(0, 1)}}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.postSend(&wr); err != nil {
			b.Fatal(err)
		}
		s.transmit(s.now, room)
		ack.PSN = s.una
		s.receive(s.now, &ack)
		s.done = s.done[:0]
	}
	if s.head != s.tail {
		b.Fatal("not acknowledged")
	}
}
