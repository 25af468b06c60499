package rendezvous

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// An endSocket is one end of a TCP connection of this host.
type endSocket struct {
	cookie uint64 // as SO_COOKIE
	uid    uint32 // the user that has made it
	inode  uint32 // 0 as long as nobody has accepted it
}

// An endFinder asks the kernel for the other end of connections. It keeps its netlink socket,
// since making one takes longer than asking.
type endFinder struct {
	mu    sync.Mutex
	open  bool
	done  bool // close was called
	fd    int
	netns uint64 // of fd
	seq   uint32 // of the last question
}

// ready makes the netlink socket, so that later there need be no descriptor for it.
func (f *endFinder) ready() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.readyLocked()
}

func (f *endFinder) readyLocked() error {
	if f.open || f.done {
		return nil
	}
	fd, err := diagSocket()
	if err != nil {
		return err
	}
	f.netns, err = netnsOf(fd)
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("%w: %w", errDiag, err)
	}
	f.fd, f.open = fd, true
	return nil
}

// find returns the socket that has the own address local and is connected to remote, in a network
// namespace named by its cookie, and that is bound to none but one of these interfaces. The kernel
// finds one that is bound only if its interface is in the question. Errors match errDiag if it was
// not possible to ask.
func (f *endFinder) find(netns uint64, local, remote netip.AddrPort, ifaces ...uint32) (endSocket, error) {
	s, err := f.ask(netns, local, remote, 0)
	for _, iface := range ifaces {
		if iface != 0 && errors.Is(err, errNoSocket) {
			s, err = f.ask(netns, local, remote, iface)
		}
	}
	return s, err
}

func (f *endFinder) ask(netns uint64, local, remote netip.AddrPort, iface uint32) (endSocket, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.readyLocked(); err != nil {
		return endSocket{}, err
	}
	if !f.open || f.netns != netns {
		return otherEnd(local, remote, iface) // a process in several namespaces
	}
	f.seq++
	s, err := askEnd(f.fd, f.seq, local, remote, iface)
	if errors.Is(err, errDiagSocket) {
		unix.Close(f.fd)
		f.open = false
	}
	return s, err
}

// release gives the netlink socket back, until the next question.
func (f *endFinder) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open {
		unix.Close(f.fd)
	}
	f.open = false
}

// close gives the netlink socket back.
func (f *endFinder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open {
		unix.Close(f.fd)
	}
	f.open, f.done = false, true
}

// otherEnd is endFinder.ask in the network namespace of the calling thread.
func otherEnd(local, remote netip.AddrPort, iface uint32) (endSocket, error) {
	fd, err := diagSocket()
	if err != nil {
		return endSocket{}, err
	}
	defer unix.Close(fd)
	return askEnd(fd, 1, local, remote, iface)
}

// CookieOf returns the cookie of the socket that has the own address local and is connected to
// remote, in the network namespace of the calling thread.
func CookieOf(local, remote netip.AddrPort) (uint64, error) {
	s, err := otherEnd(local, remote, 0)
	return s.cookie, err
}

func diagSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", errDiag, err)
	}
	return fd, nil
}

// errDiagSocket means that a netlink socket is out of step, and is to be replaced.
var errDiagSocket = fmt.Errorf("%w: unexpected answer", errDiag)

// errNoSocket means that there is no such connection.
var errNoSocket = errors.New("no such socket")

// askEnd asks on a netlink socket for one socket. seq tells the answer from older ones.
func askEnd(fd int, seq uint32, local, remote netip.AddrPort, iface uint32) (endSocket, error) {
	family, addrLen := byte(unix.AF_INET6), 16
	if local.Addr().Is4() {
		family, addrLen = unix.AF_INET, 4
	}
	var req [unix.SizeofNlMsghdr + diagRequestLen]byte
	binary.NativeEndian.PutUint32(req[0:], uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], unix.SOCK_DIAG_BY_FAMILY)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(req[8:], seq)
	body := req[unix.SizeofNlMsghdr:]
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[diagStates:], 1<<tcpEstablished|1<<tcpCloseWait)
	binary.BigEndian.PutUint16(body[diagSport:], local.Port())
	binary.BigEndian.PutUint16(body[diagDport:], remote.Port())
	copy(body[diagSrc:][:addrLen], local.Addr().AsSlice())
	copy(body[diagDst:][:addrLen], remote.Addr().AsSlice())
	binary.NativeEndian.PutUint32(body[diagIface:], iface)
	binary.NativeEndian.PutUint64(body[diagCookie:], ^uint64(0)) // INET_DIAG_NOCOOKIE
	if err := unix.Sendto(fd, req[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return endSocket{}, fmt.Errorf("%w: %w", errDiagSocket, err)
	}
	var buf [1024]byte
	// the kernel has answered before Sendto returned
	n, _, err := unix.Recvfrom(fd, buf[:], unix.MSG_DONTWAIT)
	if err != nil {
		return endSocket{}, fmt.Errorf("%w: %w", errDiagSocket, err)
	}
	return parseEnd(buf[:n], seq)
}

// parseEnd reads the answer to a question for one socket.
func parseEnd(b []byte, seq uint32) (endSocket, error) {
	if len(b) < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint32(b[8:]) != seq {
		return endSocket{}, errDiagSocket
	}
	msg := b[unix.SizeofNlMsghdr:]
	switch kind := binary.NativeEndian.Uint16(b[4:]); {
	case kind == unix.NLMSG_ERROR:
		errno := unix.Errno(-int32(binary.NativeEndian.Uint32(msg)))
		if errno == unix.ENOENT {
			return endSocket{}, errNoSocket
		}
		return endSocket{}, fmt.Errorf("%w: %w", errDiag, errno)
	case kind != unix.SOCK_DIAG_BY_FAMILY || len(msg) < diagMsgLen:
		return endSocket{}, errDiagSocket
	}
	low, high := binary.NativeEndian.Uint32(msg[diagMsgCookie:]), binary.NativeEndian.Uint32(msg[diagMsgCookie+4:])
	return endSocket{
		cookie: uint64(high)<<32 | uint64(low),
		uid:    binary.NativeEndian.Uint32(msg[diagMsgUID:]),
		inode:  binary.NativeEndian.Uint32(msg[diagMsgInode:]),
	}, nil
}
