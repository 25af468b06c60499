package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/frame"
)

// AnyInterface is the name that [Live] takes for all interfaces together.
const AnyInterface = "any"

// LiveOptions say how [Live] captures. The zero value is useful.
type LiveOptions struct {
	// Promiscuous captures frames for other hosts, too. It is ignored for AnyInterface.
	Promiscuous bool

	// SnapLen is the most bytes that are kept of a packet, from MinSnapLen to MaxPacket, not counting
	// a VLAN tag that the kernel had taken out and a cooked header. 0 means MaxPacket.
	SnapLen int

	// BufferBytes is the room for packets that the kernel has captured and Next has not returned yet.
	// It is rounded up to whole megabytes, at least two and at most 1,024. 0 means
	// DefaultBufferBytes. Packets that come when it is full are dropped and counted.
	BufferBytes int
}

// LiveStats count the packets of a live capture since its beginning.
type LiveStats struct {
	// passed the kernel's filter, with those dropped; over the loopback interface each is two
	Received  uint64
	Dropped   uint64 // had no room in the buffer
	Unrelated uint64 // passed the kernel's filter and turned out not to belong to SMC
}

// A LiveSource is a [Source] that captures on an interface. Its packets come as long as they are
// there: Next waits until Close, and then returns [io.EOF]. To end it with a context:
//
//	stop := context.AfterFunc(ctx, func() { source.Close() })
//	defer stop()
type LiveSource interface {
	Source

	// Stats returns the counts; after Close it returns the counts at the time of Close. It may be
	// called from any goroutine.
	Stats() LiveStats
}

// Live captures packets of SMC on the interface of that name, or on all with [AnyInterface]: TCP
// segments with the SMC option, the beginnings and ends of the connections that showed it or a CLC
// message, and all of UDP port 4791. Two filters choose, one in the kernel and one here; see
// liveFilter and flows in the code for their rules.
//
// Link is [frame.Ethernet] for Ethernet and the loopback interface, [frame.Cooked2] for any other and for
// AnyInterface. VLAN tags that the kernel or the adapter has taken out are put back. Times are the
// kernel's, in nanoseconds. A packet over the loopback interface comes once.
//
// It needs CAP_NET_RAW, and says so in the error if that is missing. The Source begins to capture
// before Live returns, in the network namespace of the caller's thread.
//
// It uses a packet socket with a ring in shared memory (TPACKET_V3 of Linux) and not mdlayher/packet
// (version 1.2.0): that makes a system call for each packet, and cannot give times, VLAN tags and
// all interfaces together, since it reads no control data and has no socket without an interface.
func Live(name string, opts LiveOptions) (LiveSource, error) {
	switch {
	case opts.SnapLen == 0:
		opts.SnapLen = MaxPacket
	case opts.SnapLen < MinSnapLen || opts.SnapLen > MaxPacket:
		return nil, fmt.Errorf("a snapshot length of %d bytes: it can be %d to %d", opts.SnapLen,
			MinSnapLen, MaxPacket)
	}
	if opts.BufferBytes == 0 {
		opts.BufferBytes = DefaultBufferBytes
	}
	opts.BufferBytes = min(max(opts.BufferBytes, minBufferBytes), maxBufferBytes)
	index := 0
	if name != AnyInterface {
		ifi, err := net.InterfaceByName(name)
		if err != nil {
			return nil, noInterface(name, err)
		}
		index = ifi.Index
	}
	cooked := index == 0
	l := &live{name: name, flows: newFlows(maxFlows)}
	if err := l.open(index, cooked, opts); err != nil {
		return nil, liveError(name, err)
	}
	return l, nil
}

// noInterface says that there is no interface of a name, and which there are.
func noInterface(name string, err error) error {
	all, listErr := net.Interfaces()
	if listErr != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	names := make([]string, len(all))
	for i, ifi := range all {
		if names[i] = ifi.Name; ifi.Name == name {
			return fmt.Errorf("interface %s: %w", name, err)
		}
	}
	slices.Sort(names)
	return fmt.Errorf("there is no interface %s, only %s, and %q for all", name, strings.Join(names, ", "),
		AnyInterface)
}

// liveError adds advice for the user to an error.
func liveError(name string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("capturing on %s needs the capability CAP_NET_RAW: run it with sudo, "+
			"or give it to the program with 'sudo setcap cap_net_raw+ep PROGRAM': %w", name, err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("capturing on %s needs packet sockets, which this kernel does not have: %w", name, err)
	}
	return fmt.Errorf("capturing on %s: %w", name, err)
}

// A live is the Source that Live makes.
type live struct {
	name   string
	cooked bool // packets begin with the network header, and get a cooked one
	file   *os.File
	raw    syscall.RawConn

	packet Packet
	buf    []byte // of packet.Data
	flows  *flows

	mu    sync.Mutex // guards the fields below, and the ring's memory
	ring  *ring      // nil once closed
	stats LiveStats
	downs int  // how often the interface went down
	told  int  // of those, by Next
	gone  bool // the interface was removed
	ended bool // which Next has told
}

// open makes the socket. No packet comes before the filter and the ring are there, since the
// socket has no protocol until it is bound.
func (l *live) open(index int, cooked bool, opts LiveOptions) error {
	kind, err := hardwareKind(index)
	if err != nil {
		return err
	}
	l.cooked = cooked || kind != unix.ARPHRD_ETHER && kind != unix.ARPHRD_LOOPBACK
	socketType := unix.SOCK_RAW
	if l.cooked {
		socketType = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_PACKET, socketType|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	l.file = os.NewFile(uintptr(fd), "packet socket on "+l.name)
	if err := l.setUp(fd, index, opts); err != nil {
		l.file.Close()
		return err
	}
	return nil
}

func (l *live) setUp(fd, index int, opts LiveOptions) (err error) {
	if err := attachFilter(fd, l.cooked, opts.SnapLen); err != nil {
		return err
	}
	if l.raw, err = l.file.SyscallConn(); err != nil {
		return err
	}
	if l.ring, err = newRing(fd, opts.BufferBytes, l.cooked); err != nil {
		return err
	}
	if opts.Promiscuous && index != 0 {
		err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC})
		err = os.NewSyscallError("setsockopt PACKET_ADD_MEMBERSHIP", err)
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{
			Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: index,
		}))
	}
	if err != nil {
		l.ring.close()
	}
	return err
}

// networkOrder is v such that its bytes in memory are in network order.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// hardwareKind returns the ARPHRD number of an interface, 0 for index 0.
func hardwareKind(index int) (uint16, error) {
	if index == 0 {
		return 0, nil
	}
	ifi, err := net.InterfaceByIndex(index)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(ifi.Name)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFHWADDR, request); err != nil {
		return 0, os.NewSyscallError("ioctl SIOCGIFHWADDR", err)
	}
	return request.Uint16(), nil // a sockaddr, whose family is the kind
}

// attachFilter gives the kernel the program of liveFilter.
func attachFilter(fd int, cooked bool, snapLen int) error {
	raw, err := bpf.Assemble(liveFilter(cooked, uint32(snapLen)))
	if err != nil {
		return err
	}
	program := make([]unix.SockFilter, len(raw))
	for i, ins := range raw {
		program[i] = unix.SockFilter{Code: ins.Op, Jt: ins.Jt, Jf: ins.Jf, K: ins.K}
	}
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET,
		unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}))
}

// Next implements [Source].
func (l *live) Next() (*Packet, error) {
	for {
		found, err := l.take()
		switch {
		case err != nil:
			return nil, err
		case found:
			return &l.packet, nil
		}
		if err := l.wait(); err != nil {
			return nil, err
		}
	}
}

// take copies the next packet that is wanted out of the ring, if there is one.
func (l *live) take() (found bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.ring == nil {
			return false, io.EOF
		}
		f, ok, err := l.ring.next()
		if err != nil {
			return false, l.fault(err)
		}
		if !ok {
			return false, nil
		}
		switch {
		case f.kind == unix.PACKET_OUTGOING && f.hardware == unix.ARPHRD_LOOPBACK:
			// It comes in, too.
		case !l.flows.wanted(f.network(l.cooked)):
			l.stats.Unrelated++
		default:
			l.buf = f.appendTo(l.buf[:0], l.cooked)
			p := &l.packet
			p.Number++
			p.Time = time.Unix(int64(f.sec), int64(f.nsec)).UTC()
			p.Data = l.buf
			p.OrigLen = int(f.length) + len(l.buf) - len(f.data)
			if p.Link = frame.Ethernet; l.cooked {
				p.Link = frame.Cooked2
			}
			return true, nil
		}
	}
}

// fault is an error in place of the next packet.
func (l *live) fault(err error) error {
	return &Error{Name: l.name, Packet: l.packet.Number + 1, Offset: -1, Err: err}
}

// wait returns when there may be something in the ring, or the caller has to be told of an event.
// It returns the errors of Next.
func (l *live) wait() error {
	var failed error
	err := l.raw.Read(func(fd uintptr) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ring == nil || l.ring.ready() {
			return true
		}
		failed = l.look(int(fd))
		return failed != nil || l.gone || l.downs > l.told
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ring == nil:
		return io.EOF
	case failed != nil:
		return l.fault(failed)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return l.lookSoon()
	case err != nil:
		return l.fault(err)
	case l.ring.ready():
		return nil
	case l.ended:
		return io.EOF
	case l.gone:
		l.ended = true
		return l.fault(ErrGone)
	case l.downs > l.told:
		l.told = l.downs
		if err := l.lookSoon(); err != nil {
			return err
		}
		return l.fault(ErrDown)
	}
	return nil
}

// lookSoon lets wait look after the interface although the kernel says nothing.
func (l *live) lookSoon() error {
	if err := l.file.SetReadDeadline(time.Now().Add(downPatience)); err != nil {
		return l.fault(err)
	}
	return nil
}

// look finds out whether the interface is down or removed. The kernel tells when it goes down; that
// it was removed afterwards shows only in that the socket has none. It returns any other error of
// the socket. l.mu is held.
func (l *live) look(fd int) error {
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return os.NewSyscallError("getsockopt SO_ERROR", err)
	case syscall.Errno(errno) == unix.ENETDOWN:
		l.downs++
	case errno != 0:
		return os.NewSyscallError("packet socket", syscall.Errno(errno))
	}
	if l.downs == 0 {
		return nil
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	if ll, ok := name.(*unix.SockaddrLinklayer); ok && ll.Ifindex < 0 {
		l.gone = true
	}
	return nil
}

// Stats implements [LiveSource].
func (l *live) Stats() LiveStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count()
	return l.stats
}

// count adds the packets that the kernel counted since it was asked last. l.mu is held.
func (l *live) count() {
	if l.ring == nil {
		return
	}
	// An error of the file is that it is closed, and the counts stay as they are.
	_ = l.raw.Control(func(fd uintptr) {
		if s, err := unix.GetsockoptTpacketStatsV3(int(fd), unix.SOL_PACKET,
			unix.PACKET_STATISTICS); err == nil {
			l.stats.Received += uint64(s.Packets)
			l.stats.Dropped += uint64(s.Drops)
		}
	})
}

// Close implements [Source].
func (l *live) Close() error {
	l.mu.Lock()
	if l.ring == nil {
		l.mu.Unlock()
		return nil
	}
	l.count()
	ring := l.ring
	l.ring = nil
	err := ring.close()
	l.mu.Unlock()
	return errors.Join(err, l.file.Close()) // which wakes wait
}

// Name implements [Source].
func (l *live) Name() string { return l.name }
