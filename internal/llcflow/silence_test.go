package llcflow

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/llc"
)

// TestEndLeavesNothing ends a group in the middle of all that it does: nothing of that goes on.
func TestEndLeavesNothing(t *testing.T) {
	for name, begin := range map[string]func(p *linkPair, s *pairSide){
		"CONFIRM RKEY": func(p *linkPair, s *pairSide) { s.do(s.lc.ConfirmRMB(p.now, 9, s.tokens(9), nil)) },
		"TEST LINK":    func(p *linkPair, s *pairSide) { s.do(s.lc.Suspect(p.now, 2, nil)) },
		"DELETE LINK":  func(p *linkPair, s *pairSide) { s.fail(3) },
	} {
		for _, by := range []string{"server", "client"} {
			p := newTriplet(t)
			s := map[string]*pairSide{"server": p.server, "client": p.client}[by]
			p.lose = func(*pairSide, SendLLC) bool { return true }
			begin(p, s)
			if s.count(name) != 1 {
				t.Fatalf("%s of the %s: sent %v", name, by, s.sent)
			}
			s.sent = nil
			s.do(s.lc.End(p.now, EndOperator, nil))
			for s.lc.State() != StateEnded {
				p.pass(time.Second)
			}
			if len(s.sent) != 1 || s.count("DELETE LINK") != 1 {
				t.Errorf("%s of the %s: after the end it sends %v", name, by, s.sent)
			}
		}
	}
}

// TestEndReasons has the reason in DELETE LINK for all links name the side that wants the end.
func TestEndReasons(t *testing.T) {
	for kind, want := range map[EndKind]llc.DeleteReason{EndIdle: llc.DeleteProgram, EndShutdown: llc.DeleteProgram, EndOperator: llc.DeleteOperator} {
		p := newTriplet(t)
		m := sentOf(p.server.lc.End(p.now, kind, nil))
		if len(m) != 1 || m[0].(llc.DeleteLink).Reason != want || !m[0].(llc.DeleteLink).All {
			t.Errorf("%v: sent %v, want the reason %v", kind, m, want)
		}
	}
}

// TestSilentLinks asks on the links that are silent, and on no others: neither links over which
// something was heard, nor links that are not in use.
func TestSilentLinks(t *testing.T) {
	p := newTriplet(t)
	lc := p.server.lc
	lc.SetTestInterval(10*time.Second, nil)
	for num := llc.LinkNum(1); num <= 3; num++ {
		lc.Heard(num, p.now)
	}
	lc.Heard(2, p.now.Add(5*time.Second))
	lc.Heard(2, p.now.Add(3*time.Second)) // told late
	lc.Heard(77, p.now)
	asked := func(outs []Output) (on []llc.LinkNum) {
		for _, o := range outs {
			if o, ok := o.(SendLLC); ok && o.Message.Type() == llc.TypeTestLink {
				on = append(on, o.Link)
			}
		}
		return on
	}
	if got := lc.link(2).lastHeard; got != p.now.Add(5*time.Second) {
		t.Errorf("link 2 was heard of %v before", p.now.Sub(got))
	}
	now := p.now.Add(10 * time.Second)
	if on := asked(lc.Advance(now, nil)); len(on) != 2 || on[0] != 1 || on[1] != 3 {
		t.Errorf("asked on links %v, want 1 and 3", on)
	}
	if on := asked(lc.Suspect(now, 77, nil)); len(on) > 0 {
		t.Errorf("asked on links %v for one that there is not", on)
	}
	lc.link(2).state = linkAdding
	if on := asked(lc.Suspect(now, 2, nil)); len(on) > 0 {
		t.Errorf("asked on links %v, one of which is being made", on)
	}
	lc.SetTestInterval(-1, nil)
	if got := lc.TestInterval(); got != 0 {
		t.Errorf("with none the interval is %v", got)
	}
}

// TestFirstContactTime has the whole attempt at a second link, with all its messages sent and answered as late as may be, end before
// the handshake gives the first contact up.
func TestFirstContactTime(t *testing.T) {
	longest := 2*AddLinkReplyTimeout + ConfirmLinkTimeout + deleteTries*LLCTimeout
	if core.AddLinkStateTimeout <= longest {
		t.Errorf("the handshake waits for %v, the attempt may take %v", core.AddLinkStateTimeout, longest)
	}
}
