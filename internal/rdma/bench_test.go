package rdma

import (
	"testing"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// benchmarkWrites measures WRITEs of size bytes, 16 at a time, between two devices of one process, each on a port that it
// has alone or shares.
func benchmarkWrites(b *testing.B, mtu wire.MTU, size uint32, shared bool) {
	left, spent := 0, make(chan struct{})
	var a, z *side
	post := func() {
		left--
		at := uint64(left) % 16 * uint64(size)
		err := a.qp.PostSend(SendWR{
			Op: OpWrite, Signaled: true, Remote: z.mr.Addr() + at, RKey: z.mr.RKey(),
			Local: [2]SGE{{MR: a.mr, Addr: a.mr.Addr() + at, Len: size}},
		})
		if err != nil {
			panic(err)
		}
	}
	done := 0
	var buf [64]Completion
	open := func(handler func(verbs.CQ)) *side {
		addr, cfg := randomLoopback(), &Config{}
		if shared {
			cfg.Share = shares(b, addr, 1)[0]
		}
		return newSide(b, addr, cfg, handler)
	}
	a = open(func(cq verbs.CQ) {
		for n := cq.Poll(buf[:]); n > 0; n = cq.Poll(buf[:]) {
			for range n {
				if done++; left > 0 {
					post()
				} else if done == b.N {
					spent <- struct{}{}
				}
			}
		}
	})
	z = open(nil)
	connect(b, a, z, mtu)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	left = b.N
	for range min(16, b.N) {
		post()
	}
	<-spent
	b.StopTimer()
	s := a.qp.Stats()
	b.ReportMetric(float64(s.RcvdAcks)/float64(b.N), "acks/op")
	b.ReportMetric(float64(s.Retransmitted)/float64(b.N), "retrans/op")
}

func BenchmarkWrite64K(b *testing.B) {
	b.Run("mtu=1024", func(b *testing.B) { benchmarkWrites(b, wire.MTU1024, 64<<10, false) })
	b.Run("mtu=4096", func(b *testing.B) { benchmarkWrites(b, wire.MTU4096, 64<<10, false) })
	b.Run("shared", func(b *testing.B) { benchmarkWrites(b, wire.MTU1024, 64<<10, true) })
}

// benchmarkRally measures a WRITE of 64 bytes and a SEND of 44, there and back.
func benchmarkRally(b *testing.B, cfg *Config) {
	over := make(chan struct{})
	var ends [2]*side
	rounds := 0
	play := func(s, peer *side) {
		err := s.qp.PostSend(
			SendWR{Op: OpWrite, Remote: peer.mr.Addr(), RKey: peer.mr.RKey(), Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 64}}},
			SendWR{Op: OpSend, Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 44}}})
		if err != nil {
			panic(err)
		}
	}
	handler := func(i int) func(verbs.CQ) {
		return func(cq verbs.CQ) {
			var one [1]Completion
			for cq.Poll(one[:]) > 0 {
				s, peer := ends[i], ends[1-i]
				if err := s.qp.PostRecv(RecvWR{Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr() + 1024, Len: 44}}}); err != nil {
					panic(err)
				}
				if i == 0 {
					if rounds++; rounds == b.N {
						close(over)
						return
					}
				}
				play(s, peer)
			}
		}
	}
	for i := range ends {
		ends[i] = newSide(b, randomLoopback(), cfg, handler(i))
	}
	connect(b, ends[0], ends[1], wire.MTU1024)
	for _, s := range ends {
		for range 8 {
			if err := s.qp.PostRecv(RecvWR{Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr() + 1024, Len: 44}}}); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	play(ends[0], ends[1])
	<-over
}

func BenchmarkRally(b *testing.B) {
	b.Run("spin", func(b *testing.B) { benchmarkRally(b, nil) })
	b.Run("nospin", func(b *testing.B) { benchmarkRally(b, &Config{Spin: -1}) })
}
