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

// isLive reports whether a TCP socket has a peer that may still send or receive, as far as tokens do not
// say it: a socket that is not connected yet has none. TCP_INFO would wait for a system call that a
// process has under way on the socket, which takes as long as that likes.
func isLive(fd int) bool {
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || listens != 0 {
		return false
	}
	state := []unix.PollFd{{Fd: int32(fd)}}
	_, err = unix.Poll(state, 0)
	for err == unix.EINTR {
		_, err = unix.Poll(state, 0)
	}
	return err == nil && state[0].Revents&unix.POLLHUP == 0 // closed, or shut down both ways
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
	if !isLive(fd) { // rule: TestProofs
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
