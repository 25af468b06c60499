package rdma

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/roce"
)

// TestRNRTimer waits for as long as each timer code says: IBTA 9.7.5.2.8.
func TestRNRTimer(t *testing.T) {
	for code := range uint8(32) {
		s := newRTS(t)
		s.post(1, 300)
		s.drain()
		s.reply(0, roce.RNRNak(code))
		want := s.now + time.Duration(roce.RNRTimer(code))*time.Microsecond
		if got := s.deadline(); got != want {
			t.Fatalf("deadline() with RNR timer %d = %v, want %v", code, got, want)
		}
		s.now = want - 1
		s.advance(s.now)
		if p, ok := s.nextPacket(); ok {
			t.Fatalf("%v went out too early", &p)
		}
		s.now = want
		s.advance(s.now)
		if s.deadline() != 0 || !s.wantsToTransmit(s.now) {
			t.Errorf("deadline() after the wait = %v, wantsToTransmit %v", s.deadline(), s.wantsToTransmit(s.now))
		}
		if n := len(s.drain()); n != 2 {
			t.Errorf("%d packets went out after the wait, want 2", n)
		}
	}
}

// TestRNRRetry counts the RNR NAKs that a message outlives.
func TestRNRRetry(t *testing.T) {
	for _, retries := range []uint8{0, 1, 3, 6, 7} {
		t.Run(fmt.Sprint(retries), func(t *testing.T) {
			s := newSolo(t).to(StateRTR)
			rts := testRTS
			rts.RNRRetry = retries
			s.must(s.readyToSend(rts))
			s.post(1, 300)
			s.post(2, 300)
			s.drain()
			s.reply(2, roce.RNRNak(5)) // of the second: progress, which begins the count
			naks := 1
			for ; s.state == StateRTS && naks < 1000; naks++ {
				s.now += 70 * time.Microsecond
				if len(s.drain()) == 0 {
					t.Fatalf("nothing went out after RNR NAK %d", naks)
				}
				s.reply(2, roce.RNRNak(5))
				s.reply(2, roce.NakSequence) // as rxe sends it
			}
			want := int(retries) + 1
			if retries == retryForever {
				want = 1000
			}
			if naks != want {
				t.Fatalf("the queue pair took %d RNR NAKs, want %d", naks, want)
			}
			if retries == retryForever {
				return
			}
			if got := statusOf(s.completions()); !slices.Equal(got, [][2]uint64{{1, 0}, {2, uint64(StatusRNRExceeded)}}) {
				t.Errorf("completions %v", got)
			}
		})
	}
}

// TestSequenceNakRetry counts the sequence NAKs of one packet that a message outlives.
func TestSequenceNakRetry(t *testing.T) {
	for _, retries := range []uint8{0, 1, 3, 7} {
		t.Run(fmt.Sprint(retries), func(t *testing.T) {
			s := newSolo(t).to(StateRTR)
			rts := testRTS
			rts.RetryCount = retries
			s.must(s.readyToSend(rts))
			s.post(1, 300)
			s.post(2, 300)
			s.drain()
			naks := 0
			for ; s.state == StateRTS && naks < 100; naks++ {
				s.reply(0, roce.NakSequence)
				s.now += time.Millisecond
				s.drain()
			}
			if naks != int(retries)+1 {
				t.Errorf("the queue pair took %d sequence NAKs, want %d", naks, retries+1)
			}
			if got := statusOf(s.completions()); !slices.Equal(got, [][2]uint64{{1, uint64(StatusRetryExceeded)}, {2, uint64(StatusFlushed)}}) {
				t.Errorf("completions %v", got)
			}
		})
	}
}

// TestRetriesComeBack makes progress between losses, which must not add up.
func TestRetriesComeBack(t *testing.T) {
	s := newRTS(t)
	s.post(1, 64*256)
	for i := range 60 {
		s.drain()
		s.reply(i, roce.NakSequence)
		s.now += time.Millisecond
		s.drain()
		if i%2 == 0 {
			s.reply(i, roce.NakSequence) // once more without progress
			s.now += time.Millisecond
		}
		s.drain()
		s.reply(i, roce.AckUnlimited)
		if s.state != StateRTS || s.retries != maxRetry {
			t.Fatalf("after %d losses: state %v, %d retries left", i+1, s.state, s.retries)
		}
	}
}

// TestStaleSequenceNak gets copies of a NAK while the packets that it asked for are on their way
// again.
func TestStaleSequenceNak(t *testing.T) {
	s := newRTS(t)
	s.post(1, 20*256)
	s.drain()
	s.now += 100 * time.Microsecond
	s.reply(0, roce.AckUnlimited)
	s.reply(0, roce.AckUnlimited)
	s.post(2, 256)
	s.drain()
	s.now += 100 * time.Microsecond
	s.reply(19, roce.AckUnlimited) // measures a round trip
	if s.window.smoothed != 200*time.Microsecond {
		t.Fatalf("round trip %v, want 200us", s.window.smoothed)
	}
	s.reply(20, roce.NakSequence)
	s.drain()
	for range 20 { // all within half a round trip
		s.now += 4 * time.Microsecond
		s.reply(20, roce.NakSequence)
		if p, ok := s.nextPacket(); ok {
			t.Fatalf("a copy of a NAK makes %v go out", &p)
		}
	}
	if s.state != StateRTS || s.retries < maxRetry-1 || s.stats.Rewinds != 1 {
		t.Errorf("state %v, %d retries left, sending went back %d times", s.state, s.retries, s.stats.Rewinds)
	}
}

// TestExhaustion leaves a queue pair without answers, and looks at the time when it gives up: the
// timeout of 4.096 us << code, twice and then four times for each retry. It does not give up before
// a stopped peer has had two to four times the time that its owner asked for. IBTA 9.7.6.1.3,
// 11.2.4.2.
func TestExhaustion(t *testing.T) {
	for _, tt := range []struct {
		timeout, retries uint8
		want             time.Duration // since the first packet
	}{
		{8, 0, 2 * 1048576 * time.Nanosecond},
		{8, 3, 14 * 1048576 * time.Nanosecond},
		{8, 7, 30 * 1048576 * time.Nanosecond},
		{14, 7, 30 * 67108864 * time.Nanosecond},
		{15, 7, 30 * 134217728 * time.Nanosecond}, // SMC sets this
		{1, 2, 10 * 8192 * time.Nanosecond},
		{31, 1, 6 * 8796093022208 * time.Nanosecond},
		{0, 7, 0}, // never
	} {
		t.Run(fmt.Sprintf("timeout %d, %d retries", tt.timeout, tt.retries), func(t *testing.T) {
			s := newSolo(t).to(StateRTR)
			s.must(s.readyToSend(RTS{SendPSN: testSendPSN, Timeout: tt.timeout, RetryCount: tt.retries}))
			start := s.now
			s.post(1, 700)
			s.post(2, 100)
			s.drain()
			for steps := 0; s.state == StateRTS && steps < 200; steps++ {
				at := s.deadline()
				if at < s.now {
					t.Fatalf("step %d: deadline() = %v at %v", steps, at, s.now)
				}
				s.now = at
				s.advance(s.now)
				s.drain()
			}
			if tt.want == 0 {
				if s.state != StateRTS || s.stats.Timeouts != 0 || s.stats.Probes != 200 {
					t.Errorf("without a timeout: state %v, %d timeouts, %d probes", s.state, s.stats.Timeouts, s.stats.Probes)
				}
				return
			}
			if got := s.now - start; s.state != StateError || got != tt.want {
				t.Errorf("state %v after %v, want ERR after %v", s.state, got, tt.want)
			}
			if s.stats.Timeouts != uint64(tt.retries)+1 {
				t.Errorf("%d timeouts, want %d", s.stats.Timeouts, tt.retries+1)
			}
			if got := statusOf(s.completions()); !slices.Equal(got, [][2]uint64{{1, uint64(StatusRetryExceeded)}, {2, uint64(StatusFlushed)}}) {
				t.Errorf("completions %v", got)
			}
		})
	}
}

// TestTimeoutGoesBack looks at the first timeout: everything goes out again, as much as a window of
// lossWindow takes.
func TestTimeoutGoesBack(t *testing.T) {
	s := newRTS(t)
	s.post(1, 40*256)
	first := s.drain()
	s.now += 2 * 4096 * time.Nanosecond << testRTS.Timeout
	s.advance(s.now)
	again := s.drain()
	if len(first) != 40 || len(again) != lossWindow {
		t.Fatalf("%d packets, %d after the timeout; want 40, %d", len(first), len(again), lossWindow)
	}
	for i := range again {
		first[i].AckReq = i == lossWindow-1
		again[i].AckReq = again[i].AckReq && i == lossWindow-1
		if !reflect.DeepEqual(first[i], again[i]) {
			t.Errorf("packet %d was %v, is %v", i, &first[i], &again[i])
		}
	}
	if !again[lossWindow-1].AckReq {
		t.Error("the last packet of the window does not ask for an acknowledgement")
	}
	if s.stats.Retransmitted != lossWindow || s.retries != maxRetry-1 {
		t.Errorf("%d sent again, %d retries left", s.stats.Retransmitted, s.retries)
	}
}

// TestProbe loses everything that a probe may find: the packet itself, its acknowledgement, or all
// that came after.
func TestProbe(t *testing.T) {
	probe := func(t *testing.T) *solo {
		s := newRTS(t)
		s.post(1, 5*256)
		s.drain()
		start := s.now
		wait := firstProbe
		for i := range 2 { // the first is lost, the second comes twice as late
			start += wait << i
			if got := s.deadline(); got != start {
				t.Fatalf("deadline() before probe %d = %v, want %v", i, got, start)
			}
			s.now = start
			s.advance(s.now)
			all := s.drain()
			if len(all) != 1 || all[0].PSN != testSendPSN || !all[0].AckReq || all[0].Opcode != roce.WriteFirst {
				t.Fatalf("probe %d: %v", i, all)
			}
		}
		if s.stats.Probes != 2 || s.stats.Retransmitted != 2 || s.retries != maxRetry || index(s.next) != 5 {
			t.Fatalf("after the probes: %+v, %d retries, next %d", s.stats, s.retries, index(s.next))
		}
		s.now += time.Millisecond
		return s
	}
	t.Run("only the packet has arrived", func(t *testing.T) {
		s := probe(t)
		s.reply(0, roce.AckUnlimited)
		if all := s.drain(); len(all) != 4 || index(all[0].PSN) != 1 {
			t.Errorf("after the acknowledgement %d packets went out, want 4 from 1", len(all))
		}
		if s.window.smoothed != 0 {
			t.Errorf("the probe was measured as a round trip of %v", s.window.smoothed)
		}
	})
	t.Run("more has arrived", func(t *testing.T) {
		s := probe(t)
		s.reply(2, roce.AckUnlimited)
		if all := s.drain(); len(all) != 0 || index(s.una) != 3 {
			t.Errorf("after the acknowledgement of three %d packets went out; una %d", len(all), index(s.una))
		}
	})
	t.Run("all has arrived", func(t *testing.T) {
		s := probe(t)
		s.reply(4, roce.AckUnlimited)
		if all := s.drain(); len(all) != 0 || s.deadline() != 0 || len(s.completions()) != 1 {
			t.Errorf("after the acknowledgement of all %d packets went out, deadline %v", len(all), s.deadline())
		}
		if s.window.smoothed != 0 {
			t.Errorf("the probe was measured as a round trip of %v", s.window.smoothed)
		}
	})
}

// TestRepairRuns loses up to several super-packets on the way to a peer that keeps the packets
// after them: they are sent again in runs that double, for a NAK each, and not packet by packet.
func TestRepairRuns(t *testing.T) {
	const from = 5 // the first that is lost
	for _, tt := range []struct{ lost, naks, again int }{
		{1, 1, 1}, {2, 2, 3}, {3, 2, 3}, {7, 3, 7}, {40, 6, 63}, {63, 6, 63}, {300, 10, 63 + 4*64},
	} {
		s := newRTS(t)
		s.keeps, s.window.size = true, maxWindow
		for id := range 3 {
			s.post(uint64(id), 200*256)
		}
		arrived := make([]bool, len(s.drain()))
		for i := range arrived {
			arrived[i] = i < from || i >= from+tt.lost
		}
		naks, again := 0, 0
		for missing := from; missing >= 0; missing = slices.Index(arrived, false) {
			s.now += time.Millisecond
			s.reply(missing, roce.NakSequence)
			naks++
			all := s.drain()
			for i, p := range all {
				if index(p.PSN) != missing+i || p.AckReq != (i == len(all)-1) {
					t.Fatalf("%d lost: packet %d after the NAK of %d is %v", tt.lost, i, missing, &p)
				}
				arrived[missing+i] = true
			}
			if again += len(all); len(all) == 0 {
				t.Fatalf("%d lost: nothing goes out after the NAK of %d", tt.lost, missing)
			}
		}
		s.reply(len(arrived)-1, roce.AckUnlimited)
		if naks != tt.naks || again != tt.again || len(s.completions()) != 3 || s.stats.Rewinds != 0 {
			t.Errorf("%d lost: %d NAKs and %d packets, want %d and %d; %+v", tt.lost, naks, again, tt.naks, tt.again, s.stats)
		}
	}
}

// TestNakWithinRun has a peer that tells of the next packet for each one of a run, as it does where they
// come one by one: nothing goes out for those that are on their way, and a run that gets lost is found by the
// probe. Another gap begins with one packet again.
func TestNakWithinRun(t *testing.T) {
	s := newRTS(t)
	s.keeps, s.window.size = true, maxWindow
	for id := range 3 {
		s.post(uint64(id), 200*256)
	}
	s.drain()
	want := func(what string, first, n int) {
		t.Helper()
		all := s.drain()
		if len(all) != n || n > 0 && index(all[0].PSN) != first {
			t.Fatalf("%s: %d packets go out, want %d from %d: %v", what, len(all), n, first, all)
		}
	}
	nak := func(i int) { s.now += 50 * time.Microsecond; s.reply(i, roce.NakSequence) }
	for _, n := range []int{1, 2, 4} {
		nak(10 + n - 1)
		want("a run", 10+n-1, n)
	}
	for i := 14; i < 17; i++ { // of the last run
		nak(i)
		want("a NAK within the run", 0, 0)
	}
	nak(17)
	want("the end of the run", 17, 8)
	nak(19)
	s.now = s.deadline()
	s.advance(s.now)
	want("the probe", 19, 1)
	nak(20)
	want("after the probe", 20, 2)
	nak(300)
	want("another gap", 300, 1)
	if s.state != StateRTS || s.retries != maxRetry {
		t.Errorf("state %v, %d retries left", s.state, s.retries)
	}
}

// TestProbeIsNotPutOff goes on sending while the first packet is lost: the probe comes when it is due, and
// only as much later as an acknowledgement may wait behind messages of the peer.
func TestProbeIsNotPutOff(t *testing.T) {
	for _, hears := range []bool{false, true} {
		s := newRTS(t)
		s.window.smoothed, s.window.variance = 100*time.Microsecond, 10*time.Microsecond
		s.post(1, 256)
		s.drain()
		due := s.now + s.window.probeAfter()
		if hears {
			due += maxAckDelay
			s.now += time.Microsecond
			s.take(s.byteAt(0, 1))
		}
		for s.now += 20 * time.Microsecond; s.now < due; s.now += 20 * time.Microsecond {
			if at := s.requester.deadline(); at != due {
				t.Fatalf("hears %v: the probe is due at %v, want %v", hears, at, due)
			}
			s.post(2, 256)
			s.drain()
		}
		s.now = due
		s.advance(s.now)
		if s.stats.Probes != 1 {
			t.Errorf("hears %v: %d probes, want 1", hears, s.stats.Probes)
		}
		// An answer to a packet that was sent later begins the time anew.
		s.reply(3, roce.AckUnlimited)
		if got := s.requester.deadline(); got != due+s.window.probeAfter() {
			t.Errorf("hears %v: after an acknowledgement the next probe is due at %v, want %v", hears, got, due+s.window.probeAfter())
		}
	}
}
