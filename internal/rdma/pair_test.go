package rdma

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// randomLoopback returns an address of 127.0.0.0/8 that nobody else is likely to have.
func randomLoopback() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(rand.N(250) + 2), byte(rand.N(250) + 2), byte(rand.N(250) + 2)})
}

// A side is a device with all that a queue pair needs.
type side struct {
	dev *Device
	pd  *PD
	cq  *CQ
	qp  *QP
	mr  *MR
	psn wire.PSN
}

const testRegion = 4 << 20

func newSide(t testing.TB, addr netip.Addr, cfg *Config, handler func(verbs.CQ)) *side {
	t.Helper()
	dev, err := Open(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return newSideOn(t, dev, handler)
}

func newSideOn(t testing.TB, dev *Device, handler func(verbs.CQ)) *side {
	t.Helper()
	s := &side{dev: dev, psn: RandomPSN()}
	var err error
	if s.pd, err = dev.NewPD(); err != nil {
		t.Fatal(err)
	}
	if s.cq, err = dev.NewCQ(1024, handler); err != nil {
		t.Fatal(err)
	}
	if s.mr, err = s.pd.AllocMR(testRegion, LocalWrite|RemoteWrite); err != nil {
		t.Fatal(err)
	}
	if s.qp, err = s.pd.NewQP(QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSend: 256, MaxRecv: 256}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.qp.Close(); s.mr.Deregister() })
	return s
}

// connect takes both queue pairs to RTS.
func connect(t testing.TB, a, b *side, mtu wire.MTU) {
	t.Helper()
	for _, p := range [][2]*side{{a, b}, {b, a}} {
		if err := p[0].qp.Init(RemoteWrite | LocalWrite); err != nil {
			t.Fatal(err)
		}
		if err := p[0].qp.ReadyToReceive(RTR{RemoteGID: p[1].dev.GID(), RemoteQPN: p[1].qp.QPN(), PathMTU: mtu, RecvPSN: p[1].psn, MinRNRTimer: 5}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*side{a, b} {
		if err := s.qp.ReadyToSend(RTS{SendPSN: s.psn, Timeout: 15, RetryCount: 7, RNRRetry: 7}); err != nil {
			t.Fatal(err)
		}
	}
}

// await returns the next completion of s.
func (s *side) await(t testing.TB) Completion {
	t.Helper()
	var one [1]Completion
	deadline := time.After(10 * time.Second)
	for s.cq.Poll(one[:]) == 0 {
		select {
		case <-s.cq.Channel():
		case <-deadline:
			t.Fatalf("no completion; %+v %+v", s.qp.Stats(), s.dev.Stats())
		}
	}
	return one[0]
}

func TestTransfer(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
	}{
		{"offloads", Config{}},
		{"no segmentation", Config{NoSegmentation: true}},
		{"no coalescing", Config{NoCoalescing: true}},
		{"neither", Config{NoSegmentation: true, NoCoalescing: true}},
		{"headers", Config{Headers: udp.HeadersAlways}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := newSide(t, randomLoopback(), &tt.cfg, nil), newSide(t, randomLoopback(), &tt.cfg, nil)
			connect(t, a, b, wire.MTU1024)
			r := rand.New(rand.NewPCG(1, 2))
			for i := range a.mr.Bytes() {
				a.mr.Bytes()[i] = byte(r.Uint32())
			}
			for i, n := range []int{0, 1, 3, 64, 1023, 1024, 1025, 2048, 65536, 65537, 1 << 20, testRegion - 7} {
				clear(b.mr.Bytes())
				if err := b.qp.PostRecv(RecvWR{ID: uint64(100 + i), Local: [2]SGE{{MR: b.mr, Addr: b.mr.Addr() + testRegion - 4, Len: 4}}}); err != nil {
					t.Fatal(err)
				}
				first := n / 3
				err := a.qp.PostSend(
					SendWR{ID: uint64(i), Op: OpWrite, Signaled: true, Remote: b.mr.Addr() + 1, RKey: b.mr.RKey(),
						Local: [2]SGE{{MR: a.mr, Addr: a.mr.Addr() + 3, Len: uint32(first)}, {MR: a.mr, Addr: a.mr.Addr() + 3 + uint64(first), Len: uint32(n - first)}}},
					SendWR{ID: 77, Op: OpSendImm, Imm: 0x01020304, Solicited: true, Local: [2]SGE{{MR: a.mr, Addr: a.mr.Addr(), Len: 4}}})
				if err != nil {
					t.Fatal(err)
				}
				got := b.await(t)
				want := Completion{ID: uint64(100 + i), QP: b.qp, Op: Received, Len: 4, Imm: 0x01020304, HasImm: true, Solicited: true, Turn: got.Turn}
				if got != want {
					t.Fatalf("%d bytes: receive %+v, want %+v", n, got, want)
				}
				if !bytes.Equal(b.mr.Bytes()[1:1+n], a.mr.Bytes()[3:3+n]) {
					t.Fatalf("%d bytes arrived different", n)
				}
				if got, want := a.await(t), (Completion{ID: uint64(i), QP: a.qp, Op: CompletedWrite}); got != want {
					t.Fatalf("%d bytes: send %+v, want %+v", n, got, want)
				}
			}
			t.Logf("a %+v\nb %+v\n%+v", a.qp.Stats(), b.qp.Stats(), b.dev.Stats())
		})
	}
}
