package host

import (
	"net/netip"
	"testing"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// TestSMCRUnreachableGID has a client with a device on a network to which the server has no route. It is the server's only choice for a symmetric link, and
// neither side takes it: the second link is asymmetric, and the first one that is attempted.
func TestSMCRUnreachableGID(t *testing.T) {
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 2)
	cables.IP(0, "addr flush dev cable1")
	cables.IP(0, "addr add 10.55.0.1/24 dev cable1")
	r := newCableRig(t, cables, false, func(c, s *Config) {
		c.SMCRDevices, s.SMCRDevices = []string{"10.99.0.1", "10.55.0.1"}, []string{"10.99.0.2", "10.99.0.4"}
	})
	f := followHost(t, r.server, control.TraceOptions{})
	c, s := r.connect()
	checkSMCR(t, c, s)
	r.awaitRedundancy("asymmetric")
	for _, h := range []*Host{r.client, r.server} {
		if links := groupsOf(h)[0].Links; len(links) != 2 || links[1].Number != 2 {
			t.Errorf("%d links, and none is the second that was attempted", len(links))
		}
	}
	first := func(h *Host) *rnic.Device { return h.rnicOf(netip.MustParseAddr(groupsOf(h)[0].Links[0].Device)) }
	if len(r.client.rnics.Alternatives(first(r.client), clc.V2)) != 2 {
		t.Error("the client has one device")
	}
	f.await("recv Confirm")
	for _, e := range f.events() {
		if short(e) != "recv Confirm" {
			continue
		}
		m, err := clc.Parse(e.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if gids := m.(clc.Confirm).ClientGIDs; len(gids) != 1 {
			t.Errorf("the client has told of %v", gids)
		}
	}
	for far, none := range map[string]bool{"10.55.0.1": true, "10.99.0.1": false} {
		gid := wire.GIDFromAddr(netip.MustParseAddr(far))
		for _, route := range r.server.rnics.RoutesTo(r.server.rnics.Alternatives(first(r.server), clc.V2), []wire.GID{gid}) {
			if route.None != none || route.Direct == none {
				t.Errorf("the server's route to %s: %+v", far, route)
			}
		}
	}
	checkExchange(t, c, s)
	c.Close()
	s.Close()
}

// TestSMCRUnreachableOffer has a server with three devices, of which one has no route to the client's other device. It offers the one
// that has a route, and no other before it.
func TestSMCRUnreachableOffer(t *testing.T) {
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 3)
	for end, addr := range []string{"10.55.0.1", "10.55.0.2"} {
		cables.IP(end, "addr flush dev cable1")
		cables.IP(end, "addr add "+addr+"/24 dev cable1")
	}
	r := newCableRig(t, cables, false, func(c, s *Config) {
		c.SMCRDevices = []string{cables.Addr[0][0].String(), cables.Addr[2][0].String()}
		s.SMCRDevices = []string{cables.Addr[0][1].String(), "10.55.0.2", cables.Addr[2][1].String()}
	})
	f := followHost(t, r.server, control.TraceOptions{})
	c, s := r.connect()
	checkSMCR(t, c, s)
	r.awaitRedundancy("symmetric")
	var offers []string
	for _, e := range f.events() {
		if e.Kind != control.TraceLLC || !e.Sent {
			continue
		}
		if m, _ := llc.Parse(e.Bytes); m != nil {
			if m, ok := m.(llc.AddLink); ok && !m.Reply {
				offers = append(offers, m.GID.Addr().String())
			}
		}
	}
	if len(offers) != 1 || offers[0] != cables.Addr[2][1].String() {
		t.Errorf("the server has offered %v, want %v", offers, cables.Addr[2][1])
	}
	checkExchange(t, c, s)
	c.Close()
	s.Close()
}

// TestSMCRSecondLinkUnasked has two interfaces at each end on one network, and no configuration of
// them: there are two links, unless only one is wanted.
func TestSMCRSecondLinkUnasked(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(c, s *Config)
		want   string
	}{
		{"two interfaces", nil, "symmetric"},
		{"one at the client", func(c, _ *Config) { c.SMCRDevices = []string{"10.99.0.1"} }, "asymmetric"},
		{"one link", func(c, _ *Config) { c.SMCRLinks = 1 }, "single"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			r := newCableRig(t, smctest.NewCables(t, 2), false, tt.change)
			c, s := r.connect()
			checkSMCR(t, c, s)
			r.awaitRedundancy(tt.want)
			for _, m := range r.server.Status().Counters.LLC {
				if m.Type == "ADD LINK" && m.Sent != 1 {
					t.Errorf("%d attempts at a second link, want one", m.Sent)
				}
			}
			checkTransfer(t, c, s, 1<<20)
			c.Close()
			s.Close()
		})
	}
}

// TestSMCRNewAdapter gives hosts another interface, and another address, when connections are there already: a link is made, and some of them use it.
func TestSMCRNewAdapter(t *testing.T) {
	for _, tt := range []struct {
		name, before, after string
		serverHasOne        bool
	}{
		{"an interface", "link set cable1 down", "link set cable1 up", false},
		{"an address", "addr del 10.99.0.3/24 dev cable1", "addr add 10.99.0.3/24 dev cable1", false},
		{"an address, where the server has one interface", "addr del 10.99.0.3/24 dev cable1", "addr add 10.99.0.3/24 dev cable1", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			cables := smctest.NewCables(t, 2)
			cables.IP(0, tt.before)
			if tt.name == "an interface" {
				cables.IP(1, tt.before)
			}
			r := newCableRig(t, cables, false, func(_, s *Config) {
				if tt.serverHasOne {
					s.SMCRDevices = []string{cables.Addr[0][1].String()}
				}
			})
			const count = 6
			var pairs [count][2]conn.Conn
			for i := range pairs {
				pairs[i][0], pairs[i][1] = r.connect()
				checkSMCR(t, pairs[i][0])
			}
			if got := r.redundancy(); got == "symmetric" {
				t.Fatalf("redundancy %s before there is another interface", got)
			}
			cables.IP(0, tt.after)
			if tt.name == "an interface" {
				cables.IP(1, tt.after)
			}
			want := []int{count / 2, count / 2}
			if tt.serverHasOne { // both links end at one interface there: the second one is in reserve
				want = []int{count, 0}
				r.awaitRedundancy("asymmetric")
			} else {
				r.awaitRedundancy("symmetric")
			}
			for _, h := range []*Host{r.client, r.server} {
				smctest.Eventually(t, patience, "connections are spread", func() bool {
					links := groupsOf(h)[0].Links
					return len(links) == 2 && links[0].Conns == want[0] && links[1].Conns == want[1]
				})
			}
			for _, p := range pairs {
				checkExchange(t, p[0], p[1])
				p[0].Close()
				p[1].Close()
			}
		})
	}
}
