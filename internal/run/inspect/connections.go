package inspect

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/sockdiag"
)

// A Connection is one end of a connection that was moved. Both ends are on this machine, so there are two.
type Connection struct {
	Local, Peer  netip.AddrPort
	Server       bool // it has accepted
	Inode        uint64
	Cookie       uint64 // as SO_COOKIE; 0 of a TCP socket
	UID          uint32
	RecvQ, SendQ uint64 // bytes that the program has not read, and that its peer has not
	// a process that has the descriptor; 0 if it is another user's, or on its way to its program
	PID         int
	Command     string
	PeerPID     int // as PID, of the other end
	PeerCommand string
	Sends       bool // it has a ring in which its program sends, or is about to
	Receives    bool
	unique      uint64
	peer        uint64 // the inode of the other end
	boxed       bool   // it came out of a letterbox: its peer has the addresses
}

// Connections asks the kernel for the connections that were moved, in the network namespace of the
// calling thread.
func Connections() ([]Connection, error) {
	var list []Connection
	err := sockdiag.EachUnix(func(u sockdiag.UnixSocket) {
		if c, ok := connectionOf(u); ok {
			list = append(list, c)
		}
	})
	if err != nil {
		return nil, err
	}
	if list = mirrored(list); len(list) > 0 {
		sendQueues(list)
		owners(list)
	}
	return list, nil
}

// connectionOf returns the end that a Unix socket is. It reports false if it is none of ours.
func connectionOf(u sockdiag.UnixSocket) (c Connection, ok bool) {
	c = Connection{
		Inode: uint64(u.Inode), Cookie: u.Cookie, UID: u.UID, RecvQ: uint64(u.RecvQ),
		peer: uint64(u.Peer),
	}
	if n, ok := proto.ParseName(u.Name); ok {
		c.Local, c.Peer, c.Server, c.unique = n.Local, n.Peer, n.Role == proto.RoleServer, n.Unique
		return c, true
	}
	c.boxed = !strings.HasPrefix(u.Name, "@") && proto.IsBox(u.Name)
	c.Server = c.boxed
	return c, c.boxed
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
			list[i].Command = procs.Command(list[i].PID)
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
	ours, theirs := proto.RoleClient, proto.RoleServer
	if c.Server {
		ours, theirs = theirs, ours
	}
	c.Sends = strings.Contains(of, fmt.Sprintf("%016x.%c ", c.unique, ours))
	c.Receives = strings.Contains(of, fmt.Sprintf("%016x.%c ", c.unique, theirs))
}

// An Owner is a process that has a socket.
type Owner struct {
	PID     int // the lowest, if several have it
	Command string
}

// Owners returns the processes that have sockets with these inodes, as far as this user may see.
func Owners(inodes []uint64) map[uint64]Owner {
	if len(inodes) == 0 {
		return nil
	}
	list := make([]Connection, len(inodes))
	for i, inode := range inodes {
		list[i].Inode = inode
	}
	owners(list)
	found := make(map[uint64]Owner)
	for _, c := range list {
		if c.PID != 0 {
			found[c.Inode] = Owner{c.PID, c.Command}
		}
	}
	return found
}
