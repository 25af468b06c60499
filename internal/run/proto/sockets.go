package proto

import (
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// AddrPort is an address of a TCP socket, unmapped; the zero value if it is none.
func AddrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// AddrPortOf is an address of package net, unmapped and without zone.
func AddrPortOf(a net.Addr) netip.AddrPort {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := t.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// CloseAll closes descriptors, but for negative ones.
func CloseAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// IsTCP reports whether a descriptor that a program has sent is a TCP socket. Other protocols have
// stream sockets as well, with ports of their own: one of SCTP can have the addresses of any TCP
// connection. A listener of MPTCP accepts sockets of TCP, or of MPTCP; both have ports of TCP.
func IsTCP(fd int) bool {
	if !IsStream(fd, unix.AF_INET, unix.AF_INET6) {
		return false
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return err == nil && hasTCPPorts(protocol)
}

func hasTCPPorts(protocol int) bool {
	return protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_MPTCP
}

// IsStream reports whether a descriptor that a program has sent is a stream socket of a family.
func IsStream(fd int, families ...int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return false
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM {
		return false
	}
	for _, f := range families {
		if domain == f {
			return true
		}
	}
	return false
}

// IsLocal reports whether an address is reached from itself.
func IsLocal(server netip.AddrPort) bool {
	if server.Addr().IsLoopback() || server.Addr().IsUnspecified() {
		return true
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server)) // which sends nothing
	if err != nil {
		return false
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap() == server.Addr()
}

// UnixConn makes a connection of package net of an end of a pair, and closes the descriptor. It
// returns nil if it cannot.
func UnixConn(fd int) *net.UnixConn {
	unix.SetNonblock(fd, true)
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil
	}
	return u
}
