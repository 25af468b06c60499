package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// A crowd is many busy queue pairs between two devices of one process.
type crowd struct {
	a, z    *Device
	source  *MR
	members []*crowdMember
	byQP    map[*QP]*crowdMember
	goal    int64         // messages of each member; then it posts no more
	left    atomic.Int64  // members that have not reached it
	over    chan struct{} // closed when none is left
	failed  atomic.Int64
}

type crowdMember struct {
	*crowd
	qp, peer *QP
	target   *MR
	done     atomic.Int64
}

// newCrowd makes n queue pairs, each of which can have two WRITEs of size bytes under way.
func newCrowd(tb testing.TB, n, size int, goal int64, cfg *Config) *crowd {
	tb.Helper()
	c := &crowd{byQP: make(map[*QP]*crowdMember), goal: goal, over: make(chan struct{})}
	c.left.Store(int64(n))
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	var err error
	var pds [2]*PD
	for i, d := range []**Device{&c.a, &c.z} {
		*d, err = Open(randomLoopback(), cfg)
		must(err)
		dev := *d
		tb.Cleanup(func() { dev.Close() })
		pds[i], err = dev.NewPD()
		must(err)
	}
	c.source, err = pds[0].AllocMR(size, 0)
	must(err)
	tb.Cleanup(func() { c.source.Deregister() })
	copy(c.source.Bytes(), randomBytes(size, 7))
	cqa, err := c.a.NewCQ(2*n, c.take)
	must(err)
	cqz, err := c.z.NewCQ(1, nil)
	must(err)
	for range n {
		m := &crowdMember{crowd: c}
		m.qp, err = pds[0].NewQP(QPConfig{SendCQ: cqa, RecvCQ: cqa, MaxSend: 2})
		must(err)
		m.peer, err = pds[1].NewQP(QPConfig{SendCQ: cqz, RecvCQ: cqz})
		must(err)
		m.target, err = pds[1].AllocMR(size, LocalWrite|RemoteWrite)
		must(err)
		tb.Cleanup(func() { m.qp.Close(); m.peer.Close(); m.target.Deregister() })
		s := [2]*side{{dev: c.a, qp: m.qp, psn: RandomPSN()}, {dev: c.z, qp: m.peer, psn: RandomPSN()}}
		connect(tb, s[0], s[1], wire.MTU1024)
		c.byQP[m.qp] = m
		c.members = append(c.members, m)
	}
	return c
}

// start has all members begin.
func (c *crowd) start() {
	for _, m := range c.members {
		m.post()
		m.post()
	}
}

func (m *crowdMember) post() {
	wr := SendWR{Op: OpWrite, Signaled: true, Remote: m.target.Addr(), RKey: m.target.RKey()}
	wr.Local[0] = SGE{MR: m.source, Addr: m.source.Addr(), Len: uint32(len(m.source.Bytes()))}
	if err := m.qp.PostSend(wr); err != nil && m.failed.Load() == 0 {
		panic(err)
	}
}

// take is the handler.
func (c *crowd) take(cq verbs.CQ) {
	var batch [32]Completion
	for n := cq.Poll(batch[:]); n > 0; n = cq.Poll(batch[:]) {
		for i := range batch[:n] {
			m := c.byQP[batch[i].QP.(*QP)]
			if batch[i].Status != StatusOK {
				c.failed.Add(1)
			} else if done := m.done.Add(1); done < c.goal-1 {
				m.post()
				continue
			} else if done < c.goal {
				continue
			}
			if c.left.Add(-1) == 0 {
				close(c.over)
			}
		}
	}
}

// TestManyQueuePairs has hundreds of busy queue pairs between two devices, with the buffers that a
// process without privilege has. TestCrowd says how they share: here they only have to get through.
func TestManyQueuePairs(t *testing.T) {
	n := 300
	if raceEnabled || testing.Short() {
		n = 100
	}
	c := newCrowd(t, n, 64<<10, 8, &Config{ReadBuffer: 212992, WriteBuffer: 212992})
	c.start()
	select {
	case <-c.over:
	case <-time.After(time.Minute):
		t.Errorf("%d of %d queue pairs have not finished", c.left.Load(), n)
	}
	if failed := c.failed.Load(); failed > 0 {
		t.Errorf("%d of %d queue pairs have failed", failed, n)
	}
	var again, sent uint64
	for i, m := range c.members {
		if !bytes.Equal(m.target.Bytes(), c.source.Bytes()) {
			t.Fatalf("queue pair %d: the bytes have arrived different", i)
		}
		s := m.qp.Stats()
		sent, again = sent+s.SentPackets, again+s.Retransmitted
	}
	t.Logf("%d packets, %d sent again", sent, again)
	awaitIdle(t, &c.a.sched)
}

// TestPathsEnd has queue pairs be reset and closed with packets on their way. Nothing of them stays.
func TestPathsEnd(t *testing.T) {
	s, other := newSide(t, randomLoopback(), nil, nil), newSide(t, randomLoopback(), nil, nil)
	for range 3 {
		connect(t, s, other, wire.MTU1024)
		err := s.qp.PostSend(SendWR{Op: OpWrite, Remote: other.mr.Addr(), RKey: other.mr.RKey(), Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: testRegion}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, end := range []*side{s, other} {
			if end.qp.Stats().Budget == 0 {
				t.Error("a connected queue pair has no budget")
			}
			if err := end.qp.Reset(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, end := range []*side{s, other} {
		end.qp.Close()
		end.qp.Init(0)
		err := end.qp.ReadyToReceive(RTR{RemoteGID: other.dev.GID(), RemoteQPN: 77, PathMTU: wire.MTU1024})
		if !errors.Is(err, ErrClosed) {
			t.Errorf("ReadyToReceive after Close: %v", err)
		}
		sched := &end.dev.sched
		sched.mu.Lock()
		if sched.flight != 0 || len(sched.paths) != 0 || sched.urgent.len != 0 {
			t.Errorf("after Close: %d packets, %d paths, %d urgent", sched.flight, len(sched.paths), sched.urgent.len)
		}
		sched.mu.Unlock()
	}
}

// awaitIdle waits until nothing counts as being on its way.
func awaitIdle(t *testing.T, s *scheduler) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		s.mu.Lock()
		flight := s.flight
		s.mu.Unlock()
		if flight == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d packets are on their way, with nothing to send", flight)
		}
	}
}

// backlog gives s a peer that does not exist, no timer, and packets to send that nobody was told of.
func backlog(t *testing.T, s *side, packets int) {
	t.Helper()
	backlogTo(t, s, randomLoopback(), packets)
}

func backlogTo(t *testing.T, s *side, to netip.Addr, packets int) {
	t.Helper()
	ghost := RTR{RemoteGID: wire.GIDFromAddr(to), RemoteQPN: 77, PathMTU: wire.MTU1024}
	for _, err := range []error{s.qp.Init(0), s.qp.ReadyToReceive(ghost), s.qp.ReadyToSend(RTS{Timeout: 15, RetryCount: 7})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.qp.mu.Lock()
	defer s.qp.mu.Unlock()
	s.qp.timerAt = 1 // as if it would fire soon
	err := s.qp.c.postSend(&SendWR{Op: OpWrite, Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: uint32(packets) * 1024}}})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *side) postShort(t *testing.T) {
	t.Helper()
	if err := s.qp.PostSend(SendWR{Op: OpSend, Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 44}}}); err != nil {
		t.Fatal(err)
	}
}

func awaitAsleep(d *Device) {
	for !d.asleep.Load() {
		runtime.Gosched()
	}
}

// TestPostSendSendsItsOwn has a call that posts one packet find many others before it. It sends as
// many as it has posted, and no more.
func TestPostSendSendsItsOwn(t *testing.T) {
	s := newSide(t, randomLoopback(), nil, nil)
	backlog(t, s, 50)
	awaitAsleep(s.dev)
	s.dev.asleep.Store(false) // so that it is not woken
	s.postShort(t)
	if got := s.qp.Stats().SentPackets; got != 1 {
		t.Errorf("PostSend of one packet has sent %d", got)
	}
}

// TestPostSendHandsOver is the same, and the goroutine of the device, which sleeps, sends the others.
func TestPostSendHandsOver(t *testing.T) {
	s := newSide(t, randomLoopback(), nil, nil)
	backlog(t, s, 50)
	awaitAsleep(s.dev)
	s.postShort(t)
	for deadline := time.Now().Add(10 * time.Second); s.qp.Stats().SentPackets != 51; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 51 packets have been sent", s.qp.Stats().SentPackets)
		}
	}
}

// TestSharedSuperPackets has packets of many queue pairs to one peer leave together.
func TestSharedSuperPackets(t *testing.T) {
	const n = 20
	c := newCrowd(t, n, 64, 2, nil)
	if !c.a.Capabilities().Segmentation {
		t.Skip("needs UDP segmentation offload")
	}
	c.a.sched.stall() // until all have posted
	before := c.a.SocketStats().Sent
	c.start()
	c.a.sched.resume()
	c.a.sched.drains.Done()
	c.a.kick()
	<-c.over
	after := c.a.SocketStats().Sent
	// The first super-packet has the WRITEs of all. The second ones may wait for the answers.
	if packets, calls := after.Datagrams-before.Datagrams, after.SuperPackets-before.SuperPackets; packets < 2*n || calls == 0 || calls > packets/10 {
		t.Errorf("%d packets left in %d super-packets, want %d or more in few", packets, calls, 2*n)
	}
	if s := c.z.Stats(); s.BadICRC+s.SolvedICRC > 0 || c.failed.Load() > 0 {
		t.Errorf("the peer has counted %+v", s)
	}
}

// TestWriteInSuperPackets has a WRITE of 64 KiB and a SEND of 44 bytes, as SMC-R has them. Its first
// packet is 16 bytes longer than the others, which no segment of a super-packet but the first can
// be, and the packets have more bytes together than one super-packet: two is the least.
func TestWriteInSuperPackets(t *testing.T) {
	for _, mtu := range []wire.MTU{wire.MTU1024, wire.MTU4096} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			a, b := newSide(t, randomLoopback(), nil, nil), newSide(t, randomLoopback(), nil, nil)
			if !a.dev.Capabilities().Segmentation {
				t.Skip("needs UDP segmentation offload")
			}
			connect(t, a, b, mtu)
			if err := b.qp.PostRecv(RecvWR{Local: [2]SGE{{MR: b.mr, Addr: b.mr.Addr(), Len: 44}}}); err != nil {
				t.Fatal(err)
			}
			a.qp.mu.Lock()
			a.qp.c.window.size = maxWindow
			a.qp.path.budget.size = maxBudget
			a.qp.mu.Unlock()
			before := a.dev.SocketStats().Sent
			err := a.qp.PostSend(
				SendWR{Op: OpWrite, Remote: b.mr.Addr(), RKey: b.mr.RKey(), Local: [2]SGE{{MR: a.mr, Addr: a.mr.Addr(), Len: 64 << 10}}},
				SendWR{Op: OpSend, Signaled: true, Local: [2]SGE{{MR: a.mr, Addr: a.mr.Addr(), Len: 44}}})
			if err != nil {
				t.Fatal(err)
			}
			if got := a.await(t); got.Status != StatusOK {
				t.Fatalf("%+v", got)
			}
			after, s := a.dev.SocketStats().Sent, a.qp.Stats()
			if again := s.Retransmitted; again > 0 {
				t.Skipf("%d packets were sent again", again) // the machine is busy
			}
			want := uint64(64<<10/mtu.Bytes() + 1)
			if got := after.Datagrams - before.Datagrams; got != want || after.SuperPackets-before.SuperPackets != 2 {
				t.Errorf("%d packets in %d super-packets, want %d in 2", got, after.SuperPackets-before.SuperPackets, want)
			}
		})
	}
}

// TestReceiveWhileFull fills the socket of a device, by packets that wait for an address to be resolved
// which nobody has. The device's goroutine goes on receiving.
func TestReceiveWhileFull(t *testing.T) {
	c := smctest.NewCables(t, 1)
	var a, z *Device
	var err error
	c.Run[0](func() { a, err = Open(c.Addr[0][0], &Config{WriteBuffer: 8 << 10}) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	c.Run[1](func() { z, err = Open(c.Addr[0][1], nil) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { z.Close() })

	seen := make(chan struct{}, 1)
	receiver := newSideOn(t, a, func(cq verbs.CQ) { // on the goroutine of the device
		var one [1]Completion
		for cq.Poll(one[:]) > 0 {
			a.sched.mu.Lock()
			stalled := a.sched.stalled
			a.sched.mu.Unlock()
			if stalled > 0 {
				select {
				case seen <- struct{}{}:
				default:
				}
			}
		}
	})
	talker := newSideOn(t, z, nil)
	connect(t, receiver, talker, wire.MTU1024)
	ghost := newSideOn(t, a, nil)
	backlogTo(t, ghost, c.Addr[0][1].Next().Next(), 2000)

	for range 200 {
		if err := receiver.qp.PostRecv(RecvWR{Local: [2]SGE{{MR: receiver.mr, Addr: receiver.mr.Addr(), Len: 44}}}); err != nil {
			t.Fatal(err)
		}
	}
	// The answer to one of these finds the socket full, and then another one comes.
	for deadline := time.Now().Add(20 * time.Second); ; runtime.Gosched() {
		for _, s := range []*side{ghost, talker} { // until their queues are full
			s.qp.PostSend(SendWR{Op: OpSend, Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 44}}})
		}
		select {
		case <-seen:
			return
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing was received while a goroutine waited for the socket: %+v", a.SocketStats())
		}
	}
}
