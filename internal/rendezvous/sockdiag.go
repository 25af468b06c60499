package rendezvous

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire/clc"
)

// errDiag is matched by errors that mean that the kernel could not be asked about sockets.
var errDiag = errors.New("sock_diag")

// errNoListener means that nobody listens at the address that was asked for.
var errNoListener = errors.New("nobody listens there")

// listenerOwner returns the user that owns the listening TCP socket at addr in the
// network namespace of the calling thread. Where several sockets would do, those bound to
// the very address count before those bound to any; different users there are an error.
func listenerOwner(addr netip.AddrPort) (uid uint32, err error) {
	var best *listening
	want := addr.Addr().Unmap().WithZone("")
	families := []uint8{unix.AF_INET6}
	if want.Is4() {
		families = append(families, unix.AF_INET)
	}
	for _, family := range families {
		sockets, err := listListening(family, addr.Port())
		if err != nil {
			return 0, err
		}
		for _, s := range sockets {
			exact := s.addr == want
			if !exact && !(s.addr.IsUnspecified() && (s.addr.Is6() || want.Is4())) {
				continue
			}
			s.exact = exact
			switch {
			case best == nil || exact && !best.exact:
				best = &s
			case exact == best.exact && s.uid != best.uid:
				return 0, fmt.Errorf("users %d and %d both listen at %v", s.uid, best.uid, addr)
			}
		}
	}
	if best == nil {
		return 0, errNoListener
	}
	return best.uid, nil
}

type listening struct {
	addr  netip.Addr // unmapped
	uid   uint32
	exact bool
}

// Sizes and offsets of struct inet_diag_req_v2 and struct inet_diag_msg, linux/inet_diag.h.
const (
	diagRequestLen = 56 // family, protocol, ext, pad, states(4), sockid(48)
	diagStates     = 4
	diagSport      = 8 // in the request; ports and addresses are big-endian
	diagDport      = 10
	diagSrc        = 12
	diagDst        = 28
	diagIface      = 44 // in host order
	diagCookie     = 48
	diagMsgLen     = 72
	diagMsgSport   = 4
	diagMsgSrc     = 8
	diagMsgCookie  = 44 // low half first, each half in host order
	diagMsgUID     = 64
	diagMsgInode   = 68
	tcpEstablished = 1
	tcpCloseWait   = 8
	tcpListen      = 10
)

// listListening asks the kernel for the listening sockets of a family on a port.
func listListening(family uint8, port uint16) ([]listening, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDiag, err)
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(int64(sockDiagTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, fmt.Errorf("%w: %w", errDiag, err)
	}
	req := make([]byte, unix.SizeofNlMsghdr+diagRequestLen)
	binary.NativeEndian.PutUint32(req[0:], uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := req[unix.SizeofNlMsghdr:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[diagStates:], 1<<tcpListen)
	binary.BigEndian.PutUint16(body[diagSport:], port)
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("%w: %w", errDiag, err)
	}
	var found []listening
	buf := make([]byte, 32<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errDiag, err)
		}
		done, err := parseDiag(buf[:n], family, port, &found)
		if err != nil || done {
			return found, err
		}
	}
}

// parseDiag reads netlink messages and says whether the dump has ended.
func parseDiag(b []byte, family uint8, port uint16, found *[]listening) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(b))
		if length < unix.SizeofNlMsghdr || length > len(b) {
			return true, fmt.Errorf("%w: malformed answer", errDiag)
		}
		msg := b[unix.SizeofNlMsghdr:length]
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_DONE:
			if len(msg) >= 4 { // the dump may have failed: the kernel has no module for it
				if errno := -int32(binary.NativeEndian.Uint32(msg)); errno > 0 {
					return true, fmt.Errorf("%w: %w", errDiag, unix.Errno(errno))
				}
			}
			return true, nil
		case unix.NLMSG_ERROR:
			if len(msg) < 4 {
				return true, fmt.Errorf("%w: malformed error", errDiag)
			}
			return true, fmt.Errorf("%w: %w", errDiag, unix.Errno(-int32(binary.NativeEndian.Uint32(msg))))
		case unix.SOCK_DIAG_BY_FAMILY:
			if len(msg) >= diagMsgLen && binary.BigEndian.Uint16(msg[diagMsgSport:]) == port {
				s := listening{uid: binary.NativeEndian.Uint32(msg[diagMsgUID:])}
				if family == unix.AF_INET {
					s.addr = netip.AddrFrom4([4]byte(msg[diagMsgSrc:]))
				} else {
					s.addr = netip.AddrFrom16([16]byte(msg[diagMsgSrc:])).Unmap()
				}
				*found = append(*found, s)
			}
		}
		b = b[min(len(b), (length+3)&^3):]
	}
	return false, nil
}

// ownerCache remembers for a moment which user listens where, so that a burst of connections asks
// the kernel once.
type ownerCache struct {
	mu      sync.Mutex
	entries map[netip.AddrPort]ownerEntry
}

type ownerEntry struct {
	uid uint32
	err error
	at  time.Time
}

func (c *ownerCache) owner(addr netip.AddrPort) (uint32, error) {
	c.mu.Lock()
	e, ok := c.entries[addr]
	c.mu.Unlock()
	if ok && time.Since(e.at) < ownerAge {
		return e.uid, e.err
	}
	e.uid, e.err = listenerOwner(addr)
	e.at = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil || len(c.entries) >= maxOwnerEntries {
		c.entries = make(map[netip.AddrPort]ownerEntry)
	}
	if e.err == nil { // a listener that is just starting must not be missed for a second
		c.entries[addr] = e
	}
	return e.uid, e.err
}

// diagReason is the reason to give when the owner of a listening socket could not be found.
func (p *Point) diagReason(err error) clc.Diagnosis {
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return clc.DiagNoFile
	case errors.Is(err, errDiag):
		return clc.DiagNoSockDiag
	}
	return clc.DiagStale // nobody listens there, or users that cannot be told apart
}
