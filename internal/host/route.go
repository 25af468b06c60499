package host

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

// A route is how one RNIC reaches another.
type route uint8

const (
	routeUnknown  route = iota // the kernel does not say
	routeDirect                // both are in one subnet
	routeIndirect              // a router is between them
	routeNone                  // there is none
)

// routeTo asks the kernel how packets get to an address from an interface, 0 for any. It needs AF_NETLINK.
func routeTo(to netip.Addr, iface int) route { return askRoute(routeRequest(to, iface, 0)) }

// askRoute sends a request to the kernel.
func askRoute(request []byte) route {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return routeUnknown
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(time.Second.Nanoseconds())
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait) != nil {
		return routeUnknown
	}
	if unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return routeUnknown
	}
	b := make([]byte, 16<<10)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return routeUnknown
	}
	return parseRoute(b[:n])
}

// routesOf says how the devices of ours get to RNICs of a peer, for pairs of which the kernel knows. Unlike route it does not take an address that is in
// no table for one on the link.
func (r *rnics) routesOf(ours []core.RNIC, peers []wire.GID) (list []core.PairRoute) {
	r.host.cfg.Namespace(func() {
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
					if way := askRoute(routeRequest(peer, iface.Index, rtmFIBMatch)); way != routeUnknown {
						list = append(list, core.PairRoute{Local: us.GID, Peer: gid, None: way == routeNone, Direct: way == routeDirect})
					}
				}
			}
		}
	})
	return list
}

// rtmFIBMatch asks for the entry of the table, and for an error where there is none: Linux include/uapi/linux/rtnetlink.h, since 4.14.
const rtmFIBMatch = 0x2000

// routeRequest is an RTM_GETROUTE message.
func routeRequest(to netip.Addr, iface int, flags uint32) []byte {
	to = to.Unmap().WithZone("")
	family := byte(unix.AF_INET6)
	if to.Is4() {
		family = unix.AF_INET
	}
	b := make([]byte, unix.SizeofNlMsghdr, 128)
	b = append(b, family, byte(to.BitLen()), 0, 0, 0, 0, 0, 0) // struct rtmsg
	b = binary.NativeEndian.AppendUint32(b, flags)
	b = appendRouteAttr(b, unix.RTA_DST, to.AsSlice())
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
func parseRoute(b []byte) route {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil || len(messages) == 0 {
		return routeUnknown
	}
	m := &messages[0]
	switch {
	case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
		switch errno := syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data))); {
		case errors.Is(errno, unix.ENETUNREACH), errors.Is(errno, unix.EHOSTUNREACH):
			return routeNone
		}
		return routeUnknown
	case m.Header.Type != unix.RTM_NEWROUTE || len(m.Data) < unix.SizeofRtMsg:
		return routeUnknown
	}
	switch m.Data[7] { // rtm_type
	case unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT:
		return routeNone
	}
	attrs, err := syscall.ParseNetlinkRouteAttr(m)
	switch {
	case err != nil:
		return routeUnknown
	case slices.ContainsFunc(attrs, func(a syscall.NetlinkRouteAttr) bool {
		return a.Attr.Type == unix.RTA_GATEWAY || a.Attr.Type == unix.RTA_VIA
	}):
		return routeIndirect
	}
	return routeDirect
}

// route is how packets get from the device to an RNIC of a peer. A device sends on its own interface. Where the kernel cannot say, and
// of the loopback interface, which leads nowhere else, the subnets tell.
func (n *rnic) route(remote netip.Addr) (r route) {
	if remote.Is6() && remote.IsLinkLocalUnicast() {
		return routeDirect // no router passes that on
	}
	n.all.host.cfg.Namespace(func() {
		iface, err := net.InterfaceByName(n.dev.Interface())
		if err == nil && iface.Flags&net.FlagLoopback == 0 {
			r = routeTo(remote, iface.Index)
		}
	})
	if r != routeUnknown {
		return r
	}
	for _, net := range n.nets {
		if net.Contains(remote) {
			return routeDirect
		}
	}
	return routeUnknown
}
