package llcflow

import (
	"testing"
	"time"

	"github.com/gosmc/smc/wire/llc"
)

// TestAddLinkAlternating has two interfaces be cut in turns, as fast as there are two links again: a link that does not hold is no reason to
// wait with another one between other RNICs, as the next cut would be the end of the group.
func TestAddLinkAlternating(t *testing.T) {
	for version, v1 := range linkVersions {
		p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
		p.pass(time.Second)
		for i := range 2 * freeFlaps {
			links := p.client.lc.Links()
			if len(links) != 2 {
				t.Fatalf("%s: after %d cuts %d links, want 2", version, i, len(links))
			}
			p.client.fail(links[0].Num) // the older one: the other one has just come
			p.run()
			p.pass(AddLinkPause + time.Second)
		}
	}
}

// TestAddLinkSingle has attempts at a second link fail for a while that is there otherwise: it comes back a second after it can.
func TestAddLinkSingle(t *testing.T) {
	for version, v1 := range linkVersions {
		for name, fails := range map[string]func(p *linkPair) func(bool){
			"no queue pair at the server": func(p *linkPair) func(bool) { return func(no bool) { p.server.noLinks = no } },
			"no queue pair at the client": func(p *linkPair) func(bool) { return func(no bool) { p.client.noLinks = no } }, // it rejects ADD LINK
		} {
			p := newLinkPair(t, pairOptions{v1: v1, server: 2, client: 2})
			p.pass(20 * time.Second)
			fail := fails(p)
			fail(true)
			p.client.fail(2)
			p.run()
			p.pass(17 * time.Second) // between attempts that get rare
			if got := p.server.lc.Redundancy(); got != RedundancySingle {
				t.Fatalf("%s, %s: %v", version, name, got)
			}
			fail(false)
			p.pass(AddLinkPause + time.Second)
			if got := p.server.lc.Redundancy(); got != RedundancySymmetric {
				t.Errorf("%s, %s: %v %v after it could have come back", version, name, got, AddLinkPause+time.Second)
			}
		}
	}
}

// TestAddLinkPairFlaps has one link not hold again and again, and another one that is lost for the first time: each pair of RNICs waits for itself.
func TestAddLinkPairFlaps(t *testing.T) {
	p := newLinkPair(t, pairOptions{server: 2, client: 2})
	for range 3 * freeFlaps {
		for p.now.Before(epoch.Add(time.Hour)) && len(p.client.lc.Links()) < 2 {
			p.pass(time.Second)
		}
		var second llc.LinkNum
		for _, l := range p.client.lc.Links() {
			second = max(second, l.Num)
		}
		p.client.fail(second)
		p.run()
	}
	if got := p.server.lc.pause(p.now); got < 8*AddLinkPause {
		t.Errorf("a link that does not hold is made again after %v", got)
	}
	for p.now.Before(epoch.Add(time.Hour)) && len(p.client.lc.Links()) < 2 {
		p.pass(time.Second)
	}
	p.client.fail(p.client.lc.Links()[0].Num) // which held
	p.run()
	p.pass(AddLinkPause + time.Second)
	if got := p.server.lc.Redundancy(); got != RedundancySymmetric {
		t.Errorf("%v after the loss of a link that held", got)
	}
}
