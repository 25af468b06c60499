package introduce

import (
	"golang.org/x/sys/unix"
)

// A Verifier reads the pairing tokens that the kernel has stored with a TCP socket.
type Verifier interface {
	// Tokens returns the token of the socket fd and the token of its peer. An error means that the socket has
	// none.
	Tokens(fd int) (mine, theirs uint64, err error)
}

// An end is one end of a TCP connection, as the kernel knows it.
type end struct {
	cookie uint64 // of the socket
	key    pair
}

// A pair names a TCP connection: by the tokens of both ends.
type pair struct{ client, server uint64 }

// States of a TCP connection, linux/tcp_states.h. In these there is a peer that may still send or receive.
const (
	tcpEstablished = 1
	tcpFinWait1    = 4
	tcpFinWait2    = 5
	tcpCloseWait   = 8
)

func isLive(state uint8) bool {
	switch state {
	case tcpEstablished, tcpFinWait1, tcpFinWait2, tcpCloseWait:
		return true
	}
	return false
}

// prove finds out which end of which connection a descriptor is. The descriptor has come from a
// process, and may be anything.
func prove(v Verifier, fd int, role Role) (e end, refused Refusal) {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_INET && domain != unix.AF_INET6 {
		return e, RefusedSocket
	}
	// A socket of multipath TCP is of another protocol.
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_TCP { // rule: TestProofs
		return e, RefusedSocket
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return e, RefusedSocket
	}
	if !isLive(info.State) { // rule: TestProofs
		return e, RefusedSocket
	}
	if e.cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return e, RefusedSocket
	}
	mine, theirs, err := v.Tokens(fd)
	if err != nil || mine == 0 || theirs == 0 || mine == theirs {
		return e, RefusedToken
	}
	e.key = pair{client: mine, server: theirs}
	if role == RoleServer {
		e.key = pair{client: theirs, server: mine}
	}
	return e, 0
}
