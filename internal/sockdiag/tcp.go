package sockdiag

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

// Sizes of struct inet_diag_req_v2 and struct inet_diag_msg, linux/inet_diag.h. A cookie has its low
// half first; ports and addresses are big-endian.
const (
	requestLen = 56
	messageLen = 72
	v6Only     = 11 // INET_DIAG_SKV6ONLY, an attribute behind the message, of one byte
)

// States of linux/tcp_states.h.
const (
	TCPEstablished = 1
	TCPSynSent     = 2
	TCPClose       = 7
	TCPListen      = 10
)

// A Socket has the kernel's facts about a TCP socket.
type Socket struct {
	Local, Peer  netip.AddrPort // unmapped; Peer has port 0 if the socket listens
	Cookie       uint64         // as SO_COOKIE
	UID          uint32         // the user that owns the socket
	Inode        uint32         // 0: a connection that nobody has accepted yet
	RecvQ, SendQ uint32         // bytes; of a listener: connections that wait, and how many may
	OnlyIPv6     bool           // the socket gets no connections of IPv4
}

// Gets reports whether a connection to an address comes to a listener on its port.
func (s Socket) Gets(to netip.AddrPort) bool {
	ip := s.Local.Addr()
	return ip == to.Addr() || ip.IsUnspecified() && (ip.Is6() && !s.OnlyIPv6 || ip.Is4() == to.Addr().Is4()) // rule: internal/run/broker TestOnly6: ip.Is6() && !s.OnlyIPv6 -> ip.Is6()
}

// Connection asks for the socket of a connection by its two addresses. Where this process may have
// no netlink sockets the socket has an address and an inode only.
func Connection(local, peer netip.AddrPort) (Socket, error) {
	var list []Socket
	const anyState = ^uint32(0)
	q := query{unix.NLM_F_REQUEST, family(local.Addr()), anyState, local, peer}
	err := q.ask(func(s Socket) { list = append(list, s) })
	if noNetlink(err) {
		return procConnection("/proc/net", local, peer)
	}
	if err == nil && (len(list) == 0 || list[0].Local.Port() != local.Port()) {
		err = ErrNoSocket
	}
	if err != nil {
		return Socket{}, err
	}
	return list[0], nil
}

// Listeners asks for the sockets that listen on a port, on any if it is 0.
func Listeners(port uint16) (list []Socket, err error) {
	err = dumpTCP(TCPListen, port, func(s Socket) { list = append(list, s) })
	return list, err
}

// dumpTCP asks for sockets in a state with a local port, with any if that is 0.
func dumpTCP(state int, port uint16, found func(Socket)) error {
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		q := query{
			flags: unix.NLM_F_REQUEST | unix.NLM_F_DUMP, family: family(a), states: 1 << state,
			local: netip.AddrPortFrom(a, port), peer: netip.AddrPortFrom(a, 0),
		}
		err := q.ask(func(s Socket) {
			if port == 0 || s.Local.Port() == port {
				found(s)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// noNetlink reports whether this process may have no netlink sockets: RestrictAddressFamilies of
// systemd.exec(5), or another filter of system calls.
func noNetlink(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}

// procConnection is [Connection] by the tables in /proc/net, which have no cookies. It reads
// about all sockets of the network namespace.
//
//	sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//	 0: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 12345 ...
//
// Addresses are words in host order.
func procConnection(dir string, local, peer netip.AddrPort) (Socket, error) {
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			if name == "tcp6" && errors.Is(err, os.ErrNotExist) {
				continue // no IPv6
			}
			return Socket{}, err
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || procAddress(fields[1]) != local || procAddress(fields[2]) != peer {
				continue
			}
			f.Close()
			inode, err := strconv.ParseUint(fields[9], 10, 32)
			return Socket{Local: local, Inode: uint32(inode)}, err
		}
		f.Close()
	}
	return Socket{}, ErrNoSocket
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

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// A query asks for TCP sockets.
type query struct {
	flags       uint16
	family      byte
	states      uint32 // a set
	local, peer netip.AddrPort
}

// ask calls found for each socket.
func (q *query) ask(found func(Socket)) error {
	request, _ := q.request()
	return ask(request, func(msg []byte) {
		if len(msg) >= messageLen {
			found(parseTCP(msg))
		}
	})
}

// request returns the request, and the body in it.
func (q *query) request() (request, body []byte) {
	request, body = newRequest(q.flags, requestLen)
	body[0], body[1] = q.family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], q.states)
	binary.BigEndian.PutUint16(body[8:], q.local.Port())
	binary.BigEndian.PutUint16(body[10:], q.peer.Port())
	copy(body[12:28], q.local.Addr().AsSlice())
	copy(body[28:44], q.peer.Addr().AsSlice())
	binary.NativeEndian.PutUint64(body[48:], ^uint64(0)) // any cookie
	return request, body
}

// parseTCP reads a message about a TCP socket.
func parseTCP(msg []byte) Socket {
	s := Socket{
		Local: address(msg, 8, 4), Peer: address(msg, 24, 6),
		Cookie: binary.NativeEndian.Uint64(msg[44:]),
		RecvQ:  binary.NativeEndian.Uint32(msg[56:]), SendQ: binary.NativeEndian.Uint32(msg[60:]),
		UID: binary.NativeEndian.Uint32(msg[64:]), Inode: binary.NativeEndian.Uint32(msg[68:]),
	}
	attributes(msg[messageLen:], func(kind uint16, value []byte) {
		if kind == v6Only && len(value) > 0 {
			s.OnlyIPv6 = value[0] != 0
		}
	})
	return s
}

// address is an address of a socket, unmapped. Its parts are at these offsets of a message.
func address(msg []byte, ip, port int) netip.AddrPort {
	a := netip.AddrFrom16([16]byte(msg[ip:])).Unmap()
	if msg[0] == unix.AF_INET {
		a = netip.AddrFrom4([4]byte(msg[ip:]))
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(msg[port:]))
}
