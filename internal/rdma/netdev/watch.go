package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// State is the state of a device's interface.
type State struct {
	Up      bool // and has a carrier
	Address bool // the interface has the device's address
	MTU     wire.MTU
}

// A Watch notices changes of a device's interface. The kernel sends news of all interfaces of a
// network namespace; news of this one, or a loss of news, is the reason to ask how it is. So no
// order and no number of them matters.
//
// Both sockets are of the namespace that the device was opened in, no matter which thread asks.
type Watch struct {
	index int        // of the interface
	addr  netip.Addr // without zone
	news  *os.File
	ask   int // a socket for questions, used by one goroutine
	seq   uint32
	buf   []byte

	stopped chan struct{} // closed when Run has ended
}

// NewWatch makes the watch of an interface, which has the address addr. The error names the socket that a
// process may not have. The caller runs the watch, and closes it.
func NewWatch(index int, addr netip.Addr) (*Watch, error) {
	w := &Watch{
		index: index, addr: addr.WithZone(""), ask: -1, buf: make([]byte, 32<<10),
		stopped: make(chan struct{}),
	}
	const kind = unix.SOCK_RAW | unix.SOCK_CLOEXEC
	fd, err := unix.Socket(unix.AF_NETLINK, kind|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("rdma: interfaces are not watched: AF_NETLINK socket: %w", err)
	}
	w.news = os.NewFile(uintptr(fd), "netlink")
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err == nil {
		w.ask, err = unix.Socket(unix.AF_NETLINK, kind, unix.NETLINK_ROUTE)
	}
	if err == nil { // the kernel answers at once; this is for the case that it does not
		err = unix.SetsockoptTimeval(w.ask, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	}
	if err != nil {
		w.release()
		return nil, fmt.Errorf("rdma: interfaces are not watched: netlink: %w", err)
	}
	return w, nil
}

func (w *Watch) release() {
	w.news.Close()
	if w.ask >= 0 {
		unix.Close(w.ask)
	}
}

// Run tells of the state whenever it may have changed, and calls others when the states of other
// interfaces may have, until [Watch.Close].
func (w *Watch) Run(tell func(State), others func()) {
	defer close(w.stopped)
	buf := make([]byte, 16<<10)
	for {
		n, err := w.news.Read(buf)
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS: news were lost
			return
		}
		if err != nil || w.concerns(buf[:n], false) {
			others()
		}
		if err == nil && !w.concerns(buf[:n], true) {
			continue
		}
		if s, err := w.State(); err == nil {
			tell(s)
		}
	}
}

// Close ends [Watch.Run] and waits for that.
func (w *Watch) Close() {
	w.news.Close()
	<-w.stopped
	unix.Close(w.ask)
}

// concerns reports whether messages of the kernel are about the interface, or with own false about
// others. Those about links and those about addresses have its index at the same place: 4 bytes
// after the header.
func (w *Watch) concerns(b []byte, own bool) bool {
	for len(b) >= unix.SizeofNlMsghdr {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.SizeofNlMsghdr {
			return false
		}
		if len(b) >= unix.SizeofNlMsghdr+8 &&
			(int(binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr+4:])) == w.index) == own {
			return true
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	return false
}

// State asks the kernel. It is for one goroutine: that of [Watch.Run], once that has begun.
func (w *Watch) State() (s State, err error) {
	link := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(link[4:], uint32(w.index))
	err = w.query(unix.RTM_GETLINK, 0, link, func(m *syscall.NetlinkMessage) error {
		if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg ||
			int(binary.NativeEndian.Uint32(m.Data[4:])) != w.index {
			return nil
		}
		const running = unix.IFF_UP | unix.IFF_RUNNING // the latter: it has a carrier, or nobody knows
		flags := binary.NativeEndian.Uint32(m.Data[8:])
		s.Up = flags&running == running
		attrs, err := syscall.ParseNetlinkRouteAttr(m)
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_MTU && len(a.Value) >= 4 {
				s.MTU = MTU(w.addr, int(binary.NativeEndian.Uint32(a.Value)), flags&unix.IFF_LOOPBACK != 0)
			}
		}
		return err
	})
	if errors.Is(err, unix.ENODEV) {
		return State{MTU: pathMTU(0)}, nil
	}
	if err != nil {
		return s, err
	}
	if s.Address = w.addr.Is4() && w.addr.IsLoopback(); s.Address {
		return s, nil // all of 127.0.0.0/8 is there
	}
	family, attr := byte(unix.AF_INET), uint16(unix.IFA_LOCAL)
	if w.addr.Is6() {
		family, attr = unix.AF_INET6, unix.IFA_ADDRESS
	}
	request := make([]byte, unix.SizeofIfAddrmsg)
	request[0] = family
	return s, w.query(unix.RTM_GETADDR, unix.NLM_F_DUMP, request, func(m *syscall.NetlinkMessage) error {
		if m.Header.Type != unix.RTM_NEWADDR || len(m.Data) < unix.SizeofIfAddrmsg ||
			int(binary.NativeEndian.Uint32(m.Data[4:])) != w.index {
			return nil
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(m)
		for _, a := range attrs {
			if ip, ok := netip.AddrFromSlice(a.Value); ok && a.Attr.Type == attr && ip == w.addr {
				s.Address = true
			}
		}
		return err
	})
}

// query sends a request and calls f for each message of the answer.
func (w *Watch) query(kind, flags uint16, body []byte, f func(*syscall.NetlinkMessage) error) error {
	w.seq++
	request := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	binary.NativeEndian.PutUint32(request, uint32(cap(request)))
	binary.NativeEndian.PutUint16(request[4:], kind)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|flags)
	binary.NativeEndian.PutUint32(request[8:], w.seq)
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err := unix.Sendto(w.ask, append(request, body...), 0, kernel); err != nil {
		return err
	}
	for {
		n, _, err := unix.Recvfrom(w.ask, w.buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(w.buf[:n])
		if err != nil {
			return err
		}
		for i := range messages {
			m := &messages[i]
			switch {
			case m.Header.Seq != w.seq: // of a question that was given up
				continue
			case m.Header.Type == unix.NLMSG_DONE:
				return nil
			case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
				if errno := -int32(binary.NativeEndian.Uint32(m.Data)); errno != 0 {
					return unix.Errno(errno)
				}
				return nil
			}
			if err := f(m); err != nil {
				return err
			}
			if flags&unix.NLM_F_DUMP == 0 { // a single message
				return nil
			}
		}
	}
}
