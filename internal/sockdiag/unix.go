package sockdiag

import (
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"
)

// Sizes, attributes and flags of linux/unix_diag.h.
const (
	unixRequestLen = 24
	unixMessageLen = 16
	unixName       = 0
	unixPeer       = 2
	unixQueues     = 4
	unixUID        = 7
	unixShow       = 0x01 | 0x04 | 0x10 | 0x40
)

// A UnixSocket has the kernel's facts about a Unix socket.
type UnixSocket struct {
	Name   string // "@" and an abstract name, or a path; "" if the socket has none
	Inode  uint32
	Cookie uint64 // as SO_COOKIE
	Peer   uint32 // the inode of the other end
	RecvQ  uint32 // bytes that its program has not read
	UID    uint32 // the user that owns the socket
}

// EachUnix asks for the connected Unix sockets and calls found for each.
func EachUnix(found func(UnixSocket)) error {
	request, body := newRequest(unix.NLM_F_REQUEST|unix.NLM_F_DUMP, unixRequestLen)
	body[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(body[4:], 1<<TCPEstablished)
	binary.NativeEndian.PutUint32(body[12:], unixShow)
	return ask(request, func(msg []byte) {
		if s, ok := parseUnix(msg); ok {
			found(s)
		}
	})
}

// parseUnix reads a message about a Unix socket.
func parseUnix(msg []byte) (s UnixSocket, ok bool) {
	if len(msg) < unixMessageLen {
		return s, false
	}
	s.Inode = binary.NativeEndian.Uint32(msg[4:])
	s.Cookie = uint64(binary.NativeEndian.Uint32(msg[8:])) | uint64(binary.NativeEndian.Uint32(msg[12:]))<<32
	ok = attributes(msg[unixMessageLen:], func(kind uint16, value []byte) {
		switch {
		case kind == unixName && len(value) > 0 && value[0] == 0:
			s.Name = "@" + string(value[1:])
		case kind == unixName:
			s.Name = strings.TrimRight(string(value), "\x00")
		case kind == unixPeer && len(value) >= 4:
			s.Peer = binary.NativeEndian.Uint32(value)
		case kind == unixQueues && len(value) >= 8:
			s.RecvQ = binary.NativeEndian.Uint32(value)
		case kind == unixUID && len(value) >= 4:
			s.UID = binary.NativeEndian.Uint32(value)
		}
	})
	return s, ok
}
