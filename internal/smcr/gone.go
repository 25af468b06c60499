package smcr

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
)

// What becomes of a peer whose process ends without a word is told by its kernel alone: it closes the TCP connections, and
// answers packets to the UDP port with "port unreachable". The link's own socket is not told of those, and must not be, as
// everybody can forge them. So where the end of a TCP connection makes us ask the peer whether it is there, and nothing
// has come over the link for a while, one datagram from a socket of its own asks the kernel. A port that processes share
// is unreachable for a queue pair number that no process owns, so the datagram names the queue pair of the link. TEST LINK,
// which needs no help of the kernel and takes two seconds, decides where that has no answer: a host that is gone, a port
// or a range of numbers that another process has taken meanwhile, rxe.

var errPeerGone = errors.New("the peer's process has ended: nobody has its UDP port any more")

// suspect has the peer asked whether it is there.
func (g *group) suspect() {
	begun := false
	g.do(func(now time.Time, out []core.Output) []core.Output {
		if g.ctl == nil || g.gone {
			return out
		}
		begun = true
		g.hear(now)
		for _, l := range g.links {
			out = g.ctl.Suspect(now, l.num, out)
		}
		return out
	})
	if begun {
		g.awaitAnswer()
		g.knock()
	}
}

// awaits counts a connection that has said its last word, +1, or has ended, -1. A link that has failed only at the peer's end stays
// silent, and the TCP connection, which would tell, is closed. So while there are such the peer is asked now and then.
func (g *group) awaits(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing += n; n < 0 || g.closing > 1 || g.gone {
		return // it runs already, or will not go on
	}
	if g.asker == nil {
		g.asker = time.AfterFunc(closeAskTime, g.ask)
	} else {
		g.asker.Reset(closeAskTime)
	}
}

// ask has the peer asked on behalf of closed connections.
func (g *group) ask() {
	g.mu.Lock()
	again := g.closing > 0 && !g.gone
	if again {
		g.asker.Reset(closeAskTime)
	}
	g.mu.Unlock()
	if again {
		g.suspect() // rule: internal/host TestSMCRAsksForClosed
	}
}

// knock asks the peer's kernel a little later, unless something comes over the link meanwhile, and ends the link if nobody is
// there. It does not block.
func (g *group) knock() {
	if !g.knocking.CompareAndSwap(false, true) {
		return
	}
	g.mu.Lock()
	links := slices.Clone(g.links)
	peers := make([]netip.Addr, len(links)) // which are not known of links that are being made
	qpns := make([]wire.QPN, len(links))
	heard := make([]uint64, len(links))
	for i, l := range links {
		heard[i], peers[i], qpns[i] = l.net.Heard(), l.peer, l.peerQPN
	}
	g.mu.Unlock()
	quiet := func(i int) bool { return links[i].net.Heard() == heard[i] && links[i].net.Err() == nil }
	time.AfterFunc(knockAfter, func() {
		defer g.knocking.Store(false)
		for i, l := range links {
			if !quiet(i) || !peers[i].IsValid() || !l.rnic.Refuses(peers[i], qpns[i]) {
				continue
			}
			// What it had sent before is in our socket.
			time.AfterFunc(knockAfter, func() {
				if quiet(i) {
					l.net.Fail(errPeerGone)
				}
			})
		}
	})
}

// awaitAnswer has connections that we accept wait until a peer that was just asked whether it is there has answered, or do without
// the group if that takes longer than it should. To join the group then takes until it ends, and comes to nothing. It does not block.
func (g *group) awaitAnswer() {
	if g.lg.Key.Role != core.RoleServer || !g.setAnswer(core.AnswerNone, core.AnswerAwaited) {
		return
	}
	heard := g.messages()
	time.AfterFunc(answerTime, func() {
		if g.messages() == heard {
			g.setAnswer(core.AnswerAwaited, core.AnswerLate)
		} else {
			g.setAnswer(core.AnswerAwaited, core.AnswerNone)
		}
	})
}

// messages counts what has come over all links.
func (g *group) messages() (n uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.links {
		n += l.net.Heard()
	}
	return n
}

// answered takes that something has come over the link.
func (g *group) answered() {
	if core.Answer(g.answer.Load()) != core.AnswerNone && !g.setAnswer(core.AnswerAwaited, core.AnswerNone) {
		g.setAnswer(core.AnswerLate, core.AnswerNone)
	}
}

// setAnswer changes what is known of the peer, if it is what the caller thinks.
func (g *group) setAnswer(from, to core.Answer) bool {
	if !g.answer.CompareAndSwap(uint32(from), uint32(to)) {
		return false
	}
	g.fabric.mu.Lock()
	g.fabric.groups.SetAnswer(g.lg, core.Answer(g.answer.Load())) // of the newest, whoever comes first
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
func (g *group) late() bool { return core.Answer(g.answer.Load()) == core.AnswerLate }
