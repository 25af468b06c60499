package rdma

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// ackState is the part of a requester that an acknowledgement may change.
type ackState struct {
	una, next, max int // as indices
	state          State
	done           [][2]uint64 // ID and status
	rnr            time.Duration
	stats          QPStats
}

func (s *solo) ackState() ackState {
	a := ackState{una: index(s.una), next: index(s.next), max: index(s.max), state: s.state, done: statusOf(s.completions()), stats: s.stats}
	if s.rnrUntil > 0 {
		a.rnr = s.rnrUntil - s.now
	}
	for _, n := range []*uint64{&a.stats.SentPackets, &a.stats.SentBytes, &a.stats.RcvdPackets, &a.stats.RcvdBytes, &a.stats.RcvdAcks} {
		*n = 0 // the same in all cases
	}
	return a
}

// TestAcknowledgements has every kind of acknowledgement for every kind of packet: three messages of
// two packets each are on their way, as packets 0 to 5, and a fourth of 100 is so in part. IBTA 9.7.5.
func TestAcknowledgements(t *testing.T) {
	const ok = uint64(StatusOK)
	const flushed = uint64(StatusFlushed)
	rnr := roce.RNRNak(5)
	rnrTime := 60 * time.Microsecond
	out := startWindow // packets that are out
	done := func(ids ...uint64) (c [][2]uint64) {
		for _, id := range ids {
			c = append(c, [2]uint64{id, ok})
		}
		return c
	}
	failed := func(good int, status Status) (c [][2]uint64) {
		for id := 1; id <= 4; id++ {
			switch {
			case id <= good:
				c = append(c, [2]uint64{uint64(id), ok})
			case id == good+1:
				c = append(c, [2]uint64{uint64(id), uint64(status)})
			default:
				c = append(c, [2]uint64{uint64(id), flushed})
			}
		}
		return c
	}
	unexpected := ackState{next: out, max: out, state: StateRTS, stats: QPStats{AckUnexpected: 1}}
	dropped := ackState{next: out, max: out, state: StateRTS, stats: QPStats{Dropped: 1}}
	type reply struct {
		i        int
		syndrome roce.Syndrome
	}
	for _, tt := range []struct {
		name    string
		replies []reply
		want    ackState
	}{
		{"ACK before the first", []reply{{-1, roce.AckUnlimited}}, unexpected},
		{"ACK of the first", []reply{{0, roce.AckUnlimited}}, ackState{1, out, out, StateRTS, nil, 0, QPStats{}}},
		{"ACK of a message", []reply{{1, roce.AckUnlimited}}, ackState{2, out, out, StateRTS, done(1), 0, QPStats{Messages: 1}}},
		{"ACK of two and a half", []reply{{4, roce.AckUnlimited}}, ackState{5, out, out, StateRTS, done(1, 2), 0, QPStats{Messages: 2}}},
		{"ACK of the last that is out", []reply{{out - 1, roce.AckUnlimited}}, ackState{out, out, out, StateRTS, done(1, 2, 3), 0, QPStats{Messages: 3}}},
		{"ACK with credits", []reply{{1, 0}}, ackState{2, out, out, StateRTS, done(1), 0, QPStats{Messages: 1}}},
		{"ACK with the reserved bit", []reply{{1, 0x9f}}, ackState{2, out, out, StateRTS, done(1), 0, QPStats{Messages: 1}}},
		{"ACK of what is posted and not sent", []reply{{out, roce.AckUnlimited}}, unexpected},
		{"ACK of the last that is posted", []reply{{105, roce.AckUnlimited}}, unexpected},
		{"ACK of what was never posted", []reply{{106, roce.AckUnlimited}}, unexpected},
		{"ACK a quarter of all numbers ahead", []reply{{1 << 22, roce.AckUnlimited}}, unexpected},
		{"ACK half of all numbers away", []reply{{1 << 23, roce.AckUnlimited}}, unexpected},
		{"ACK one less", []reply{{1<<23 - 1, roce.AckUnlimited}}, unexpected},
		{"ACK twice", []reply{{1, roce.AckUnlimited}, {1, roce.AckUnlimited}},
			ackState{2, out, out, StateRTS, done(1), 0, QPStats{Messages: 1, AckUnexpected: 1}}},
		{"ACKs in the wrong order", []reply{{3, roce.AckUnlimited}, {1, roce.AckUnlimited}},
			ackState{4, out, out, StateRTS, done(1, 2), 0, QPStats{Messages: 2, AckUnexpected: 1}}},
		{"reserved kind", []reply{{1, 0x40}}, dropped},
		{"reserved kind of nothing", []reply{{out, 0x5f}}, unexpected},

		{"sequence NAK of the first", []reply{{0, roce.NakSequence}}, ackState{0, 0, out, StateRTS, nil, 0, QPStats{RcvdSeqNaks: 1, Rewinds: 1}}},
		{"sequence NAK in the middle", []reply{{3, roce.NakSequence}}, ackState{3, 3, out, StateRTS, done(1), 0, QPStats{RcvdSeqNaks: 1, Rewinds: 1, Messages: 1}}},
		{"sequence NAK of the last that is out", []reply{{out - 1, roce.NakSequence}},
			ackState{out - 1, out - 1, out, StateRTS, done(1, 2, 3), 0, QPStats{RcvdSeqNaks: 1, Rewinds: 1, Messages: 3}}},
		{"sequence NAK of what was not sent", []reply{{out, roce.NakSequence}}, unexpected},
		{"sequence NAK before the first", []reply{{-1, roce.NakSequence}}, unexpected},
		{"sequence NAK twice", []reply{{3, roce.NakSequence}, {3, roce.NakSequence}},
			ackState{3, 3, out, StateRTS, done(1), 0, QPStats{RcvdSeqNaks: 2, Rewinds: 1, Messages: 1}}},
		{"sequence NAK, ACK of what is to be sent again", []reply{{2, roce.NakSequence}, {3, roce.AckUnlimited}},
			ackState{4, out, out, StateRTS, done(1, 2), 0, QPStats{RcvdSeqNaks: 1, Rewinds: 1, Messages: 2}}}, // the peer keeps packets

		{"RNR NAK of the first", []reply{{0, rnr}}, ackState{0, 0, out, StateRTS, nil, rnrTime, QPStats{RcvdRNRNaks: 1, Rewinds: 1}}},
		{"RNR NAK in the middle", []reply{{2, rnr}}, ackState{2, 2, out, StateRTS, done(1), rnrTime, QPStats{RcvdRNRNaks: 1, Rewinds: 1, Messages: 1}}},
		{"RNR NAK twice", []reply{{2, rnr}, {2, rnr}}, ackState{2, 2, out, StateRTS, done(1), rnrTime, QPStats{RcvdRNRNaks: 2, Rewinds: 1, Messages: 1}}},
		{"RNR NAK of what was not sent", []reply{{out, rnr}}, unexpected},
		{"RNR NAK before the first", []reply{{-1, rnr}}, unexpected},
		{"RNR NAK and the sequence NAK of rxe", []reply{{2, rnr}, {2, roce.NakSequence}},
			ackState{2, 2, out, StateRTS, done(1), rnrTime, QPStats{RcvdRNRNaks: 1, RcvdSeqNaks: 1, Rewinds: 1, Messages: 1}}},
		{"RNR NAK and an ACK of that packet", []reply{{2, rnr}, {2, roce.AckUnlimited}},
			ackState{3, 3, out, StateRTS, done(1), 0, QPStats{RcvdRNRNaks: 1, Rewinds: 1, Messages: 1}}},

		{"invalid request", []reply{{2, roce.NakInvalidRequest}},
			ackState{2, out, out, StateError, failed(1, StatusRemoteInvalid), 0, QPStats{RcvdFatalNaks: 1, Messages: 1}}},
		{"remote access, in the middle of a message", []reply{{3, roce.NakRemoteAccess}},
			ackState{3, out, out, StateError, failed(1, StatusRemoteAccess), 0, QPStats{RcvdFatalNaks: 1, Messages: 1}}},
		{"remote operation, of the first", []reply{{0, roce.NakRemoteOperation}},
			ackState{0, out, out, StateError, failed(0, StatusRemoteOperation), 0, QPStats{RcvdFatalNaks: 1}}},
		{"remote operation, of the message in part", []reply{{40, roce.NakRemoteOperation}},
			ackState{40, out, out, StateError, failed(3, StatusRemoteOperation), 0, QPStats{RcvdFatalNaks: 1, Messages: 3}}},
		{"invalid request of what was not sent", []reply{{out, roce.NakInvalidRequest}}, unexpected},
		{"remote access of what is long done", []reply{{-1, roce.NakRemoteAccess}}, unexpected},
		{"ACK after the end", []reply{{0, roce.NakRemoteAccess}, {5, roce.AckUnlimited}},
			ackState{0, out, out, StateError, failed(0, StatusRemoteAccess), 0, QPStats{RcvdFatalNaks: 1, Dropped: 1}}},
		{"invalid RD request", []reply{{2, 0x64}}, dropped},
		{"reserved NAK", []reply{{2, 0x7f}}, dropped},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newRTS(t)
			for id := range 3 {
				s.post(uint64(id+1), 500)
			}
			s.post(4, 100*256)
			if n := len(s.drain()); n != out {
				t.Fatalf("%d packets went out, want %d", n, out)
			}
			for _, r := range tt.replies {
				s.reply(r.i, r.syndrome)
			}
			if got := s.ackState(); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("after %v:\n got %+v\nwant %+v", tt.replies, got, tt.want)
			}
			if s.state == StateError && s.deadline() != 0 {
				t.Errorf("deadline %v in ERR", s.deadline())
			}
			s.untouched()
		})
	}
}

// TestReservedSyndromes has all values that mean nothing for RC.
func TestReservedSyndromes(t *testing.T) {
	for v := range 256 {
		syndrome := roce.Syndrome(v)
		if k := syndrome.Kind(); k == roce.KindAck || k == roce.KindRNRNak || k == roce.KindNak && syndrome&0x9f <= 3 {
			continue
		}
		s := newRTS(t)
		s.post(1, 300)
		s.drain()
		before := s.requester
		s.reply(0, syndrome)
		if s.stats.Dropped != 1 || !reflect.DeepEqual(s.requester, before) || len(s.done) > 0 {
			t.Errorf("syndrome %#02x: dropped %d, completions %v", v, s.stats.Dropped, s.done)
		}
	}
}

// TestAckRequest looks which packets ask for an acknowledgement: the last of the queue and the last
// of the window must, for nothing else would move on; in between some do.
func TestAckRequest(t *testing.T) {
	for _, tt := range []struct {
		name     string
		messages []int // packets of each
		signaled bool
		want     []int
	}{
		{"one packet", []int{1}, false, []int{0}},
		{"one message", []int{5}, false, []int{4}},
		{"two messages, not signaled", []int{5, 5}, false, []int{9}},
		{"two messages, signaled", []int{5, 5}, true, []int{4, 9}},
		{"a message longer than the window", []int{100}, false, []int{15, 31, 47, 63}},
		{"just the window", []int{64}, false, []int{15, 31, 47, 63}},
		{"20 messages", slices.Repeat([]int{1}, 20), true, []int{4, 9, 14, 19}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newRTS(t)
			for i, n := range tt.messages {
				wr := SendWR{ID: uint64(i), Op: OpWrite, Signaled: tt.signaled, Local: [2]SGE{s.sge(0, n*256)}}
				if err := s.postSend(&wr); err != nil {
					t.Fatal(err)
				}
			}
			var got []int
			for i, p := range s.drain() {
				if p.AckReq {
					got = append(got, i)
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("packets %v ask for an acknowledgement, want %v", got, tt.want)
			}
		})
	}
}

// TestPostSend has work that cannot be posted.
func TestPostSend(t *testing.T) {
	s := newRTS(t)
	other := newSolo(t)
	dead := must1(s.pd.RegisterMR(make([]byte, 10), LocalWrite))(t)
	dead.Deregister()
	huge := SGE{MR: s.mr, Addr: s.mr.addr, Len: MaxMessage}
	for _, tt := range []struct {
		name string
		wr   SendWR
		want error
	}{
		{"no operation", SendWR{}, ErrArgument},
		{"unknown operation", SendWR{Op: OpWriteImm + 1}, ErrArgument},
		{"longer than MaxMessage", SendWR{Op: OpSend, Local: [2]SGE{huge, s.sge(0, 1)}}, ErrArgument},
		{"one byte before the region", SendWR{Op: OpSend, Local: [2]SGE{s.sge(-1, 2)}}, ErrRegion},
		{"one byte after the region", SendWR{Op: OpSend, Local: [2]SGE{s.sge(testSize-1, 2)}}, ErrRegion},
		{"address that wraps", SendWR{Op: OpSend, Local: [2]SGE{{MR: s.mr, Addr: ^uint64(0), Len: 2}}}, ErrRegion},
		{"second piece", SendWR{Op: OpSend, Local: [2]SGE{s.sge(0, 1), s.sge(testSize, 1)}}, ErrRegion},
		{"no region", SendWR{Op: OpSend, Local: [2]SGE{{Len: 1}}}, ErrRegion},
		{"region of another domain", SendWR{Op: OpSend, Local: [2]SGE{other.sge(0, 1)}}, ErrRegion},
		{"region that is gone", SendWR{Op: OpSend, Local: [2]SGE{{MR: dead, Addr: dead.addr, Len: 1}}}, ErrRegion},
		{"nothing of no region", SendWR{Op: OpSend, Local: [2]SGE{{Addr: 5}}}, nil},
		{"all of the region", SendWR{Op: OpWriteImm, Local: [2]SGE{s.sge(0, testSize)}}, nil},
	} {
		before := s.posted
		if err := s.postSend(&tt.wr); !errors.Is(err, tt.want) {
			t.Errorf("%s: postSend = %v, want %v", tt.name, err, tt.want)
		} else if err != nil && s.posted != before {
			t.Errorf("%s: posted has moved", tt.name)
		}
	}
	for i := s.tail - s.head; i < s.maxSend; i++ {
		s.post(1, 1)
	}
	if err := s.postSend(&SendWR{Op: OpSend}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("postSend on a full queue = %v, want ErrQueueFull", err)
	}
}

// TestRoundOfNumbers posts 2^24 packets, so that the number after the last is the first one's.
func TestRoundOfNumbers(t *testing.T) {
	pd := newPD(nil)
	m, err := pd.AllocMR(MaxMessage/2, 0) // never written to, so it takes no memory
	if err != nil {
		t.Skipf("needs 512 MiB of address space: %v", err)
	}
	defer m.Deregister()
	s := newRTS(t)
	s.pd = pd
	half := SGE{MR: m, Addr: m.addr, Len: MaxMessage / 2}
	for i := range 4 { // of 2^22 packets each
		if err := s.postSend(&SendWR{ID: uint64(i), Op: OpWrite, Local: [2]SGE{half, half}}); err != nil {
			t.Fatal(err)
		}
	}
	if s.posted != s.next {
		t.Fatalf("posted %v, next %v: this tests nothing", s.posted, s.next)
	}
	if all := s.drain(); len(all) != startWindow || !all[startWindow-1].AckReq {
		t.Fatalf("%d packets went out, want %d", len(all), startWindow)
	}
	s.reply(startWindow-1, roce.AckUnlimited)
	if all := s.drain(); len(all) != 2*startWindow {
		t.Errorf("%d packets went out after the acknowledgement, want %d", len(all), 2*startWindow)
	}
}

// TestSourceGone deregisters the memory of a message that is on its way.
func TestSourceGone(t *testing.T) {
	s := newRTS(t)
	m := must1(s.pd.RegisterMR(make([]byte, 100*256), 0))(t)
	s.post(1, 300)
	wr := SendWR{ID: 2, Op: OpWrite, Local: [2]SGE{{MR: m, Addr: m.addr, Len: 100 * 256}}}
	if err := s.postSend(&wr); err != nil {
		t.Fatal(err)
	}
	s.post(3, 300)
	s.drain()
	m.Deregister()
	s.reply(10, roce.AckUnlimited)
	if all := s.drain(); len(all) != 0 {
		t.Errorf("%d packets went out of memory that is gone", len(all))
	}
	want := [][2]uint64{{1, 0}, {2, uint64(StatusLocalProtection)}, {3, uint64(StatusFlushed)}}
	if got := statusOf(s.completions()); !slices.Equal(got, want) || s.state != StateError {
		t.Errorf("completions %v in %v, want %v in ERR", got, s.state, want)
	}
}

// must1 fails the test if there is an error.
func must1[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestWindow walks the window through its life.
func TestWindow(t *testing.T) {
	var w window
	w.reset()
	step := func(what string, size int) {
		t.Helper()
		if w.size != size {
			t.Fatalf("after %s the window is %d, want %d", what, w.size, size)
		}
	}
	step("reset", startWindow)
	w.onAcked(64)
	step("a window acknowledged", 128)
	w.onAcked(1)
	step("a packet acknowledged", 129)
	w.onAcked(1 << 20)
	step("much acknowledged", maxWindow)
	w.onAcked(1)
	step("more", maxWindow)
	w.onLoss(false)
	step("a loss", maxWindow/2)
	w.onAcked(maxWindow / 2)
	step("a window acknowledged after a loss", maxWindow/2+windowStep)
	for range 8 {
		w.onLoss(false)
	}
	step("many losses", minWindow)
	w.onLoss(true)
	step("a loss that is repaired", minWindow)
	w.size, w.threshold = maxWindow, maxWindow
	w.onLoss(true)
	step("one from a large window", maxWindow-maxWindow/8)
	for range 100 {
		w.onLoss(true)
	}
	step("many that are repaired", minKeptWindow)
	w.size, w.threshold = maxWindow, maxWindow
	w.onTimeout()
	step("a timeout", lossWindow)
	w.onAcked(1 << 20)
	step("recovery up to half", maxWindow/2)
	for range 1000 {
		w.onAcked(w.size)
	}
	step("1000 windows", maxWindow)

	w.reset()
	if got := w.probeAfter(); got != firstProbe {
		t.Errorf("probeAfter() without a measurement = %v, want %v", got, firstProbe)
	}
	w.onRoundTrip(time.Millisecond)
	if got, want := w.probeAfter(), 4*time.Millisecond; got != want { // 2 + 4 times half
		t.Errorf("probeAfter() after 1ms = %v, want %v", got, want)
	}
	for range 1000 {
		w.onRoundTrip(10 * time.Microsecond)
	}
	if w.smoothed > 11*time.Microsecond || w.probeAfter() != minProbe {
		t.Errorf("after 1000 round trips of 10us: %+v, probeAfter() = %v", w, w.probeAfter())
	}
}

// TestPSNOfEveryPacket compares the packets of a message with the rules of IBTA 9.2 and 9.7.2.
func TestPSNOfEveryPacket(t *testing.T) {
	for op, names := range map[Op][4]roce.Opcode{
		OpSend:     {0x00, 0x01, 0x02, 0x04},
		OpSendImm:  {0x00, 0x01, 0x03, 0x05},
		OpWrite:    {0x06, 0x07, 0x08, 0x0a},
		OpWriteImm: {0x06, 0x07, 0x09, 0x0b},
	} {
		for _, n := range []int{0, 1, 255, 256, 257, 512, 513, 1024} {
			s := newRTS(t)
			wr := SendWR{Op: op, Solicited: true, Imm: 0x01020304, Remote: 0x1122334455667788, RKey: 0x99aabbcc, Local: [2]SGE{s.sge(7, n/3), s.sge(9000, n-n/3)}}
			if err := s.postSend(&wr); err != nil {
				t.Fatal(err)
			}
			content := append(slices.Clone(s.was[testGuard+7:][:n/3]), s.was[testGuard+9000:][:n-n/3]...)
			all := s.drain()
			if want := max(1, (n+255)/256); len(all) != want {
				t.Fatalf("%v of %d bytes: %d packets, want %d", op, n, len(all), want)
			}
			for i, p := range all {
				last := i == len(all)-1
				kind := 1
				switch {
				case len(all) == 1:
					kind = 3
				case i == 0:
					kind = 0
				case last:
					kind = 2
				}
				want := roce.Packet{
					BTH:     roce.BTH{Opcode: names[kind], Solicited: last, AckReq: last, PKey: 0xffff, DestQPN: testRemote, PSN: wire.PSN(0xfffffd+i) & 0xffffff},
					Payload: content[i*256 : min(n, i*256+256)],
				}
				if op.IsWrite() && i == 0 {
					want.RETH = roce.RETH{VA: wr.Remote, RKey: wr.RKey, Length: uint32(n)}
				}
				if op.HasImm() && last {
					want.Imm = wr.Imm
				}
				p.Payload, want.Payload = slices.Clip(p.Payload), slices.Clip(want.Payload)
				if string(p.Payload) != string(want.Payload) {
					t.Errorf("%v of %d bytes: packet %d has other bytes", op, n, i)
				}
				p.Payload, want.Payload = nil, nil
				if !reflect.DeepEqual(p, want) {
					t.Errorf("%v of %d bytes: packet %d is\n     %+v\nwant %+v", op, n, i, p, want)
				}
			}
		}
	}
}
