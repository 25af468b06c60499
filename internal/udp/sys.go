package udp

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An mmsghdr is one message of sendmmsg and recvmmsg: struct mmsghdr of Linux.
type mmsghdr struct {
	unix.Msghdr
	length uint32 // bytes sent or received
}

// A sockaddr is room for any address that is used here, laid out as the kernel has it.
//
//	offset  size  sockaddr_in      sockaddr_in6         sockaddr_ll
//	     0     2  family           family               family
//	     2     2  port *           port *               protocol *
//	     4     4  address          flow information     interface index
//	     8     2  -                address (16 bytes)   hardware type
//	    10     1                                        packet type
//	    11     1                                        length of the hardware address
//	    12     8                                        hardware address
//	    24     4  -                scope                -
//
// Those marked * are big-endian, other integers are in host order.
type sockaddr [28]byte

const (
	sockaddr4Len  = unix.SizeofSockaddrInet4
	sockaddr6Len  = unix.SizeofSockaddrInet6
	sockaddrLLLen = 12 // up to the hardware address
)

// setInet writes addr into sa and returns the length that the kernel is told.
func (sa *sockaddr) setInet(addr netip.AddrPort, scope uint32) uint32 {
	*sa = sockaddr{}
	binary.BigEndian.PutUint16(sa[2:], addr.Port())
	if ip := addr.Addr(); ip.Is4() {
		binary.NativeEndian.PutUint16(sa[0:], unix.AF_INET)
		four := ip.As4()
		copy(sa[4:], four[:])
		return sockaddr4Len
	}
	binary.NativeEndian.PutUint16(sa[0:], unix.AF_INET6)
	sixteen := addr.Addr().As16()
	copy(sa[8:], sixteen[:])
	binary.NativeEndian.PutUint32(sa[24:], scope)
	return sockaddr6Len
}

// inet reads an address of length bytes. IPv4 addresses that are mapped into IPv6 are given as
// IPv4. The scope is 0 but for addresses of one link.
func (sa *sockaddr) inet(length uint32) (addr netip.AddrPort, scope uint32) {
	port := binary.BigEndian.Uint16(sa[2:])
	switch family := binary.NativeEndian.Uint16(sa[0:]); {
	case family == unix.AF_INET && length >= sockaddr4Len:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(sa[4:8])), port), 0
	case family == unix.AF_INET6 && length >= sockaddr6Len:
		ip := netip.AddrFrom16([16]byte(sa[8:24])).Unmap()
		return netip.AddrPortFrom(ip, port), binary.NativeEndian.Uint32(sa[24:])
	}
	return netip.AddrPort{}, 0
}

// A control is room for control messages, aligned as the kernel aligns them.
type control [8]uint64

// setSegment makes c tell the kernel the size of the segments of a super-packet, and returns the
// length of c then (Linux net/ipv4/udp.c, udp_cmsg_send).
func (c *control) setSegment(size int) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(c))
	h.Level = unix.IPPROTO_UDP
	h.Type = unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(c.bytes()[unix.CmsgLen(0):], uint16(size))
	return unix.CmsgSpace(2)
}

// segment is the size of segments that the kernel has put into the first length bytes of c, 0 if
// it has not (Linux net/ipv4/udp.c, udp_cmsg_recv).
func (c *control) segment(length int) int {
	b := c.bytes()
	if length > len(b) {
		length = len(b)
	}
	for at := 0; length-at >= unix.SizeofCmsghdr; {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[at]))
		size := int(h.Len)
		if size < unix.SizeofCmsghdr || size > length-at {
			return 0
		}
		if h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && size >= unix.CmsgLen(4) {
			return int(int32(binary.NativeEndian.Uint32(b[at+unix.CmsgLen(0):])))
		}
		at += unix.CmsgSpace(size - unix.CmsgLen(0))
	}
	return 0
}

func (c *control) bytes() []byte { return (*[unsafe.Sizeof(*c)]byte)(unsafe.Pointer(c))[:] }

// sendmmsg sends the messages of m without waiting.
func sendmmsg(fd uintptr, m []mmsghdr) (int, unix.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(m))),
		uintptr(len(m)),
		unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// recvmmsg receives up to len(m) messages without waiting.
func recvmmsg(fd uintptr, m []mmsghdr) (int, unix.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(m))),
		uintptr(len(m)),
		unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}
