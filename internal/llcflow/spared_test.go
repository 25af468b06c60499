package llcflow

import (
	"testing"
	"time"

	"github.com/gosmc/smc/wire/llc"
)

// TestDeleteLinkSpared has an operator end a link, of either side, and the other link fail before the server's turn to do so has come: the link stays, as the
// operator did not want the group to end.
func TestDeleteLinkSpared(t *testing.T) {
	for version, v1 := range linkVersions {
		for name, tt := range map[string]struct{ operator, notices func(p *linkPair) *pairSide }{
			"server, server": {(*linkPair).atServer, (*linkPair).atServer},
			"server, client": {(*linkPair).atServer, (*linkPair).atClient},
			"client, server": {(*linkPair).atClient, (*linkPair).atServer},
			"client, client": {(*linkPair).atClient, (*linkPair).atClient},
		} {
			p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
			p.pass(time.Minute)
			p.check("at first", "1:1-1 2:2-2", RedundancySymmetric)
			// The server is in an exchange meanwhile.
			release := p.hold(func(s *pairSide, o SendLLC) bool {
				return s == p.client && o.Message.Type() == llc.TypeConfirmRKey
			})
			p.server.do(p.server.lc.ConfirmRMB(p.now, 10, p.server.tokens(10), nil))
			p.run()
			operator := tt.operator(p)
			operator.do(operator.lc.DeleteLink(p.now, 1, nil))
			p.run()
			tt.notices(p).fail(2)
			p.run()
			release()
			p.pass(time.Second)
			for _, s := range []*pairSide{p.server, p.client} {
				if s.lc.State() != StateActive || s.lc.link(1) == nil {
					t.Errorf("%s, operator and who notices: %s: the %s is %v with the links %s", version, name, s.name, s.lc.State(), s.links())
				}
			}
			p.pass(time.Minute)
			p.check(version+", "+name+", later", p.server.links(), RedundancySymmetric)
		}
	}
}

func (p *linkPair) atServer() *pairSide { return p.server }
func (p *linkPair) atClient() *pairSide { return p.client }
