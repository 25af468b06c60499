package rdma

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

var (
	simSeed  = flag.Uint64("seed", 0, "play only this seed of the simulation, and log its packets")
	simSeeds = flag.Uint64("seeds", 320, "how many seeds the simulation plays")
)

// TestSimulation connects two queue pairs, or one and a peer that was written apart from it
// ([modelPeer]), by a network that loses, repeats, reorders, delays, truncates and damages packets,
// in virtual time, and has both sides do random work. Each seed is another path MTU, start PSN,
// window, timeout, network and misfortune. After every step a model tells which results are
// allowed: see sim_model_test.go and sim_check_test.go.
//
// A failure names its seed. It happens again, with a log of all packets, with
//
//	go test -run TestSimulation -v -seed N
//
// and -seeds N plays seeds 1 to N.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		playSeed(t, *simSeed, true)
		return
	}
	seeds := *simSeeds
	if testing.Short() || raceEnabled {
		seeds = max(1, seeds/12)
	}
	var total simCounts
	for seed := uint64(1); seed <= seeds; seed++ {
		total.add(playSeed(t, seed, false))
	}
	t.Logf("%d seeds: %+v", seeds, total)
	if seeds < 320 {
		return
	}
	// The simulation is worth nothing if it does not get to where it hurts.
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"packets", total.Packets, 1_000_000}, {"lost", total.Lost, 10_000}, {"damaged", total.Damaged, 5_000},
		{"repeated", total.Repeated, 5_000}, {"reordered", total.Reordered, 5_000}, {"RNR NAKs", int(total.RNRNaks), 500},
		{"sequence NAKs", int(total.SeqNaks), 500}, {"duplicates", int(total.Duplicates), 5000}, {"timeouts", int(total.Timeouts), 20},
		{"probes", int(total.Probes), 100}, {"failed sides", total.Failed, 20}, {"messages", total.Messages, 30_000},
	} {
		if c.got < c.want {
			t.Errorf("%d seeds had %d %s, want at least %d", seeds, c.got, c.name, c.want)
		}
	}
}

// simCounts counts the events of a simulation.
type simCounts struct {
	Packets, Lost, Damaged, Repeated, Reordered, Messages, Failed int
	RNRNaks, SeqNaks, Duplicates, Timeouts, Probes, Rewinds       uint64
}

func (c *simCounts) add(d simCounts) {
	c.Packets += d.Packets
	c.Lost += d.Lost
	c.Damaged += d.Damaged
	c.Repeated += d.Repeated
	c.Reordered += d.Reordered
	c.Messages += d.Messages
	c.Failed += d.Failed
	c.RNRNaks += d.RNRNaks
	c.SeqNaks += d.SeqNaks
	c.Duplicates += d.Duplicates
	c.Timeouts += d.Timeouts
	c.Probes += d.Probes
	c.Rewinds += d.Rewinds
}

// A misfortune happens once in a simulation, at a random time.
type misfortune int

const (
	nothing           misfortune = iota
	silence                      // no packet arrives any more
	deregisterSource             // a side's memory that it sends from
	deregisterTarget             // a side's memory that the peer writes to
	deregisterReceive            // a side's memory for receives
	failOne                      // a side fails, without a word to the other
	reconnect                    // both sides are reset and connected again; old packets are on their way
	misfortunes
)

// simConfig has the choices of a seed.
type simConfig struct {
	mtu                                            wire.MTU
	lose, repeat, reorder, damage                  float64
	delay, jitter, gap                             time.Duration // of a packet; gap: on the wire
	messages                                       int           // per side
	maxSend, recvs                                 int
	idle                                           time.Duration // between posting and posting
	lateRecv                                       time.Duration // until a receive is posted again, at most
	timeout, retry, rnrRetry, minRNR               uint8
	misfortune                                     misfortune
	misfortuneAt                                   time.Duration
	model                                          bool // side 1 is a modelPeer
	loseRun                                        int  // packets that are lost in a row, at most; 0 for one at a time
	burst                                          int  // one side's packets per look at arrivals
	keepNothing                                    bool // packets that come before their turn are dropped
	shortReceives                                  bool // some have no room for the message
	bigMessages, onlyWrites, onlySends, allSignals bool
}

// keepers returns a pool, in some seeds one that has no keeper left.
func (c *simConfig) keepers() *keeperPool {
	if c.keepNothing {
		return poolWithout(0)
	}
	return new(keeperPool)
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func randomConfig(r *rand.Rand) simConfig {
	c := simConfig{
		mtu:      wire.MTU(1 + r.IntN(5)),
		lose:     pick(r, 0, 0, 0.001, 0.01, 0.05, 0.2),
		repeat:   pick(r, 0, 0, 0.01, 0.05),
		reorder:  pick(r, 0, 0, 0.005, 0.05),
		damage:   pick(r, 0, 0.002, 0.02),
		delay:    pick(r, time.Microsecond, 20*time.Microsecond, 200*time.Microsecond, time.Millisecond),
		jitter:   pick(r, 0, 5*time.Microsecond, 100*time.Microsecond),
		gap:      pick(r, 0, 300*time.Nanosecond, 2*time.Microsecond),
		messages: 100 + r.IntN(300),
		maxSend:  pick(r, 1, 2, 5, 16, 64),
		recvs:    pick(r, 1, 2, 8),
		idle:     pick(r, 0, 10*time.Microsecond, time.Millisecond),
		lateRecv: pick(r, 0, 0, 50*time.Microsecond, 3*time.Millisecond),
		timeout:  pick[uint8](r, 12, 13, 15, 0), // 16.8, 33.6 and 134 ms, never
		retry:    maxRetry, rnrRetry: retryForever,
		minRNR:      pick[uint8](r, 1, 5, 12, 0),
		model:       r.IntN(3) == 0,
		burst:       pick(r, 1, 3, 32, 128),
		keepNothing: r.IntN(4) == 0,
		onlyWrites:  r.IntN(6) == 0, onlySends: r.IntN(6) == 0, bigMessages: r.IntN(4) == 0, allSignals: r.IntN(4) == 0,
	}
	if r.IntN(4) == 0 { // super-packets get lost
		c.loseRun, c.lose = pick(r, 8, 50, 200), min(c.lose, 0.01)
	}
	if r.IntN(3) == 0 { // and nothing else goes wrong in two of three
		c.misfortune = misfortune(r.IntN(int(misfortunes)))
		c.misfortuneAt = time.Duration(r.Int64N(int64(5 * time.Millisecond)))
		c.model = false
		if c.timeout == 0 {
			c.timeout = 14
		}
		if c.misfortune == deregisterReceive { // and none is posted any more
			c.lateRecv, c.rnrRetry = 0, 6
		}
		if c.misfortune == silence { // of which the number of retries makes no difference but in time
			c.lose, c.repeat, c.reorder, c.damage = 0, 0, 0, 0
			c.retry = uint8(r.IntN(maxRetry + 1))
		}
	}
	if c.misfortune == nothing && !c.model && r.IntN(12) == 0 {
		c.shortReceives = true
		c.timeout = 12
	}
	if c.bigMessages {
		c.messages /= 4
	}
	return c
}

// A sim is a simulation: two sides, the network and the time.
type sim struct {
	t      *testing.T
	seed   uint64
	trace  bool
	r      *rand.Rand
	cfg    simConfig
	now    time.Duration
	events eventHeap
	order  uint64 // of the newest event
	sides  [2]*simSide
	counts simCounts
	packet roce.Packet // that arrives
	out    roce.Packet // that is sent
	room   [4096 + 64]byte
	free   [][]byte // buffers of packets
	silent bool     // no packet arrives
	broken bool     // a misfortune has happened: work may fail
}

const (
	simStart    = time.Second // some time, not zero
	simMaxSteps = 5_000_000   // of one seed; a few 10,000 are usual
	simMaxTime  = time.Hour   // virtual; some 100 ms are usual
)

func (s *sim) failf(format string, args ...any) {
	s.t.Helper()
	a, b := s.sides[0], s.sides[1]
	s.t.Logf("%+v", s.cfg)
	s.t.Logf("side 0: %v", a)
	s.t.Logf("side 1: %v", b)
	s.t.Fatalf("seed %d at %v: "+format, append([]any{s.seed, s.now - simStart}, args...)...)
}

func playSeed(t *testing.T, seed uint64, trace bool) simCounts {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	s := &sim{t: t, seed: seed, trace: trace, r: r, cfg: randomConfig(r), now: simStart}
	if trace {
		t.Logf("%+v", s.cfg)
	}
	for i := range s.sides {
		s.sides[i] = newSimSide(s, i)
	}
	s.sides[0].peer, s.sides[1].peer = s.sides[1], s.sides[0]
	s.connect()
	for _, d := range s.sides {
		s.at(s.now, event{kind: eventPost, side: d})
	}
	if s.cfg.misfortune != nothing {
		s.at(s.now+s.cfg.misfortuneAt, event{kind: eventMisfortune})
	}
	for steps := 0; len(s.events) > 0; steps++ {
		if steps > simMaxSteps || s.now > simStart+simMaxTime {
			s.failf("no end after %d steps; %d events", steps, len(s.events))
		}
		e := s.events.pop()
		s.now = e.at
		s.play(&e)
	}
	for _, d := range s.sides {
		d.checkEnd()
		s.counts.Messages += len(d.msgs)
		if q := d.q; q != nil {
			if q.state == StateError {
				s.counts.Failed++
			}
			s.counts.RNRNaks += q.stats.SentRNRNaks
			s.counts.SeqNaks += q.stats.SentSeqNaks
			s.counts.Duplicates += q.stats.Duplicates
			s.counts.Timeouts += q.stats.Timeouts
			s.counts.Probes += q.stats.Probes
			s.counts.Rewinds += q.stats.Rewinds
		}
	}
	return s.counts
}

// connect takes both sides from RESET to RTS.
func (s *sim) connect() {
	for _, d := range s.sides {
		switch {
		case d.qpn != 0:
			// The same number again, as after a reset. Random PSNs are as far as this from the
			// old ones, but for one time in a hundred.
			d.psn = d.posted.Add(1<<16 + s.r.IntN(1<<24-1<<17))
			continue
		case s.r.IntN(2) == 0:
			d.psn = wire.PSN(0xfffff0 + s.r.IntN(16))
		default:
			d.psn = wire.PSN(s.r.Uint32()) & wire.MaxPSN
		}
		d.qpn = wire.QPN(16 + s.r.IntN(1<<20))
	}
	for _, d := range s.sides {
		d.end.connect(s.now, RTR{RemoteQPN: d.peer.qpn, PathMTU: s.cfg.mtu, RecvPSN: d.peer.psn, MinRNRTimer: s.cfg.minRNR},
			RTS{SendPSN: d.psn, Timeout: s.cfg.timeout, RetryCount: s.cfg.retry, RNRRetry: s.cfg.rnrRetry}, d.qpn)
		if d.q != nil && s.r.IntN(3) == 0 {
			d.q.window.size = 1 + s.r.IntN(maxWindow)
			d.q.window.threshold = 1 + s.r.IntN(maxWindow)
		}
		d.posted = d.psn
		for range s.cfg.recvs {
			s.postRecvLater(d)
		}
	}
}

func (s *sim) postRecvLater(d *simSide) {
	late := time.Duration(0)
	if s.cfg.lateRecv > 0 && s.r.IntN(3) > 0 {
		late = time.Duration(s.r.Int64N(int64(s.cfg.lateRecv)))
	}
	s.at(s.now+late, event{kind: eventRecv, side: d, life: d.life})
}

// play carries out an event.
func (s *sim) play(e *event) {
	d := e.side
	switch e.kind {
	case eventPacket:
		d.arrive(e.packet, e.damaged)
		s.free = append(s.free, e.packet)
	case eventPost:
		d.post()
	case eventRecv:
		if e.life == d.life { // not of before a reset
			d.postRecv()
		}
	case eventTimer:
		d.timerAt = 0
		if at := d.end.deadline(); at != 0 && at <= s.now {
			d.end.advance(s.now)
			if again := d.end.deadline(); again != 0 && again <= s.now && !d.end.wantsToTransmit(s.now) {
				s.failf("side %d: a deadline %v in the past has not gone by advance", d.i, s.now-again)
			}
		}
	case eventPump:
		d.pumping = false
	case eventMisfortune:
		s.misfortune()
	}
	for _, d := range s.sides {
		d.collect()
		d.check()
		d.pump()
		d.collect()
		d.check()
		d.arm()
	}
}

func (s *sim) misfortune() {
	d := s.sides[s.r.IntN(2)]
	s.broken = true
	switch s.cfg.misfortune {
	case silence:
		s.silent = true
	case deregisterSource:
		d.source.Deregister()
	case deregisterTarget:
		d.target.Deregister()
	case deregisterReceive:
		d.receive.Deregister()
	case failOne:
		d.q.fail()
	case reconnect:
		s.broken = false
		if s.r.IntN(2) == 0 { // posted work completes as flushed
			s.broken = true
			for _, d := range s.sides {
				d.q.fail()
				d.collect()
			}
			s.broken = false
		}
		for _, d := range s.sides {
			d.reset()
		}
		s.connect()
	}
}

// send gives a packet of d to the network.
func (s *sim) send(d *simSide, b []byte) {
	s.counts.Packets++
	if s.silent {
		return
	}
	key := faultKey(b)
	copies := 1
	if s.r.Float64() < s.cfg.repeat {
		copies = 2
		s.counts.Repeated++
	}
	for range copies {
		damaged := false
		if d.faults[key] < maxFaults {
			if d.losing > 0 || s.r.Float64() < s.cfg.lose {
				if d.losing > 0 {
					d.losing--
				} else if s.cfg.loseRun > 0 {
					d.losing = s.r.IntN(s.cfg.loseRun)
				}
				d.faults[key]++
				s.counts.Lost++
				if s.trace {
					s.t.Logf("%12v side %d lost", s.now-simStart, d.i)
				}
				continue
			}
			if s.r.Float64() < s.cfg.damage {
				d.faults[key]++
				s.counts.Damaged++
				damaged = true
			}
		}
		c := append(s.buffer(), b...)
		if damaged {
			c = s.damage(c)
		}
		arrival := s.now + s.cfg.delay
		if s.cfg.jitter > 0 {
			arrival += time.Duration(s.r.Int64N(int64(s.cfg.jitter)))
		}
		if s.r.Float64() < s.cfg.reorder {
			s.counts.Reordered++
			arrival += time.Duration(s.r.Int64N(int64(4*s.cfg.delay + 20*time.Microsecond)))
		} else {
			arrival = max(arrival, d.lastArrival+s.cfg.gap)
			d.lastArrival = arrival
		}
		s.at(arrival, event{kind: eventPacket, side: d.peer, packet: c, damaged: damaged})
	}
}

// maxFaults is how often one packet, or one acknowledgement, is lost or damaged. With seven retries
// a queue pair then never gives up.
const maxFaults = 3

// faultKey tells packets apart: by PSN, requests from acknowledgements.
func faultKey(b []byte) uint32 {
	h, _, _ := roce.ParseBTH(b)
	if h.Opcode == roce.Acknowledge {
		return uint32(h.PSN) | 1<<31
	}
	return uint32(h.PSN)
}

func (s *sim) buffer() []byte {
	if n := len(s.free); n > 0 {
		b := s.free[n-1]
		s.free = s.free[:n-1]
		return b[:0]
	}
	return make([]byte, 0, 4096+128)
}

// damage flips bits of b, or changes its length.
func (s *sim) damage(b []byte) []byte {
	switch s.r.IntN(8) {
	case 0: // cut
		return b[:s.r.IntN(len(b))]
	case 1: // cut to a possible length
		return b[:4*s.r.IntN(len(b)/4)]
	case 2: // longer
		for range 4 * (1 + s.r.IntN(4)) {
			b = append(b, byte(s.r.Uint32()))
		}
		return b
	case 3: // random bytes from somewhere on
		for i := s.r.IntN(len(b)); i < len(b); i++ {
			b[i] ^= byte(1 + s.r.IntN(255))
		}
		return b
	case 4: // several bits
		for range 2 + s.r.IntN(20) {
			b[s.r.IntN(len(b))] ^= 1 << s.r.IntN(8)
		}
		return b
	}
	b[s.r.IntN(len(b))] ^= 1 << s.r.IntN(8)
	return b
}

// An event is something that happens at a time.
type event struct {
	at      time.Duration
	order   uint64 // of those at the same time
	kind    eventKind
	damaged bool
	side    *simSide
	packet  []byte
	life    int
}

type eventKind uint8

const (
	eventPacket eventKind = iota
	eventPost
	eventRecv
	eventTimer
	eventPump
	eventMisfortune
)

func (s *sim) at(at time.Duration, e event) {
	s.order++
	e.at, e.order = at, s.order
	s.events.push(e)
}

// An eventHeap has the next event at index 0.
type eventHeap []event

func (a *event) before(b *event) bool { return a.at < b.at || a.at == b.at && a.order < b.order }

func (h *eventHeap) push(e event) {
	*h = append(*h, e)
	for i := len(*h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !(*h)[i].before(&(*h)[parent]) {
			break
		}
		(*h)[i], (*h)[parent] = (*h)[parent], (*h)[i]
		i = parent
	}
}

func (h *eventHeap) pop() event {
	old := *h
	top := old[0]
	n := len(old) - 1
	old[0], old[n] = old[n], event{}
	*h = old[:n]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < n; child++ {
			if old[child].before(&old[least]) {
				least = child
			}
		}
		if least == i {
			return top
		}
		old[i], old[least] = old[least], old[i]
		i = least
	}
}

var simAddrs = [2]netip.AddrPort{netip.MustParseAddrPort("10.1.2.3:4791"), netip.MustParseAddrPort("10.1.2.4:4791")}

// TestSimulationSource looks that no simulation has written to the memory that sends read.
func TestSimulationSource(t *testing.T) {
	playSeed(t, 1, false)
	if !bytes.Equal(simSource, randomBytes(len(simSource), 7)) {
		t.Error("memory that was only sent from has changed")
	}
}
