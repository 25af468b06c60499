package rendezvous

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const soNetnsCookie = 71 // SO_NETNS_COOKIE, Linux 5.14

// netnsOf names the network namespace of a socket: by its cookie, which is never used
// again while the machine is up, or on older kernels by the inode of the namespace that
// the calling thread is in.
func netnsOf(fd int) (uint64, error) {
	if cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, soNetnsCookie); err == nil {
		return cookie, nil
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}

// localAddrs knows the addresses of this host. The set is read again at most once a
// second, and only when an address is asked for that is not in it.
type localAddrs struct {
	mu   sync.Mutex
	read time.Time
	set  map[netip.Addr]struct{} // nil if it cannot be read
}

// contains reports whether a is an address of this host.
func (l *localAddrs) contains(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if a.IsLoopback() || a.IsUnspecified() { // connecting to 0.0.0.0 or :: means this host
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.set[a]; ok && time.Since(l.read) < localAddrsAge {
		return true
	}
	if time.Since(l.read) >= localAddrsAge {
		l.set = readLocalAddrs()
		l.read = time.Now()
	}
	if l.set == nil {
		return routesHere(a)
	}
	_, ok := l.set[a]
	return ok
}

func readLocalAddrs() map[netip.Addr]struct{} {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	set := make(map[netip.Addr]struct{})
	for _, a := range addrs {
		if p, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(p.IP); ok {
				set[addr.Unmap()] = struct{}{}
			}
		}
	}
	return set
}

// ifaceOf returns the index of the interface that has an address, 0 if none has.
func ifaceOf(a netip.Addr) uint32 {
	interfaces, err := net.Interfaces()
	if err != nil {
		return 0
	}
	for _, ifi := range interfaces {
		addrs, err := ifi.Addrs()
		if err != nil {
			return 0
		}
		for _, b := range addrs {
			if p, ok := b.(*net.IPNet); ok && p.IP.Equal(a.AsSlice()) {
				return uint32(ifi.Index)
			}
		}
	}
	return 0
}

// routesHere reports whether a is an address of this host where those cannot be read, for want of
// netlink: a socket that sends to one of them does so from the same.
func routesHere(a netip.Addr) bool {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9))) // sends nothing
	if err != nil {
		return false
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone("") == a
}
