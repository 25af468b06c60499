package rnic

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
)

// A Route is how one RNIC reaches another.
type Route uint8

const (
	RouteUnknown  Route = iota // the kernel does not say
	RouteDirect                // both are in one subnet
	RouteIndirect              // a router is between them
	RouteNone                  // there is none
)

// routeTo asks the kernel how packets get to an address from an interface, 0 for any. It needs AF_NETLINK.
func routeTo(to netip.Addr, iface int) Route {
	return askRoute(routeRequest(netip.Addr{}, to, iface, 0))
}

// askRoute sends a request to the kernel.
func askRoute(request []byte) Route {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return RouteUnknown
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(time.Second.Nanoseconds())
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait) != nil {
		return RouteUnknown
	}
	if unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return RouteUnknown
	}
	b := make([]byte, 16<<10)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return RouteUnknown
	}
	return parseRoute(b[:n])
}

// RoutesTo returns how our devices reach RNICs of a peer, for the pairs that the kernel knows.
// Unlike [Device.Route] it does not take an address without an entry in a routing table for one on
// the link.
func (s *Set) RoutesTo(ours []core.RNIC, peers []wire.GID) (list []core.PairRoute) {
	s.cfg.Namespace(func() {
		for _, us := range ours {
			local := us.GID.Addr()
			if local.IsLoopback() || local.Is6() && local.IsLinkLocalUnicast() {
				continue
			}
			iface, err := net.InterfaceByName(interfaceOf(local))
			if err != nil {
				continue
			}
			for _, gid := range peers {
				if peer := gid.Addr(); peer.IsValid() && peer.Is4() == local.Is4() {
					if way := askRoute(routeRequest(local, peer, iface.Index, rtmFIBMatch)); way != RouteUnknown {
						list = append(list, core.PairRoute{Local: us.GID, Peer: gid, None: way == RouteNone,
							Direct: way == RouteDirect})
					}
				}
			}
		}
	})
	return list
}

// rtmFIBMatch asks for the entry of the table, and for an error where there is none: Linux
// include/uapi/linux/rtnetlink.h, since 4.14.
const rtmFIBMatch = 0x2000

// routeRequest is an RTM_GETROUTE message. from is the source address, which a rule of policy
// routing may ask for: "ip rule add from" is usual on hosts with several interfaces. The zero
// address leaves it to the kernel.
func routeRequest(from, to netip.Addr, iface int, flags uint32) []byte {
	to = to.Unmap().WithZone("")
	family := byte(unix.AF_INET6)
	if to.Is4() {
		family = unix.AF_INET
	}
	b := make([]byte, unix.SizeofNlMsghdr, 128)
	b = append(b, family, byte(to.BitLen()), byte(from.BitLen()), 0, 0, 0, 0, 0) // struct rtmsg
	b = binary.NativeEndian.AppendUint32(b, flags)
	b = appendRouteAttr(b, unix.RTA_DST, to.AsSlice())
	if from.IsValid() {
		b = appendRouteAttr(b, unix.RTA_SRC, from.AsSlice()) // rule: TestRoutesBySource: from.AsSlice() -> make([]byte, from.BitLen()/8)
	}
	if iface != 0 {
		b = appendRouteAttr(b, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(iface)))
	}
	binary.NativeEndian.PutUint32(b[0:], uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_GETROUTE)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	return b
}

// appendRouteAttr appends an attribute whose value has a length that is a multiple of 4.
func appendRouteAttr(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...)
}

// parseRoute takes the kernel's answer.
func parseRoute(b []byte) Route {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil || len(messages) == 0 {
		return RouteUnknown
	}
	m := &messages[0]
	switch {
	case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
		switch errno := syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data))); {
		case errors.Is(errno, unix.ENETUNREACH), errors.Is(errno, unix.EHOSTUNREACH):
			return RouteNone
		}
		return RouteUnknown
	case m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg:
		return RouteUnknown
	}
	switch m.Data[7] { // rtm_type
	case unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT:
		return RouteNone
	}
	attrs, err := syscall.ParseNetlinkRouteAttr(m)
	switch {
	case err != nil:
		return RouteUnknown
	case slices.ContainsFunc(attrs, func(a syscall.NetlinkRouteAttr) bool {
		return a.Attr.Type == unix.RTA_GATEWAY || a.Attr.Type == unix.RTA_VIA
	}):
		return RouteIndirect
	}
	return RouteDirect
}

// Route returns how packets get from the device to an RNIC of a peer. A device sends on its own
// interface. If the kernel does not say, and for the loopback interface, which leads nowhere else,
// the IP networks of the interface decide.
func (n *Device) Route(remote netip.Addr) (r Route) {
	if remote.Is6() && remote.IsLinkLocalUnicast() {
		return RouteDirect // no router passes that on
	}
	n.all.cfg.Namespace(func() {
		iface, err := net.InterfaceByName(n.dev.Interface())
		if err == nil && iface.Flags&net.FlagLoopback == 0 {
			r = routeTo(remote, iface.Index)
		}
	})
	if r != RouteUnknown {
		return r
	}
	for _, net := range n.nets {
		if net.Contains(remote) {
			return RouteDirect
		}
	}
	return RouteUnknown
}
