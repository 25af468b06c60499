package supervisor

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/bureau"
	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// Connections whose sockets have pairing tokens are between network namespaces, or between users.
// The agent makes the pair that takes the place of such a connection, when the client's supervisor
// asks. It gives each side one end for its TCP socket, which proves that it has that side.
//
//	client       its supervisor        agent        supervisor of the server      server
//	 connect ------------------------- TCP, with tokens -------------------------> accept
//	 Reach(TCP) --->  Ask(TCP) ------>  (pair)
//	  <--- end  <---  Lent(end)                      <------ Ask(TCP) <---------- Meet(TCP)
//	                  Ready ---------->               Introduced(end) ----> end -->
//	                  Taken  <-------- <------------- Taken
//
// The server gets its end after the client's program has got the other one, and the client's TCP
// socket is kept until the server's program has its end: so both programs are in the pair, or both
// ends find their way to TCP, however late an answer comes. connect does not wait for accept. The
// server waits for the client's question for a moment, and for all clients that do not ask not
// longer than [patience] says. An end that the server does not get is joined to TCP by the client's
// supervisor, which remembers the server's address for a while.
type introduced struct {
	s       *supervisor
	users   introduce.Users // with whose programs ours share connections
	bureau  bureau.Bureau
	working sync.WaitGroup

	// These have an entry for each connection that is being dealt with, or is joined to TCP. Servers
	// have their own: a client whose server cannot ask would wait in vain.
	reaching, meeting chan struct{}
	fate              time.Duration // fateTime, but for tests

	// These are guarded by the supervisor's lock.
	patience patience
	over     bool
	outside  map[uint32]int        // of those, the ones of programs of other users, by user
	busy     int                   // connections that are being dealt with, or joined to TCP
	servers  destinations          // of our clients
	watched  map[int]chan struct{} // see watch; by descriptor
}

func newIntroduced(s *supervisor, users introduce.Users) *introduced {
	return &introduced{
		s:        s,
		users:    users,
		reaching: make(chan struct{}, maxIntroduced),
		meeting:  make(chan struct{}, maxIntroduced),
		fate:     fateTime,
		watched:  make(map[int]chan struct{}),
		outside:  make(map[uint32]int),
	}
}

// limit bounds the connections of clients and those of servers, by descriptors.
func (n *introduced) limit(count int) {
	n.reaching, n.meeting = make(chan struct{}, count), make(chan struct{}, count)
}

// watch returns a channel that is closed when the other program sends something over a TCP
// connection, or ends it. The loop looks after that: a thread for each would be too many. If it
// cannot, nothing is heard of. [introduced.unwatch] comes before the descriptor is closed.
func (n *introduced) watch(tcp int) (speaks <-chan struct{}) {
	n.s.Mu.Lock()
	defer n.s.Mu.Unlock()
	c := make(chan struct{})
	if n.s.Poll != nil && n.s.Poll.Add(tcp, unix.EPOLLIN|unix.EPOLLRDHUP) == nil { // rule: TestReachSpeaks
		n.watched[tcp] = c
	}
	return c
}

// unwatch ends that. Nothing need be watched.
func (n *introduced) unwatch(tcp int) {
	n.s.Mu.Lock()
	defer n.s.Mu.Unlock()
	n.unwatchLocked(tcp)
}

func (n *introduced) unwatchLocked(tcp int) {
	if n.watched[tcp] != nil {
		delete(n.watched, tcp)
		n.s.Poll.Remove(tcp)
	}
}

// spoke takes an event of a descriptor. It reports false if that is not watched here. The caller has
// the lock.
func (n *introduced) spoke(fd int) bool {
	c := n.watched[fd]
	if c == nil {
		return false
	}
	n.unwatchLocked(fd)
	close(c)
	return true
}

// destinations are addresses of servers, a bounded number. Those that have not taken a connection
// are left alone for a while, which doubles with each one that they do not take.
type destinations map[netip.AddrPort]destination

type destination struct {
	known   time.Time     // when it has last taken a connection
	shunned time.Time     // until when it is left alone
	pause   time.Duration // the last one
}

func (d *destinations) of(a netip.AddrPort) destination {
	if *d == nil || len(*d) >= maxDestinations && (*d)[a] == (destination{}) {
		*d = make(destinations)
	}
	return (*d)[a]
}

// took notes that a server has taken a connection.
func (d *destinations) took(a netip.AddrPort, now time.Time) {
	d.of(a)
	(*d)[a] = destination{known: now}
}

// refused notes that a server has not.
func (d *destinations) refused(a netip.AddrPort, now time.Time) {
	is := d.of(a)
	is.pause = min(max(2*is.pause, leastShunned), mostShunned)
	is.shunned = now.Add(is.pause)
	(*d)[a] = is
}

// patience is how long a server may wait for the words of clients: meetTime for one, and all that
// wait in vain together a tenth of the time. Any user can connect and say nothing, which would
// stop a server that accepts in one thread.
type patience struct {
	credit time.Duration
	at     time.Time
}

// left returns how long the next connection may wait.
func (p *patience) left(now time.Time) time.Duration {
	p.credit = min(vainMost, p.credit+now.Sub(p.at)/vainShare)
	if p.at.IsZero() {
		p.credit = vainMost
	}
	p.at = now
	return max(min(meetTime, p.credit), leastWait)
}

// spend notes that a connection has waited in vain.
func (p *patience) spend(waited time.Duration) { p.credit = max(0, p.credit-waited) }

// stop ends the questions that are under way, and waits for that. The caller has the lock.
func (n *introduced) stop() {
	n.over = true
	n.s.Mu.Unlock()
	n.bureau.Close()
	n.working.Wait()
	n.s.Mu.Lock()
}

// begin takes a question of a program, with its TCP socket, to a goroutine. Copies of the
// descriptors are made, as those of the caller are not its own. do returns a relay that goes on
// without a program's question, and keeps the place; nil for none. begin reports false if all that
// is not possible, or the message lies about the socket.
func (n *introduced) begin(
	t *broker.Talk, m proto.Message, tcp int, slots chan struct{},
	do func(talk *broker.Talk, tcp int) (relay func()),
) bool {
	if n.over || !t.EndsOf(tcp).Between(m.Local, m.Peer) { // rule: TestIntroducedLies
		return false
	}
	if t.Outside && 2*len(slots) >= cap(slots) { // rule: TestIntroducedOutside
		return false // the other half is for our own user's programs
	}
	if t.Outside && n.outside[t.UID] >= max(1, cap(slots)/4) { // rule: TestIntroducedOutside
		return false // and half of the first one for other users than this
	}
	select {
	case slots <- struct{}{}:
	default:
		return false
	}
	copies := make([]int, 0, 2)
	for _, fd := range []int{t.FD, tcp} {
		if copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			copies = append(copies, copied)
		}
	}
	if len(copies) < 2 {
		proto.CloseAll(copies)
		<-slots
		return false
	}
	n.busy++ // we stay until it is over
	if t.Outside {
		n.outside[t.UID]++
	}
	talk := &broker.Talk{FD: copies[0], PID: t.PID, Outside: t.Outside, UID: t.UID}
	n.working.Go(func() {
		relay := do(talk, copies[1])
		go func() { // whoever waits for those that work does not wait for relays
			if relay != nil { // rule: TestJoinedPlaces: relay != nil -> func() bool { go relay(); return false }()
				relay()
			}
			<-slots
			n.parted(talk)
		}()
	})
	return true
}

// parted notes that something is over for which the supervisor has stayed.
func (n *introduced) parted(t *broker.Talk) {
	n.s.Mu.Lock()
	n.busy--
	if t.Outside {
		if n.outside[t.UID]--; n.outside[t.UID] == 0 {
			delete(n.outside, t.UID)
		}
	}
	n.s.Mu.Unlock()
	n.s.Relayed()
}

// meet answers a program that has accepted a connection with tokens.
func (n *introduced) meet(t *broker.Talk, m proto.Message, tcp int) {
	wait := n.patience.left(time.Now())
	reason := clc.DiagNone
	if n.s.Policy().Listen.Refuses(m.Local) != "" { // rule: TestIntroducedPolicy
		reason = clc.DiagNotAllowed
	}
	begun := n.begin(t, m, tcp, n.meeting, func(talk *broker.Talk, tcp int) func() {
		x := &meeting{n: n, talk: talk, tcp: tcp, m: m}
		defer unix.Close(talk.FD)
		if reason == clc.DiagNone {
			reason = x.run(wait)
		} else {
			n.decline(introduce.RoleServer, tcp)
			x.answer(-1, -1)
		}
		if reason == clc.DiagNone {
			n.s.record.claimed(m.Local, m.Peer, talk.PID)
			// its program may have us wait; the client's supervisor resets the connection, too
			if !talk.Outside {
				broker.LingerNot(tcp)
			}
		} else {
			n.s.record.stayed(m.Local, m.Peer, reason)
		}
		dispose.Close(tcp)
		return nil
	})
	if !begun {
		t.Reply(m.Kind, proto.StatusNo, -1)
		n.s.record.stayed(m.Local, m.Peer, clc.DiagBusy)
	}
}

// A meeting is a connection with tokens that one of our programs has accepted. Its goroutine alone
// uses it.
type meeting struct {
	n    *introduced
	talk *broker.Talk
	tcp  int
	m    proto.Message
}

// answer answers the program, with its end and the memory of rings, or -1 for TCP. It reports false if
// the program does not wait for it any more.
func (x *meeting) answer(end, memory int) bool {
	return x.talk.Reply(x.m.Kind, broker.OkOr(end >= 0, proto.StatusNo), end, memory)
}

// run asks the agent for the program's end, and answers the program. Without an end the client is
// told, also one that asks later.
func (x *meeting) run(wait time.Duration) clc.Diagnosis {
	n := x.n
	client, why := n.agent()
	if client == nil {
		x.answer(-1, -1)
		return why
	}
	begin := time.Now()
	q, err := client.AskPair(introduce.RoleServer, uintptr(x.tcp), wait, x.m.Rings)
	if err != nil {
		x.answer(-1, -1)
		return clc.DiagNoAgent
	}
	late := time.NewTimer(wait + answerTime)
	defer late.Stop()
	select {
	case a := <-q.Answer():
		if a.Socket >= 0 {
			return x.take(q, &a)
		}
		x.answer(-1, -1)
		if a.Reason == introduce.RefusedAlone {
			n.vain(time.Since(begin))
			client.Decline(introduce.RoleServer, uintptr(x.tcp), introduce.MaxWait)
		}
		return bureau.Reason(a.Reason)
	case <-late.C:
	}
	x.answer(-1, -1)
	n.vain(time.Since(begin))
	n.bureau.Slow()
	fate := time.NewTimer(n.fate)
	defer fate.Stop()
	select {
	case a := <-q.Answer():
		if a.Socket >= 0 { // the program is with TCP
			q.GiveBack(a.Socket)
			a.Discard()
		}
	case <-fate.C: // rule: TestAgentHangs: fate.C -> (chan time.Time)(nil)
		q.Withdraw()
	}
	return clc.DiagNoAgent
}

// take gives the program its end, which the agent gets back if that is not possible.
func (x *meeting) take(q *introduce.Question, a *introduce.Answer) clc.Diagnosis {
	end := a.Socket
	o := broker.Offer{Server: x.m.Local, Client: x.m.Peer, End: end, Unique: cookieOf(end)}
	switch {
	case !o.Bind(x.m.IPv6):
		x.answer(-1, -1)
	case x.answer(end, a.Memory):
		closeMemory(a)
		dispose.Now(end)
		x.talk.Reply(x.m.Kind, proto.StatusOK, -1) // our copy is closed now
		q.Took()
		return clc.DiagNone
	}
	q.GiveBack(end)
	a.Discard()
	return clc.DiagBusy
}

// closeMemory closes the memory that has come with an end, which a program has by now.
func closeMemory(a *introduce.Answer) {
	if a.Memory >= 0 {
		unix.Close(a.Memory)
		a.Memory = -1
	}
}

// vain notes that a server has waited for a client that has not asked.
func (n *introduced) vain(waited time.Duration) {
	n.s.Mu.Lock()
	n.patience.spend(waited)
	n.s.Mu.Unlock()
}

// decline has the agent tell the other end of a connection that it is TCP.
func (n *introduced) decline(role introduce.Role, tcp int) {
	if client, _ := n.agent(); client != nil {
		client.Decline(role, uintptr(tcp), introduce.MaxWait)
	}
}

// cookieOf returns the cookie of a socket.
func cookieOf(fd int) uint64 {
	cookie, _ := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	return cookie
}
