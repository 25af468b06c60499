package netdev

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/gosmc/smc/internal/smctest"
)

// TestOf compares the answers with AF_NETLINK and without.
func TestOf(t *testing.T) {
	c := smctest.NewCables(t, 2)
	c.IP(0, "addr add 10.99.0.77/24 dev cable1")
	c.IP(0, "link set cable1 mtu 9000")
	c.Run[0](func() {
		for _, addr := range []netip.Addr{
			c.Addr[0][0], c.Addr[1][0], c.Six[0][0], c.Six[1][0], netip.MustParseAddr("10.99.0.77"),
			netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.3.4.5"), netip.IPv6Loopback(),
			c.Six[1][0].WithZone("cable1"), c.Six[1][0].WithZone("cable0"), c.Addr[0][1],
		} {
			want, err := Of(addr)
			got, found, err2 := ioctlInterfaceOf(addr)
			want.Flags &= net.FlagLoopback // the only one that counts
			if err2 != nil || found != (err == nil) || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%v: %+v, %v, %v, want %+v", addr, got, found, err2, want)
			}
		}
	})
}
