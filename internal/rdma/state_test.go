package rdma

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

var allStates = []State{StateReset, StateInit, StateRTR, StateRTS, StateError}

// TestStates has every event in every state: IBTA 10.3.1. A queue pair that is in RTS or ERR has
// been through the states before with nothing posted.
func TestStates(t *testing.T) {
	const none = uint64(99) // no completion
	ok, flushed := uint64(StatusOK), uint64(StatusFlushed)
	type cell struct {
		next State
		err  error
		done uint64        // status of the completion
		sent roce.Opcode   // of the packet that goes out then
		ack  roce.Syndrome // of it, if it is an answer
	}
	const nothing = roce.CNP // no packet
	stay := func(s State) cell { return cell{s, nil, none, nothing, 0} }
	refuse := func(s State) cell { return cell{s, ErrState, none, nothing, 0} }
	events := []struct {
		name string
		do   func(s *solo) error
		want [5]cell // by state
	}{
		{"init", func(s *solo) error { return s.init(LocalWrite | RemoteWrite) },
			[5]cell{stay(StateInit), refuse(StateInit), refuse(StateRTR), refuse(StateRTS), refuse(StateError)}},
		{"readyToReceive", func(s *solo) error { return s.readyToReceive(testRTR) },
			[5]cell{refuse(StateReset), stay(StateRTR), refuse(StateRTR), refuse(StateRTS), refuse(StateError)}},
		{"readyToSend", func(s *solo) error { return s.readyToSend(testRTS) },
			[5]cell{refuse(StateReset), refuse(StateInit), stay(StateRTS), refuse(StateRTS), refuse(StateError)}},
		{"postSend", func(s *solo) error { return s.postSend(&SendWR{Op: OpSend, ID: 1}) },
			[5]cell{refuse(StateReset), refuse(StateInit), refuse(StateRTR), {StateRTS, nil, none, roce.SendOnly, 0}, {StateError, nil, flushed, nothing, 0}}},
		{"postRecv", func(s *solo) error { return s.postRecv(&RecvWR{ID: 1}) },
			[5]cell{refuse(StateReset), stay(StateInit), stay(StateRTR), stay(StateRTS), {StateError, nil, flushed, nothing, 0}}},
		{"a WRITE", func(s *solo) error { s.take(s.request(roce.WriteOnly, 0, []byte{1})); return nil },
			[5]cell{stay(StateReset), stay(StateInit), {StateRTR, nil, none, roce.Acknowledge, roce.AckUnlimited},
				{StateRTS, nil, none, roce.Acknowledge, roce.AckUnlimited}, stay(StateError)}},
		{"a duplicate", func(s *solo) error { s.take(s.request(roce.WriteOnly, -1, []byte{1})); return nil },
			[5]cell{stay(StateReset), stay(StateInit), {StateRTR, nil, none, roce.Acknowledge, roce.AckUnlimited},
				{StateRTS, nil, none, roce.Acknowledge, roce.AckUnlimited}, stay(StateError)}},
		{"a packet behind a gap", func(s *solo) error { s.take(s.request(roce.WriteOnly, 1, []byte{1})); return nil },
			[5]cell{stay(StateReset), stay(StateInit), {StateRTR, nil, none, roce.Acknowledge, roce.NakSequence},
				{StateRTS, nil, none, roce.Acknowledge, roce.NakSequence}, stay(StateError)}},
		{"a SEND without a receive", func(s *solo) error { s.take(s.request(roce.SendOnly, 0, []byte{1})); return nil },
			[5]cell{stay(StateReset), stay(StateInit), {StateRTR, nil, none, roce.Acknowledge, 0x25},
				{StateRTS, nil, none, roce.Acknowledge, 0x25}, stay(StateError)}},
		{"a bad request", func(s *solo) error { s.take(s.request(roce.ReadRequest, 0, nil)); return nil },
			[5]cell{stay(StateReset), stay(StateInit), {StateError, nil, none, roce.Acknowledge, roce.NakInvalidRequest},
				{StateError, nil, none, roce.Acknowledge, roce.NakInvalidRequest}, stay(StateError)}},
		{"an ACK", func(s *solo) error { s.reply(0, roce.AckUnlimited); return nil },
			[5]cell{stay(StateReset), stay(StateInit), stay(StateRTR), stay(StateRTS), stay(StateError)}},
		{"a fatal NAK", func(s *solo) error { s.reply(0, roce.NakRemoteAccess); return nil },
			[5]cell{stay(StateReset), stay(StateInit), stay(StateRTR), stay(StateRTS), stay(StateError)}},
		{"a READ RESPONSE", func(s *solo) error { s.take(s.request(roce.ReadResponseOnly, 0, nil)); return nil },
			[5]cell{stay(StateReset), stay(StateInit), stay(StateRTR), stay(StateRTS), stay(StateError)}},
		{"the time", func(s *solo) error { s.now += 1 << 50; s.advance(s.now); return nil },
			[5]cell{stay(StateReset), stay(StateInit), stay(StateRTR), stay(StateRTS), stay(StateError)}},
		{"fail", func(s *solo) error { s.fail(); return nil },
			[5]cell{stay(StateReset), stay(StateError), stay(StateError), stay(StateError), stay(StateError)}},
		{"reset", func(s *solo) error { s.reset(); return nil },
			[5]cell{stay(StateReset), stay(StateReset), stay(StateReset), stay(StateReset), stay(StateReset)}},
		{"a message, sent and acknowledged", func(s *solo) error {
			err := s.postSend(&SendWR{Op: OpSend, ID: 1, Signaled: true})
			s.drain()
			s.reply(0, roce.AckUnlimited)
			return err
		}, [5]cell{refuse(StateReset), refuse(StateInit), refuse(StateRTR), {StateRTS, nil, ok, nothing, 0}, {StateError, nil, flushed, nothing, 0}}},
	}
	for _, e := range events {
		for i, state := range allStates {
			t.Run(fmt.Sprintf("%v/%s", state, e.name), func(t *testing.T) {
				s, want := newSolo(t).to(state), e.want[i]
				err := e.do(s)
				got := cell{s.state, nil, none, nothing, 0}
				if errors.Is(err, ErrState) {
					got.err = ErrState
				} else if err != nil {
					got.err = err
				}
				if c := s.completions(); len(c) == 1 && c[0].ID == 1 {
					got.done = uint64(c[0].Status)
				} else if len(c) > 0 {
					t.Errorf("completions %+v", c)
				}
				for k, p := range s.drain() {
					got.sent = p.Opcode
					if p.Opcode == roce.Acknowledge {
						got.ack = p.AETH.Syndrome
					}
					if k > 0 {
						t.Errorf("packet %d goes out: %v", k, &p)
					}
				}
				if got != want {
					t.Errorf("got %+v\nwant %+v", got, want)
				}
				if s.wantsToTransmit(s.now) {
					t.Error("and there is more to transmit")
				}
				if (got.sent == roce.SendOnly) != (s.deadline() != 0) {
					t.Errorf("deadline() = %v", s.deadline())
				}
				wrote := 0
				if got.ack == roce.AckUnlimited && e.name == "a WRITE" {
					wrote = 1
				}
				s.only(0, wrote)
			})
		}
	}
}

// TestBadTransitions has arguments that no queue pair can have.
func TestBadTransitions(t *testing.T) {
	if err := newSolo(t).init(allAccess + 1); !errors.Is(err, ErrArgument) {
		t.Errorf("init(%#x) = %v, want ErrArgument", allAccess+1, err)
	}
	for _, change := range []func(a *RTR){
		func(a *RTR) { a.PathMTU = 0 },
		func(a *RTR) { a.PathMTU = wire.MTU4096 + 1 },
		func(a *RTR) { a.RemoteQPN = 0 },
		func(a *RTR) { a.RemoteQPN = 1 },
		func(a *RTR) { a.RemoteQPN = 0xffffff },
		func(a *RTR) { a.RemoteQPN = 1 << 24 },
		func(a *RTR) { a.RecvPSN = 1 << 24 },
		func(a *RTR) { a.MinRNRTimer = 32 },
	} {
		a, s := testRTR, newSolo(t).to(StateInit)
		change(&a)
		if err := s.readyToReceive(a); !errors.Is(err, ErrArgument) || s.state != StateInit {
			t.Errorf("readyToReceive(%+v) = %v in %v, want ErrArgument", a, err, s.state)
		}
	}
	for _, change := range []func(a *RTS){
		func(a *RTS) { a.SendPSN = 1 << 24 },
		func(a *RTS) { a.Timeout = 32 },
		func(a *RTS) { a.RetryCount = 8 },
		func(a *RTS) { a.RNRRetry = 8 },
	} {
		a, s := testRTS, newSolo(t).to(StateRTR)
		change(&a)
		if err := s.readyToSend(a); !errors.Is(err, ErrArgument) || s.state != StateRTR {
			t.Errorf("readyToSend(%+v) = %v in %v, want ErrArgument", a, err, s.state)
		}
	}
}

// busy has two sends and two receives posted, one message in the middle of each direction, an
// answer to give, and a timer running.
func busy(t *testing.T) *solo {
	s := newRTS(t)
	s.post(1, 600)
	if err := s.postSend(&SendWR{ID: 2, Op: OpSend}); err != nil { // not signaled
		t.Fatal(err)
	}
	s.drain()
	s.reply(0, roce.AckUnlimited)
	s.postReceive(3, 0, 600)
	s.postReceive(4, 0, 600)
	s.take(s.request(roce.SendFirst, 0, make([]byte, 256)))
	return s
}

// TestFailFlushes has work in all places when the queue pair fails.
func TestFailFlushes(t *testing.T) {
	s := busy(t)
	s.fail()
	want := []Completion{
		{ID: 1, Op: CompletedWrite, Status: StatusFlushed}, {ID: 2, Op: CompletedSend, Status: StatusFlushed},
		{ID: 3, Op: Received, Status: StatusFlushed}, {ID: 4, Op: Received, Status: StatusFlushed},
	}
	if got := s.completions(); !slices.Equal(got, want) {
		t.Errorf("completions\n %+v\nwant %+v", got, want)
	}
	if s.deadline() != 0 || s.head != s.tail || s.rqHead != s.rqTail {
		t.Errorf("deadline %v, %d sends and %d receives are left", s.deadline(), s.tail-s.head, s.rqTail-s.rqHead)
	}
	s.fail()
	if got := s.completions(); len(got) > 0 {
		t.Errorf("a second time: %+v", got)
	}
	for i := range s.sq {
		if s.sq[i].wr.Local[0].MR != nil {
			t.Errorf("send %d keeps its region", i)
		}
	}
	for i := range s.rq {
		if s.rq[i].Local[0].MR != nil {
			t.Errorf("receive %d keeps its region", i)
		}
	}
}

// TestResetForgets has work in all places when the queue pair is reset, and connects it again.
func TestResetForgets(t *testing.T) {
	s := busy(t)
	stats := s.stats
	s.reset()
	if got := s.completions(); len(got) > 0 || s.deadline() != 0 || s.wantsToTransmit(s.now) {
		t.Errorf("completions %+v, deadline %v, wants to transmit %v", got, s.deadline(), s.wantsToTransmit(s.now))
	}
	if s.stats != stats || s.qpn != testQPN || s.maxSend != 64 || s.maxRecv != 64 {
		t.Errorf("stats %+v, want %+v; number %v", s.stats, stats, s.qpn)
	}
	s.to(StateRTS)
	s.postReceive(5, 0, 600)
	s.take(s.request(roce.SendOnly, 0, []byte{1}))
	s.post(6, 300)
	s.drain()
	s.reply(1, roce.AckUnlimited)
	want := []Completion{{ID: 5, Op: Received, Len: 1}, {ID: 6, Op: CompletedWrite}}
	if got := s.completions(); !slices.Equal(got, want) {
		t.Errorf("after connecting again, completions\n %+v\nwant %+v", got, want)
	}
}

// TestAnswerBeforeError sends a NAK though the queue pair has failed with it, and its own work never.
func TestAnswerBeforeError(t *testing.T) {
	s := newRTS(t)
	s.post(1, 30*256)
	s.take(s.request(roce.FetchAdd, 0, nil))
	all := s.drain()
	if len(all) != 1 || all[0].AETH.Syndrome != roce.NakInvalidRequest {
		t.Errorf("packets %v, want one NAK", all)
	}
}

// TestPostRecv has receives that cannot be posted.
func TestPostRecv(t *testing.T) {
	s := newRTS(t)
	readOnly := must1(s.pd.RegisterMR(make([]byte, 10), 0))(t)
	for _, tt := range []struct {
		name  string
		local [2]SGE
		want  error
	}{
		{"nothing", [2]SGE{}, nil},
		{"all of the region", [2]SGE{s.sge(0, testSize)}, nil},
		{"one byte too many", [2]SGE{s.sge(0, testSize+1)}, ErrRegion},
		{"second piece before the region", [2]SGE{s.sge(0, 1), s.sge(-1, 1)}, ErrRegion},
		{"region to read from", [2]SGE{{MR: readOnly, Addr: readOnly.addr, Len: 1}}, ErrRegion},
		{"region of another domain", [2]SGE{newSolo(t).sge(0, 1)}, ErrRegion},
		{"no region", [2]SGE{{Len: 1}}, ErrRegion},
	} {
		if err := s.postRecv(&RecvWR{Local: tt.local}); !errors.Is(err, tt.want) {
			t.Errorf("%s: postRecv = %v, want %v", tt.name, err, tt.want)
		}
	}
	for s.rqTail-s.rqHead < s.maxRecv {
		s.postReceive(1, 0, 1)
	}
	if err := s.postRecv(&RecvWR{}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("postRecv on a full queue = %v, want ErrQueueFull", err)
	}
}

// TestNames has the names of all values, and of one that is none.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, list := range [][]fmt.Stringer{
		{StateReset, StateInit, StateRTR, StateRTS, StateError, StateError + 1},
		{OpSend, OpSendImm, OpWrite, OpWriteImm, OpWriteImm + 1},
		{CompletedSend, CompletedWrite, Received, ReceivedWriteImm, ReceivedWriteImm + 30},
		{StatusOK, StatusLocalLength, StatusLocalProtection, StatusFlushed, StatusRemoteInvalid, StatusRemoteAccess,
			StatusRemoteOperation, StatusRetryExceeded, StatusRNRExceeded, StatusRNRExceeded + 1},
	} {
		clear(seen)
		for _, v := range list {
			if name := v.String(); name == "" || seen[name] {
				t.Errorf("%T %d is called %q", v, v, name)
			} else {
				seen[name] = true
			}
		}
	}
}

// TestNumberWhileReset asks a queue pair for its number while it is reset: it never changes.
func TestNumberWhileReset(t *testing.T) {
	s := newSide(t, randomLoopback(), nil, nil)
	want := s.qp.QPN()
	done := make(chan error)
	go func() {
		for range 1000 {
			if err := s.qp.Reset(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
			if got := s.qp.QPN(); got != want {
				t.Fatalf("QPN() = %v, was %v", got, want)
			}
		}
	}
}
