package sockdiag

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// timeoutSec bounds the wait for one answer of the kernel, in seconds.
const timeoutSec = 1

// bufferLen is as long as a part of a dump may be: the kernel fills at most 32 KiB.
const bufferLen = 32 << 10

// ErrNoSocket means that the kernel has no such socket.
var ErrNoSocket = errors.New("sockdiag: no such socket")

var errMalformed = errors.New("sockdiag: malformed answer")

// newRequest returns a request with room for a body of so many bytes, and the body.
func newRequest(flags uint16, bodyLen int) (request, body []byte) {
	return newRequestOf(unix.SOCK_DIAG_BY_FAMILY, flags, bodyLen)
}

// newRequestOf is newRequest for a request of another type.
func newRequestOf(kind, flags uint16, bodyLen int) (request, body []byte) {
	request = make([]byte, unix.SizeofNlMsghdr+bodyLen)
	binary.NativeEndian.PutUint32(request[0:], uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], kind)
	binary.NativeEndian.PutUint16(request[6:], flags)
	return request, request[unix.SizeofNlMsghdr:]
}

// ask sends a request and calls found for each message about a socket.
func ask(request []byte, found func(msg []byte)) error {
	return askOn(unix.NETLINK_SOCK_DIAG, request, found)
}

// askOn sends a request by a protocol of netlink, and calls found for each message that has the type
// of the request.
func askOn(protocol int, request []byte, found func(msg []byte)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	timeout := unix.Timeval{Sec: timeoutSec}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	kind := binary.NativeEndian.Uint16(request[4:])
	dump := binary.NativeEndian.Uint16(request[6:])&unix.NLM_F_DUMP == unix.NLM_F_DUMP
	buf := make([]byte, bufferLen)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		done, err := parse(buf[:n], kind, found)
		if done || err != nil || !dump {
			return err
		}
	}
}

// parse reads messages of a type, and reports whether the dump has ended.
func parse(b []byte, kind uint16, found func(msg []byte)) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(b))
		if length < unix.SizeofNlMsghdr || length > len(b) {
			return true, errMalformed
		}
		msg := b[unix.SizeofNlMsghdr:length]
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(msg) < 4 {
				return true, errMalformed
			}
			errno := unix.Errno(-int32(binary.NativeEndian.Uint32(msg)))
			if errno == unix.ENOENT {
				return true, ErrNoSocket
			}
			return true, os.NewSyscallError("sock_diag", errno)
		case kind:
			found(msg)
		}
		b = b[min(len(b), align(length)):]
	}
	return false, nil
}

// align rounds a length up to the 4 bytes at which the next message or attribute begins.
func align(length int) int { return (length + 3) &^ 3 }

// attributes calls found for each attribute. It reports false if one is malformed.
func attributes(b []byte, found func(kind uint16, value []byte)) bool {
	for len(b) >= unix.SizeofNlAttr {
		length := int(binary.NativeEndian.Uint16(b))
		if length < unix.SizeofNlAttr || length > len(b) {
			return false
		}
		found(binary.NativeEndian.Uint16(b[2:]), b[unix.SizeofNlAttr:length])
		b = b[min(len(b), align(length)):]
	}
	return true
}
