package rdma

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// Helpers for tests of one queue pair as a value; the test plays the peer.

const (
	testQPN    wire.QPN = 0x1234
	testRemote wire.QPN = 0x4321
	// Both directions pass the end of the sequence numbers after a few packets.
	testSendPSN wire.PSN = 0xfffffd
	testRecvPSN wire.PSN = 0xfffffe

	testGuard = 512
	testSize  = 64 << 10 // bytes of the region
)

// A solo is a queue pair with a region, which lies between guard bytes.
type solo struct {
	*qpc
	t   testing.TB
	mr  *MR    // the peer may write to it
	mem []byte // guard, region, guard
	was []byte // mem at the beginning
	now time.Duration
	out []byte // room for a packet
}

func newSolo(t testing.TB) *solo {
	t.Helper()
	return soloOf(t, randomBytes(testGuard+testSize+testGuard, 3))
}

func soloOf(t testing.TB, mem []byte) *solo {
	t.Helper()
	s := &solo{t: t, mem: mem, now: time.Second, out: make([]byte, 0, 8192)}
	s.was = bytes.Clone(s.mem)
	pd := newPD(nil)
	var err error
	if s.mr, err = pd.RegisterMR(s.mem[testGuard:][:testSize:testSize], LocalWrite|RemoteWrite); err != nil {
		t.Fatal(err)
	}
	s.qpc = newQPC(testQPN, pd, poolWithout(0), 64, 64) // keeps no packets
	return s
}

var (
	testRTR = RTR{RemoteQPN: testRemote, PathMTU: wire.MTU256, RecvPSN: testRecvPSN, MinRNRTimer: 5}
	testRTS = RTS{SendPSN: testSendPSN, Timeout: 14, RetryCount: 7, RNRRetry: 7}
)

// newRTS returns a queue pair in RTS with path MTU 256.
func newRTS(t testing.TB) *solo { return newSolo(t).to(StateRTS) }

// to takes a queue pair from RESET to a state.
func (s *solo) to(state State) *solo {
	s.t.Helper()
	if state >= StateInit {
		s.must(s.init(LocalWrite | RemoteWrite))
	}
	if state >= StateRTR {
		s.must(s.readyToReceive(testRTR))
	}
	if state >= StateRTS {
		s.must(s.readyToSend(testRTS))
	}
	if state == StateError {
		s.fail()
	}
	if s.state != state {
		s.t.Fatalf("state %v, want %v", s.state, state)
	}
	return s
}

func (s *solo) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// sge is n bytes of the region from offset on.
func (s *solo) sge(offset, n int) SGE {
	return SGE{MR: s.mr, Addr: s.mr.addr + uint64(offset), Len: uint32(n)}
}

// post posts a WRITE of n bytes that is to complete with a Completion.
func (s *solo) post(id uint64, n int) {
	s.t.Helper()
	wr := SendWR{ID: id, Op: OpWrite, Signaled: true, Local: [2]SGE{s.sge(0, n)}, Remote: 0x5000, RKey: 77}
	if err := s.postSend(&wr); err != nil {
		s.t.Fatal(err)
	}
}

// postReceive posts a receive of n bytes at offset of the region.
func (s *solo) postReceive(id uint64, offset, n int) {
	s.t.Helper()
	if err := s.postRecv(&RecvWR{ID: id, Local: [2]SGE{s.sge(offset, n)}}); err != nil {
		s.t.Fatal(err)
	}
}

// nextPacket is the packet that comes next; false if there is none.
func (s *solo) nextPacket() (p roce.Packet, ok bool) {
	s.t.Helper()
	b := s.out[:s.maxPacketLen()]
	n := s.transmit(s.now, b)
	if n == 0 {
		return p, false
	}
	b = append(bytes.Clone(b[:n]), 0, 0, 0, 0) // an ICRC
	if err := p.Parse(b); err != nil {
		s.t.Fatalf("transmit made %x: %v", b, err)
	}
	if p.DestQPN != testRemote || p.PKey != roce.DefaultPKey {
		s.t.Fatalf("transmit made %v", &p)
	}
	return p, true
}

// drain is all packets that can be sent now.
func (s *solo) drain() (all []roce.Packet) {
	s.t.Helper()
	for {
		p, ok := s.nextPacket()
		if !ok {
			return all
		}
		if all = append(all, p); len(all) > 1<<16 {
			s.t.Fatal("transmit has no end")
		}
	}
}

// take gives the queue pair a packet.
func (s *solo) take(p roce.Packet) {
	p.DestQPN, p.PKey = testQPN, roce.DefaultPKey
	s.receive(s.now, &p)
}

// reply gives the queue pair an acknowledgement for the packet with index i of those it has sent.
func (s *solo) reply(i int, syndrome roce.Syndrome) {
	s.take(roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, PSN: testSendPSN.Add(i)}, AETH: roce.AETH{Syndrome: syndrome}})
}

// request is a packet of the peer, i after the first.
func (s *solo) request(op roce.Opcode, i int, payload []byte) roce.Packet {
	return roce.Packet{
		BTH:     roce.BTH{Opcode: op, PSN: testRecvPSN.Add(i), AckReq: true},
		RETH:    roce.RETH{VA: s.mr.addr, RKey: s.mr.rkey, Length: uint32(len(payload))},
		Payload: payload,
	}
}

// completions takes the completions.
func (s *solo) completions() []Completion {
	c := slices.Clone(s.done)
	s.done = s.done[:0]
	return c
}

// untouched fails the test if a byte of memory has changed.
func (s *solo) untouched() {
	s.t.Helper()
	s.only(0, 0)
}

// only fails the test if a byte outside of n bytes at offset of the region has changed.
func (s *solo) only(offset, n int) {
	s.t.Helper()
	start, end := testGuard+offset, testGuard+offset+n
	if bytes.Equal(s.mem[:start], s.was[:start]) && bytes.Equal(s.mem[end:], s.was[end:]) {
		return // a loop would take most of a fuzz target's time
	}
	for i := range s.mem {
		if s.mem[i] != s.was[i] && (i < start || i >= end) {
			s.t.Fatalf("byte %d of the region, which has %d, was written", i-testGuard, testSize)
		}
	}
}

// index is a PSN of ours as an index.
func index(psn wire.PSN) int { return psn.Sub(testSendPSN) }

// statusOf is IDs and statuses, for comparisons.
func statusOf(all []Completion) (s [][2]uint64) {
	for _, c := range all {
		s = append(s, [2]uint64{c.ID, uint64(c.Status)})
	}
	return s
}
