package host

import (
	"net"
	"net/netip"

	"github.com/gosmc/smc/internal/rendezvous"
)

// addrPort converts an address of package net; the result is unmapped, without zone.
func addrPort(a net.Addr) netip.AddrPort { return rendezvous.AddrPort(a) }

// addrOf returns the IP address of one end of a TCP connection, zero if that is closed.
func addrOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	return netip.Addr{}
}
