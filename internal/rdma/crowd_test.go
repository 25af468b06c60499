package rdma

import (
	"container/heap"
	"flag"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

var crowdSeed = flag.Uint64("crowd", 0, "play only this seed of TestCrowd")

// TestCrowd has many busy queue pairs share the way to one host, in virtual time: one sender or a few, each
// faster than the receiver, and a queue of so many bytes before the receiver. Each seed is another
// number of queue pairs and senders, another queue, other losses, and pauses of the receiver.
//
// No queue pair whose peer answers may die, each has to get its share, and little may be sent for nothing.
//
//	go test -run TestCrowd -v -crowd N
//
// plays one seed.
func TestCrowd(t *testing.T) {
	seeds := uint64(20)
	if testing.Short() || raceEnabled {
		seeds = 6
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		if *crowdSeed == 0 || *crowdSeed == seed {
			playCrowd(t, seed)
		}
	}
}

// A crowdPair is a queue pair that sends, and its peer.
type crowdPair struct {
	share
	host    *crowdHost
	a, z    *qpc
	gone    bool // z does not answer
	sending bool
	timer   time.Duration
	done    int // messages
}

// A crowdEvent happens at a time, and returns the pair to which it has happened, if any.
type crowdEvent struct {
	at    time.Duration
	order int
	do    func() *crowdPair
}

type crowdEvents []crowdEvent

func (h crowdEvents) Len() int { return len(h) }
func (h crowdEvents) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h crowdEvents) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *crowdEvents) Push(x any)   { *h = append(*h, x.(crowdEvent)) }
func (h *crowdEvents) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = crowdEvent{}
	*h = old[:len(old)-1]
	return e
}

// A crowdHost is a host that sends.
type crowdHost struct {
	sched scheduler
	busy  bool // it makes a system call
}

// A crowdSim is the hosts and the network between them.
type crowdSim struct {
	t      *testing.T
	seed   uint64
	r      *rand.Rand
	now    time.Duration
	events crowdEvents
	order  int

	hosts   []*crowdHost
	pairs   []*crowdPair
	byShare map[*share]*crowdPair

	capacity, queued int           // bytes before the receiver
	freeAt           time.Duration // when the receiver has taken all that is queued
	lose             float64

	messages, sent, lost int
	room                 [1024]byte
	packet               roce.Packet
}

const (
	crowdMTU     = wire.MTU256
	crowdMessage = 64 * 256             // bytes: 64 packets
	crowdBatch   = 186                  // packets of a system call
	crowdMake    = time.Microsecond / 2 // to make and send a packet
	crowdTake    = time.Microsecond     // to receive one
	crowdDelay   = 20 * time.Microsecond
)

func (s *crowdSim) at(at time.Duration, do func() *crowdPair) {
	s.order++
	heap.Push(&s.events, crowdEvent{at, s.order, do})
}

func playCrowd(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0xc0d))
	s := &crowdSim{t: t, seed: seed, r: r, now: time.Second, byShare: make(map[*share]*crowdPair)}
	n := []int{8, 64, 300, 1000}[seed%4]
	s.capacity = pick(r, 100, 300, 1000, 4000) * 256
	s.lose = pick(r, 0, 0, 0.01)
	pauses := r.IntN(2) * r.IntN(10)
	some := r.IntN(3) == 0 // peers are gone
	for range pick(r, 1, 1, 1, 4) {
		s.hosts = append(s.hosts, &crowdHost{})
	}
	mem := randomBytes(crowdMessage, 5)
	pds := [2]*PD{newPD(nil), newPD(nil)}
	var mrs [2]*MR
	for i, pd := range pds {
		var err error
		if mrs[i], err = pd.RegisterMR(mem, LocalWrite|RemoteWrite); err != nil {
			t.Fatal(err)
		}
	}
	keepers := [2]keeperPool{}
	for i := range n {
		p := &crowdPair{host: s.hosts[i%len(s.hosts)], gone: some && i%10 == 3}
		qpn := [2]wire.QPN{wire.QPN(100 + i), wire.QPN(100_000 + i)}
		psn := [2]wire.PSN{wire.PSN(r.Uint32()) & wire.MaxPSN, wire.PSN(r.Uint32()) & wire.MaxPSN}
		for k := range 2 {
			q := newQPC(qpn[k], pds[k], &keepers[k], 2, 0)
			err := q.init(LocalWrite | RemoteWrite)
			if err == nil {
				err = q.readyToReceive(RTR{RemoteQPN: qpn[1-k], PathMTU: crowdMTU, RecvPSN: psn[1-k]})
			}
			if err == nil {
				err = q.readyToSend(RTS{SendPSN: psn[k], Timeout: 15, RetryCount: 7, RNRRetry: 7})
			}
			if err != nil {
				t.Fatal(err)
			}
			if k == 0 {
				p.a = q
			} else {
				p.z = q
			}
		}
		p.host.sched.join(&p.share, schedLocal, schedPeers[0], turnPackets+1)
		p.una = psn[0]
		s.pairs = append(s.pairs, p)
		s.byShare[&p.share] = p
	}
	post := func(p *crowdPair) {
		err := p.a.postSend(&SendWR{Op: OpWrite, Signaled: true, Remote: mrs[1].addr, RKey: mrs[1].rkey, Local: [2]SGE{{MR: mrs[0], Addr: mrs[0].addr, Len: crowdMessage}}})
		if err != nil {
			s.failf("post: %v", err)
		}
	}
	for _, p := range s.pairs {
		post(p)
		post(p)
		s.requeue(p)
	}
	s.kick()
	for range pauses {
		s.at(s.now+time.Duration(r.Int64N(int64(time.Duration(n)*time.Millisecond))), func() *crowdPair {
			s.freeAt = max(s.freeAt, s.now) + time.Duration(r.Int64N(int64(40*time.Millisecond)))
			return nil
		})
	}
	start, want, failed := s.now, 0, 0
	gone, each := 0, max(8, 4000/n)
	for _, p := range s.pairs {
		if p.gone {
			gone++
		} else {
			want += each
		}
	}
	for s.messages < want {
		if len(s.events) == 0 || s.now > start+time.Minute {
			s.failf("no progress after %d messages of %d", s.messages, want)
		}
		e := heap.Pop(&s.events).(crowdEvent)
		s.now = e.at
		if p := e.do(); p != nil {
			p.host.sched.settle(s.now, &p.share, p.a, 0)
			for i := range p.a.done {
				if p.a.done[i].Status != StatusOK {
					failed++
					if !p.gone {
						s.failf("a queue pair has died: %v, %+v", p.a.done[i].Status, p.a.stats)
					}
					break
				}
				s.messages++
				p.done++
				post(p)
			}
			p.a.done = p.a.done[:0]
			s.requeue(p)
			s.arm(p)
		}
		s.kick()
	}
	least, again := want, uint64(0)
	for _, p := range s.pairs {
		if p.gone {
			continue
		}
		least = min(least, p.done)
		again += p.a.stats.Retransmitted
	}
	took := s.now - start
	useful := float64(s.messages*64) * float64(crowdTake) / float64(took)
	var budgets []int
	for _, h := range s.hosts {
		for _, p := range h.sched.paths {
			budgets = append(budgets, p.budget.size)
		}
	}
	t.Logf("seed %d: %d queue pairs, %d gone, %d failed, queue %d, loss %v, %d pauses: %d packets in %v, %.0f %% of the time for new ones, %d lost, %d sent again, least %d of %d, budgets %v",
		seed, n, gone, failed, s.capacity/256, s.lose, pauses, s.sent, took, 100*useful, s.lost, again, least, each, budgets)
	enough := 0.6
	if some {
		enough = 0.3
	}
	if pauses == 0 && useful < enough {
		s.failf("%.0f %% of what the receiver can take", 100*useful)
	}
	// Hosts share by their losses, which this test leaves out: each host has to be fair to its
	// queue pairs.
	for _, h := range s.hosts {
		least, sum, count := want, 0, 0
		for _, p := range s.pairs {
			if p.host == h && !p.gone {
				least, sum, count = min(least, p.done), sum+p.done, count+1
			}
		}
		if least < sum/count/4 {
			s.failf("a queue pair got %d messages where %d would be its share", least, sum/count)
		}
	}
}

func (s *crowdSim) failf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d at %v: "+format, append([]any{s.seed, s.now - time.Second}, args...)...)
}

// requeue is [QP.requeue].
func (s *crowdSim) requeue(p *crowdPair) {
	switch {
	case p.sending:
	case p.a.urgent(s.now):
		p.host.sched.hurry(&p.share, false)
	case p.a.wantsToTransmit(s.now):
		p.host.sched.wait(&p.share, p.a.short())
	}
}

// kick has the senders fill a batch, unless they are sending one.
func (s *crowdSim) kick() {
	for _, h := range s.hosts {
		if !h.busy && h.sched.hasWork() {
			s.fill(h)
		}
	}
}

func (s *crowdSim) fill(h *crowdHost) {
	var claimed []*crowdPair
	at := s.now
	for count := 0; count < crowdBatch; {
		sh, n := h.sched.next(false)
		if sh == nil {
			break
		}
		p := s.byShare[sh]
		p.a.quota = n
		made := 0
		for ; count < crowdBatch; count++ {
			b := s.room[:p.a.transmit(s.now, s.room[:])]
			if len(b) == 0 {
				break
			}
			made++
			at += crowdMake
			s.send(at, p, b)
		}
		p.a.quota = 0
		h.sched.settle(s.now, &p.share, p.a, n)
		if made > 0 {
			p.sending = true
			claimed = append(claimed, p)
		} else {
			s.requeue(p)
		}
		s.arm(p)
	}
	h.busy = true
	s.at(at+crowdMake, func() *crowdPair {
		h.busy = false
		for _, p := range claimed {
			p.sending = false
			s.requeue(p)
		}
		return nil
	})
}

// send puts a packet into the queue before the receiver.
func (s *crowdSim) send(at time.Duration, p *crowdPair, b []byte) {
	s.sent++
	if s.queued+len(b) > s.capacity || s.r.Float64() < s.lose {
		s.lost++
		return
	}
	s.queued += len(b)
	s.freeAt = max(s.freeAt, at+crowdDelay) + crowdTake
	b = append(make([]byte, 0, len(b)+roce.ICRCLen), b...)
	s.at(s.freeAt, func() *crowdPair {
		s.queued -= len(b)
		if p.gone {
			return nil
		}
		s.deliver(p.z, b)
		s.answer(p)
		return nil
	})
}

func (s *crowdSim) deliver(q *qpc, b []byte) {
	if err := s.packet.Parse(b[:len(b)+roce.ICRCLen]); err != nil {
		s.failf("%v", err)
	}
	q.receive(s.now, &s.packet)
}

// answer carries the receiver's packets to the sender.
func (s *crowdSim) answer(p *crowdPair) {
	for {
		b := s.room[:p.z.transmit(s.now, s.room[:])]
		if len(b) == 0 {
			return
		}
		if s.r.Float64() < s.lose {
			continue
		}
		b = append(make([]byte, 0, len(b)+roce.ICRCLen), b...)
		s.at(s.now+crowdDelay, func() *crowdPair {
			s.deliver(p.a, b)
			return p
		})
	}
}

// arm sets the timer of a sender.
func (s *crowdSim) arm(p *crowdPair) {
	at := p.a.deadline()
	if at == 0 || p.timer != 0 && p.timer <= at {
		return
	}
	p.timer = at
	s.at(at, func() *crowdPair {
		if p.timer != at {
			return nil
		}
		p.timer = 0
		if due := p.a.deadline(); due != 0 && due <= s.now {
			p.a.advance(s.now)
		}
		return p
	})
}
