package smcr

import (
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/wire"
)

// A peerCheck finds out whether the peer of a link group is there.
//
// If a process ends without a word, its kernel alone tells the peer: the kernel closes the TCP
// connections, and answers packets to the UDP port with "port unreachable". The link's own socket
// is not told of those answers, and must not be, as everybody can forge them. So the end of a TCP
// connection makes us ask the peer whether it is there. If nothing comes over the link for a while,
// one datagram from a socket of its own asks the peer's kernel. A port that processes share is
// unreachable for a queue pair number that no process owns, so the datagram names the queue pair of
// the link.
//
// TEST LINK needs no help of the kernel and takes two seconds. It decides if the datagram has no
// answer: the host is gone, another process has taken the port or the range of numbers meanwhile,
// the peer uses rxe.
//
// The group's mu guards closing and asker. It is not held where answer changes, which takes the
// fabric's lock.
type peerCheck struct {
	group    *group
	knocking atomic.Bool   // see knock
	answer   atomic.Uint32 // a core.Answer, as the table has it
	closing  int           // connections that have said their last word and await the peer's
	asker    *time.Timer   // runs ask while there are such; nil before it was needed
}

var errPeerGone = errors.New("the peer's process has ended: nobody has its UDP port any more")

// suspect has the peer asked whether it is there.
func (p *peerCheck) suspect() {
	g := p.group
	begun := false
	g.do(func(now time.Time, out []llcflow.Output) []llcflow.Output {
		if g.ctl == nil || g.end.gone {
			return out
		}
		begun = true
		g.links.hear(now)
		for _, l := range g.links.all {
			out = g.ctl.Suspect(now, l.num, out)
		}
		return out
	})
	if begun {
		p.awaitAnswer()
		p.knock()
	}
}

// awaits counts a connection that has said its last word, +1, or has ended, -1. A link that has
// failed only at the peer's end stays silent, and the TCP connection, which would tell, is closed.
// So the peer is asked now and then while there are such connections.
func (p *peerCheck) awaits(n int) {
	g := p.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.closing += n; n < 0 || p.closing > 1 || g.end.gone {
		return // it runs already, or will not go on
	}
	if p.asker == nil {
		p.asker = time.AfterFunc(closeAskTime, p.ask)
	} else {
		p.asker.Reset(closeAskTime)
	}
}

// ask has the peer asked on behalf of closed connections.
func (p *peerCheck) ask() {
	g := p.group
	g.mu.Lock()
	again := p.closing > 0 && !g.end.gone
	if again {
		p.asker.Reset(closeAskTime)
	}
	g.mu.Unlock()
	if again {
		p.suspect() // rule: internal/host TestSMCRAsksForClosed
	}
}

// stop ends the questions on behalf of closed connections. The timer holds the group, and the
// memory of its links. g.mu is held.
func (p *peerCheck) stop() {
	if p.asker != nil {
		p.asker.Stop() // rule: TestEndedHoldsNothing
	}
}

// knock asks the peer's kernel a little later, unless something comes over the link meanwhile, and
// ends the link if nobody is there. It does not block.
func (p *peerCheck) knock() {
	if !p.knocking.CompareAndSwap(false, true) {
		return
	}
	g := p.group
	g.mu.Lock()
	links := slices.Clone(g.links.all)
	peers := make([]netip.Addr, len(links)) // which are not known of links that are being made
	qpns := make([]wire.QPN, len(links))
	heard := make([]uint64, len(links))
	for i, l := range links {
		heard[i], peers[i], qpns[i] = l.net.Heard(), l.peer, l.peerQPN
	}
	g.mu.Unlock()
	quiet := func(i int) bool { return links[i].net.Heard() == heard[i] && links[i].net.Err() == nil }
	time.AfterFunc(knockAfter, func() {
		defer p.knocking.Store(false)
		for i, l := range links {
			if !quiet(i) || !peers[i].IsValid() || !l.rnic.Refuses(peers[i], qpns[i]) {
				continue
			}
			// The messages that it had sent before are in our socket.
			time.AfterFunc(knockAfter, func() {
				if quiet(i) {
					l.net.Fail(errPeerGone)
				}
			})
		}
	})
}

// awaitAnswer has connections that we accept wait until a peer that was just asked whether it is
// there has answered. They do without the group if that takes too long: to join it would take until
// it ends, and come to nothing. awaitAnswer does not block.
func (p *peerCheck) awaitAnswer() {
	if p.group.lg.Key.Role != core.RoleServer || !p.setAnswer(core.AnswerNone, core.AnswerAwaited) {
		return
	}
	heard := p.messages()
	time.AfterFunc(answerTime, func() {
		if p.messages() == heard {
			p.setAnswer(core.AnswerAwaited, core.AnswerLate)
		} else {
			p.setAnswer(core.AnswerAwaited, core.AnswerNone)
		}
	})
}

// messages counts the messages that have come over all links.
func (p *peerCheck) messages() (n uint64) {
	g := p.group
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.links.all {
		n += l.net.Heard()
	}
	return n
}

// answered takes that something has come over the link.
func (p *peerCheck) answered() {
	if core.Answer(p.answer.Load()) != core.AnswerNone && !p.setAnswer(core.AnswerAwaited, core.AnswerNone) {
		p.setAnswer(core.AnswerLate, core.AnswerNone)
	}
}

// setAnswer changes the peer's answer from one value to another, if it still has the first one.
func (p *peerCheck) setAnswer(from, to core.Answer) bool {
	if !p.answer.CompareAndSwap(uint32(from), uint32(to)) {
		return false
	}
	g := p.group
	g.fabric.mu.Lock()
	g.fabric.groups.SetAnswer(g.lg, core.Answer(p.answer.Load())) // the newest, in any order of calls
	g.fabric.changedLocked()
	g.fabric.mu.Unlock()
	if to == core.AnswerLate {
		g.mu.Lock()
		g.rmbs.refuseAsked() // rule: TestAnswerLate
		g.mu.Unlock()
	}
	return true
}

// late reports whether the peer has been asked whether it is there, and does not answer.
func (p *peerCheck) late() bool { return core.Answer(p.answer.Load()) == core.AnswerLate }
