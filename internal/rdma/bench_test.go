package rdma

import (
	"testing"

	"github.com/gosmc/smc/wire"
)

// benchmarkWrites measures WRITEs of size bytes, 16 at a time, between two devices of one process.
func benchmarkWrites(b *testing.B, mtu wire.MTU, size uint32) {
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
	a = newSide(b, randomLoopback(), nil, func(cq *CQ) {
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
	z = newSide(b, randomLoopback(), nil, nil)
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
	b.Run("mtu=1024", func(b *testing.B) { benchmarkWrites(b, wire.MTU1024, 64<<10) })
	b.Run("mtu=4096", func(b *testing.B) { benchmarkWrites(b, wire.MTU4096, 64<<10) })
}
