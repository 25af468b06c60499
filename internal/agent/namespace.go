package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// rxBuffer is the number of bytes that a shared socket may hold, as in internal/udp. Its process
// may not be permitted to ask for them.
const rxBuffer = 4 << 20

// bindShared binds a UDP socket to addr, beside others of this user, in the network namespace of a
// client, which is the one with the cookie that its socket has. A process may be in several, by its
// threads, and thread is only the number in its request. The process may have ended, and another
// one may have its number.
func bindShared(addr netip.AddrPort, who *client, thread int) (fd int, err error) {
	if own, err := netnsCookie(); err == nil && own == who.netns {
		return bindHere(addr, who.netns)
	}
	type result struct {
		fd  int
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		// A thread's number may belong to another process namespace, and mean nothing here.
		fd, err := bindThere(addr, who, fmt.Sprintf("/proc/%d/task/%d/ns/net", who.pid, thread))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, errOtherNamespace) {
			fd, err = bindThere(addr, who, fmt.Sprintf("/proc/%d/ns/net", who.pid))
		}
		done <- result{fd, err}
	}()
	r := <-done
	return r.fd, r.err
}

// errOtherNamespace is that a thread is not in the network namespace in which its process has made
// the socket.
var errOtherNamespace = errors.New("the process is in another network namespace than its socket")

// bindThere is bindShared in the namespace that a file stands for. The calling thread stays there.
func bindThere(addr netip.AddrPort, who *client, file string) (int, error) {
	ns, err := os.Open(file)
	if err != nil {
		return -1, fmt.Errorf("network namespace of process %d: %w", who.pid, err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return -1, fmt.Errorf("network namespace of process %d: %w", who.pid, err)
	}
	return bindHere(addr, who.netns)
}

// bindHere is bindShared in the namespace of the calling thread.
func bindHere(addr netip.AddrPort, netns uint64) (fd int, err error) {
	family := unix.AF_INET6
	if addr.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			fd = -1
		}
	}()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err == nil && cookie != netns {
		err = errOtherNamespace
	}
	if err != nil {
		return fd, err
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fd, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, rxBuffer) // less is less
	var sa unix.Sockaddr
	if family == unix.AF_INET {
		sa = &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}
	} else {
		if err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return fd, err
		}
		six := &unix.SockaddrInet6{Addr: addr.Addr().As16(), Port: int(addr.Port())}
		if zone := addr.Addr().Zone(); zone != "" {
			if six.ZoneId, err = zoneIndex(fd, zone); err != nil {
				return fd, err
			}
		}
		sa = six
	}
	err = unix.Bind(fd, sa)
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("port %d of %v belongs to the rdma_rxe kernel module, or to a process that does not share it: %w", addr.Port(), addr.Addr(), err)
	} else if err != nil {
		err = fmt.Errorf("bind %v: %w", addr, err)
	}
	return fd, err
}

// zoneIndex returns the number of an interface, by its name or number, in the namespace of a socket.
func zoneIndex(fd int, zone string) (uint32, error) {
	if n, err := strconv.ParseUint(zone, 10, 31); err == nil {
		return uint32(n), nil
	}
	r, err := unix.NewIfreq(zone)
	if err != nil {
		return 0, fmt.Errorf("interface %q: %w", zone, err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r); err != nil {
		return 0, fmt.Errorf("interface %q: %w", zone, err)
	}
	return r.Uint32(), nil
}

// netnsCookie returns the cookie of the network namespace of the calling thread.
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}
