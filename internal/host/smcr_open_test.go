package host

import (
	"net/netip"
	"testing"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

var (
	loop1 = netip.MustParseAddr("127.0.0.1")
	loop2 = netip.MustParseAddr("127.0.0.2")
	loop3 = netip.MustParseAddr("127.0.0.3")
)

// The reason of a device that could not be opened says why.
func TestRNICReason(t *testing.T) {
	cfg := Config{RDMA: rdma.Config{Port: smctest.FreePort(t, loop1)}}
	h, other := newTestHost(t, cfg), newTestHost(t, cfg)
	n, err := h.rnics.Acquire(loop1)
	if err != nil {
		t.Fatal(err)
	}
	_, taken := other.rnics.Acquire(loop1)
	_, foreign := h.rnics.Acquire(netip.MustParseAddr("192.0.2.1"))
	n.HandleEvent(&rdma.Event{Kind: rdma.EventInterfaceDown})
	_, down := h.rnics.Acquire(loop1)
	n.Release()
	h.Close()
	_, closed := h.rnics.Acquire(loop1)
	for _, tt := range []struct {
		err  error
		want clc.Diagnosis
	}{
		{taken, clc.DiagPortInUse}, {foreign, clc.DiagNoSMCRDevice}, {down, clc.DiagRNICDown}, {closed, clc.DiagClosing},
		{&port.RefusedError{}, clc.DiagPortInUse},
	} {
		if tt.err == nil || rnicReason(tt.err) != tt.want {
			t.Errorf("rnicReason(%v) = %v, want %v", tt.err, rnicReason(tt.err), tt.want)
		}
	}
}

// TestRNICFlaps has the interface of the only link go down and come back again and again, each time for less than it is waited for. That it
// is down again when the time of an earlier outage is over ends nothing; what ends the link is an outage that lasts.
func TestRNICFlaps(t *testing.T) {
	r := newSMCRRig(t, nil)
	var over []func() // the time of each outage
	r.client.smcr.rnicPatience = func(f func()) { over = append(over, f) }
	c, s := r.connect()
	checkSMCR(t, c, s)
	n := groupsOf(r.client)[0].rnic
	flap := func(kinds ...rdma.EventKind) {
		for _, kind := range kinds {
			n.HandleEvent(&rdma.Event{Kind: kind})
		}
	}
	flap(rdma.EventInterfaceDown, rdma.EventInterfaceUp, rdma.EventInterfaceDown)
	over[0]()
	flap(rdma.EventInterfaceUp)
	over[1]()
	checkExchange(t, c, s)
	flap(rdma.EventInterfaceDown)
	over[2]()
	if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("read after an outage that lasted: %v", err)
	}
	checkEnd(t, r.client, endOfGroup, "link failed: "+rnic.ErrDown.Error())
}
