package dissect

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/dissect/dissecttest"
)

// Ways to spoil a capture. Those that a capture itself does, to packets of hosts that break no rule, must
// not make a host look guilty.
var mutations = []struct {
	name     string
	innocent bool
	mutate   func(r *rand.Rand, p []Packet) []Packet
}{
	{"drop", true, func(r *rand.Rand, p []Packet) []Packet {
		rate := r.Float64() / 2
		return slices.DeleteFunc(p, func(Packet) bool { return r.Float64() < rate })
	}},
	{"drop a span", true, func(r *rand.Rand, p []Packet) []Packet {
		from := r.IntN(len(p))
		return slices.Delete(p, from, from+r.IntN(len(p)-from))
	}},
	{"duplicate", true, func(r *rand.Rand, p []Packet) (q []Packet) {
		for _, packet := range p {
			q = append(q, packet)
			if r.IntN(10) == 0 {
				q = append(q, packet)
			}
		}
		return q
	}},
	{"duplicate later", true, func(r *rand.Rand, p []Packet) (q []Packet) {
		for i, packet := range p {
			q = append(q, packet)
			if r.IntN(20) == 0 {
				q = append(q, p[max(0, i-r.IntN(30))])
			}
		}
		return q
	}},
	{"begin in the middle", true, func(r *rand.Rand, p []Packet) []Packet { return p[r.IntN(len(p)):] }},
	{"truncate", true, func(r *rand.Rand, p []Packet) []Packet {
		for i := range p {
			if r.IntN(10) == 0 {
				p[i].Data = p[i].Data[:r.IntN(len(p[i].Data)+1)]
			}
		}
		return p
	}},
	{"reorder", false, func(r *rand.Rand, p []Packet) []Packet {
		for i := range p {
			j := min(len(p)-1, i+r.IntN(4))
			p[i], p[j] = p[j], p[i]
		}
		return p
	}},
	{"shuffle", false, func(r *rand.Rand, p []Packet) []Packet {
		r.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
		return p
	}},
	{"flip bits", false, func(r *rand.Rand, p []Packet) []Packet {
		for i := range p {
			for r.IntN(3) > 0 {
				p[i].Data[r.IntN(len(p[i].Data))] ^= 1 << r.IntN(8)
			}
		}
		return p
	}},
	{"jump in time", false, func(r *rand.Rand, p []Packet) []Packet {
		for i := range p {
			p[i].Time = p[i].Time.Add(time.Duration(r.Int64N(int64(time.Hour))))
		}
		return p
	}},
}

// TestMutations plays spoiled captures. Every packet of RoCEv2 that can be decoded makes one event,
// no matter which packets came before it.
func TestMutations(t *testing.T) {
	const seeds = 25
	for name := range dissecttest.Captures {
		original := dissecttest.Captured(t, name)
		for _, m := range mutations {
			t.Run(name+"/"+m.name, func(t *testing.T) {
				for seed := range uint64(seeds) {
					packets := slices.Clone(original)
					for i := range packets {
						packets[i].Data = bytes.Clone(packets[i].Data)
					}
					packets = m.mutate(rand.New(rand.NewPCG(seed, 1)), packets)
					lines, sum := track(packets, Options{NoICRC: m.name == "flip bits"})
					if max := 2*len(packets) + 20; len(lines) > max {
						t.Errorf("seed %d: %d events of %d packets, want at most %d", seed, len(lines), len(packets), max)
					}
					if sum.Packets != uint64(len(packets)) {
						t.Errorf("seed %d: Summary has %d packets, want %d", seed, sum.Packets, len(packets))
					}
					if !m.innocent {
						continue
					}
					for _, line := range lines {
						if strings.Contains(line, "[violation") || strings.Contains(line, "[malformed") {
							t.Errorf("seed %d: false problem: %s", seed, line)
						}
					}
				}
			})
		}
	}
}

// TestSummary checks the counts of the captures.
func TestSummary(t *testing.T) {
	for name, want := range map[string]string{
		"smcd":      "conns=3 modes=[{SMC-Dv2.1 3}] groups=1 links=0 lost=0 failovers=0 rdma=0 retransmissions=0 problems=[]",
		"one-link":  "conns=1 modes=[{SMC-Rv2.1 1}] groups=1 links=1 lost=0 failovers=0 rdma=11600 retransmissions=0 problems=[]",
		"two-links": "conns=7 modes=[{SMC-Rv2.1 7}] groups=1 links=3 lost=1 failovers=1 rdma=160103 retransmissions=98 problems=[{timeout 1}]",
		"verbs":     "conns=0 modes=[] groups=0 links=0 lost=0 failovers=0 rdma=154624 retransmissions=0 problems=[]",
	} {
		_, s := track(dissecttest.Captured(t, name), Options{})
		got := fmt.Sprintf("conns=%d modes=%v groups=%d links=%d lost=%d failovers=%d rdma=%d retransmissions=%d problems=%v",
			s.Conns, s.Modes, s.LinkGroups, s.Links, s.LinksLost, s.Failovers, s.RDMABytes, s.Retransmissions, s.Problems)
		if got != want {
			t.Errorf("Summary of %s:\n got %s\nwant %s", name, got, want)
		}
	}
}
