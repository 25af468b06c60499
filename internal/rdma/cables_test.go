package rdma

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
)

// openAt opens a device at one end of cables.
func openAt(t testing.TB, c *smctest.Cables, end int, addr netip.Addr) (d *Device) {
	t.Helper()
	var err error
	c.Run[end](func() { d, err = Open(addr, nil) })
	if err != nil {
		t.Fatalf("Open(%v): %v", addr, err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// pairAt makes a connection over one cable.
func pairAt(t testing.TB, c *smctest.Cables, addrs [2]netip.Addr) (ends [2]*side) {
	t.Helper()
	for end := range ends {
		ends[end] = newSideOn(t, openAt(t, c, end, addrs[end]), nil)
	}
	connect(t, ends[0], ends[1], wire.MTU1024)
	return ends
}

// writeTo moves some bytes and waits until they are acknowledged.
func (s *side) writeTo(t testing.TB, peer *side) {
	t.Helper()
	err := s.qp.PostSend(SendWR{ID: 1, Op: OpWrite, Signaled: true, Remote: peer.mr.Addr(), RKey: peer.mr.RKey(), Local: [2]SGE{{MR: s.mr, Addr: s.mr.Addr(), Len: 50_000}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.await(t); got.Status != StatusOK {
		t.Fatalf("completion %+v", got)
	}
}

// TestTwoCables has two devices at either end, each on a cable of its own, in one subnet. One cable
// is cut, and the queue pairs on the other do not notice.
func TestTwoCables(t *testing.T) {
	for _, arpIgnore := range []string{"0", "1"} {
		for cut := range 2 {
			t.Run(fmt.Sprintf("arp_ignore %s, cut %d", arpIgnore, cut), func(t *testing.T) {
				c := smctest.NewCables(t, 2)
				for end := range 2 {
					c.Sysctl(end, "net/ipv4/conf/all/arp_ignore", arpIgnore)
				}
				for _, addrs := range [][][2]netip.Addr{c.Addr, c.Six} {
					var pairs [2][2]*side
					for i := range pairs {
						pairs[i] = pairAt(t, c, addrs[i])
						pairs[i][0].writeTo(t, pairs[i][1])
						pairs[i][1].writeTo(t, pairs[i][0])
					}
					// The other end of a cut cable has no carrier, and its routes stay.
					c.IP(1, fmt.Sprintf("link set cable%d down", cut))
					left := pairs[1-cut]
					for range 10 {
						left[0].writeTo(t, left[1])
						left[1].writeTo(t, left[0])
					}
					c.IP(1, fmt.Sprintf("link set cable%d up", cut))
					c.IP(1, fmt.Sprintf("addr replace %v/64 dev cable%d nodad", c.Six[cut][1], cut)) // went with the link
				}
			})
		}
	}
}
