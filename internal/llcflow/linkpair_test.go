package llcflow

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// A linkPair is both sides of a link group. Messages arrive in order unless a test has it
// otherwise.
type linkPair struct {
	t      testing.TB
	now    time.Time
	server *pairSide
	client *pairSide
	queue  []func()
	// lose, if not nil, says that a message does not arrive: nobody is told.
	lose func(from *pairSide, o SendLLC) bool
}

// A pairSide is one side with its RNICs.
type pairSide struct {
	p        *linkPair
	name     string
	lc       *LinkControl
	other    *pairSide
	rnics    []core.RNIC
	last     uint32
	log      []string // the outputs that have to do with links
	sent     []string // the types of messages
	steps    []string
	answers  []string
	opened   []time.Duration // when OpenLink was said, since the beginning
	noLinks  bool
	openLate bool                               // nobody answers OpenLink
	stays    bool                               // connections do not leave links
	leave    func(s *pairSide, num llc.LinkNum) // has connections leave a link; nil: they do at once
	down     map[wire.MAC]bool                  // RNICs that take no new links
}

// pairRNIC is RNIC n of a host.
func pairRNIC(host, n byte) core.RNIC {
	return core.RNIC{GID: wire.GID{10: 0xff, 11: 0xff, 12: 10, 13: n, 15: host}, MAC: wire.MAC{2, 4: host, 5: n}}
}

// pairOptions are how the sides of a pair are.
type pairOptions struct {
	v1             bool
	server, client int // RNICs
	max            uint8
	first          func(p *linkPair) // before the first message
}

// newLinkPair has two sides make their first contact, and all that follows from it.
func newLinkPair(t testing.TB, o pairOptions) *linkPair {
	p := &linkPair{t: t, now: epoch}
	if o.max == 0 {
		o.max = 2
	}
	p.server, p.client = &pairSide{p: p, name: "server"}, &pairSide{p: p, name: "client"}
	p.server.other, p.client.other = p.client, p.server
	ends := make(map[*pairSide]core.LinkEnd)
	for i, s := range []*pairSide{p.server, p.client} {
		for n := range []int{o.server, o.client}[i] {
			s.rnics = append(s.rnics, pairRNIC(byte(i+1), byte(n+1)))
		}
		s.last = uint32(i+1) << 16
		s.down = map[wire.MAC]bool{}
		ends[s] = core.LinkEnd{GID: s.rnics[0].GID, MAC: s.rnics[0].MAC, QPN: wire.QPN(s.next()), PSN: wire.PSN(s.next()), MTU: wire.MTU1024}
	}
	for i, s := range []*pairSide{p.server, p.client} {
		peer := ends[s.other]
		r := core.Result{
			Role: []core.Role{core.RoleServer, core.RoleClient}[i], Mode: core.SMCR, Version: clc.V2, FirstContact: true, Release: clc.Release1, MaxConns: 32, MaxLinks: o.max, Direct: true,
			R: &clc.ParamsR{
				PeerID: wire.PeerID{7: 2}, GID: peer.GID, MAC: peer.MAC, QPN: peer.QPN, PSN: peer.PSN, MTU: peer.MTU,
				RKey: wire.RKey(0x100 * (2 - i)), RMBAddr: 0x100000, RMBEIndex: 1,
			},
		}
		cfg := Config{Local: ends[s], GroupID: 7, RMB: 1, Token: llc.RToken{RKey: wire.RKey(0x100 * (i + 1)), VA: 0x100000}, Owner: 1, RNICs: s.rnics}
		if o.v1 {
			r.Version, r.Release, r.MaxLinks, r.MaxConns = clc.V1, 0, 2, 255
			cfg.MaxLinks = o.max
		} else if i == 0 {
			for _, n := range p.client.rnics {
				r.PeerGIDs = append(r.PeerGIDs, n.GID)
			}
		}
		cfg.Result = r
		s.lc = New(cfg)
	}
	if o.first != nil {
		o.first(p)
	}
	p.client.do(p.client.lc.Start(p.now, nil))
	p.server.do(p.server.lc.Start(p.now, nil))
	p.run()
	return p
}

func (s *pairSide) next() uint32 { s.last++; return s.last }

// run delivers all messages.
func (p *linkPair) run() {
	p.t.Helper()
	for n := 0; len(p.queue) > 0; n++ {
		if n > 5000 {
			p.t.Fatalf("no end of messages: server %v, client %v", tail(p.server.sent), tail(p.client.sent))
		}
		f := p.queue[0]
		p.queue = p.queue[1:]
		f()
	}
}

func tail(list []string) []string { return list[max(0, len(list)-10):] }

// pass lets time pass, with all timers in it.
func (p *linkPair) pass(d time.Duration) {
	p.t.Helper()
	end := p.now.Add(d)
	for n := 0; ; n++ {
		next := end
		for _, s := range []*pairSide{p.server, p.client} {
			if at := s.lc.Deadline(); !at.IsZero() && at.Before(next) {
				next = at
			}
		}
		if n > 2000 {
			p.t.Fatalf("too many timers: server %v, client %v", tail(p.server.log), tail(p.client.log))
		}
		if p.now = next; !next.Before(end) {
			break
		}
		for _, s := range []*pairSide{p.server, p.client} {
			s.do(s.lc.Advance(p.now, nil))
		}
		p.run()
	}
}

func (s *pairSide) do(outs []Output) {
	p := s.p
	for _, o := range outs {
		switch o := o.(type) {
		case SendLLC:
			b := o.Message.Append(nil)
			s.sent = append(s.sent, fmt.Sprintf("%d:%v", o.Link, o.Message.Type()))
			if p.lose != nil && p.lose(s, o) {
				continue
			}
			p.queue = append(p.queue, func() {
				if l := s.lc.link(o.Link); l == nil && o.Link != 0 {
					return // its queue pair is gone
				}
				m, err := llc.Parse(b)
				if err != nil {
					p.t.Errorf("%s sent %v: %v", s.name, o.Message, err)
				}
				to := s.other
				num := o.Link
				if to.lc.links[0].num == 0 || num == 0 {
					num = 0
				}
				if to.lc.link(num) != nil {
					to.do(to.lc.HandleMessage(p.now, num, m, err, nil))
				}
				if o.Tag != 0 {
					s.do(s.lc.Sent(p.now, o.Tag, nil))
				}
			})
		case OpenLink:
			s.opened = append(s.opened, p.now.Sub(epoch))
			if s.openLate {
				continue
			}
			end := core.LinkEnd{GID: o.GID, QPN: wire.QPN(s.next()), PSN: wire.PSN(s.next()), MTU: wire.MTU1024}
			for _, r := range s.rnics {
				if r.GID == o.GID {
					end.MAC = r.MAC
				}
			}
			if s.noLinks || s.down[end.MAC] {
				end = core.LinkEnd{}
			}
			tokens := map[RMBID]llc.RToken{}
			for id := range s.lc.own {
				tokens[id] = s.token(id, o.Link)
			}
			s.do(s.lc.LinkOpened(p.now, o.Link, end, tokens, nil))
		case LinkLeaving:
			s.log = append(s.log, controlWords(p.now, []Output{o}))
			switch {
			case s.stays:
			case s.leave != nil:
				s.leave(s, o.Link)
			default:
				s.do(s.lc.LinkLeft(p.now, o.Link, nil))
			}
		case LinkUp, LinkDown, CloseLink, ElementLost, GroupEnding, GroupEnded:
			s.log = append(s.log, controlWords(p.now, []Output{o}))
		case LinkStep:
			s.steps = append(s.steps, controlWords(p.now, []Output{o}))
		case RMBConfirmed, RMBRefused, RMBDeleted:
			s.answers = append(s.answers, controlWords(p.now, []Output{o}))
		}
	}
}

// hold keeps messages back; the function that it returns delivers them, and holds no more.
func (p *linkPair) hold(match func(s *pairSide, o SendLLC) bool) (release func()) {
	var held []func()
	p.lose = func(s *pairSide, o SendLLC) bool {
		if !match(s, o) {
			return false
		}
		held = append(held, func() {
			s.other.do(s.other.lc.HandleMessage(p.now, o.Link, o.Message, nil, nil))
			if o.Tag != 0 {
				s.do(s.lc.Sent(p.now, o.Tag, nil))
			}
		})
		return true
	}
	return func() {
		p.t.Helper()
		if len(held) == 0 {
			p.t.Error("nothing was held back")
		}
		p.lose = nil
		p.queue = append(held, p.queue...)
		p.run()
	}
}

// newTriplet is a pair of hosts with three RNICs each, and links over all of them.
func newTriplet(t testing.TB) *linkPair {
	p := newLinkPair(t, pairOptions{v1: true, server: 3, client: 3, max: 3})
	p.pass(20 * time.Second)
	p.check("three links", "1:1-1 2:2-2 3:3-3", RedundancySymmetric)
	for _, s := range []*pairSide{p.server, p.client} {
		s.log, s.sent, s.opened = nil, nil, nil
	}
	return p
}

// count is how many messages of a kind a side has sent, by its end of the word that tells of them.
func (s *pairSide) count(kind string) (n int) {
	for _, w := range s.sent {
		if _, w, _ := strings.Cut(w, ":"); w == kind {
			n++
		}
	}
	return n
}

// token is where an RMB is on a link.
func (s *pairSide) token(id RMBID, num llc.LinkNum) llc.RToken {
	side := wire.RKey(0x10000)
	if s.name == "client" {
		side = 0x20000
	}
	return llc.RToken{RKey: side + wire.RKey(id)<<8 + wire.RKey(num), VA: uint64(id)<<20 + uint64(num)<<40}
}

// tokens is where a new RMB is.
func (s *pairSide) tokens(id RMBID) map[llc.LinkNum]llc.RToken {
	t := map[llc.LinkNum]llc.RToken{}
	for _, l := range s.lc.links {
		t[l.num] = s.token(id, l.num)
	}
	return t
}

// fail has a side notice that a link has failed.
func (s *pairSide) fail(num llc.LinkNum) {
	s.do(s.lc.LinkFailed(s.p.now, num, errors.New("retries"), nil))
}

// links is a side's links in short, such as "1:1-1 2:2-2" for number, our RNIC and the peer's, with an a if asymmetric.
func (s *pairSide) links() string {
	var list []string
	for _, l := range s.lc.Links() {
		w := fmt.Sprintf("%d:%d-%d", l.Num, l.Local.MAC[5], l.Peer.MAC[5])
		if s.name == "client" {
			w = fmt.Sprintf("%d:%d-%d", l.Num, l.Peer.MAC[5], l.Local.MAC[5])
		}
		if l.Asymmetric {
			w += "a"
		}
		list = append(list, w)
	}
	return strings.Join(list, " ")
}

// check compares the knowledge of the two sides, when it is quiet. Links are given from the
// server's point of view.
func (p *linkPair) check(name, links string, r Redundancy) {
	p.t.Helper()
	for _, s := range []*pairSide{p.server, p.client} {
		lc := s.lc
		if got := s.links(); got != links || lc.Redundancy() != r {
			p.t.Errorf("%s: the %s has the links %q, %v; want %q, %v", name, s.name, got, lc.Redundancy(), links, r)
		}
		if lc.add.phase != addNone || len(lc.deletes) > 0 || lc.exchange.kind != exchangeNone || len(lc.wishes) > 0 {
			p.t.Errorf("%s: the %s is not quiet: add %d, deletes %v, exchange %d, wishes %v", name, s.name, lc.add.phase, lc.deletes, lc.exchange.kind, lc.wishes)
		}
		for _, l := range lc.links {
			if l.state != linkActive {
				p.t.Errorf("%s: the %s still has link %d, state %d", name, s.name, l.num, l.state)
			}
		}
		for id, b := range lc.own {
			if b.state != rmbConfirmed {
				continue
			}
			for _, l := range lc.Links() {
				peer := s.other.lc.link(l.Num)
				if peer == nil {
					continue
				}
				found := slices.ContainsFunc(s.other.lc.peer.rmbs, func(x *peerRMB) bool {
					token, ok := x.on(peer.slot)
					return ok && token == b.tokens[l.Num]
				})
				if !found {
					p.t.Errorf("%s: RMB %d of the %s is not known on link %d", name, id, s.name, l.Num)
				}
			}
		}
	}
}
