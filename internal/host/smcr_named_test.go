package host

import (
	"slices"
	"testing"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// TestSMCRNamedLink has a server name the second link of a group: so does the client, with the RKey on that one. Linux net/smc takes the RKey
// of a Confirm for one of the link that its Accept has named, and writes with it over that.
func TestSMCRNamedLink(t *testing.T) {
	r, _ := newTwinRig(t, nil)
	r.connect()
	r.awaitRedundancy("symmetric")
	g := groupsOf(r.server)[0]
	g.mu.Lock()
	slices.Reverse(g.links) // a server names the first one
	second := g.links[0]
	g.mu.Unlock()
	f := followHost(t, r.server, control.TraceOptions{})
	c, s := r.connect()
	checkSMCR(t, c, s)
	f.await("recv Confirm")
	for _, e := range f.events() {
		if short(e) != "recv Confirm" {
			continue
		}
		m, err := clc.Parse(e.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		g.mu.Lock()
		links := g.ctl.Links()
		g.mu.Unlock()
		at := slices.IndexFunc(links, func(x core.GroupLink) bool { return x.Num == second.num })
		if p := m.(clc.Confirm).R; p.QPN != links[at].Peer.QPN || p.GID != links[at].Peer.GID {
			t.Errorf("the Confirm names %v, queue pair %v; want those of link %d: %v, %v", p.GID, p.QPN, second.num, links[at].Peer.GID, links[at].Peer.QPN)
		}
	}
	checkTransfer(t, c, s, 1<<20)
}

// TestSMCRNamedNewest has a group whose first link was lost and made again: the server names that for later connections, and both ends write over it, though the other one
// has fewer.
func TestSMCRNamedNewest(t *testing.T) {
	r, cables := newTwinRig(t, nil)
	r.connect()
	r.awaitRedundancy("symmetric")
	cables.IP(0, "link set cable0 down")
	smctest.Eventually(t, patience, "both ends have lost the link", func() bool { return r.failovers() == 2 })
	cables.IP(0, "link set cable0 up")
	r.awaitRedundancy("symmetric")
	newest := uint8(0)
	for _, l := range r.server.Status().Groups[0].Links {
		newest = max(newest, l.Number)
	}
	for range 6 {
		c, s := r.connect()
		checkSMCR(t, c, s)
		if c.Link() != newest || s.Link() != newest {
			t.Errorf("a later connection is on link %d and on %d, want %d", c.Link(), s.Link(), newest)
		}
		checkTransfer(t, c, s, 1<<20)
	}
}
