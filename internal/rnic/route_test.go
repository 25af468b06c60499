package rnic

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
)

// routeReply is a message of the kernel, laid out by hand from rtnetlink(7) and netlink(7).
func routeReply(kind uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, make([]byte, 10)...) // flags, sequence number, port
	return append(b, body...)
}

func TestParseRoute(t *testing.T) {
	found := func(kind byte, attrs ...byte) []byte {
		return append([]byte{unix.AF_INET, 32, 0, 0, 254, 0, 0, kind, 0, 0, 0, 0}, attrs...)
	}
	errno := func(e unix.Errno) []byte {
		return append(binary.NativeEndian.AppendUint32(nil, uint32(-int32(e))), make([]byte, 16)...)
	}
	dst := appendRouteAttr(nil, unix.RTA_DST, []byte{192, 0, 2, 9})
	for _, tt := range []struct {
		name string
		in   []byte
		want Route
	}{
		{"on the link", routeReply(unix.RTM_NEWROUTE, found(unix.RTN_UNICAST, dst...)), RouteDirect},
		{"local", routeReply(unix.RTM_NEWROUTE, found(unix.RTN_LOCAL, dst...)), RouteDirect},
		{"router", routeReply(unix.RTM_NEWROUTE, found(unix.RTN_UNICAST, appendRouteAttr(dst, unix.RTA_GATEWAY, []byte{192, 0, 2, 1})...)), RouteIndirect},
		{"router of the other version", routeReply(unix.RTM_NEWROUTE, found(unix.RTN_UNICAST, appendRouteAttr(dst, unix.RTA_VIA, make([]byte, 20))...)), RouteIndirect},
		{"unreachable", routeReply(unix.RTM_NEWROUTE, found(unix.RTN_UNREACHABLE, dst...)), RouteNone},
		{"no route", routeReply(unix.NLMSG_ERROR, errno(unix.ENETUNREACH)), RouteNone},
		{"not permitted", routeReply(unix.NLMSG_ERROR, errno(unix.EPERM)), RouteUnknown},
		{"nothing", nil, RouteUnknown},
		{"another message", routeReply(unix.RTM_NEWLINK, found(unix.RTN_UNICAST)), RouteUnknown},
		{"short", routeReply(unix.RTM_NEWROUTE, []byte{2, 32}), RouteUnknown},
	} {
		if got := parseRoute(tt.in); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestRoute asks the kernel.
func TestRoute(t *testing.T) {
	if got := routeTo(netip.MustParseAddr("127.0.0.9"), 0); got != RouteDirect {
		t.Errorf("the route to the loopback interface is %v", got)
	}
	cables := smctest.NewCables(t, 1)
	cables.Run[0](func() {
		for _, to := range []netip.Addr{cables.Addr[0][1], cables.Six[0][1]} {
			if got := routeTo(to, 0); got != RouteDirect {
				t.Errorf("the route over the cable to %v is %v", to, got)
			}
		}
		if got := routeTo(netip.MustParseAddr("203.0.113.1"), 0); got != RouteNone {
			t.Errorf("the route to nowhere is %v", got)
		}
	})
}

// TestRoutesBySource has a rule of policy routing lead packets of one of our RNICs by a table of
// its own, as hosts with several interfaces do. The device sends from its address, so the route is
// the address's.
func TestRoutesBySource(t *testing.T) {
	cables := smctest.NewCables(t, 1)
	h := newSet(t, Config{Namespace: func(f func()) { cables.Visit(0, f) }})
	for _, tt := range []struct{ version, from, far, nowhere string }{
		{"-4", cables.Addr[0][0].String(), "203.0.113.1", "203.0.114.1"},
		{"-6", cables.Six[0][0].String(), "fd01::1", "fd02::1"},
	} {
		far, nowhere := netip.MustParseAddr(tt.far), netip.MustParseAddr(tt.nowhere)
		cables.IP(0, tt.version+" rule add from "+tt.from+" lookup 100")
		cables.IP(0, tt.version+" route add "+tt.far+" dev cable0 table 100")
		us := core.RNIC{GID: wire.GIDFromAddr(netip.MustParseAddr(tt.from))}
		routes := h.RoutesTo([]core.RNIC{us}, []wire.GID{wire.GIDFromAddr(far), wire.GIDFromAddr(nowhere)})
		want := []core.PairRoute{
			{Local: us.GID, Peer: wire.GIDFromAddr(far), Direct: true},
			{Local: us.GID, Peer: wire.GIDFromAddr(nowhere), None: true},
		}
		if !slices.Equal(routes, want) {
			t.Errorf("from %s: %+v, want %+v", tt.from, routes, want)
		}
	}
}
