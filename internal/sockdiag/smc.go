package sockdiag

import (
	"bufio"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Sizes of struct smc_diag_req and struct smc_diag_msg, and attributes, of linux/smc_diag.h.
const (
	smcRequestLen = 52
	smcMessageLen = 64

	smcConnInfo  = 1 // SMC_DIAG_CONNINFO: struct smc_diag_conninfo
	smcLGRInfo   = 2 // SMC_DIAG_LGRINFO: of SMC-R
	smcDMBInfo   = 4 // SMC_DIAG_DMBINFO: of SMC-D
	smcFallback  = 5 // SMC_DIAG_FALLBACK: struct smc_diag_fallback
	smcConnLen   = 76
	smcReasonLen = 8
)

// An SMCMode is the mode of a socket of the kernel's SMC.
type SMCMode uint8

// Modes, as linux/smc_diag.h numbers them.
const (
	SMCModeR   SMCMode = 0 // SMC-R
	SMCModeTCP SMCMode = 1 // it has fallen back
	SMCModeD   SMCMode = 2 // SMC-D
)

// An SMCSocket has the kernel's facts about a socket of AF_SMC.
type SMCSocket struct {
	Local, Peer netip.AddrPort // of the TCP socket inside of it, unmapped
	State       uint8          // of TCP where TCP has such a state: TCPEstablished, TCPClose, TCPListen
	Mode        SMCMode
	UID         uint32 // the user that owns the socket
	Inode       uint64

	RecvQ, SendQ   uint64 // bytes that the program has not read, that the peer's program has not
	RcvBuf, SndBuf uint64 // bytes; 0: not known
	Link           uint8  // of SMC-R: its link number; 0: not known
	Reason         uint32 // of the fall back, as the peer diagnosis of a Decline; 0: none
	PeerReason     uint32 // that the peer has sent
}

// SMC returns the sockets of the kernel's SMC in this network namespace. There are none where the
// kernel has no SMC, or it is not loaded, or this process may not ask.
func SMC() ([]SMCSocket, error) {
	// A question about a family of sockets that is not there could load modules.
	if !smcLoaded("/proc/net/protocols") {
		return nil, nil
	}
	request, body := newRequest(unix.NLM_F_REQUEST|unix.NLM_F_DUMP, smcRequestLen)
	body[0] = unix.AF_SMC
	body[3] = 1<<(smcConnInfo-1) | 1<<(smcLGRInfo-1) | 1<<(smcDMBInfo-1) | 1<<(smcFallback-1)
	var list []SMCSocket
	err := ask(request, func(msg []byte) {
		if s, ok := parseSMC(msg); ok && len(list) < maxSMC {
			list = append(list, s)
		}
	})
	if absent(err) {
		return list, nil // without smc_diag
	}
	return list, err
}

// absent reports whether the kernel has no such part, or this process may not ask it.
func absent(err error) bool {
	return errors.Is(err, ErrNoSocket) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) ||
		noNetlink(err)
}

// maxSMC is how many sockets of the kernel's SMC are listed.
const maxSMC = 1 << 16

// smcLoaded reports whether a table such as /proc/net/protocols has SMC.
func smcLoaded(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, _, _ := strings.Cut(lines.Text(), " "); name == "SMC" || name == "SMC6" {
			return true
		}
	}
	return false
}

// parseSMC reads a message about a socket of the kernel's SMC. It reports false if the message is cut
// short anywhere.
//
//	offset  size  field
//	     0     1  family: AF_SMC, or that of IP for a socket that was made with IPPROTO_SMC
//	     1     1  state
//	     2     1  mode
//	     3     1  shutdown
//	     4    48  struct inet_diag_sockid: ports (2, 2), addresses (16, 16), interface (4), cookie (8)
//	    52     4  user
//	    56     8  inode
//	    64        attributes
func parseSMC(msg []byte) (s SMCSocket, ok bool) {
	if len(msg) < smcMessageLen {
		return s, false
	}
	switch msg[0] {
	case unix.AF_SMC, unix.AF_INET, unix.AF_INET6:
	default:
		return s, false
	}
	s = SMCSocket{
		Local: smcAddress(msg, 8, 4), Peer: smcAddress(msg, 24, 6),
		State: msg[1], Mode: SMCMode(msg[2]),
		UID: binary.NativeEndian.Uint32(msg[52:]), Inode: binary.NativeEndian.Uint64(msg[56:]),
	}
	whole := true
	ok = attributes(msg[smcMessageLen:], func(kind uint16, v []byte) {
		u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(v[at:]) }
		switch {
		case kind == smcConnInfo && len(v) >= smcConnLen:
			s.SndBuf, s.RcvBuf = uint64(u32(4)), uint64(u32(8))
			// Cursors are in messages of the peer ("received") and of ours ("sent"): each has the
			// producer cursor of its sender's data, and the consumer cursor of the other direction.
			s.RecvQ = between(v[16:], v[40:], u32(8))
			unsent := between(v[52:], v[60:], u32(4))
			s.SendQ = between(v[32:], v[24:], u32(12)) + unsent
		case kind == smcLGRInfo && len(v) > 0:
			s.Link = v[0]
		case kind == smcFallback && len(v) >= smcReasonLen:
			s.Reason, s.PeerReason = u32(0), u32(4)
		case kind == smcConnInfo, kind == smcLGRInfo, kind == smcFallback:
			whole = false
		}
	})
	return s, ok && whole
}

// smcAddress is an address of a socket of AF_SMC, whose family does not say which version of IP it
// has: one of IPv4 has zeros behind its four bytes.
func smcAddress(msg []byte, ip, port int) netip.AddrPort {
	a := netip.AddrFrom16([16]byte(msg[ip:])).Unmap()
	if b := a.As16(); !a.Is4() && [12]byte(b[4:]) == [12]byte{} {
		a = netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(msg[port:]))
}

// between returns the bytes from a consumer cursor to a producer cursor of a buffer with a size; 0
// if they are none of it. A cursor has two reserved bytes, its wrap (2) and its count (4).
func between(producer, consumer []byte, size uint32) uint64 {
	p, c := binary.NativeEndian.Uint32(producer[4:]), binary.NativeEndian.Uint32(consumer[4:])
	n := int64(p) - int64(c)
	if binary.NativeEndian.Uint16(producer[2:]) != binary.NativeEndian.Uint16(consumer[2:]) {
		n += int64(size)
	}
	if n < 0 || n > int64(size) { // rule: TestParseSMC: n < 0 || n > int64(size) -> false
		return 0
	}
	return uint64(n)
}
