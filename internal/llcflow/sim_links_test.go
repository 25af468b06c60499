package llcflow

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core/coretest"
	"github.com/gosmc/smc/wire/llc"
)

// A linkWorld is a linkPair with queues. Messages are in one queue for each link and direction
// until they have arrived, and in another one until the host looks, as are completions. They are
// taken from the queues in any order of these. Messages that have not arrived are lost with the
// link.
type linkWorld struct {
	*linkPair
	rng    *rand.Rand
	queues map[string][]func()
	order  []string
	dead   map[string]bool // side and link
	story  []string

	unclean []string // answers about RMBs that the peer may write to
}

// enqueue adds to a queue.
func (w *linkWorld) enqueue(k string, f func()) {
	if len(w.queues[k]) == 0 && !slices.Contains(w.order, k) {
		w.order = append(w.order, k)
	}
	w.queues[k] = append(w.queues[k], f)
}

// deliverFrom takes the first out of a queue.
func (w *linkWorld) deliverFrom(k string) {
	f := w.queues[k][0]
	w.queues[k] = w.queues[k][1:]
	f()
}

// goodLink returns a link that is up on both sides, or is as soon as the messages on their way over
// it have arrived; 0 if there is none.
func (w *linkWorld) goodLink() llc.LinkNum {
	ready := func(s *pairSide, num llc.LinkNum) bool {
		l, add := s.lc.link(num), &s.lc.add
		if l == nil || w.dead[fmt.Sprintf("%s/%d", s.name, num)] {
			return false
		}
		return l.state == linkActive || add.link == l && (add.phase == addReplied || add.phase == addConfirming && s.name == "server")
	}
	for _, l := range w.client.lc.links {
		if ready(w.client, l.num) && ready(w.server, l.num) {
			return l.num
		}
	}
	return 0
}

// playLinks has a schedule of messages, failures, RNICs that come and go, and RMBs, and checks the
// links that are left when it is quiet.
func playLinks(t testing.TB, seed uint64) (w *linkWorld) {
	w = &linkWorld{rng: rand.New(rand.NewPCG(seed, 5)), queues: map[string][]func(){}, dead: map[string]bool{}}
	o := pairOptions{v1: w.rng.IntN(2) == 0, server: 1 + w.rng.IntN(2), client: 1 + w.rng.IntN(2)}
	if o.v1 && w.rng.IntN(4) == 0 {
		o.server, o.client, o.max = 3, 3, 3
	}
	w.linkPair = newLinkPair(t, o)
	p := w.linkPair
	say := func(format string, args ...any) {
		w.story = append(w.story, fmt.Sprintf("%v ", p.now.Sub(epoch))+fmt.Sprintf(format, args...))
	}
	key := func(s *pairSide, num llc.LinkNum) string { return fmt.Sprintf("%s/%d", s.name, num) }
	quiet := false
	p.lose = func(from *pairSide, o SendLLC) bool {
		if o.Message.Type() != llc.TypeTestLink {
			say("%s(%d) %v", from.name, o.Link, o.Message)
		}
		if p.now.Sub(epoch) == 0 {
			return false
		}
		k := key(from, o.Link)
		if w.dead[k] || w.dead[key(from.other, o.Link)] {
			return true // a side that has noticed nothing yet will
		}
		// Linux net/smc drops requests that cross its own.
		if !quiet && !o.Message.Head().Reply && w.rng.IntN(50) == 0 {
			return true
		}
		b := o.Message.Append(nil)
		to := from.other
		w.enqueue(k, func() {
			if w.dead[k] || w.dead[key(to, o.Link)] {
				return
			}
			// The peer's RNIC has it. When either host looks is another matter.
			w.enqueue(key(to, o.Link)+" received", func() {
				if to.lc.link(o.Link) == nil || w.dead[key(to, o.Link)] {
					return
				}
				m, err := llc.Parse(b)
				good, active := w.goodLink(), to.lc.State() < StateEnding
				to.do(to.lc.HandleMessage(p.now, o.Link, m, err, nil))
				if d, ok := m.(llc.DeleteLink); ok && !d.All && !d.Reply && !d.Orderly && active && to.lc.State() >= StateEnding && good != 0 && good != d.Link {
					t.Errorf("%v: the %s has ended the group, though link %d is good", m, to.name, good)
				}
				if d, ok := m.(llc.DeleteLink); ok && !d.All && d.Orderly && active && to.lc.State() >= StateEnding && good != 0 {
					t.Errorf("%v: the %s has ended the group for an operator, who wanted to have link %d", m, to.name, good)
				}
			})
			if o.Tag != 0 {
				w.enqueue(k+" sent", func() {
					if from.lc.link(o.Link) != nil && !w.dead[k] {
						from.do(from.lc.Sent(p.now, o.Tag, nil))
					}
				})
			}
		})
		return true
	}
	leave := func(s *pairSide, num llc.LinkNum) {
		w.enqueue(key(s, num)+" left", func() {
			if w.rng.IntN(4) > 0 { // else they do not in time
				say("%s: connections have left link %d", s.name, num)
				s.do(s.lc.LinkLeft(p.now, num, nil))
			}
		})
	}
	p.server.leave, p.client.leave = leave, leave
	fail := func(s *pairSide, num llc.LinkNum) {
		if s.lc.link(num) == nil || w.dead[key(s, num)] {
			return
		}
		for _, what := range []string{" received", " sent"} { // earlier messages are told before a failure
			for k := key(s, num) + what; len(w.queues[k]) > 0; {
				w.deliverFrom(k)
			}
		}
		say("%s: link %d fails", s.name, num)
		w.dead[key(s, num)] = true
		good, ending := w.goodLink(), s.lc.State() == StateEnding
		s.fail(num)
		if s.lc.State() == StateEnded && good != 0 && !ending {
			t.Errorf("the %s has ended the group, though link %d is good", s.name, good)
		}
	}
	deliver := func() bool {
		for i := len(w.order) - 1; i >= 0; i-- {
			if len(w.queues[w.order[i]]) == 0 {
				w.order = slices.Delete(w.order, i, i+1)
			}
		}
		if len(w.order) == 0 {
			return false
		}
		w.deliverFrom(w.order[w.rng.IntN(len(w.order))])
		return true
	}
	// A link that is dead at one end is noticed at the other one, by the transport, when it sends.
	notice := func() {
		for _, s := range []*pairSide{p.server, p.client} {
			for _, l := range slices.Clone(s.lc.links) {
				if w.dead[key(s.other, l.num)] && !w.dead[key(s, l.num)] && l.state != linkFailed {
					fail(s, l.num)
				}
			}
		}
	}
	advance := func(d time.Duration) {
		end := p.now.Add(d)
		for {
			next := end
			for _, s := range []*pairSide{p.server, p.client} {
				if at := s.lc.Deadline(); !at.IsZero() && at.Before(next) {
					next = at
				}
			}
			p.now = next
			if !next.Before(end) {
				return
			}
			for _, s := range []*pairSide{p.server, p.client} {
				s.do(s.lc.Advance(p.now, nil))
			}
			for deliver() {
			}
			notice()
		}
	}
	advance(time.Second)
	id := RMBID(10)
	for range 5 + w.rng.IntN(60) {
		s := []*pairSide{p.server, p.client}[w.rng.IntN(2)]
		switch w.rng.IntN(9) {
		case 0, 1, 2, 3:
			deliver()
		case 4:
			id++
			say("%s: RMB %d", s.name, id)
			s.do(s.lc.ConfirmRMB(p.now, id, s.tokens(id), nil))
		case 5:
			if ids := s.lc.ownIDs(); len(ids) > 0 && s.lc.State() != StateEnded {
				id, clean := ids[w.rng.IntN(len(ids))], w.rng.IntN(4) > 0
				b := s.lc.own[id]
				if !clean && (b.state == rmbConfirmed || b.state == rmbConfirming && b.again) {
					w.unclean = append(w.unclean, fmt.Sprintf("%s deleted(%d)", s.name, id))
				}
				say("%s: end of RMB %d, clean %t, state %d", s.name, id, clean, b.state)
				s.do(s.lc.DeleteRMB(p.now, id, clean, nil))
			}
		case 6:
			if links := s.lc.links; len(links) > 1 && w.rng.IntN(2) == 0 {
				fail(s, links[w.rng.IntN(len(links))].num)
			} else if w.rng.IntN(4) == 0 {
				s.do(s.lc.DeleteLink(p.now, links[w.rng.IntN(len(links))].num, nil))
			}
		case 7:
			n := 1 + w.rng.IntN(len(s.rnics))
			say("%s: %d RNICs", s.name, n)
			s.do(s.lc.SetRNICs(p.now, s.rnics[:n], nil))
		case 8:
			advance(time.Duration(w.rng.Int64N(int64(3 * time.Second))))
			notice()
		}
	}
	quiet = true
	for _, s := range []*pairSide{p.server, p.client} {
		s.do(s.lc.SetRNICs(p.now, s.rnics, nil))
	}
	for deliver() {
	}
	notice()
	advance(20 * time.Minute)
	return w
}

// TestSimLinks plays groups of several links with faults, and looks at the tables of both sides when it is quiet: every exchange has ended,
// both have the same links, as many as they can have, and know where each other's RMBs are on all of them. Or the group
// has ended on both sides.
func TestSimLinks(t *testing.T) {
	seeds, one := coretest.Seeds()
	total := map[string]int{}
	for seed := uint64(1); seed <= seeds; seed++ {
		if one != 0 {
			seed = one
		}
		sub := &seedT{TB: t}
		w := playLinks(sub, seed)
		s, c := w.server.lc, w.client.lc
		for _, side := range []*pairSide{w.server, w.client} {
			for _, answer := range side.answers {
				if slices.Contains(w.unclean, side.name+" "+answer) {
					sub.Errorf("the %s: %s, though the peer may write to it", side.name, answer)
				}
			}
			if slices.ContainsFunc(side.log, func(line string) bool { return strings.HasPrefix(line, "ending "+EndViolation.String()) }) {
				sub.Errorf("the %s says that the peer broke the protocol", side.name)
			}
		}
		switch {
		case s.State() == StateEnded || c.State() == StateEnded:
			total["ended"]++
			if s.State() != c.State() && s.State() != StateActive && c.State() != StateActive {
				sub.Errorf("states %v and %v", s.State(), c.State())
			}
		default:
			total[s.Redundancy().String()]++
			w.check(fmt.Sprintf("seed %d", seed), w.server.links(), s.Redundancy())
			if want := min(len(w.server.rnics), len(w.client.rnics), s.maxLinks); len(s.Links()) < want {
				sub.Errorf("%d links, want %d", len(s.Links()), want)
			}
		}
		if sub.failed {
			for _, line := range tailOf(w.story, 80) {
				t.Log(line)
			}
			t.Fatalf("replay with: go test -run TestSimLinks -seed=%d", seed)
		}
		if one != 0 {
			break
		}
	}
	t.Logf("%v", total)
}

func tailOf(list []string, n int) []string { return list[max(0, len(list)-n):] }

// A seedT notes a failure, so that the story can be told.
type seedT struct {
	testing.TB
	failed bool
}

func (s *seedT) Errorf(format string, args ...any) { s.failed = true; s.TB.Errorf(format, args...) }
func (s *seedT) Fatalf(format string, args ...any) { s.failed = true; s.TB.Fatalf(format, args...) }
