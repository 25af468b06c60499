package run

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Connection is one end of a connection that was moved. Both ends are on this machine, so there are two.
type Connection struct {
	Local, Peer  netip.AddrPort
	Server       bool // it has accepted
	Inode        uint64
	UID          uint32
	RecvQ, SendQ uint64 // bytes that the program has not read, and that its peer has not
	PID          int    // a process that has the descriptor; 0 if it is another user's, or on its way to its program
	Command      string
	PeerPID      int // as PID, of the other end
	PeerCommand  string
	Sends        bool // it has a ring in which its program sends, or is about to
	Receives     bool
	unique       uint64
	peer         uint64 // the inode of the other end
	boxed        bool   // it came out of a letterbox: its peer has the addresses
}

// Sizes, attributes and flags of linux/unix_diag.h.
const (
	unixRequestLen = 24
	unixMsgLen     = 16
	unixName       = 0
	unixPeer       = 2
	unixQueues     = 4
	unixUID        = 7
	unixShow       = 0x01 | 0x04 | 0x10 | 0x40
)

// Connections asks the kernel for the connections that were moved, in the network namespace of the
// calling thread.
func Connections() ([]Connection, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: diagTimeoutSec}); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	req := make([]byte, unix.SizeofNlMsghdr+unixRequestLen)
	binary.NativeEndian.PutUint32(req[0:], uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := req[unix.SizeofNlMsghdr:]
	body[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(body[4:], 1<<1) // established
	binary.NativeEndian.PutUint32(body[12:], unixShow)
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	var list []Connection
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		done, err := parseUnix(buf[:n], &list)
		if err != nil {
			return nil, err
		}
		if done {
			break
		}
	}
	if list = mirrored(list); len(list) > 0 {
		sendQueues(list)
		owners(list)
	}
	return list, nil
}

// parseUnix reads netlink messages, adds the ends of ours to list, and says whether the dump has ended.
func parseUnix(b []byte, list *[]Connection) (done bool, err error) {
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
			if len(msg) < 4 {
				return true, errMessage
			}
			return true, os.NewSyscallError("sock_diag", unix.Errno(-int32(binary.NativeEndian.Uint32(msg))))
		case unix.SOCK_DIAG_BY_FAMILY:
			if c, ok := parseEnd(msg); ok {
				*list = append(*list, c)
			}
		}
		b = b[min(len(b), (length+3)&^3):]
	}
	return false, nil
}

func parseEnd(msg []byte) (c Connection, ok bool) {
	if len(msg) < unixMsgLen {
		return c, false
	}
	c.Inode = uint64(binary.NativeEndian.Uint32(msg[4:]))
	for msg = msg[unixMsgLen:]; len(msg) >= 4; {
		length := int(binary.NativeEndian.Uint16(msg))
		if length < 4 || length > len(msg) {
			return c, false
		}
		value := msg[4:length]
		switch attribute := binary.NativeEndian.Uint16(msg[2:]); {
		case attribute == unixName && len(value) > 0 && value[0] == 0:
			n, ours := parseName("@" + string(value[1:]))
			c.Local, c.Peer, c.Server, c.unique, ok = n.local, n.peer, n.role == roleServer, n.unique, ours
		case attribute == unixName && len(value) > 0:
			c.Server, c.boxed = true, isBox(string(bytes.TrimRight(value, "\x00")))
			ok = c.boxed
		case attribute == unixPeer && len(value) >= 4:
			c.peer = uint64(binary.NativeEndian.Uint32(value))
		case attribute == unixQueues && len(value) >= 8:
			c.RecvQ = uint64(binary.NativeEndian.Uint32(value))
		case attribute == unixUID && len(value) >= 4:
			c.UID = binary.NativeEndian.Uint32(value)
		}
		msg = msg[min(len(msg), (length+3)&^3):]
	}
	return c, ok
}

// mirrored gives server's ends that came out of letterboxes the addresses of their peers, and
// leaves out ends with a closed peer, and other sockets.
func mirrored(list []Connection) []Connection {
	clients := make(map[uint64]*Connection)
	for i := range list {
		if !list[i].Server {
			clients[list[i].Inode] = &list[i]
		}
	}
	var known []Connection
	for _, c := range list {
		if c.boxed {
			client := clients[c.peer]
			if client == nil {
				continue
			}
			c.Local, c.Peer, c.unique = client.Peer, client.Local, client.unique
		}
		known = append(known, c)
	}
	return known
}

// sendQueues gives each end the number of bytes that its peer has not read: the kernel counts
// memory on the sending side, not bytes.
func sendQueues(list []Connection) {
	type ends struct{ local, peer netip.AddrPort }
	unread := make(map[ends]uint64, len(list))
	for _, c := range list {
		unread[ends{c.Local, c.Peer}] = c.RecvQ
	}
	for i := range list {
		list[i].SendQ = unread[ends{list[i].Peer, list[i].Local}]
	}
}

// owners finds processes by their descriptors. Of several that have one the first that started counts.
func owners(list []Connection) {
	byInode := make(map[string]*Connection, len(list))
	for i := range list {
		byInode[socketLink(list[i].Inode)] = &list[i]
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		pid, err := strconv.Atoi(filepath.Base(process))
		if err != nil {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(process, "fd"))
		if err != nil {
			continue
		}
		for _, e := range entries {
			target, err := os.Readlink(filepath.Join(process, "fd", e.Name()))
			if c := byInode[target]; err == nil && c != nil && (c.PID == 0 || pid < c.PID) {
				c.PID = pid
			}
		}
	}
	rings := make(map[int]string)
	for i := range list {
		if list[i].PID != 0 {
			if _, ok := rings[list[i].PID]; !ok {
				rings[list[i].PID] = ringsOf(list[i].PID)
			}
			list[i].rings(rings[list[i].PID])
			list[i].Command = commandOf(list[i].PID)
		}
	}
	for i := range list {
		if peer := byInode[socketLink(list[i].peer)]; peer != nil {
			list[i].PeerPID, list[i].PeerCommand = peer.PID, peer.Command
		}
	}
}

// socketLink is the text of the link of a descriptor of the socket with an inode.
func socketLink(inode uint64) string {
	return "socket:[" + strconv.FormatUint(inode, 10) + "]"
}

// ringName begins the name of a ring's memory. The connection, in 16 digits, and the role of the
// writer follow.
const ringName = "/memfd:gosmc-ring."

// ringsOf returns the lines of a process's memory map that are rings.
func ringsOf(pid int) string {
	maps, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "maps"))
	if err != nil {
		return ""
	}
	var found strings.Builder
	for line := range strings.Lines(string(maps)) {
		if _, name, ok := strings.Cut(line, ringName); ok {
			found.WriteString(name)
		}
	}
	return found.String()
}

// rings looks which of its directions have rings.
func (c *Connection) rings(of string) {
	ours, theirs := roleClient, roleServer
	if c.Server {
		ours, theirs = theirs, ours
	}
	c.Sends = strings.Contains(of, fmt.Sprintf("%016x.%c ", c.unique, ours))
	c.Receives = strings.Contains(of, fmt.Sprintf("%016x.%c ", c.unique, theirs))
}
