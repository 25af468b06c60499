package run

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Sizes and offsets of struct inet_diag_req_v2 and struct inet_diag_msg, linux/inet_diag.h. A cookie has its low half
// first; ports and addresses are big-endian.
const (
	diagRequestLen = 56
	diagMsgLen     = 72
	tcpListen      = 10
	diagTimeoutSec = 1
)

// errNoSocket means that the kernel has no such socket.
var errNoSocket = errors.New("run: no such socket")

// A socketState is what the kernel says of a TCP socket.
type socketState struct {
	local  netip.AddrPort // unmapped
	cookie uint64
	uid    uint32 // the user that owns it
	inode  uint32 // 0: a connection that nobody has accepted yet
}

// diagConnection asks for the socket of a connection by its two addresses.
func diagConnection(local, peer netip.AddrPort) (socketState, error) {
	list, err := diag(unix.NLM_F_REQUEST, family(local.Addr()), ^uint32(0), local, peer)
	if err == nil && len(list) == 0 {
		err = errNoSocket
	}
	if err != nil {
		return socketState{}, err
	}
	return list[0], nil
}

// diagListeners asks for what listens on a port, on any if it is 0.
func diagListeners(port uint16) (list []socketState, err error) {
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		found, err := diag(unix.NLM_F_REQUEST|unix.NLM_F_DUMP, family(a), 1<<tcpListen, netip.AddrPortFrom(a, port),
			netip.AddrPortFrom(a, 0))
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	return list, nil
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// diag asks for sockets with the local port of local, with any if that is 0.
func diag(flags uint16, family byte, states uint32, local, peer netip.AddrPort) (list []socketState, err error) {
	err = diagEach(flags, family, states, local, peer, func(msg []byte) { list = appendState(list, msg, local.Port()) })
	return list, err
}

// diagEach asks for sockets and calls found for each message about one, which has diagMsgLen bytes at least.
func diagEach(flags uint16, family byte, states uint32, local, peer netip.AddrPort, found func(msg []byte)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: diagTimeoutSec}); err != nil {
		return err
	}
	req := make([]byte, unix.SizeofNlMsghdr+diagRequestLen)
	binary.NativeEndian.PutUint32(req[0:], uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(req[6:], flags)
	body := req[unix.SizeofNlMsghdr:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], states)
	binary.BigEndian.PutUint16(body[8:], local.Port())
	binary.BigEndian.PutUint16(body[10:], peer.Port())
	copy(body[12:28], local.Addr().AsSlice())
	copy(body[28:44], peer.Addr().AsSlice())
	binary.NativeEndian.PutUint64(body[48:], ^uint64(0)) // any cookie
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 32<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		done, err := parseDiag(buf[:n], found)
		if err != nil || done || flags&unix.NLM_F_DUMP == 0 {
			return err
		}
	}
}

// parseDiag reads netlink messages, calls found for each about a socket, and says whether a dump has ended.
func parseDiag(b []byte, found func(msg []byte)) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(b))
		if length < unix.SizeofNlMsghdr || length > len(b) {
			return true, errMessage
		}
		msg := b[unix.SizeofNlMsghdr:length]
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(msg) >= 4 && unix.Errno(-int32(binary.NativeEndian.Uint32(msg))) == unix.ENOENT {
				return true, errNoSocket
			}
			return true, errMessage
		case unix.SOCK_DIAG_BY_FAMILY:
			if len(msg) >= diagMsgLen {
				found(msg)
			}
		}
		b = b[min(len(b), (length+3)&^3):]
	}
	return false, nil
}

// appendState adds what a message says of a socket, if that has a local port; any if it is 0.
func appendState(list []socketState, msg []byte, port uint16) []socketState {
	local := diagAddress(msg, 8, 4)
	if port != 0 && local.Port() != port {
		return list
	}
	return append(list, socketState{local: local, cookie: binary.NativeEndian.Uint64(msg[44:]), uid: binary.NativeEndian.Uint32(msg[64:]), inode: binary.NativeEndian.Uint32(msg[68:])})
}

// diagAddress is an address of a socket, unmapped, whose parts are at these offsets of a message.
func diagAddress(msg []byte, ip, port int) netip.AddrPort {
	a := netip.AddrFrom16([16]byte(msg[ip:])).Unmap()
	if msg[0] == unix.AF_INET {
		a = netip.AddrFrom4([4]byte(msg[ip:]))
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(msg[port:]))
}
