package supervisor

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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
//	                  Taken  <--------               Introduced(end) ----> end -->
//
// connect does not wait for accept. The server waits for the client's question for a moment, and
// for all clients that do not ask not longer than [patience] says. An end that the server does not
// get is joined to TCP by the client's supervisor, which remembers the server's address for a
// while.
type introduced struct {
	s       *supervisor
	bureau  bureau
	working sync.WaitGroup
	slots   chan struct{} // has an entry for each connection that is being dealt with

	// These are guarded by the supervisor's lock.
	patience patience
	over     bool
	servers  destinations // of our clients
}

func newIntroduced(s *supervisor) *introduced {
	return &introduced{
		s:      s,
		bureau: bureau{users: introduce.Users{Mode: introduce.ModeAny}},
		slots:  make(chan struct{}, maxIntroduced),
	}
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
	n.bureau.close()
	n.working.Wait()
	n.s.Mu.Lock()
}

// begin takes a question of a program, with its TCP socket, to a goroutine. Copies of the
// descriptors are made, as those of the caller are not its own. It reports false if that is not
// possible.
func (n *introduced) begin(t *broker.Talk, tcp int, do func(talk *broker.Talk, tcp int)) bool {
	if n.over || !proto.IsTCP(tcp) {
		return false
	}
	select {
	case n.slots <- struct{}{}:
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
		<-n.slots
		return false
	}
	n.s.handing++ // we stay until it is over
	n.working.Go(func() {
		do(&broker.Talk{FD: copies[0], PID: t.PID, Outside: t.Outside}, copies[1])
		<-n.slots
		n.parted()
	})
	return true
}

// parted notes that something is over for which the supervisor has stayed.
func (n *introduced) parted() {
	n.s.Mu.Lock()
	defer n.s.Mu.Unlock()
	n.s.handing--
	if n.s.handing == 0 && n.s.programs != nil && n.s.programs.gone(time.Now()) {
		n.s.Stop()
	}
}

// meet answers a program that has accepted a connection with tokens.
func (n *introduced) meet(t *broker.Talk, m proto.Message, tcp int) {
	wait := n.patience.left(time.Now())
	reason := clc.DiagNone
	if n.s.Policy().Listen.Refuses(m.Local) != "" { // rule: TestIntroducedPolicy
		reason = clc.DiagNotAllowed
	}
	begun := n.begin(t, tcp, func(talk *broker.Talk, tcp int) {
		defer unix.Close(talk.FD)
		end := -1
		if reason == clc.DiagNone {
			end, reason = n.await(m, tcp, wait)
		} else {
			n.decline(introduce.RoleServer, tcp)
		}
		if end < 0 {
			talk.Reply(m.Kind, proto.StatusNo, -1)
			dispose.Close(tcp)
			n.s.record.stayed(m.Local, m.Peer, reason)
			return
		}
		talk.Reply(m.Kind, proto.StatusOK, end)
		dispose.Now(end)
		n.s.record.claimed(m.Local, m.Peer, talk.PID)
		talk.Reply(m.Kind, proto.StatusOK, -1) // our copy is closed now
		broker.LingerNot(tcp)
		dispose.Close(tcp)
	})
	if !begun {
		t.Reply(m.Kind, proto.StatusNo, -1)
		n.s.record.stayed(m.Local, m.Peer, clc.DiagBusy)
	}
}

// await asks the agent for the server's end of a connection. The caller closes it. Without one the
// client is told, also one that asks later.
func (n *introduced) await(m proto.Message, tcp int, wait time.Duration) (end int, reason clc.Diagnosis) {
	client, why := n.bureau.get(tcp)
	if client == nil {
		return -1, why
	}
	begin := time.Now()
	q, err := client.AskPair(introduce.RoleServer, uintptr(tcp), wait)
	if err != nil {
		return -1, clc.DiagNoAgent
	}
	a := <-q.Answer() // the agent bounds the wait; when it ends there is an answer, too
	if a.Socket < 0 {
		if a.Reason == introduce.RefusedAlone {
			n.s.Mu.Lock()
			n.patience.spend(time.Since(begin))
			n.s.Mu.Unlock()
			client.Decline(introduce.RoleServer, uintptr(tcp), introduce.MaxWait)
		}
		return -1, reasonOf(a.Reason)
	}
	o := broker.Offer{
		Server: m.Local, Client: m.Peer, End: a.Socket, Unique: cookieOf(a.Socket),
	}
	if !o.Bind(m.IPv6) {
		dispose.Now(a.Socket)
		return -1, clc.DiagBusy
	}
	return a.Socket, clc.DiagNone
}

// decline has the agent tell the other end of a connection that it is TCP.
func (n *introduced) decline(role introduce.Role, tcp int) {
	if client, _ := n.bureau.get(tcp); client != nil {
		client.Decline(role, uintptr(tcp), introduce.MaxWait)
	}
}

// cookieOf returns the cookie of a socket.
func cookieOf(fd int) uint64 {
	cookie, _ := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	return cookie
}
