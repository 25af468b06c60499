package llcflow

import (
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/llc"
)

// TestControlMutePeer has a peer that acknowledges every message and answers nothing, or TEST LINK
// alone, while it gets every request that there is. The peer that is mute is taken for gone. With
// the other one each request has its end, and the state that is kept for it has a bound.
func TestControlMutePeer(t *testing.T) {
	for _, role := range []string{"server", "client"} {
		for _, tests := range []bool{false, true} {
			p := newTriplet(t)
			s := map[string]*pairSide{"server": p.server, "client": p.client}[role]
			p.lose = func(from *pairSide, o SendLLC) bool {
				if tests && o.Message.Type() == llc.TypeTestLink {
					return false
				}
				if from == s && o.Tag != 0 {
					p.queue = append(p.queue, func() { s.do(s.lc.Sent(p.now, o.Tag, nil)) })
				}
				return true
			}
			start, ended := p.now, time.Duration(0)
			asked := 0
			for i := range 600 { // seconds
				id := RMBID(100 + i)
				if s.lc.State() == StateActive {
					asked++
					s.do(s.lc.ConfirmRMB(p.now, id, s.tokens(id), nil))
				}
				s.do(s.lc.DeleteRMB(p.now, id-20, true, nil))
				s.do(s.lc.SetRNICs(p.now, s.rnics[:1+i%3], nil))
				if i == 5 || i == 100 {
					s.do(s.lc.DeleteLink(p.now, s.lc.main().num, nil))
				}
				p.run()
				p.pass(time.Second)
				lc := s.lc
				if len(lc.links) > maxSlots || len(lc.deletes) > maxSlots || len(lc.own) > llc.MaxRKeys || len(lc.wishes) > llc.MaxRKeys {
					t.Fatalf("%s, after %d s: %d links, %d deletes, %d RMBs, %d wishes", role, i, len(lc.links), len(lc.deletes), len(lc.own), len(lc.wishes))
				}
				if lc.State() == StateEnded && ended == 0 {
					ended = p.now.Sub(start)
				}
			}
			if !tests && (ended == 0 || ended > TestLinkInterval || s.lc.Failure().Kind != EndSilent) {
				t.Errorf("%s, mute: ended after %v, %v", role, ended, s.lc.Failure())
			}
			if len(s.sent) > 3*600 {
				t.Errorf("%s, tests %t: %d messages in 600 s", role, tests, len(s.sent))
			}
			refused := 0
			for _, w := range s.answers {
				if strings.HasPrefix(w, "refused(") {
					refused++
				}
			}
			if waits := asked - refused; waits < 0 || waits > int(RKeyTimeout/time.Second)+1 {
				t.Errorf("%s, tests %t: %d of %d RMBs were refused", role, tests, refused, asked)
			}
		}
	}
}
