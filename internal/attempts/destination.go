package attempts

import (
	"net/netip"
	"strings"
)

// Destination returns where a socket is about to connect. An address without a host, which package
// net passes on as it is, and an unspecified one lead to this machine: the kernel takes them for loopback.
func Destination(network, address string) (dest netip.AddrPort, ok bool) {
	if port, found := strings.CutPrefix(address, ":"); found {
		host := "0.0.0.0"
		if network == "tcp6" {
			host = "[::]"
		}
		address = host + ":" + port
	}
	dest, err := netip.ParseAddrPort(address)
	switch dest.Addr().Unmap() {
	case netip.IPv4Unspecified():
		dest = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), dest.Port())
	case netip.IPv6Unspecified():
		dest = netip.AddrPortFrom(netip.IPv6Loopback(), dest.Port())
	}
	return dest, err == nil
}
