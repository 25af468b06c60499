package rendezvous

import (
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// AddrPort converts an address of package net; the result is unmapped, without zone.
func AddrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// SocketCookie returns the kernel's name for a socket: a number that it never uses again.
func SocketCookie(raw syscall.RawConn) (cookie uint64, err error) {
	if cerr := raw.Control(func(fd uintptr) {
		cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	}); cerr != nil {
		err = cerr
	}
	return cookie, err
}

// SocketNetns returns the network namespace of a socket.
func SocketNetns(raw syscall.RawConn) (netns uint64, err error) {
	if cerr := raw.Control(func(fd uintptr) { netns, err = netnsOf(int(fd)) }); cerr != nil {
		err = cerr
	}
	return netns, err
}

// identify returns the kernel's name for a socket, its network namespace, and the index of the
// interface that it is bound to, or will be when it connects to addr; 0 for none.
func identify(raw syscall.RawConn, addr netip.Addr) (cookie, netns uint64, iface uint32, err error) {
	const soBindToIfindex = 62 // SO_BINDTOIFINDEX, Linux 5.1
	if cerr := raw.Control(func(fd uintptr) {
		if netns, err = netnsOf(int(fd)); err == nil {
			cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
		}
		if n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, soBindToIfindex); err == nil {
			iface = uint32(n)
		}
	}); cerr != nil {
		err = cerr
	}
	if iface == 0 && addr.Zone() != "" {
		iface = zoneIndex(addr.Zone())
	}
	return cookie, netns, iface, err
}

// zoneIndex returns the index of the interface that a zone names, 0 if there is none.
func zoneIndex(zone string) uint32 {
	if n, err := strconv.ParseUint(zone, 10, 31); err == nil {
		return uint32(n)
	}
	if ifi, err := net.InterfaceByName(zone); err == nil {
		return uint32(ifi.Index)
	}
	return 0
}
