package llcflow

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// A deadPath says between which RNICs of the server's and the client's everything vanishes.
type deadPath func(server, client byte) bool

// cut has paths lose the messages that go over them, and nobody is told.
func (p *linkPair) cut(dead deadPath) {
	p.lose = func(s *pairSide, o SendLLC) bool {
		l := s.lc.link(o.Link)
		if l == nil {
			return false
		}
		a, b := l.local.MAC[5], l.peer.MAC[5]
		if s == p.client {
			a, b = b, a
		}
		return dead(a, b)
	}
}

// cutAndFail is cut, and one side notices that a link over such a path has failed when CONFIRM LINK is sent over it.
func (p *linkPair) cutAndFail(dead deadPath, notices *pairSide) {
	p.cut(dead)
	cut := p.lose
	p.lose = func(s *pairSide, o SendLLC) bool {
		if !cut(s, o) {
			return false
		}
		p.queue = append(p.queue, func() { notices.fail(o.Link) })
		return true
	}
}

// TestAddLinkRotate has hosts with three RNICs. Their second path dies without a word, for each
// reason. The next link is over a path that works, where there is one. It is over the old path when
// that works again and none of the others does.
func TestAddLinkRotate(t *testing.T) {
	dead := map[string]deadPath{
		"the server's second one": func(s, c byte) bool { return s == 2 },
		"the client's second one": func(s, c byte) bool { return c == 2 },
		"both second ones":        func(s, c byte) bool { return s == 2 || c == 2 },
		"what joins them":         func(s, c byte) bool { return s == 2 && c == 2 },
	}
	for version, v1 := range linkVersions {
		for name, dead := range dead {
			for side, pick := range map[string]func(p *linkPair) *pairSide{
				"server": func(p *linkPair) *pairSide { return p.server },
				"client": func(p *linkPair) *pairSide { return p.client },
			} {
				p := newLinkPair(t, pairOptions{v1: v1, server: 3, client: 3})
				p.pass(time.Minute)
				p.check(version+", at first", "1:1-1 2:2-2", RedundancySymmetric)
				p.cut(dead)
				pick(p).fail(2)
				p.pass(2 * AddLinkPause)
				if got := p.server.links(); got != "1:1-1 3:3-3" {
					t.Errorf("%s, %s, lost by the %s: links %s", version, name, side, got)
				}
			}
		}

		// It is dead in the first contact, and one end notices before the time for CONFIRM LINK is up.
		second := func(s, c byte) bool { return s == 2 || c == 2 }
		for name, first := range map[string]func(p *linkPair){
			"neither":    func(p *linkPair) { p.cut(second) },
			"the server": func(p *linkPair) { p.cutAndFail(second, p.server) },
			"the client": func(p *linkPair) { p.cutAndFail(second, p.client) },
		} {
			p := newLinkPair(t, pairOptions{v1: v1, server: 3, client: 3, first: first})
			p.pass(ConfirmLinkTimeout + AddLinkRetry + time.Second)
			if got := p.server.links(); got != "1:1-1 3:3-3" {
				t.Errorf("%s, %s has noticed: links %s", version, name, got)
			}
		}

		// No other one works either.
		p := newLinkPair(t, pairOptions{v1: v1, server: 3, client: 3})
		p.pass(time.Minute)
		p.cut(func(s, c byte) bool { return s != 1 })
		p.server.fail(2)
		p.pass(time.Hour)
		p.cut(func(s, c byte) bool { return s == 3 || c == 3 })
		p.pass(4 * AddLinkRetryMax)
		if got := p.server.lc.Redundancy(); got != RedundancySymmetric {
			t.Errorf("%s: %v over %s, after the first paths have come back", version, got, p.server.links())
		}

		// An RNIC that takes no links, and one which the client rejects, as it sees no way to it.
		p = newLinkPair(t, pairOptions{v1: v1, server: 3, client: 3, first: func(p *linkPair) { p.server.down[pairRNIC(1, 2).MAC] = true }})
		p.pass(AddLinkRetry + time.Second)
		if got := p.server.links(); got != "1:1-1 3:3-2" {
			t.Errorf("%s: links %s with a second core.RNIC that takes none", version, got)
		}
		p = newLinkPair(t, pairOptions{v1: v1, server: 3, client: 3, first: func(p *linkPair) {
			p.lose = func(s *pairSide, o SendLLC) bool {
				m, ok := o.Message.(llc.AddLink)
				if !ok || m.Reply || m.GID != pairRNIC(1, 2).GID {
					return false
				}
				m.Reply, m.Rejected, m.Reason, m.RKeys = true, true, llc.RejectNoPath, nil
				p.queue = append(p.queue, func() {
					p.client.do(p.client.lc.Sent(p.now, tagConfirm, nil))
					p.client.lc.retry.attempted = true
					p.server.do(p.server.lc.HandleMessage(p.now, o.Link, m, nil, nil))
				})
				return true
			}
		}})
		p.pass(time.Minute)
		if got := p.server.links(); got != "1:1-1 3:3-2" && got != "1:1-1 3:3-3" {
			t.Errorf("%s: links %s with a second core.RNIC that the client rejects", version, got)
		}
	}
}

// TestAddLinkAcceptRotate has a server that has only one other RNIC, as Linux net/smc offers the
// same one each time. A client with three takes another one of its own when the first has failed,
// no matter which side has noticed.
func TestAddLinkAcceptRotate(t *testing.T) {
	second := func(s, c byte) bool { return s == 2 && c == 2 }
	for name, first := range map[string]func(p *linkPair){
		"the client waits in vain": func(p *linkPair) { p.cut(second) },
		"the client's end fails":   func(p *linkPair) { p.cutAndFail(second, p.client) },
		"the server's end fails":   func(p *linkPair) { p.cutAndFail(second, p.server) },
	} {
		p := newLinkPair(t, pairOptions{v1: true, server: 2, client: 3, first: first})
		p.pass(ConfirmLinkTimeout + AddLinkRetry + time.Second)
		if got := p.server.links(); got != "1:1-1 3:2-3" {
			t.Errorf("%s: links %s", name, got)
		}
	}

	// The server's wish counts, but for a pair that has failed.
	lc := groupOf(t, core.RoleClient, "1-1", "1 2 3", 2)
	offer := func(server, target byte) string {
		r := pairRNIC(1, server)
		local, ok := lc.accept(epoch.Add(time.Second), llc.AddLink{Header: llc.Header{Form: llc.V2}, GID: r.GID, MAC: r.MAC, QPN: 0x99, Link: 20, MTU: wire.MTU1024, TargetGID: pairRNIC(2, target).GID})
		if !ok {
			return "none"
		}
		return fmt.Sprint(local.MAC[5])
	}
	at := epoch
	failed := func(server, client byte) {
		at = at.Add(time.Millisecond)
		lc.failed.note(at, &controlLink{local: endOf(pairRNIC(2, client)), peer: endOf(pairRNIC(1, server))})
	}
	for i, tt := range []struct{ before, got, want string }{
		{"nothing has failed", offer(2, 3), "3"},
		{"nothing has failed", offer(2, 9), "2"},
	} {
		if tt.got != tt.want {
			t.Errorf("offer %d, %s: core.RNIC %s, want %s", i, tt.before, tt.got, tt.want)
		}
	}
	failed(2, 3)
	if got := [3]string{offer(2, 3), offer(3, 3), offer(2, 2)}; got != [3]string{"2", "3", "2"} {
		t.Errorf("the pair 2-3 has failed: RNICs %v", got)
	}
	lc.failed = nil
	failed(2, 2)
	failed(3, 3)
	if got := [2]string{offer(2, 9), offer(3, 9)}; got != [2]string{"3", "2"} {
		t.Errorf("the pairs 2-2 and 3-3 have failed: RNICs %v", got)
	}
}

// TestAddLinkRequestAll has a client name all its RNICs that no link uses when it asks for a link, those that have failed last: a server that knows one of
// them has no other one to turn to.
func TestAddLinkRequestAll(t *testing.T) {
	lc := groupOf(t, core.RoleClient, "1-1", "1 2 3 4", 2)
	asked := func() (list []byte) {
		for _, o := range lc.askAgain(epoch, nil) {
			for _, gid := range o.(SendLLC).Message.(llc.RequestAddLink).GIDs {
				list = append(list, gid[13])
			}
		}
		return list
	}
	lc.form = llc.V2
	if got := asked(); !slices.Equal(got, []byte{1, 2, 3, 4}) {
		t.Errorf("asked for %v", got)
	}
	lc.failed.note(epoch, &controlLink{local: endOf(pairRNIC(2, 2)), peer: endOf(pairRNIC(1, 2))})
	if got := asked(); !slices.Equal(got, []byte{1, 3, 4, 2}) {
		t.Errorf("asked for %v after the second one has failed", got)
	}
	for n := byte(5); n < 12; n++ {
		lc.rnics = append(lc.rnics, pairRNIC(2, n))
	}
	if got := asked(); len(got) != llc.MaxGIDs {
		t.Errorf("asked for %v, want %d", got, llc.MaxGIDs)
	}
}

// TestFailedPairs has the memory of failed pairs of RNICs: for how long, how many, and not of an
// RNIC that came back.
func TestFailedPairs(t *testing.T) {
	lc := groupOf(t, core.RoleServer, "1-1", "1 2", 2)
	failed := func(at time.Time, us, them byte) {
		link := &controlLink{local: endOf(pairRNIC(1, us))}
		if them != 0 {
			link.peer = core.LinkEnd{GID: pairRNIC(2, them).GID}
		}
		lc.failed.note(at, link)
	}
	now := epoch.Add(FailedPairMemory - 1)
	later := epoch.Add(time.Second)
	failed(epoch, 1, 1)
	failed(later, 2, 2)
	none := time.Time{}
	for _, tt := range []struct {
		us, them     byte
		both, either time.Time
	}{
		{1, 1, epoch, epoch}, {2, 2, later, later}, {1, 2, none, later}, {2, 1, none, later}, {3, 3, none, none}, {3, 1, none, epoch}, {1, 0, epoch, epoch},
	} {
		var peer core.LinkEnd
		if tt.them != 0 {
			peer = endOf(pairRNIC(2, tt.them))
		}
		if got := lc.failed.turn(now, endOf(pairRNIC(1, tt.us)), peer); got != (pairTurn{tt.both, tt.either}) {
			t.Errorf("%d-%d: %v, want %v and %v", tt.us, tt.them, got, tt.both, tt.either)
		}
	}
	if got := lc.failed.turn(now.Add(1), endOf(pairRNIC(1, 1)), endOf(pairRNIC(2, 1))); got != (pairTurn{}) {
		t.Errorf("after an hour: %v", got)
	}
	failed(later, 1, 1) // once more
	if len(lc.failed) != 2 {
		t.Errorf("%d pairs are known, want 2", len(lc.failed))
	}
	failed(later, 3, 0)
	if got := lc.failed.turn(later, endOf(pairRNIC(1, 3)), endOf(pairRNIC(2, 1))); got.both != later {
		t.Errorf("an core.RNIC that has failed with nobody knows whom: %v", got)
	}
	lc.SetRNICs(later, nil, nil)
	lc.SetRNICs(later, []core.RNIC{pairRNIC(1, 2)}, nil)
	if got := lc.failed.turn(later, endOf(pairRNIC(1, 2)), endOf(pairRNIC(2, 2))); got != (pairTurn{}) || len(lc.failed) != 2 {
		t.Errorf("an core.RNIC that has come back: %v, %d are known", got, len(lc.failed))
	}
	for us := byte(1); us < 20; us++ {
		for them := byte(1); them < 20; them++ {
			failed(later, us, them)
		}
	}
	if len(lc.failed) != maxFailedPairs {
		t.Errorf("%d pairs are remembered, want %d", len(lc.failed), maxFailedPairs)
	}
	failed(later.Add(FailedPairMemory), 1, 1)
	if len(lc.failed) != 1 {
		t.Errorf("%d pairs are remembered after an hour, want 1", len(lc.failed))
	}
}
