package smctest

import (
	"net"
	"net/netip"
	"testing"
)

// FreePort returns a UDP port that nobody has at any of the addresses, for devices of a test.
func FreePort(t testing.TB, addrs ...netip.Addr) uint16 {
	t.Helper()
next:
	for range 100 {
		first, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addrs[0], 0)))
		if err != nil {
			t.Fatal(err)
		}
		defer first.Close()
		port := uint16(first.LocalAddr().(*net.UDPAddr).Port)
		for _, a := range addrs[1:] {
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, port)))
			if err != nil {
				continue next
			}
			defer c.Close()
		}
		return port
	}
	t.Fatal("no UDP port is free")
	return 0
}
