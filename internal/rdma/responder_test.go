package rdma

import (
	"reflect"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// verdict is the outcome of a request.
type verdict struct {
	syndrome roce.Syndrome // of the answer; AckUnlimited for an ACK, 0xff for none
	state    State
	ran      int // packets carried out, of all that were given
	done     [][2]uint64
}

const silent roce.Syndrome = 0xff

// answerOf makes the queue pair answer.
func (s *solo) answerOf() roce.Syndrome {
	s.t.Helper()
	all := s.drain()
	switch {
	case len(all) == 0:
		return silent
	case len(all) > 1 || all[0].Opcode != roce.Acknowledge || len(all[0].Payload) > 0:
		s.t.Fatalf("the answer is %v", all)
	}
	p := &all[0]
	want := s.expected.Add(-1)
	if p.AETH.Syndrome != roce.AckUnlimited {
		want = s.expected
	}
	if p.PSN != want || p.AETH.MSN != s.msn {
		s.t.Errorf("the answer is %v, want PSN %v and MSN %d", p, want, s.msn)
	}
	return p.AETH.Syndrome
}

// TestRequestChecks has each check of a request, in their order: IBTA 9.7.4.1. Each packet breaks
// one rule, and if it can those that are looked at later, which must not change the answer. A
// refused packet may write nothing.
func TestRequestChecks(t *testing.T) {
	const (
		sequence = roce.NakSequence
		invalid  = roce.NakInvalidRequest
		access   = roce.NakRemoteAccess
		op       = roce.NakRemoteOperation
		rnr      = roce.Syndrome(0x25)
	)
	full := make([]byte, 256)
	short := make([]byte, 100)
	with := func(p roce.Packet, change func(p *roce.Packet)) roce.Packet {
		change(&p)
		return p
	}
	badKey := func(p *roce.Packet) { p.RETH.RKey++ }
	type test struct {
		name string
		make func(s *solo) []roce.Packet // the last one is refused
		want verdict
	}
	refused := func(syndrome roce.Syndrome, ran int) verdict {
		return verdict{syndrome, StateError, ran, nil}
	}
	wait := func(syndrome roce.Syndrome, ran int) verdict { return verdict{syndrome, StateRTS, ran, nil} }
	tests := []test{
		// PSN. Other faults do not matter.
		{"next but one", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.WriteOnly, 1, full)} }, wait(sequence, 0)},
		{"next but one, READ", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.ReadRequest, 1, nil)} }, wait(sequence, 0)},
		{"next but one, bad key", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteOnly, 1, full), badKey)}
		}, wait(sequence, 0)},
		{"as far ahead as can be", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.WriteOnly, 1<<23-1, full)} }, wait(sequence, 0)},
		{"half of all numbers away", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.WriteOnly, 1<<23, full)} }, wait(roce.AckUnlimited, 0)},
		{"the one before", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.WriteOnly, -1, full)} }, wait(roce.AckUnlimited, 0)},
		{"the one before, bad key", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteOnly, -1, full), badKey)}
		}, wait(roce.AckUnlimited, 0)},
		{"the one before, SEND", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.SendOnly, -1, full)} }, wait(roce.AckUnlimited, 0)},
		{"the one before, READ", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.ReadRequest, -1, nil)} }, wait(silent, 0)},
		{"the one before, FETCH ADD", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.FetchAdd, -1, nil)} }, wait(silent, 0)},

		// Opcode.
		{"READ", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.ReadRequest, 0, nil)} }, refused(invalid, 0)},
		{"COMPARE SWAP", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.CompareSwap, 0, nil)} }, refused(invalid, 0)},
		{"FETCH ADD", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.FetchAdd, 0, nil)} }, refused(invalid, 0)},
		{"SEND with invalidate", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.SendOnlyInvalidate, 0, nil)} }, refused(invalid, 0)},
		{"READ in a WRITE", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), func(p *roce.Packet) { p.RETH.Length = 300 }), s.request(roce.ReadRequest, 1, nil)}
		}, refused(invalid, 1)},
	}
	// Sequence of opcodes: after nothing, a SEND and a WRITE that have begun.
	ops := []roce.Opcode{roce.SendFirst, roce.SendMiddle, roce.SendLast, roce.SendLastImm, roce.SendOnly, roce.SendOnlyImm,
		roce.WriteFirst, roce.WriteMiddle, roce.WriteLast, roce.WriteLastImm, roce.WriteOnly, roce.WriteOnlyImm, roce.SendLastInvalidate}
	for _, first := range []roce.Opcode{roce.SendFirst, roce.WriteFirst} {
		for _, second := range ops {
			begun := !second.Starts() && second.IsSend() == first.IsSend() && !second.HasIETH()
			if !begun {
				tests = append(tests, test{first.String() + " and " + second.String(), func(s *solo) []roce.Packet {
					s.postReceive(1, 0, 1000)
					return []roce.Packet{with(s.request(first, 0, full), func(p *roce.Packet) { p.RETH.Length = 600 }), with(s.request(second, 1, full), badKey)}
				}, verdict{invalid, StateError, 1, [][2]uint64{{1, uint64(StatusFlushed)}}}})
			}
			if !second.Starts() {
				tests = append(tests, test{second.String() + " without a first", func(s *solo) []roce.Packet {
					return []roce.Packet{s.request(second, 0, full)}
				}, refused(invalid, 0)})
			}
		}
	}
	writeOf := func(length uint32) func(p *roce.Packet) { return func(p *roce.Packet) { p.RETH.Length = length } }
	tests = append(tests, []test{
		// Length of the packet. There is no receive, which is looked at later.
		{"FIRST not full", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.SendFirst, 0, short)} }, refused(invalid, 0)},
		{"FIRST without bytes", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, nil), writeOf(1000))}
		}, refused(invalid, 0)},
		{"FIRST more than full", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, make([]byte, 260)), writeOf(1000))}
		}, refused(invalid, 0)},
		{"MIDDLE not full", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), writeOf(1000)), s.request(roce.WriteMiddle, 1, short)}
		}, refused(invalid, 1)},
		{"LAST without bytes", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), writeOf(300)), s.request(roce.WriteLast, 1, nil)}
		}, refused(invalid, 1)},
		{"LAST of a SEND without bytes", func(s *solo) []roce.Packet {
			s.postReceive(1, 0, 1000)
			return []roce.Packet{s.request(roce.SendFirst, 0, full), s.request(roce.SendLast, 1, nil)}
		}, verdict{invalid, StateError, 1, [][2]uint64{{1, uint64(StatusFlushed)}}}},
		{"LAST more than full", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), writeOf(256+260)), s.request(roce.WriteLast, 1, make([]byte, 260))}
		}, refused(invalid, 1)},
		{"ONLY more than full", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.WriteOnly, 0, make([]byte, 257))} }, refused(invalid, 0)},

		// May the peer WRITE at all?
		{"no WRITE allowed", func(s *solo) []roce.Packet {
			s.access = LocalWrite
			return []roce.Packet{with(s.request(roce.WriteOnlyImm, 0, full), badKey)}
		}, refused(invalid, 0)},
		{"no WRITE allowed, not of nothing either", func(s *solo) []roce.Packet {
			s.access = 0
			return []roce.Packet{s.request(roce.WriteOnly, 0, nil)}
		}, refused(invalid, 0)},

		// Length of the WRITE.
		{"length of 2 GiB and one", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), writeOf(1<<31+1))}
		}, refused(invalid, 0)},
		{"ONLY shorter than the length", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteOnlyImm, 0, full), writeOf(257))}
		}, refused(invalid, 0)},
		{"ONLY longer than the length", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteOnly, 0, full), writeOf(255))}
		}, refused(invalid, 0)},
		{"ONLY with bytes, length 0", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteOnly, 0, short), writeOf(0))}
		}, refused(invalid, 0)},
		{"FIRST with all of the length", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), writeOf(256))}
		}, refused(invalid, 0)},
		{"MIDDLE with all that is left", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), writeOf(512)), s.request(roce.WriteMiddle, 1, full)}
		}, refused(invalid, 1)},
		{"LAST shorter than what is left", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), writeOf(400)), s.request(roce.WriteLastImm, 1, short)}
		}, refused(invalid, 1)},
		{"LAST longer than what is left", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), writeOf(300)), s.request(roce.WriteLast, 1, short)}
		}, refused(invalid, 1)},

		// A receive. It comes before the key.
		{"SEND without a receive", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.SendOnly, 0, full)} }, wait(rnr, 0)},
		{"SEND of nothing without a receive", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.SendOnly, 0, nil)} }, wait(rnr, 0)},
		{"FIRST without a receive", func(s *solo) []roce.Packet { return []roce.Packet{s.request(roce.SendFirst, 0, full)} }, wait(rnr, 0)},
		{"WRITE with immediate without a receive", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteOnlyImm, 0, full), badKey)}
		}, wait(rnr, 0)},
		{"WRITE LAST with immediate without a receive", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), writeOf(300)), s.request(roce.WriteLastImm, 1, full[:44])}
		}, wait(rnr, 1)},

		// Length of the SEND.
		{"longer than the receive", func(s *solo) []roce.Packet {
			s.postReceive(1, 0, 255)
			s.postReceive(2, 0, 1000)
			return []roce.Packet{s.request(roce.SendOnly, 0, full)}
		}, verdict{invalid, StateError, 0, [][2]uint64{{1, uint64(StatusLocalLength)}, {2, uint64(StatusFlushed)}}}},
		{"longer than the receive, with the second packet", func(s *solo) []roce.Packet {
			s.postReceive(1, 0, 300)
			return []roce.Packet{s.request(roce.SendFirst, 0, full), s.request(roce.SendLast, 1, full[:45])}
		}, verdict{invalid, StateError, 1, [][2]uint64{{1, uint64(StatusLocalLength)}}}},
		{"one byte for a receive of none", func(s *solo) []roce.Packet {
			s.postReceive(1, 0, 0)
			return []roce.Packet{s.request(roce.SendOnly, 0, full[:1])}
		}, verdict{invalid, StateError, 0, [][2]uint64{{1, uint64(StatusLocalLength)}}}},

		// Key, range, access.
		{"key that is not there", func(s *solo) []roce.Packet { return []roce.Packet{with(s.request(roce.WriteOnly, 0, full), badKey)} }, refused(access, 0)},
		{"key 0", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteOnly, 0, full), func(p *roce.Packet) { p.RETH.RKey = 0 })}
		}, refused(access, 0)},
		{"key of another domain", func(s *solo) []roce.Packet {
			other := newSolo(s.t)
			s.t.Cleanup(other.untouched)
			return []roce.Packet{with(s.request(roce.WriteOnly, 0, full), func(p *roce.Packet) { p.RETH.RKey, p.RETH.VA = other.mr.rkey, other.mr.addr })}
		}, refused(access, 0)},
		{"key of a region that is gone", func(s *solo) []roce.Packet {
			p := s.request(roce.WriteOnly, 0, full)
			s.mr.Deregister()
			return []roce.Packet{p}
		}, refused(access, 0)},
		{"region for receives only", func(s *solo) []roce.Packet {
			s.mr.access = LocalWrite
			return []roce.Packet{s.request(roce.WriteOnly, 0, full)}
		}, refused(access, 0)},
		{"region to read from", func(s *solo) []roce.Packet {
			s.mr.access = 0
			return []roce.Packet{s.request(roce.WriteOnly, 0, full)}
		}, refused(access, 0)},
		{"one byte before", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteOnly, 0, full), func(p *roce.Packet) { p.RETH.VA-- })}
		}, refused(access, 0)},
		{"one byte too many", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteOnly, 0, full), func(p *roce.Packet) { p.RETH.VA += testSize - 255 })}
		}, refused(access, 0)},
		{"at the end", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteOnly, 0, full[:1]), func(p *roce.Packet) { p.RETH.VA += testSize })}
		}, refused(access, 0)},
		{"address and length wrap to the region", func(s *solo) []roce.Packet {
			s.mr.addr = 16
			return []roce.Packet{with(s.request(roce.WriteOnly, 0, full), func(p *roce.Packet) { p.RETH.VA = ^uint64(0) - 100 })}
		}, refused(access, 0)},
		{"address and length wrap to zero", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteOnly, 0, full[:8]), func(p *roce.Packet) { p.RETH.VA = 0xfffffffffffffff8 })}
		}, refused(access, 0)},
		{"offset and length wrap", func(s *solo) []roce.Packet { // an offset near 2^64 from the region's start
			return []roce.Packet{with(s.request(roce.WriteOnly, 0, full), func(p *roce.Packet) { p.RETH.VA = s.mr.addr - 256 })}
		}, refused(access, 0)},
		{"FIRST of a length beyond the region", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), writeOf(testSize+1))}
		}, refused(access, 0)},
		{"FIRST of 2 GiB", func(s *solo) []roce.Packet {
			return []roce.Packet{with(s.request(roce.WriteFirst, 0, full), writeOf(1<<31))}
		}, refused(access, 0)},

		// The receive's own region.
		{"the receive's region is gone", func(s *solo) []roce.Packet {
			s.postReceive(1, 0, 1000)
			s.postReceive(2, 0, 1000)
			s.mr.Deregister()
			return []roce.Packet{s.request(roce.SendOnly, 0, full)}
		}, verdict{op, StateError, 0, [][2]uint64{{1, uint64(StatusLocalProtection)}, {2, uint64(StatusFlushed)}}}},
	}...)
	counted := map[roce.Syndrome]QPStats{
		sequence: {SentSeqNaks: 1, OutOfSequence: 1}, rnr: {SentRNRNaks: 1}, roce.AckUnlimited: {Duplicates: 1}, silent: {Duplicates: 1},
		invalid: {SentFatalNaks: 1}, access: {SentFatalNaks: 1}, op: {SentFatalNaks: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newRTS(t)
			var got verdict
			for _, p := range tt.make(s) {
				before := s.expected
				copy(s.was, s.mem)
				s.drain()
				s.completions()
				s.take(p)
				got.ran += s.expected.Sub(before)
				got.done = statusOf(s.completions())
			}
			s.untouched() // by the last one
			got.syndrome, got.state = s.answerOf(), s.state
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v %v, %d packets carried out, completions %v; want %v %v, %d, %v",
					got.syndrome, got.state, got.ran, got.done, tt.want.syndrome, tt.want.state, tt.want.ran, tt.want.done)
			}
			stats := QPStats{SentSeqNaks: s.stats.SentSeqNaks, OutOfSequence: s.stats.OutOfSequence, SentRNRNaks: s.stats.SentRNRNaks,
				Duplicates: s.stats.Duplicates, SentFatalNaks: s.stats.SentFatalNaks}
			if want := counted[tt.want.syndrome]; stats != want {
				t.Errorf("counted %+v, want %+v", stats, want)
			}
			if got := s.answerOf(); got != silent {
				t.Errorf("a second answer, %v", got)
			}
			if s.state == StateError { // and stays there
				s.take(s.request(roce.WriteOnly, tt.want.ran, short))
				if got := s.answerOf(); got != silent || s.stats.Dropped != 1 {
					t.Errorf("in ERR the answer is %v, %d packets dropped", got, s.stats.Dropped)
				}
				s.untouched()
			}
		})
	}
}

// TestRequests has requests that are right, at the edges of the allowed range.
func TestRequests(t *testing.T) {
	content := randomBytes(4096, 9)
	for _, tt := range []struct {
		name   string
		change func(s *solo, all []roce.Packet)
		ops    []roce.Opcode
		sizes  []int
		at     int // of a WRITE, in the region
		want   *Completion
	}{
		{"WRITE of nothing, without a key", func(_ *solo, all []roce.Packet) { all[0].RETH = roce.RETH{VA: 5, RKey: 0xbad} }, []roce.Opcode{roce.WriteOnly}, []int{0}, 0, nil},
		{"WRITE of one byte at the end", nil, []roce.Opcode{roce.WriteOnly}, []int{1}, testSize - 1, nil},
		{"WRITE of a full packet", nil, []roce.Opcode{roce.WriteOnly}, []int{256}, testSize - 256, nil},
		{"WRITE of two", nil, []roce.Opcode{roce.WriteFirst, roce.WriteLast}, []int{256, 1}, 17, nil},
		{"WRITE of three", nil, []roce.Opcode{roce.WriteFirst, roce.WriteMiddle, roce.WriteLast}, []int{256, 256, 256}, testSize - 768, nil},
		{"WRITE with immediate", nil, []roce.Opcode{roce.WriteOnlyImm}, []int{3}, 1, &Completion{Op: ReceivedWriteImm, Len: 3, Imm: 7, HasImm: true}},
		{"WRITE with immediate of nothing", func(_ *solo, all []roce.Packet) { all[0].RETH = roce.RETH{} }, []roce.Opcode{roce.WriteOnlyImm}, []int{0}, 0, &Completion{Op: ReceivedWriteImm, Imm: 7, HasImm: true}},
		{"WRITE with immediate of two", nil, []roce.Opcode{roce.WriteFirst, roce.WriteLastImm}, []int{256, 5}, 1, &Completion{Op: ReceivedWriteImm, Len: 261, Imm: 7, HasImm: true}},
		{"WRITE at the end of all addresses", func(s *solo, all []roce.Packet) {
			s.mr.addr = 1<<64 - testSize
			all[0].RETH.VA = 1<<64 - 300
		}, []roce.Opcode{roce.WriteFirst, roce.WriteLast}, []int{256, 44}, testSize - 300, nil},
		{"SEND of nothing", nil, []roce.Opcode{roce.SendOnly}, []int{0}, 0, &Completion{Op: Received}},
		{"SEND", nil, []roce.Opcode{roce.SendOnly}, []int{256}, 0, &Completion{Op: Received, Len: 256}},
		{"SEND with immediate", nil, []roce.Opcode{roce.SendOnlyImm}, []int{44}, 0, &Completion{Op: Received, Len: 44, Imm: 7, HasImm: true}},
		{"SEND as long as the receive", nil, []roce.Opcode{roce.SendFirst, roce.SendMiddle, roce.SendLast}, []int{256, 256, 88}, 0, &Completion{Op: Received, Len: 600}},
		{"SEND of two, solicited", func(_ *solo, all []roce.Packet) { all[1].Solicited = true }, []roce.Opcode{roce.SendFirst, roce.SendLastImm}, []int{256, 9}, 0,
			&Completion{Op: Received, Len: 265, Imm: 7, HasImm: true, Solicited: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newRTS(t)
			// 600 bytes in two pieces, of which the first to be filled lies behind.
			pieces := [2]SGE{s.sge(1000, 300), s.sge(100, 300)}
			for id := range 2 {
				if err := s.postRecv(&RecvWR{ID: uint64(1 + id), Local: pieces}); err != nil {
					t.Fatal(err)
				}
			}
			total := 0
			var all []roce.Packet
			for i, n := range tt.sizes {
				p := s.request(tt.ops[i], i, content[total:total+n])
				p.AckReq, p.Imm = i == len(tt.sizes)-1, 7
				p.RETH.VA += uint64(tt.at)
				all = append(all, p)
				total += n
			}
			all[0].RETH.Length = uint32(total)
			if tt.change != nil {
				tt.change(s, all)
			}
			for i, p := range all {
				s.take(p)
				if s.stats.Dropped != 0 || s.state != StateRTS || s.expected != testRecvPSN.Add(i+1) {
					t.Fatalf("%v: state %v, %+v", &p, s.state, s.stats)
				}
			}
			var want []Completion
			if tt.want != nil {
				tt.want.ID = 1
				want = []Completion{*tt.want}
			}
			if got := s.completions(); !slices.Equal(got, want) {
				t.Errorf("completions %+v, want %+v", got, want)
			}
			if tt.ops[0].IsWrite() {
				if got := s.mem[testGuard+tt.at:][:total]; string(got) != string(content[:total]) {
					t.Error("the WRITE has written something else")
				}
				s.only(tt.at, total)
			} else {
				first := min(total, 300)
				copy(s.was[testGuard+1000:], content[:first])
				copy(s.was[testGuard+100:], content[first:total])
				if got := string(s.mem); got != string(s.was) {
					t.Error("the SEND has written something else")
				}
			}
			if got := s.answerOf(); got != roce.AckUnlimited || s.msn != 1 {
				t.Errorf("the answer is %v, MSN %d", got, s.msn)
			}
			// All of it once more: nothing is carried out, the newest packet is acknowledged.
			copy(s.was, s.mem)
			for _, p := range all {
				p.Payload = content[100:][:len(p.Payload)]
				s.take(p)
				if got := s.answerOf(); got != roce.AckUnlimited {
					t.Errorf("the answer to a duplicate is %v", got)
				}
			}
			s.untouched()
			if got := s.completions(); len(got) > 0 || s.msn != 1 || s.expected != testRecvPSN.Add(len(all)) {
				t.Errorf("duplicates: completions %v, MSN %d, expected %v", got, s.msn, s.expected)
			}
		})
	}
}

// TestRegionGoneInMessage deregisters the region that a WRITE has begun to write to.
func TestRegionGoneInMessage(t *testing.T) {
	s := newRTS(t)
	first := s.request(roce.WriteFirst, 0, make([]byte, 256))
	first.RETH.Length = 700
	s.take(first)
	s.answerOf()
	copy(s.was, s.mem)
	s.mr.Deregister()
	s.take(s.request(roce.WriteMiddle, 1, make([]byte, 256)))
	if got := s.answerOf(); got != roce.NakRemoteAccess || s.state != StateError {
		t.Errorf("the answer is %v in %v, want a remote access error in ERR", got, s.state)
	}
	s.untouched()
}

// TestOneNak sends packets behind a gap: one NAK, and silence until the packet comes. IBTA 9.7.5.2.8,
// and rxe.
func TestOneNak(t *testing.T) {
	s := newRTS(t)
	full := make([]byte, 256)
	for round := range 3 {
		for i := range 5 {
			s.take(s.request(roce.WriteOnly, round+1+i, full))
			want := silent
			if i == 0 {
				want = roce.NakSequence
			}
			if got := s.answerOf(); got != want {
				t.Errorf("round %d: the answer to packet %d behind the gap is %v, want %v", round, i, got, want)
			}
		}
		s.take(s.request(roce.WriteOnly, round-1, full))
		if got := s.answerOf(); got != roce.AckUnlimited {
			t.Errorf("round %d: the answer to a duplicate is %v", round, got)
		}
		s.take(s.request(roce.WriteOnly, round+1, full)) // still the same gap
		if got := s.answerOf(); got != silent {
			t.Errorf("round %d: after the duplicate the gap's answer is %v", round, got)
		}
		s.take(s.request(roce.WriteOnly, round, full)) // the one that was missing
		if got := s.answerOf(); got != roce.AckUnlimited {
			t.Errorf("round %d: the answer to the missing packet is %v", round, got)
		}
	}
	if s.stats.SentSeqNaks != 3 || s.stats.OutOfSequence != 18 {
		t.Errorf("%d NAKs for %d packets behind gaps, want 3 for 18", s.stats.SentSeqNaks, s.stats.OutOfSequence)
	}
}

// TestNakOvertaken has the missing packet come before the NAK has gone out: it would be wrong then.
func TestNakOvertaken(t *testing.T) {
	s := newRTS(t)
	full := make([]byte, 256)
	s.take(s.request(roce.WriteOnly, 1, full))
	s.take(s.request(roce.WriteOnly, 0, full))
	s.take(s.request(roce.WriteOnly, 1, full))
	if got := s.answerOf(); got != roce.AckUnlimited || s.expected != testRecvPSN.Add(2) {
		t.Errorf("the answer is %v, expected %v", got, s.expected)
	}
	// The other way round: an ACK waits when the gap shows.
	s.take(s.request(roce.WriteOnly, 2, full))
	s.take(s.request(roce.WriteOnly, 4, full))
	if got := s.answerOf(); got != roce.NakSequence {
		t.Errorf("the answer is %v, want a NAK, which acknowledges too", got)
	}
}

// TestRNR has a SEND wait for a receive.
func TestRNR(t *testing.T) {
	s := newRTS(t)
	one := []byte{1}
	for range 20 {
		s.take(s.request(roce.SendOnly, 0, one))
		if got := s.answerOf(); got != 0x25 {
			t.Fatalf("the answer is %v, want an RNR NAK with timer 5", got)
		}
		s.take(s.request(roce.SendOnly, 1, one)) // behind it
		if got := s.answerOf(); got != silent {
			t.Fatalf("the answer to the packet behind is %v", got)
		}
	}
	s.postReceive(9, 10, 1)
	s.take(s.request(roce.SendOnly, 0, one))
	if got := s.answerOf(); got != roce.AckUnlimited {
		t.Errorf("the answer is %v, want ACK", got)
	}
	if got := s.completions(); !slices.Equal(got, []Completion{{ID: 9, Op: Received, Len: 1}}) {
		t.Errorf("completions %+v", got)
	}
	s.only(10, 1)
}

// TestMSNWraps lets the number of messages go round.
func TestMSNWraps(t *testing.T) {
	s := newRTS(t)
	s.msn = 1<<24 - 1
	s.take(s.request(roce.WriteOnly, 0, nil))
	if s.msn != 0 || s.answerOf() != roce.AckUnlimited {
		t.Errorf("MSN %#x after 2^24 messages, want 0", s.msn)
	}
}

// TestSendOf2GiB goes over the largest length of a message, with a receive that has room.
func TestSendOf2GiB(t *testing.T) {
	size, end := int64(3<<30), int64(1<<31)
	if strconv.IntSize < 64 {
		t.Skip("needs 3 GiB of address space")
	}
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Skipf("needs 3 GiB of address space: %v", err)
	}
	defer unix.Munmap(mem)
	s := newRTS(t)
	m := must1(s.pd.RegisterMR(mem, LocalWrite))(t)
	if err := s.postRecv(&RecvWR{ID: 1, Local: [2]SGE{{MR: m, Addr: m.addr, Len: 3 << 30}, {MR: m, Addr: m.addr, Len: 2 << 30}}}); err != nil {
		t.Fatal(err)
	}
	s.take(s.request(roce.SendFirst, 0, make([]byte, 256)))
	s.received = 1<<31 - 256 // as if that much had come
	s.take(s.request(roce.SendMiddle, 1, make([]byte, 256)))
	if s.state != StateRTS || s.received != 1<<31 {
		t.Fatalf("state %v after 2 GiB", s.state)
	}
	s.drain()
	s.take(s.request(roce.SendLast, 2, []byte{1}))
	if got := s.answerOf(); got != roce.NakInvalidRequest || s.state != StateError || mem[end] != 0 {
		t.Errorf("the answer to more than 2 GiB is %v in %v", got, s.state)
	}
	if got := statusOf(s.completions()); !slices.Equal(got, [][2]uint64{{1, uint64(StatusLocalLength)}}) {
		t.Errorf("completions %v", got)
	}
}

// TestStaleImmediate receives packets through one [roce.Packet], as a device does: a field that a
// packet lacks must not come from an earlier one.
func TestStaleImmediate(t *testing.T) {
	s := newRTS(t)
	s.postReceive(1, 0, 10)
	p := s.request(roce.SendOnly, 0, []byte{1})
	p.Imm, p.InvalidateRKey, p.AtomicAck = 0xdeadbeef, 1, 2
	s.take(p)
	if got, want := s.completions(), (Completion{ID: 1, Op: Received, Len: 1}); len(got) != 1 || got[0] != want {
		t.Errorf("completions %+v, want %+v", got, want)
	}
}

// TestResponses has packets that answer requests that were never sent.
func TestResponses(t *testing.T) {
	for _, op := range []roce.Opcode{roce.ReadResponseFirst, roce.ReadResponseMiddle, roce.ReadResponseLast, roce.ReadResponseOnly, roce.AtomicAcknowledge, roce.CNP} {
		s := newRTS(t)
		s.post(1, 1000)
		s.drain()
		for _, psn := range []wire.PSN{testSendPSN, testSendPSN.Add(1), testSendPSN.Add(100), testRecvPSN} {
			p := s.request(op, 0, make([]byte, 256))
			p.PSN, p.AETH.Syndrome = psn, roce.AckUnlimited
			s.take(p)
		}
		if got := s.answerOf(); got != silent || s.stats.Dropped != 4 || s.una != testSendPSN || s.expected != testRecvPSN || len(s.done) > 0 {
			t.Errorf("%v: answer %v, %+v", op, got, s.stats)
		}
		s.untouched()
	}
}
