package host

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rendezvous"
)

// addrPort converts an address of package net; the result is unmapped, without zone.
func addrPort(a net.Addr) netip.AddrPort { return rendezvous.AddrPort(a) }

// socketError takes the pending error of a socket, nil if there is none.
func socketError(tcp *net.TCPConn) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var errno int
	if cerr := raw.Control(func(fd uintptr) {
		errno, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	}); cerr != nil {
		return cerr
	}
	if err == nil && errno != 0 {
		err = unix.Errno(errno)
	}
	return err
}

// hasBytes reports whether there is something to read, without reading it.
func hasBytes(tcp *net.TCPConn) bool {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	return err == nil && n > 0
}
