package smcr

import (
	"testing"

	"github.com/gosmc/smc/wire/clc"
)

// TestStallHears has acknowledgements overdue on one link and nothing come over the other one: the
// peer is asked whether it is there, and messages that have come before do not count as its answer.
func TestStallHears(t *testing.T) {
	r := newFabricCables(t, 2, clc.V2)
	c, s := r.connect()
	g, links := r.upLinks(c, 2)
	g.mu.Lock()
	for i, l := range links {
		st := l.net.QPStats()
		l.heard, l.seen.received, l.seen.timeouts, l.seen.stalls, l.seen.heard = 0, st.RcvdPackets, st.Timeouts-uint64(1-i), 0, 0
	}
	g.mu.Unlock()
	g.stalls.check()
	g.mu.Lock()
	for _, l := range links {
		if l.heard == 0 {
			t.Errorf("llcflow has not been told of %d messages over link %d", l.net.Heard(), l.num)
		}
	}
	g.mu.Unlock()
	exchange(t, c, s)
	c.close()
	s.close()
}
