// Package netns joins network namespaces, for what gosmc measures and shows between two hosts on one machine.
package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Of rtnetlink(7), what it takes to join two network namespaces: a pair of virtual Ethernet
// interfaces, an address for each, and both up.

// VethName is what the interface is called in both namespaces, where there is one.
const VethName = "gosmc0"

// VethNames returns what interfaces are called where there are n.
func VethNames(n int) []string {
	names := []string{VethName}
	for i := 1; i < n; i++ {
		names = append(names, fmt.Sprintf("gosmc%d", i))
	}
	return names
}

// From linux/veth.h, which golang.org/x/sys/unix lacks.
const vethInfoPeer = 1

// netlinkTimeout bounds the wait for the kernel's answer.
const netlinkTimeoutSeconds = 5

// A Socket configures the network namespace of the thread that opened it.
type Socket struct {
	fd  int
	seq uint32
}

// Open opens one for the network namespace of the calling thread.
func Open() (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
		&unix.Timeval{Sec: netlinkTimeoutSeconds}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt", err)
	}
	return &Socket{fd: fd}, nil
}

// Close closes it.
func (s *Socket) Close() { unix.Close(s.fd) }

// do sends one request and waits for its acknowledgement.
func (s *Socket) do(what string, kind, flags uint16, body []byte) error {
	s.seq++
	m := make([]byte, 0, unix.NLMSG_HDRLEN+len(body))
	m = binary.NativeEndian.AppendUint32(m, uint32(unix.NLMSG_HDRLEN+len(body)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	m = binary.NativeEndian.AppendUint32(m, s.seq)
	m = binary.NativeEndian.AppendUint32(m, 0) // the kernel
	m = append(m, body...)
	if err := unix.Sendto(s.fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	answer := make([]byte, os.Getpagesize())
	for {
		n, _, err := unix.Recvfrom(s.fd, answer, 0)
		if err == unix.EINTR { // with a time limit the kernel does not go on by itself
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		errno, err := parseAck(answer[:n], s.seq)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", what, err)
		case errno == notOurAck:
			continue
		case errno != 0:
			return fmt.Errorf("%s: %w", what, errno)
		}
		return nil
	}
}

// notOurAck is what parseAck returns for a message that is no answer to the request.
const notOurAck = unix.Errno(1<<16 - 1)

// parseAck reads the message with which the kernel answers request seq.
//
//	offset  size  field
//	     0     4  length of the message
//	     4     2  kind: NLMSG_ERROR
//	     6     2  flags
//	     8     4  sequence number of the request
//	    12     4  port
//	    16     4  0, or a negative error number
//
// Then follows the request. All in the byte order of the machine: netlink(7).
func parseAck(m []byte, seq uint32) (unix.Errno, error) {
	if len(m) < unix.NLMSG_HDRLEN+4 {
		return 0, errors.New("netlink answers in a message that is too short")
	}
	if binary.NativeEndian.Uint32(m[8:]) != seq || binary.NativeEndian.Uint16(m[4:]) != unix.NLMSG_ERROR {
		return notOurAck, nil
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m[unix.NLMSG_HDRLEN:]))), nil
}

// appendAttr appends an attribute: its length, its type, the value, and zeros up to a multiple of four.
func appendAttr(b []byte, kind uint16, value []byte) []byte {
	const header = unix.SizeofRtAttr
	b = binary.NativeEndian.AppendUint16(b, uint16(header+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for n := len(value); n%4 != 0; n++ {
		b = append(b, 0)
	}
	return b
}

func nativeUint32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// linkBody is a struct ifinfomsg: family, type, index, flags, and which of the flags count.
func linkBody(index int32, flags, change uint32) []byte {
	b := []byte{unix.AF_UNSPEC, 0, 0, 0}
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = binary.NativeEndian.AppendUint32(b, flags)
	return binary.NativeEndian.AppendUint32(b, change)
}

// AddVeth makes a pair, one end here and one in the network namespace of process peer, both called
// name. mtu is in bytes.
func (s *Socket) AddVeth(name string, mtu, peer int) error {
	end := func(b []byte) []byte {
		b = appendAttr(b, unix.IFLA_IFNAME, append([]byte(name), 0))
		return appendAttr(b, unix.IFLA_MTU, nativeUint32(uint32(mtu)))
	}
	other := appendAttr(end(linkBody(0, 0, 0)), unix.IFLA_NET_NS_PID, nativeUint32(uint32(peer)))
	info := appendAttr(nil, unix.IFLA_INFO_KIND, []byte("veth"))
	info = appendAttr(info, unix.IFLA_INFO_DATA, appendAttr(nil, vethInfoPeer, other))
	body := appendAttr(end(linkBody(0, 0, 0)), unix.IFLA_LINKINFO, info)
	return s.do("make a veth pair", unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, body)
}

// addAddr gives the interface an IPv4 address.
func (s *Socket) addAddr(index int32, p netip.Prefix) error {
	body := []byte{unix.AF_INET, byte(p.Bits()), 0, unix.RT_SCOPE_UNIVERSE}
	body = binary.NativeEndian.AppendUint32(body, uint32(index))
	body = appendAttr(body, unix.IFA_LOCAL, p.Addr().AsSlice())
	body = appendAttr(body, unix.IFA_ADDRESS, p.Addr().AsSlice())
	return s.do("give an interface its address", unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, body)
}

func (s *Socket) setUp(index int32) error {
	return s.do("bring an interface up", unix.RTM_NEWLINK, 0, linkBody(index, unix.IFF_UP, unix.IFF_UP))
}

// SetDown takes an interface in the network namespace of this thread down.
func (s *Socket) SetDown(name string) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	return s.do("take an interface down", unix.RTM_NEWLINK, 0, linkBody(int32(i.Index), 0, unix.IFF_UP))
}

// nowhere is the hardware address of no interface: locally administered, see IEEE 802.
var nowhere = []byte{2, 0, 0, 0, 0, 0x99}

// Misdirect has packets to an IPv4 address that leave by an interface go to hardware that is not
// there: they vanish, and nobody is told.
func (s *Socket) Misdirect(name string, addr netip.Addr) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	// A struct ndmsg: family, padding, index, state, flags and type.
	body := []byte{unix.AF_INET, 0, 0, 0}
	body = binary.NativeEndian.AppendUint32(body, uint32(i.Index))
	body = binary.NativeEndian.AppendUint16(body, unix.NUD_PERMANENT)
	body = append(body, 0, 0)
	body = appendAttr(body, unix.NDA_DST, addr.AsSlice())
	body = appendAttr(body, unix.NDA_LLADDR, nowhere)
	return s.do("give a neighbour another address", unix.RTM_NEWNEIGH,
		unix.NLM_F_CREATE|unix.NLM_F_REPLACE, body)
}

// SetUpVeth gives our end of a pair, in the network namespace of this thread, its address
// and brings it up.
func (s *Socket) SetUpVeth(name string, p netip.Prefix) error {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	if err := s.addAddr(int32(i.Index), p); err != nil {
		return err
	}
	return s.setUp(int32(i.Index))
}

// In calls a function on a thread in the network namespace of a process. The thread ends with it.
func In(pid int, f func() error) error { return InFile(fmt.Sprintf("/proc/%d/ns/net", pid), f) }

// InFile calls a function on a thread in the network namespace that a file stands for, such as one
// in /run/netns. The thread is of no use to anybody else, and ends with the function; threads that
// the function starts are elsewhere, and so is what it reads in /proc/self and /proc/net. A file that
// stands for no network namespace is [unix.EINVAL].
func InFile(path string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		done <- inFile(path, f)
	}()
	return <-done
}

// inFile is InFile for a thread that has nothing else to do. The thread comes back: the first one of
// a process stays when its goroutine ends, and the process is then seen in that one's namespace.
func inFile(path string, f func() error) error {
	open := func(path string) (int, error) {
		// a FIFO, too, does not wait
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
	own, err := open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer unix.Close(own)
	ns, err := open(path)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return os.NewSyscallError("setns", err)
	}
	defer unix.Setns(own, unix.CLONE_NEWNET)
	return f()
}

// carrierTimeout bounds the wait for interfaces to be running, and carrierLook is how often it is looked.
const (
	carrierTimeout = 5 * time.Second
	carrierLook    = time.Millisecond
)

// AwaitRunning waits until interfaces in the network namespace of this thread are running: the
// kernel sees the other end of a pair a moment after it came up.
func AwaitRunning(names []string) error {
	for deadline := time.Now().Add(carrierTimeout); ; time.Sleep(carrierLook) {
		missing := ""
		for _, name := range names {
			i, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			if i.Flags&net.FlagRunning == 0 {
				missing = name
			}
		}
		if missing == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("interface %s does not run", missing)
		}
	}
}

// SetUpVethOf sets up the end of a pair in the network namespace of a process.
func SetUpVethOf(pid int, name string, p netip.Prefix) error {
	return In(pid, func() error {
		s, err := Open()
		if err != nil {
			return err
		}
		defer s.Close()
		return s.SetUpVeth(name, p)
	})
}

// Join makes a veth pair between the network namespaces of two processes, gives each end its
// address, and brings both up.
func Join(mtu, a int, addrA netip.Prefix, b int, addrB netip.Prefix) error {
	err := In(a, func() error {
		s, err := Open()
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.AddVeth(VethName, mtu, b); err != nil {
			return err
		}
		return s.SetUpVeth(VethName, addrA)
	})
	if err != nil {
		return err
	}
	return SetUpVethOf(b, VethName, addrB)
}
