package uverbs

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// send returns a SEND of n bytes from an offset of the region.
func (f *fake) send(id uint64, offset, n int) SendWR {
	return SendWR{ID: id, Op: OpSend, Signaled: true, Local: f.sge(offset, n)}
}

func (f *fake) sge(offset, n int) [MaxSGE]SGE {
	return [MaxSGE]SGE{{MR: f.mr, Addr: f.mr.Addr() + uint64(offset), Len: uint32(n)}}
}

// sent is the completion of the send with a sequence number, and received of a receive.
func sent(seq uint32) cqe { return cqe{id: joinID(5, false, seq), qpn: fakeQPN} }
func received(seq, n uint32) cqe {
	return cqe{id: joinID(5, true, seq), qpn: fakeQPN, opcode: wcRecv, len: n}
}

// TestPostAndPoll posts and completes more work than any number of places or table has, in both queues.
func TestPostAndPoll(t *testing.T) {
	f := newFake(t)
	var dst [4]Completion
	for round := range uint32(100) {
		if err := f.qp.PostRecv(RecvWR{ID: 1000 + uint64(round), Local: f.sge(0, 100)}); err != nil {
			t.Fatal(err)
		}
		unsignaled := f.send(1, 0, 10)
		unsignaled.Signaled = false
		if err := f.qp.PostSend(unsignaled, f.send(uint64(round), 1, 9)); err != nil {
			t.Fatal(err)
		}
		if got := f.qp.send.ring.producer.Load(); got != (2*round+2)&fakeMask {
			t.Fatalf("round %d: producer's index %d", round, got)
		}
		consume(f.qp.send.ring, 2)
		consume(f.qp.recv.ring, 1)
		f.complete(sent(2*round + 1))
		f.complete(received(round, 100))
		if n := f.cq.Poll(dst[:]); n != 2 || f.cq.Err() != nil {
			t.Fatalf("round %d: %d completions, %v", round, n, f.cq.Err())
		}
		if want := (Completion{ID: uint64(round), QP: f.qp, Op: CompletedSend}); dst[0] != want {
			t.Fatalf("round %d: %+v, want %+v", round, dst[0], want)
		}
		if want := (Completion{ID: 1000 + uint64(round), QP: f.qp, Op: Received, Len: 100}); dst[1] != want {
			t.Fatalf("round %d: %+v, want %+v", round, dst[1], want)
		}
		if got := f.cq.ring.consumer.Load(); got != (2*round+2)&15 {
			t.Fatalf("round %d: consumer's index %d", round, got)
		}
	}
}

// TestPollKinds takes out each kind of completion, a few at a time.
func TestPollKinds(t *testing.T) {
	f := newFake(t)
	for i := range uint64(fakeDepth) {
		if err := errors.Join(f.qp.PostSend(f.send(i, 0, 1)), f.qp.PostRecv(RecvWR{ID: 10 + i, Local: f.sge(0, 8)})); err != nil {
			t.Fatal(err)
		}
	}
	write, imm, failed := sent(0), received(0, 8), sent(1)
	write.opcode, write.len = wcWrite, 1
	imm.flags, imm.imm = wcWithImm, 0x01020304
	failed.status, failed.opcode, failed.len = StatusRemoteAccess, 999, 999 // meaningless after an error
	writeImm := received(1, 100000)
	writeImm.opcode, writeImm.flags, writeImm.imm = wcRecvImm, wcWithImm, 5
	flushed := received(2, 0)
	flushed.status = StatusFlushed
	for _, e := range []cqe{write, imm, failed, writeImm, flushed} {
		f.complete(e)
	}
	var got []Completion
	var dst [2]Completion
	for n := f.cq.Poll(dst[:]); n > 0; n = f.cq.Poll(dst[:]) {
		got = append(got, dst[:n]...)
	}
	want := []Completion{
		{ID: 0, QP: f.qp, Op: CompletedWrite},
		{ID: 10, QP: f.qp, Op: Received, Len: 8, Imm: 0x01020304, HasImm: true},
		{ID: 1, QP: f.qp, Op: CompletedSend, Status: StatusRemoteAccess},
		{ID: 11, QP: f.qp, Op: ReceivedWriteImm, Len: 100000, Imm: 5, HasImm: true},
		{ID: 12, QP: f.qp, Op: Received, Status: StatusFlushed},
	}
	if len(got) != len(want) || f.cq.Err() != nil {
		t.Fatalf("%d completions, %v", len(got), f.cq.Err())
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("completion %d: %+v, want %+v", i, got[i], want[i])
		}
	}
}

// TestPollLies has the kernel complete work that was not posted. The queue is broken then, and returns nothing more.
func TestPollLies(t *testing.T) {
	for name, lie := range map[string]cqe{
		"send not posted":              sent(2),
		"send before":                  sent(1<<32 - 1),
		"receive not posted":           received(1, 0),
		"longer than the receive":      received(0, 9),
		"send as a receive":            {id: joinID(5, false, 0), qpn: fakeQPN, opcode: wcRecv},
		"receive as a send":            {id: joinID(5, true, 0), qpn: fakeQPN, opcode: wcSend},
		"operation that was not asked": {id: joinID(5, false, 0), qpn: fakeQPN, opcode: 2},
		"other queue pair":             {id: joinID(5, false, 0), qpn: fakeQPN + 1},
		"failed, not posted":           {id: joinID(5, false, 7), qpn: fakeQPN, status: StatusFlushed},
	} {
		f := newFake(t)
		err := errors.Join(f.qp.PostSend(f.send(1, 0, 1), f.send(2, 0, 1)), f.qp.PostRecv(RecvWR{Local: f.sge(0, 8)}))
		if err != nil {
			t.Fatal(err)
		}
		f.complete(lie)
		f.complete(sent(0))
		var dst [4]Completion
		if n := f.cq.Poll(dst[:]); n != 0 || !errors.Is(f.cq.Err(), ErrKernel) {
			t.Errorf("%s: %d completions, %v", name, n, f.cq.Err())
		}
		if n := f.cq.Poll(dst[:]); n != 0 {
			t.Errorf("%s: %d completions of a broken queue", name, n)
		}
	}
	f := newFake(t)
	if err := f.qp.PostSend(f.send(1, 0, 1)); err != nil {
		t.Fatal(err)
	}
	f.complete(sent(0))
	f.complete(sent(0))
	var dst [4]Completion
	if n := f.cq.Poll(dst[:]); n != 1 || !errors.Is(f.cq.Err(), ErrKernel) {
		t.Errorf("twice: %d completions, %v", n, f.cq.Err())
	}
}

// TestPollIndex has the kernel move its index out of the ring.
func TestPollIndex(t *testing.T) {
	for _, index := range []uint32{16, 1 << 31, 1<<32 - 1} {
		f := newFake(t)
		f.cq.ring.producer.Store(index)
		var dst [4]Completion
		if n := f.cq.Poll(dst[:]); n != 0 || !errors.Is(f.cq.Err(), ErrKernel) {
			t.Errorf("index %#x: %d completions, %v", index, n, f.cq.Err())
		}
	}
}

// TestQueueFull fills the queues: work that was done counts until its completion was taken out, and places that the
// kernel does not free count as well.
func TestQueueFull(t *testing.T) {
	f := newFake(t)
	for range fakeDepth {
		if err := errors.Join(f.qp.PostSend(f.send(1, 0, 1)), f.qp.PostRecv(RecvWR{})); err != nil {
			t.Fatal(err)
		}
	}
	full := func(when string) {
		t.Helper()
		if err := f.qp.PostSend(f.send(1, 0, 1)); !errors.Is(err, ErrQueueFull) {
			t.Errorf("send %s: %v", when, err)
		}
		if err := f.qp.PostRecv(RecvWR{}); !errors.Is(err, ErrQueueFull) {
			t.Errorf("receive %s: %v", when, err)
		}
	}
	full("when the queue is full")
	consume(f.qp.send.ring, fakeDepth)
	consume(f.qp.recv.ring, fakeDepth)
	full("before the completion")
	f.complete(sent(fakeDepth - 1))
	f.complete(received(fakeDepth-1, 0))
	var dst [4]Completion
	if n := f.cq.Poll(dst[:]); n != 2 {
		t.Fatalf("%d completions, %v", n, f.cq.Err())
	}
	for range fakeDepth {
		if err := errors.Join(f.qp.PostSend(f.send(1, 0, 1)), f.qp.PostRecv(RecvWR{})); err != nil {
			t.Fatal(err)
		}
	}
	f.complete(sent(2*fakeDepth - 1)) // of work that the kernel has in its ring still
	f.complete(received(2*fakeDepth-1, 0))
	if n := f.cq.Poll(dst[:]); n != 2 {
		t.Fatalf("%d completions, %v", n, f.cq.Err())
	}
	work := make([]SendWR, fakeDepth)
	for i := range work {
		work[i] = f.send(1, 0, 1)
	}
	if err := f.qp.PostSend(work...); !errors.Is(err, ErrQueueFull) {
		t.Errorf("over work that the kernel has: %v", err)
	}
}

// TestPostArguments refuses work before the kernel sees it, all of a list or none.
func TestPostArguments(t *testing.T) {
	f := newFake(t)
	other, err := f.c.NewPD()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.AllocMR(100, LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	readOnly, err := f.pd.AllocMR(100, 0)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := f.pd.AllocMR(100, LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Deregister(); err != nil {
		t.Fatal(err)
	}
	for name, local := range map[string]SGE{
		"deregistered":    {MR: dead, Addr: dead.Addr(), Len: 1},
		"no region":       {Len: 1},
		"other domain":    {MR: foreign, Addr: foreign.Addr(), Len: 1},
		"before":          {MR: f.mr, Addr: f.mr.Addr() - 1, Len: 1},
		"beyond":          {MR: f.mr, Addr: f.mr.Addr() + 1, Len: 1000},
		"longer":          {MR: f.mr, Addr: f.mr.Addr(), Len: 1<<32 - 1},
		"end of the word": {MR: f.mr, Addr: 1<<64 - 1, Len: 2},
	} {
		if err := f.qp.PostSend(f.send(1, 0, 1), SendWR{Op: OpSend, Local: [MaxSGE]SGE{{}, local}}); !errors.Is(err, ErrRegion) {
			t.Errorf("send: %s: %v", name, err)
		}
		if err := f.qp.PostRecv(RecvWR{}, RecvWR{Local: [MaxSGE]SGE{local}}); !errors.Is(err, ErrRegion) {
			t.Errorf("receive: %s: %v", name, err)
		}
	}
	if err := f.qp.PostRecv(RecvWR{Local: [MaxSGE]SGE{{MR: readOnly, Addr: readOnly.Addr(), Len: 1}}}); !errors.Is(err, ErrRegion) {
		t.Errorf("receive into memory without local write: %v", err)
	}
	for _, op := range []Op{0, 5, 255} {
		if err := f.qp.PostSend(SendWR{Op: op}); !errors.Is(err, ErrArgument) {
			t.Errorf("%v: %v", op, err)
		}
	}
	if n := f.qp.send.posted.Load() + f.qp.recv.posted.Load(); n != 0 {
		t.Errorf("%d work requests were posted", n)
	}
}

// TestState tries each transition and each way to post in each state.
func TestState(t *testing.T) {
	f := newFake(t)
	rtr := RTR{RemoteGID: wire.GID{15: 1}, RemoteQPN: 2, PathMTU: wire.MTU1024, Port: 1}
	for _, state := range []State{StateReset, StateInit, StateRTR, StateRTS, StateError} {
		for _, try := range []struct {
			name string
			from []State
			f    func() error
		}{
			{"Init", []State{StateReset}, func() error { return f.qp.Init(1, RemoteWrite|LocalWrite) }},
			{"ReadyToReceive", []State{StateInit}, func() error { return f.qp.ReadyToReceive(rtr) }},
			{"ReadyToSend", []State{StateRTR}, func() error { return f.qp.ReadyToSend(RTS{}) }},
			{"PostSend", []State{StateRTS, StateError}, func() error { return f.qp.PostSend() }},
			{"PostRecv", []State{StateInit, StateRTR, StateRTS, StateError}, func() error { return f.qp.PostRecv() }},
		} {
			want := ErrState
			for _, from := range try.from {
				if from == state {
					want = nil
				}
			}
			f.qp.state = state
			if err := try.f(); !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Errorf("%s in %v: %v, want %v", try.name, state, err, want)
			}
		}
	}
	f.qp.state = StateInit
	for _, a := range []RTR{
		{}, {RemoteGID: rtr.RemoteGID, PathMTU: wire.MTU1024, Port: 2}, {RemoteGID: rtr.RemoteGID, PathMTU: 6, Port: 1},
		{RemoteGID: rtr.RemoteGID, PathMTU: wire.MTU1024, Port: 1, RemoteQPN: 1 << 24},
		{RemoteGID: rtr.RemoteGID, PathMTU: wire.MTU1024, Port: 1, RecvPSN: 1 << 24},
		{RemoteGID: rtr.RemoteGID, PathMTU: wire.MTU1024, Port: 1, MinRNRTimer: 32},
	} {
		if err := f.qp.ReadyToReceive(a); !errors.Is(err, ErrArgument) {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

// TestReserve promises no more places than the completion queue has. A queue pair that is closed gives its places
// back, but for completions that wait.
func TestReserve(t *testing.T) {
	f := newFake(t)
	if err := f.cq.reserve(1); !errors.Is(err, ErrCQTooSmall) {
		t.Errorf("one place too many: %v", err)
	}
	if err := f.qp.PostSend(f.send(1, 0, 1), f.send(2, 0, 1)); err != nil {
		t.Fatal(err)
	}
	f.complete(sent(0))
	f.complete(sent(1))
	if err := f.qp.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.cq.reserve(2*fakeDepth - 1); !errors.Is(err, ErrCQTooSmall) {
		t.Errorf("places of completions that wait: %v", err)
	}
	var dst [4]Completion
	if n := f.cq.Poll(dst[:]); n != 0 || f.cq.Err() != nil {
		t.Errorf("%d completions of a closed queue pair, %v", n, f.cq.Err())
	}
	if err := f.cq.reserve(2 * fakeDepth); err != nil {
		t.Errorf("all places: %v", err)
	}
}

// TestBusy closes objects in use.
func TestBusy(t *testing.T) {
	f := newFake(t)
	if err := f.pd.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("domain: %v", err)
	}
	if err := f.cq.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("completion queue: %v", err)
	}
	if err := errors.Join(f.qp.Close(), f.mr.Deregister(), f.cq.Close(), f.pd.Close()); err != nil {
		t.Errorf("in order: %v", err)
	}
	for name, err := range map[string]error{
		"PostSend": f.qp.PostSend(), "PostRecv": f.qp.PostRecv(), "Init": f.qp.Init(1, 0), "Fail": f.qp.Fail(), "Err": f.cq.Err(),
		"Wait": f.cq.Wait(time.Time{}), "hold": f.pd.hold(), "reserve": f.cq.reserve(1),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	if err := f.c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.c.NewPD(); !errors.Is(err, ErrClosed) {
		t.Errorf("NewPD after Close: %v", err)
	}
	if _, err := f.c.GIDs(); !errors.Is(err, ErrClosed) {
		t.Errorf("GIDs after Close: %v", err)
	}
}

// TestCloseContext closes a context with everything in it, and one whose queue pair is being made.
func TestCloseContext(t *testing.T) {
	f := newFake(t)
	f.cq.add(99, &QP{}) // in the completion queue, and not yet in the context
	if err := f.c.Close(); err != nil {
		t.Fatal(err)
	}
	f.cq.remove(99, 1)
	var dst [1]Completion
	if n := f.cq.Poll(dst[:]); n != 0 {
		t.Errorf("%d completions", n)
	}
	for name, err := range map[string]error{
		"PostSend": f.qp.PostSend(), "PostRecv": f.qp.PostRecv(), "Err": f.cq.Err(), "Arm": f.cq.Arm(false),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}

// TestRegionArguments refuses memory that is not whole pages, and access that is impossible.
func TestRegionArguments(t *testing.T) {
	f := newFake(t)
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	for name, test := range map[string]struct {
		mem    []byte
		access Access
	}{
		"empty": {nil, 0}, "part of a page": {mem[:page-1], 0}, "from within a page": {mem[1 : page+1], 0},
		"remote write alone": {mem, RemoteWrite}, "unknown access": {mem, 4},
	} {
		if _, err := f.pd.RegisterMR(test.mem, test.access); !errors.Is(err, ErrArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m, err := f.pd.RegisterMR(mem, LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Deregister(); err != nil {
		t.Error(err)
	}
	mem[0] = 1 // is still the caller's
	// It may be registered a second time, so no child gets it: "dc" is the kernel's flag for that.
	if !slices.Contains(mappingFlags(t, &mem[0]), "dc") {
		t.Error("a child of a fork has the pages")
	}
	for range 1000 {
		if a := randomAddress(); a%(1<<16) != 0 || a < 1<<46 || a >= 1<<47 {
			t.Fatalf("address %#x", a)
		}
	}
}

// TestWait waits for an event of the completion channel, and for none.
func TestWait(t *testing.T) {
	f := newFake(t)
	if err := f.cq.Wait(time.Now().Add(-time.Second)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("past deadline: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.cq.Wait(time.Time{}) }()
	if err := errors.Join(f.qp.Close(), f.cq.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestAllocations checks that the data path allocates nothing.
func TestAllocations(t *testing.T) {
	f := newFake(t)
	work, room := f.send(1, 0, 100), RecvWR{ID: 2, Local: f.sge(0, 100)}
	dst := make([]Completion, 4)
	seq := uint32(0)
	n := testing.AllocsPerRun(100, func() {
		if err := f.qp.PostSend(work); err != nil {
			t.Error(err)
		}
		if err := f.qp.PostRecv(room); err != nil {
			t.Error(err)
		}
		consume(f.qp.send.ring, 1)
		consume(f.qp.recv.ring, 1)
		f.complete(sent(seq))
		f.complete(received(seq, 100))
		if got := f.cq.Poll(dst); got != 2 {
			t.Errorf("%d completions, %v", got, f.cq.Err())
		}
		seq++
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
