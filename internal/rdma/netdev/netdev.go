// Package netdev has the network interface under a software RDMA device: the one that has an address, its
// MTU as path MTU, and its state, as the port of an adapter has one. It knows no queue pairs.
package netdev

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// headerRoom is the number of bytes that rxe sets aside for the headers of a packet, from the IP
// header to the ICRC.
const headerRoom = 80

// SendIndex returns the index of the interface that a device sends on, as an adapter sends on
// its own port: two devices are two paths, also if both lead to the same network. An address of the
// loopback interface that others reach, as routers announce them, belongs to no cable: 0, the
// routing table decides.
func SendIndex(iface net.Interface) int {
	if iface.Flags&net.FlagLoopback != 0 {
		return 0
	}
	return iface.Index
}

// Of returns the interface that has an address. All of 127.0.0.0/8 belongs to loopback. The error matches
// [verbs.ErrArgument] if none has it, or is the kernel's.
func Of(addr netip.Addr) (net.Interface, error) {
	ifaces, err := net.Interfaces()
	if err != nil { // a process may be denied AF_NETLINK, which package net needs
		iface, found, err2 := ioctlInterfaceOf(addr)
		switch {
		case err2 != nil:
			return net.Interface{}, fmt.Errorf("rdma: device %v: %w", addr, err)
		case found:
			return iface, nil
		}
	}
	for _, iface := range ifaces {
		if !inZone(addr, iface.Name, iface.Index) {
			continue
		}
		if addr.IsLoopback() && iface.Flags&net.FlagLoopback != 0 {
			return iface, nil
		}
		addrs, err := iface.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addrs {
			if prefix, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(prefix.IP); ok && ip.Unmap() == addr.WithZone("") {
					return iface, nil
				}
			}
		}
	}
	return net.Interface{}, fmt.Errorf("rdma: %w: no interface has the address %v", verbs.ErrArgument, addr)
}

// pathMTU returns the largest one that an interface's MTU of n bytes has room for, and 256 if there is
// none.
func pathMTU(n int) wire.MTU {
	m := wire.MTU256
	for m < wire.MTU4096 && (m+1).Bytes()+headerRoom <= n {
		m++
	}
	return m
}

// MTU returns the path MTU of an address whose interface has an MTU of n bytes. One of the
// loopback interface that others reach is behind interfaces that are not known, see [SendIndex]:
// it has no more than Ethernet has room for.
func MTU(addr netip.Addr, n int, loopback bool) wire.MTU {
	m := pathMTU(n)
	if loopback && !addr.IsLoopback() {
		m = min(m, wire.MTU1024)
	}
	return m
}

// inZone reports whether an address can belong to an interface, going by its zone.
func inZone(addr netip.Addr, name string, index int) bool {
	zone := addr.Zone()
	return zone == "" || zone == name || zone == fmt.Sprint(index)
}

// An ifreq is struct ifreq, with room for the answers to the requests here. Linux
// include/uapi/linux/if.h.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data [unsafe.Sizeof(unix.Ifreq{}) - unix.IFNAMSIZ]byte
}

// ioctlInterfaceOf is [Of] by the old means: ioctl and, for IPv6, a file of /proc.
func ioctlInterfaceOf(addr netip.Addr) (iface net.Interface, found bool, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return iface, false, err
	}
	defer unix.Close(fd)
	var names []string // of interfaces that have it
	if addr.Is6() {
		names, err = inet6Names(addr)
	} else {
		names, err = inet4Names(fd, addr)
	}
	for _, name := range names {
		if iface, err = ioctlInterface(fd, name); err == nil && inZone(addr, iface.Name, iface.Index) {
			return iface, true, nil
		}
	}
	return net.Interface{}, false, err
}

// inet4Names returns the interfaces that have an IPv4 address.
func inet4Names(fd int, addr netip.Addr) (names []string, err error) {
	all := make([]ifreq, 1024)
	conf := struct {
		length int32
		buf    *ifreq
	}{int32(len(all) * int(unsafe.Sizeof(all[0]))), &all[0]}
	if err := ioctl(fd, unix.SIOCGIFCONF, unsafe.Pointer(&conf)); err != nil {
		return nil, err
	}
	runtime.KeepAlive(all)
	for i := range all[:int(conf.length)/int(unsafe.Sizeof(all[0]))] {
		r := &all[i] // data is a struct sockaddr_in
		ip := netip.AddrFrom4([4]byte(r.data[4:8]))
		if ip == addr || ip.IsLoopback() && addr.IsLoopback() {
			names = append(names, unix.ByteSliceToString(r.name[:]))
		}
	}
	return slices.Compact(names), nil
}

// inet6Names does so for IPv6. A line has the address, index, length of the prefix, scope, flags, all in
// hexadecimal digits, and the name.
func inet6Names(addr netip.Addr) (names []string, err error) {
	text, err := os.ReadFile("/proc/thread-self/net/if_inet6")
	if err != nil {
		return nil, err
	}
	ip := addr.As16()
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 6 && fields[0] == hex.EncodeToString(ip[:]) {
			names = append(names, fields[5])
		}
	}
	return names, nil
}

// ioctlInterface asks for the properties of an interface that a device needs.
func ioctlInterface(fd int, name string) (iface net.Interface, err error) {
	iface.Name = name
	ask := func(request uint) (r ifreq) {
		copy(r.name[:unix.IFNAMSIZ-1], name)
		if err == nil {
			err = ioctl(fd, request, unsafe.Pointer(&r))
		}
		return r
	}
	r := ask(unix.SIOCGIFINDEX)
	iface.Index = int(int32(binary.NativeEndian.Uint32(r.data[:])))
	r = ask(unix.SIOCGIFMTU)
	iface.MTU = int(int32(binary.NativeEndian.Uint32(r.data[:])))
	r = ask(unix.SIOCGIFFLAGS)
	if binary.NativeEndian.Uint16(r.data[:])&unix.IFF_LOOPBACK != 0 {
		iface.Flags |= net.FlagLoopback
	}
	r = ask(unix.SIOCGIFHWADDR)
	if binary.NativeEndian.Uint16(r.data[:]) == unix.ARPHRD_ETHER {
		iface.HardwareAddr = bytes.Clone(r.data[2:8])
	}
	return iface, err
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
