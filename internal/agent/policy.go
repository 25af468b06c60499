package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/port"
)

// A Policy says which users may have a socket on a shared port. Root and the agent's own user
// always may.
type Policy struct {
	Users    []uint32 // numbers of users
	Groups   []uint32 // numbers of groups: their members, also by a supplementary group
	Everyone bool
}

// A client is a process that has connected, as the kernel says.
type client struct {
	pid           int
	user, group   uint32
	supplementary []uint32
	netns         uint64 // cookie of the network namespace in which its socket was made
}

// An account is the unit of the quotas: a user, or a range of them. A user number from 65,536 on
// counts with all that have the same upper 16 bits, because a user can own such a range for its
// user namespaces (subuid(5)). The programs in the kernel count the same way:
// bpf/kernel/option.bpf.c, quotas.
type account struct {
	user  uint32 // lowest of the range
	netns uint64 // of root outside of the agent's network namespace, such as a container's; 0 for others
}

// accountOf returns the account of a user in a network namespace, and reports whether it has
// quotas. Only root in the agent's own namespace has none.
func accountOf(user uint32, netns, own uint64) (a account, limited bool) {
	switch {
	case user == 0 && netns == own:
		return account{}, false
	case user == 0:
		return account{netns: netns}, true
	case user >= 1<<16:
		return account{user: user &^ 0xffff}, true
	}
	return account{user: user}, true
}

// identify asks the kernel for the client at the other end of c.
func identify(c *net.UnixConn) (who client, err error) {
	cred, err := port.Credentials(c)
	if err != nil {
		return who, err
	}
	who = client{pid: int(cred.Pid), user: cred.Uid, group: cred.Gid}
	raw, err := c.SyscallConn()
	if err != nil {
		return who, err
	}
	if cerr := raw.Control(func(fd uintptr) {
		if who.supplementary, err = peerGroups(fd); err == nil {
			// A socket that was accepted is of the namespace of the one that connected: Linux
			// net/unix/af_unix.c, unix_stream_connect.
			who.netns, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		}
	}); cerr != nil {
		err = cerr
	}
	return who, err
}

// peerGroups returns the supplementary groups of the peer of a Unix socket.
func peerGroups(fd uintptr) ([]uint32, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return groups[:size/4], nil
		case errors.Is(errno, unix.ERANGE) && int(size/4) > len(groups):
			groups = make([]uint32, size/4)
		default:
			return nil, errno
		}
	}
}

// allows returns nil if the client may have a socket.
func (p *Policy) allows(who *client) error {
	switch {
	case who.user == 0, int(who.user) == os.Geteuid(), p.Everyone, slices.Contains(p.Users, who.user), slices.Contains(p.Groups, who.group),
		slices.ContainsFunc(who.supplementary, func(g uint32) bool { return slices.Contains(p.Groups, g) }):
		return nil
	}
	return fmt.Errorf("user %d may not share a port; 'gosmc agent --user' and '--group' say who may", who.user)
}
