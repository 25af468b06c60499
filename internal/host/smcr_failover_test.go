package host

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/smctest"
)

// newTwinRig is a rig of hosts that have two devices each, on a cable of its own each.
func newTwinRig(t testing.TB, change func(client, server *Config)) (*smcrRig, *smctest.Cables) {
	t.Helper()
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 2)
	r := newCableRig(t, cables, false, func(c, s *Config) {
		c.SMCRDevices, s.SMCRDevices = []string{"10.99.0.0/16"}, []string{"10.99.0.0/16"}
		if change != nil {
			change(c, s)
		}
	})
	return r, cables
}

// newTripleRig is a rig of hosts that have three devices each.
func newTripleRig(t testing.TB, change func(x *Config)) (*smcrRig, *smctest.Cables) {
	t.Helper()
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 3)
	r := newCableRig(t, cables, false, func(c, s *Config) {
		for _, x := range []*Config{c, s} {
			x.SMCRDevices = []string{"10.99.0.0/16"}
			change(x)
		}
	})
	return r, cables
}

// redundancy is the redundancy that both ends of a group report, "" if they differ.
func (r *smcrRig) redundancy() string {
	var got [2]string
	for i, h := range []*Host{r.client, r.server} {
		groups := h.groupStatus()
		if len(groups) != 1 {
			return ""
		}
		got[i] = strings.ToLower(groups[0].Type)
	}
	if got[0] != got[1] {
		return ""
	}
	return got[0]
}

// failovers counts the ends that have lost a link.
func (r *smcrRig) failovers() (n int) {
	for _, h := range []*Host{r.client, r.server} {
		for _, g := range h.groupStatus() {
			if g.Failovers > 0 {
				n++
			}
		}
	}
	return n
}

func (r *smcrRig) awaitRedundancy(want string) {
	r.t.Helper()
	smctest.Eventually(r.t, patience, "redundancy "+want, func() bool { return r.redundancy() == want })
}

// TestSMCRFailover transfers over two links, and takes one of them away in the middle: its interface goes down at either end, or its
// packets vanish and nobody is told. No byte is lost, and no connection; and the link comes back.
func TestSMCRFailover(t *testing.T) {
	for _, tt := range []struct {
		name, version string
		change        func(c, s *Config)
		cut           func(cables *smctest.Cables)
		heal          func(cables *smctest.Cables)
	}{
		{"first link down at the client", "2.1", nil,
			func(c *smctest.Cables) { c.IP(0, "link set cable0 down") }, func(c *smctest.Cables) { c.IP(0, "link set cable0 up") }},
		{"first link down at the server", "2.1", nil,
			func(c *smctest.Cables) { c.IP(1, "link set cable0 down") }, func(c *smctest.Cables) { c.IP(1, "link set cable0 up") }},
		{"second link down at the client", "2.1", nil,
			func(c *smctest.Cables) { c.IP(0, "link set cable1 down") }, func(c *smctest.Cables) { c.IP(0, "link set cable1 up") }},
		{"second link down at the server, version 1", "1.0",
			func(c, s *Config) { c.SMCRv1, s.SMCRv1, c.UEIDs, s.UEIDs = true, true, nil, nil },
			func(c *smctest.Cables) { c.IP(1, "link set cable1 down") }, func(c *smctest.Cables) { c.IP(1, "link set cable1 up") }},
		{"packets of the second link vanish", "2.1", nil,
			func(c *smctest.Cables) {
				c.IP(0, fmt.Sprintf("neigh replace %v lladdr 02:00:00:00:00:99 dev cable1 nud permanent", c.Addr[1][1]))
				c.IP(1, fmt.Sprintf("neigh replace %v lladdr 02:00:00:00:00:99 dev cable1 nud permanent", c.Addr[1][0]))
			},
			func(c *smctest.Cables) {
				c.IP(0, fmt.Sprintf("neigh del %v dev cable1", c.Addr[1][1]))
				c.IP(1, fmt.Sprintf("neigh del %v dev cable1", c.Addr[1][0]))
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, cables := newTwinRig(t, tt.change)
			const count, size = 8, 6 << 20
			var pairs [][2]conn.Conn
			for range count {
				c, s := r.connect()
				checkSMCR(t, c, s)
				if c.Agreed().Version != tt.version {
					t.Errorf("version %s, want %s", c.Agreed().Version, tt.version)
				}
				pairs = append(pairs, [2]conn.Conn{c, s})
			}
			r.awaitRedundancy("symmetric")
			for _, l := range groupsOf(r.client)[0].Links {
				if l.Conns != count/2 {
					t.Errorf("link %d has %d connections of %d", l.Number, l.Conns, count)
				}
			}
			if st := r.server.Status(); st.Groups[0].Type != "SYMMETRIC" || len(st.Groups[0].Links) != 2 {
				t.Errorf("type %s, links %+v", st.Groups[0].Type, st.Groups[0].Links)
			}
			var all sync.WaitGroup
			for _, p := range pairs {
				all.Go(func() { checkTransfer(t, p[0], p[1], size) })
			}
			smctest.Eventually(t, patience, "some data", func() bool {
				read, _ := pairs[count-1][1].Totals()
				return read > size/8
			})
			tt.cut(cables)
			all.Wait()
			if got := len(groupsOf(r.client)); got != 1 {
				t.Errorf("%d link groups, want one", got)
			}
			smctest.Eventually(t, patience, "both ends have lost the link", func() bool { return r.failovers() == 2 })
			st := r.client.Status()
			lost := slices.ContainsFunc(st.Counters.Ends, func(e control.EndCount) bool { return e.What == "link" })
			if x := st.Groups[0]; x.Failovers == 0 || st.Counters.Failovers == 0 || x.Moved == 0 || !lost {
				t.Errorf("%d failovers of %d connections are shown, and the ends %v", x.Failovers, x.Moved, st.Counters.Ends)
			}
			if tt.name == "packets of the second link vanish" {
				ends := append(st.Counters.Ends, r.server.Status().Counters.Ends...)
				if !slices.ContainsFunc(ends, func(e control.EndCount) bool {
					return strings.Contains(e.Reason, "nothing arrives over the link, but over others")
				}) {
					t.Errorf("nobody has found out that packets vanish, other than by retries: %v", ends)
				}
			}
			tt.heal(cables)
			r.awaitRedundancy("symmetric")
			c, s := r.connect() // over the same group
			checkSMCR(t, c, s)
			checkTransfer(t, c, s, 1<<20)
			for _, p := range append(pairs, [2]conn.Conn{c, s}) {
				p[0].Close()
				p[1].Close()
			}
			if got := len(groupsOf(r.server)); got != 1 {
				t.Errorf("%d link groups in the end, want one", got)
			}
		})
	}
}

// TestSMCRThirdAdapter has the packets of the second link vanish, and nobody is told: the next one is between the third adapters, in either version, and no
// byte is lost.
func TestSMCRThirdAdapter(t *testing.T) {
	for version, change := range map[string]func(x *Config){
		"2.1": func(x *Config) {},
		"1.0": func(x *Config) { x.SMCRv1, x.UEIDs = true, nil },
	} {
		t.Run(version, func(t *testing.T) {
			r, cables := newTripleRig(t, change)
			var pairs [4][2]conn.Conn
			for i := range pairs {
				pairs[i][0], pairs[i][1] = r.connect()
				checkSMCR(t, pairs[i][0])
				if got := pairs[i][0].Agreed().Version; got != version {
					t.Errorf("version %s, want %s", got, version)
				}
			}
			r.awaitRedundancy("symmetric")
			second := 0
			for cable := range 3 {
				if groupsOf(r.client)[0].Links[1].Device == cables.Addr[cable][0].String() {
					second = cable
				}
			}
			vanish(cables, second)
			for _, p := range pairs {
				checkTransfer(t, p[0], p[1], 1<<20)
			}
			smctest.Eventually(t, patience, "a link over the third adapters", func() bool {
				n := 0
				for _, l := range groupsOf(r.client)[0].Links {
					if l.State == "LINK_ACTIVE" && l.Device != cables.Addr[second][0].String() {
						n++
					}
				}
				return n == 2
			})
			r.awaitRedundancy("symmetric")
			for _, p := range pairs {
				p[0].Close()
				p[1].Close()
			}
		})
	}
}
