package llcflow

import (
	"testing"
	"time"

	"github.com/gosmc/smc/wire/llc"
)

// TestDeleteLinkUnanswered has a server answer all but DELETE LINK, as Linux net/smc does while sends on the lost link have not completed: the client
// asks now and then, and its group goes on over the other link.
func TestDeleteLinkUnanswered(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
		asked := 0
		p.lose = func(s *pairSide, o SendLLC) bool {
			m, ok := o.Message.(llc.DeleteLink)
			if ok && s == p.client && !m.Reply {
				asked++
				return true
			}
			return false
		}
		p.client.fail(1)
		p.pass(3 * time.Minute)
		if s := p.client.lc.State(); s != StateActive || p.client.links() != "2:2-2" {
			t.Fatalf("%s: the client is in state %v, %v, links %q", version, s, p.client.lc.Failure(), p.client.links())
		}
		if asked < 6 || asked > 12 {
			t.Errorf("%s: asked %d times in three minutes", version, asked)
		}
		p.lose = nil
		p.pass(3 * time.Minute)
		p.check(version+" in the end", p.server.links(), RedundancySymmetric)
	}
}
