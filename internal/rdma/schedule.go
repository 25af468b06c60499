package rdma

import (
	"net/netip"
	"sync"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// A scheduler decides which queue pair has the turn to send, and how much. The queue pairs of a
// path take turns in the order in which they came. Each sends up to a turn's packets, and no more
// than the path's budget has left. The paths take turns too: those that have less than their part
// of the device's budget on their way come first. A queue pair that waits has nothing on its way
// and so no timer that could expire: thousands of busy queue pairs cost a path no more than a few.
//
//	         requeue, wait                       next, claim
//	queue pair ------> urgent ----------------------> turn: n packets are promised
//	     |  ^   answers, probes, short messages         |
//	     |  |                                           v
//	     |  +------------------ settle: how many of them are on their way
//	     v
//	path.waiting ----- when its budget has room ------> turn
//
// Answers and probes do not wait for the budget, and nor does a message of one or two packets as long
// as not many do: they would wait for all others to have had their turns.
//
// A scheduler does not send. It may be used by several goroutines, also by one that holds the lock of
// a queue pair.
type scheduler struct {
	mu     sync.Mutex
	paths  map[netip.AddrPort]*path
	urgent shareQueue
	open   []*path // with somebody waiting, with room, and with less on their way than their part
	rich   []*path // the same, with more than that: they wait until the device's budget has room
	flight int     // of all paths
	closed bool

	// stalled is how many goroutines wait until the socket has room. They send for all: there is no
	// room for others.
	stalled int
	drains  sync.WaitGroup // the same
}

// A share is a queue pair's place in the scheduler of its device. Its fields belong to the lock of
// the scheduler.
type share struct {
	qp    *QP
	path  *path // nil before RTR
	turn  int   // packets of a turn
	links [2]shareLink

	express  bool // in urgent with a short message
	charged  int  // packets on their way
	promised int  // for turns that are not settled

	// The path has been told of these already.
	una                     wire.PSN
	retransmitted, timeouts uint64

	answered   bool // since it began, or since its last timeout
	knowsKeeps bool // that its peer does, or has been told so
}

// A lane is one of the queues that a share can be in.
type lane uint8

const (
	laneUrgent lane = iota
	laneWaiting
)

type shareLink struct {
	prev, next *share
	in         bool
}

// A shareQueue is a queue of shares, linked through the link of its lane.
type shareQueue struct {
	lane       lane
	head, tail *share
	len        int
}

func (l *shareQueue) push(sh *share) {
	link := &sh.links[l.lane]
	if link.in {
		return
	}
	*link = shareLink{prev: l.tail, in: true}
	if l.tail == nil {
		l.head = sh
	} else {
		l.tail.links[l.lane].next = sh
	}
	l.tail = sh
	l.len++
}

func (l *shareQueue) pushFront(sh *share) {
	link := &sh.links[l.lane]
	if link.in {
		return
	}
	*link = shareLink{next: l.head, in: true}
	if l.head == nil {
		l.tail = sh
	} else {
		l.head.links[l.lane].prev = sh
	}
	l.head = sh
	l.len++
}

func (l *shareQueue) remove(sh *share) {
	link := &sh.links[l.lane]
	if !link.in {
		return
	}
	if link.prev == nil {
		l.head = link.next
	} else {
		link.prev.links[l.lane].next = link.next
	}
	if link.next == nil {
		l.tail = link.prev
	} else {
		link.next.links[l.lane].prev = link.prev
	}
	*link = shareLink{}
	l.len--
}

func (l *shareQueue) pop() *share {
	sh := l.head
	if sh != nil {
		l.remove(sh)
	}
	return sh
}

// join gives sh a path to remote, the one that others have if there are any. turn is how many packets
// it may send while others wait.
func (s *scheduler) join(sh *share, local, remote netip.AddrPort, turn int) *path {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.part(sh)
	p := s.paths[remote]
	if p == nil {
		p = &path{remote: remote, flow: roce.NewFlow(local, remote), budget: newBudget()}
		p.waiting.lane = laneWaiting
		if s.paths == nil {
			s.paths = make(map[netip.AddrPort]*path)
		}
		s.paths[remote] = p
	}
	p.users++
	sh.path, sh.turn = p, turn
	sh.answered, sh.knowsKeeps = false, false
	return p
}

// leave takes sh out of everything.
func (s *scheduler) leave(sh *share) {
	s.mu.Lock()
	s.part(sh)
	s.mu.Unlock()
}

func (s *scheduler) part(sh *share) {
	p := sh.path
	if p == nil {
		return
	}
	s.urgent.remove(sh)
	p.waiting.remove(sh)
	p.flight -= sh.charged + sh.promised
	s.flight -= sh.charged + sh.promised
	sh.path, sh.charged, sh.promised, sh.express = nil, 0, 0, false
	if p.users--; p.users == 0 {
		delete(s.paths, p.remote)
	}
	s.reopen(p)
}

// hurry puts sh where its turn comes before all shares that wait for a budget; with first set also
// before all others.
func (s *scheduler) hurry(sh *share, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case sh.path == nil:
	case first:
		s.urgent.remove(sh)
		s.urgent.pushFront(sh)
	default:
		s.urgent.push(sh)
	}
}

// wait puts sh behind the others that have packets to send on its path. short says that it has very
// few.
func (s *scheduler) wait(sh *share, short bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := sh.path
	switch {
	case p == nil:
	case short && p.waiting.len > 0 && !sh.links[laneWaiting].in && p.flight < p.budget.size+p.budget.size/expressPart:
		sh.express = true
		s.urgent.push(sh)
	default:
		p.waiting.push(sh)
		s.reopen(p)
	}
}

// reopen puts p among those with a turn to give, if it has one.
func (s *scheduler) reopen(p *path) {
	switch {
	case p.waiting.len == 0 || p.room() == 0:
	case s.ownRoom(p) > 0:
		if !p.open {
			p.open = true
			s.open = append(s.open, p)
		}
	case !p.rich:
		p.rich = true
		s.rich = append(s.rich, p)
	}
}

// nextOpen takes a path out of the lists, nil if none of them has a turn to give.
func (s *scheduler) nextOpen() (p *path) {
	switch {
	case len(s.open) > 0:
		p = s.open[0]
		s.open = s.open[:copy(s.open, s.open[1:])]
		p.open = false
	case len(s.rich) > 0 && s.room() > 0:
		p = s.rich[0]
		s.rich = s.rich[:copy(s.rich, s.rich[1:])]
		p.rich = false
	}
	return p
}

// room returns how many packets more the device's budget has room for, 0 if too few for a turn.
func (s *scheduler) room() int {
	if n := maxFlight - s.flight; n >= turnPackets {
		return n
	}
	return 0
}

// ownRoom returns how many packets more p may have on their way, however full the device's budget
// is, 0 if too few to begin a turn. Each path has the same part of that budget. Peers that are far
// away, or acknowledge one packet at a time, can hold the rest of it for long, and must not keep
// other peers from getting anything.
func (s *scheduler) ownRoom(p *path) int {
	part := max(maxFlight/max(len(s.paths), 1), firstTurn)
	if n := part - p.flight; n >= max(1, min(part/8, turnPackets/2)) {
		return n
	}
	return 0
}

// promise says how many packets sh may send, and counts them as being on their way.
func (s *scheduler) promise(sh *share) int {
	p := sh.path
	n := min(p.room(), max(s.room(), s.ownRoom(p))) // rule: TestSlowPaths: max(s.room(), s.ownRoom(p)) -> s.room()
	if n == 0 {
		return 0
	}
	if p.waiting.len > 0 {
		turn := sh.turn
		if !sh.answered {
			turn = firstTurn
		}
		n = min(n, turn)
	}
	s.count(sh, n)
	return n
}

func (s *scheduler) count(sh *share, n int) {
	sh.promised += n
	sh.path.flight += n
	s.flight += n
}

// next returns the share that has the turn, nil if none has it, and how many packets it may send,
// beside answers and probes. The caller calls settle with that number, unless it calls giveBack.
// While goroutines wait for the socket only they have turns: for them mine is true.
func (s *scheduler) next(mine bool) (sh *share, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stalled > 0 && !mine {
		return nil, 0
	}
	if sh = s.urgent.pop(); sh != nil {
		p := sh.path
		switch {
		case sh.express:
			sh.express = false
			n = expressPackets
			s.count(sh, n)
		case p.waiting.head == sh:
			if n = s.promise(sh); n > 0 {
				p.waiting.remove(sh)
			}
		case p.waiting.len == 0:
			n = s.promise(sh)
		}
		return sh, n
	}
	for p := s.nextOpen(); p != nil; p = s.nextOpen() {
		if p.room() == 0 || p.waiting.len == 0 {
			continue
		}
		if s.room() == 0 && s.ownRoom(p) == 0 { // it has got more meanwhile, or there are more paths
			s.reopen(p)
			continue
		}
		sh = p.waiting.pop()
		n = s.promise(sh)
		s.reopen(p)
		return sh, n
	}
	return nil, 0
}

// claim gives sh a turn at once, with n packets, if nobody waits for one before it.
func (s *scheduler) claim(sh *share) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := sh.path; p != nil && s.stalled == 0 && p.waiting.len == 0 {
		n = s.promise(sh)
	}
	return n
}

// giveBack ends a turn of sh with n packets in which nothing could be sent. It has the next one.
func (s *scheduler) giveBack(sh *share, n int, urgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := sh.path
	if p == nil {
		return
	}
	s.count(sh, -min(n, sh.promised))
	if urgent {
		s.urgent.pushFront(sh)
	}
	if n > 0 {
		p.waiting.pushFront(sh)
	}
	s.reopen(p)
}

// settle notes how many packets q has on their way, and how its packets fared since the last time.
// promised is the number of its turn, 0 if it had none. The caller holds the lock that protects q.
func (s *scheduler) settle(now time.Duration, sh *share, q *qpc, promised int) {
	flight, acked := q.flight(), 0
	if promised == 0 && flight == sh.charged && q.una == sh.una &&
		q.stats.Retransmitted == sh.retransmitted && q.stats.Timeouts == sh.timeouts {
		return // sh's own numbers change with that held, too
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := sh.path
	if p == nil {
		return
	}
	s.count(sh, -min(promised, sh.promised)) // less after it was taken out in the middle
	p.flight += flight - sh.charged
	s.flight += flight - sh.charged
	sh.charged = flight
	if q.state == StateRTS {
		acked = max(q.una.Sub(sh.una), 0)
		p.budget.onProgress(now, acked, int(q.stats.Retransmitted-sh.retransmitted))
		sh.answered = sh.answered || acked > 0
		if q.stats.Timeouts != sh.timeouts {
			sh.answered = false
			p.budget.onTimeout(now, q.timeout)
		}
	}
	if q.keeps {
		p.keeps, sh.knowsKeeps = true, true
	} else if p.keeps && !sh.knowsKeeps { // if that is not so it will find out
		q.keeps, sh.knowsKeeps = true, true
	}
	sh.una, sh.retransmitted, sh.timeouts = q.una, q.stats.Retransmitted, q.stats.Timeouts
	s.reopen(p)
}

// budgetOf returns how many packets sh's path may have on its way, 0 without a path.
func (s *scheduler) budgetOf(sh *share) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh.path == nil {
		return 0
	}
	return sh.path.budget.size
}

// hasWork reports whether it is somebody's turn, and nobody waits for the socket.
func (s *scheduler) hasWork() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stalled == 0 && (s.urgent.len > 0 || len(s.open) > 0 || len(s.rich) > 0 && s.room() > 0)
}

// stall notes that a goroutine begins to wait for the socket. It reports false after close.
func (s *scheduler) stall() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.stalled++
	s.drains.Add(1)
	return true
}

// resume ends a wait that stall has begun. The goroutine calls drains.Done when it has nothing more
// to do.
func (s *scheduler) resume() {
	s.mu.Lock()
	s.stalled--
	s.mu.Unlock()
}

// close makes stall report false, and waits for the goroutines that wait for the socket, which is
// closed.
func (s *scheduler) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.drains.Wait()
}
