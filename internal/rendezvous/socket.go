package rendezvous

import (
	"net"
	"net/netip"
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

// SocketCookie returns what the kernel calls a socket: a number that it never uses again.
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
