package rnic

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// vlanOfInterface returns the VLAN ID of an interface, 0 if it is none of a VLAN: Linux
// include/uapi/linux/if_vlan.h.
func vlanOfInterface(name string) uint16 {
	const (
		getVID    = 9 // GET_VLAN_VID_CMD
		device    = 4
		vid       = device + 24
		structLen = vid + 24 + 4
	)
	var args [structLen]byte // struct vlan_ioctl_args
	binary.NativeEndian.PutUint32(args[0:], getVID)
	if copy(args[device:vid-1], name) < len(name) {
		return 0
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGIFVLAN,
		uintptr(unsafe.Pointer(&args))); errno != 0 {
		return 0 // EINVAL: it is none; ENOPKG: the kernel knows of no VLANs
	}
	return uint16(binary.NativeEndian.Uint32(args[vid:]))
}

// vlanOf returns the VLAN ID of the interface that has an address: "when VLANs are in use, each
// SMC-R link group is associated with a single and specific VLAN" (RFC 7609 p.12).
func (s *Set) vlanOf(addr netip.Addr) (id uint16) {
	s.cfg.Namespace(func() {
		if name := interfaceOf(addr.Unmap()); name != "" {
			id = vlanOfInterface(name)
		}
	})
	return id
}
