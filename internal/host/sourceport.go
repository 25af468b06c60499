package host

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A client has to name its source port before it connects. Binding the socket to a port is
// one way, but a bound port conflicts with every connection that has left it in TIME_WAIT,
// and looking for a free one among thousands of those takes the kernel a millisecond. Since
// Linux 6.3 the range of ports that connect may choose from can be set for each socket: a
// range of one port names it, and only the same pair of addresses conflicts.
const ipLocalPortRange = 51 // IP_LOCAL_PORT_RANGE

// sourcePorts hands out the ports of the ephemeral range, one after the other, so that a
// port comes back as late as possible.
type sourcePorts struct {
	mu        sync.Mutex
	low, high uint16 // zero: not read yet
	last      uint16
}

var ports sourcePorts

func (p *sourcePorts) next() uint16 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.high == 0 {
		p.low, p.high = ephemeralPorts()
		p.last = p.low + uint16(rand.N(uint32(p.high-p.low)+1))
	}
	if p.last++; p.last < p.low || p.last > p.high {
		p.last = p.low
	}
	return p.last
}

// ephemeralPorts returns the system's range, or the default one.
func ephemeralPorts() (low, high uint16) {
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if n, _ := fmt.Sscan(string(text), &low, &high); n == 2 && 0 < low && low <= high {
			return low, high
		}
	}
	return 32768, 60999
}

// takeSourcePort makes raw, a socket that is about to connect to dest, use a known source
// port, and returns it. local is where to connect from; nil leaves that to routing.
func takeSourcePort(raw syscall.RawConn, dest netip.AddrPort, local *net.TCPAddr) (uint16, error) {
	if local == nil || local.Port == 0 {
		port := ports.next()
		var err error
		if cerr := raw.Control(func(fd uintptr) {
			if local != nil {
				if err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
					return
				}
			}
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, ipLocalPortRange, int(port)<<16|int(port))
		}); cerr != nil {
			return 0, cerr
		}
		if err == nil {
			return port, bindSocket(raw, dest, local, false)
		}
	}
	if err := bindSocket(raw, dest, local, true); err != nil {
		return 0, err
	}
	return boundPort(raw)
}

// bindSocket binds a socket to local, and if it has to have a port, to any. A nil local is
// the unspecified address, which leaves the source address to routing.
func bindSocket(raw syscall.RawConn, dest netip.AddrPort, local *net.TCPAddr, needPort bool) error {
	if local == nil && !needPort {
		return nil
	}
	var sa unix.Sockaddr
	switch {
	case dest.Addr().Unmap().Is4():
		sa4 := new(unix.SockaddrInet4)
		if local != nil {
			sa4.Port = local.Port
			if ip := local.IP.To4(); ip != nil {
				sa4.Addr = [4]byte(ip)
			} else if len(local.IP) != 0 && !local.IP.IsUnspecified() {
				return &net.AddrError{Err: "local address is not IPv4", Addr: local.String()}
			}
		}
		sa = sa4
	default:
		sa6 := new(unix.SockaddrInet6)
		if local != nil {
			sa6.Port = local.Port
			if local.IP.To4() != nil && !local.IP.IsUnspecified() {
				return &net.AddrError{Err: "local address is not IPv6", Addr: local.String()}
			}
			if ip := local.IP.To16(); ip != nil && local.IP.To4() == nil {
				sa6.Addr = [16]byte(ip)
			}
			if iface, err := net.InterfaceByName(local.Zone); local.Zone != "" && err == nil {
				sa6.ZoneId = uint32(iface.Index)
			}
		}
		sa = sa6
	}
	var err error
	if cerr := raw.Control(func(fd uintptr) {
		if needPort {
			// Ports in TIME_WAIT, and those that are used toward other destinations, would
			// else be passed over, and run out: connect looks at the whole address pair.
			if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
				return
			}
		}
		err = os.NewSyscallError("bind", unix.Bind(int(fd), sa))
	}); cerr != nil {
		return cerr
	}
	return err
}

// boundPort returns the port that a socket is bound to.
func boundPort(raw syscall.RawConn) (port uint16, err error) {
	cerr := raw.Control(func(fd uintptr) {
		var sa unix.Sockaddr
		sa, err = unix.Getsockname(int(fd))
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			port = uint16(sa.Port)
		case *unix.SockaddrInet6:
			port = uint16(sa.Port)
		}
	})
	if cerr != nil {
		err = cerr
	}
	return port, err
}
