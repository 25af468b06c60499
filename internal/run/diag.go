package run

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Sizes and offsets of struct inet_diag_req_v2 and struct inet_diag_msg, linux/inet_diag.h. A
// cookie has its low half first; ports and addresses are big-endian.
const (
	diagRequestLen = 56
	diagMsgLen     = 72
	tcpListen      = 10
	diagV6Only     = 11 // INET_DIAG_SKV6ONLY, an attribute behind the message, of one byte
	diagTimeoutSec = 1
)

// errNoSocket means that the kernel has no such socket.
var errNoSocket = errors.New("run: no such socket")

// A socketState has the kernel's facts about a TCP socket.
type socketState struct {
	local  netip.AddrPort // unmapped
	cookie uint64
	uid    uint32 // the user that owns it
	inode  uint32 // 0: a connection that nobody has accepted yet
	only6  bool   // it gets no connections of IPv4
}

// diagConnection asks for the socket of a connection by its two addresses.
func diagConnection(local, peer netip.AddrPort) (socketState, error) {
	list, err := diag(unix.NLM_F_REQUEST, family(local.Addr()), ^uint32(0), local, peer)
	if noNetlink(err) {
		return procConnection("/proc/net", local, peer)
	}
	if err == nil && len(list) == 0 {
		err = errNoSocket
	}
	if err != nil {
		return socketState{}, err
	}
	return list[0], nil
}

// noNetlink reports whether this process may have no netlink sockets: RestrictAddressFamilies of
// systemd.exec(5), or another filter of system calls.
func noNetlink(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}

// procConnection is diagConnection by the tables in /proc/net, which have no cookies. It reads
// about all sockets of the network namespace.
//
//	sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//	 0: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 12345 ...
//
// Addresses are words in host order.
func procConnection(dir string, local, peer netip.AddrPort) (socketState, error) {
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			if name == "tcp6" && errors.Is(err, os.ErrNotExist) {
				continue // no IPv6
			}
			return socketState{}, err
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || procAddress(fields[1]) != local || procAddress(fields[2]) != peer {
				continue
			}
			f.Close()
			inode, err := strconv.ParseUint(fields[9], 10, 32)
			return socketState{local: local, inode: uint32(inode)}, err
		}
		f.Close()
	}
	return socketState{}, errNoSocket
}

// procAddress is an address of /proc/net, unmapped; the zero value if it is none.
func procAddress(text string) netip.AddrPort {
	ip, port, ok := strings.Cut(text, ":")
	b, err := hex.DecodeString(ip)
	n, portErr := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || portErr != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}
	}
	for i := 0; i < len(b); i += 4 { // as it is printed the first digits are of the highest byte
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(n))
}

// diagListeners asks for the sockets that listen on a port, on any if it is 0.
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

// appendState adds the state of a socket from a message, if the socket has this local port; any if
// it is 0.
func appendState(list []socketState, msg []byte, port uint16) []socketState {
	local := diagAddress(msg, 8, 4)
	if port != 0 && local.Port() != port {
		return list
	}
	return append(list, socketState{local: local, cookie: binary.NativeEndian.Uint64(msg[44:]), uid: binary.NativeEndian.Uint32(msg[64:]), inode: binary.NativeEndian.Uint32(msg[68:]), only6: diagOnly6(msg[diagMsgLen:])})
}

// diagOnly6 looks for IPV6_V6ONLY among the attributes behind a message.
func diagOnly6(b []byte) bool {
	for len(b) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofNlAttr || length > len(b) {
			return false
		}
		if binary.NativeEndian.Uint16(b[2:]) == diagV6Only && length > unix.SizeofNlAttr {
			return b[unix.SizeofNlAttr] != 0
		}
		b = b[min(len(b), (length+3)&^3):]
	}
	return false
}

// diagAddress is an address of a socket, unmapped. Its parts are at these offsets of a message.
func diagAddress(msg []byte, ip, port int) netip.AddrPort {
	a := netip.AddrFrom16([16]byte(msg[ip:])).Unmap()
	if msg[0] == unix.AF_INET {
		a = netip.AddrFrom4([4]byte(msg[ip:]))
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(msg[port:]))
}
