package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A HeaderMode says whether a [Socket] shows the IPv4 identification of the datagrams that it
// receives, which the kernel keeps from UDP sockets.
type HeaderMode uint8

const (
	// HeadersAuto, the zero value, is HeadersNever. Headers cost too much to be had for nothing:
	// 5 to 19 % more processor time, 12 % on average, for super-packets and for single datagrams,
	// on lo and over a veth pair (two processors, Linux 6.18, BenchmarkTransfer, BenchmarkStream,
	// BenchmarkPingPong). And they take the firewall away, which nobody must lose by default.
	HeadersAuto HeaderMode = iota

	// HeadersNever receives on the UDP socket. No identification is known.
	HeadersNever

	// HeadersAlways receives on a packet socket, beside a UDP socket that keeps the port and
	// discards the datagrams that arrive there. It needs CAP_NET_RAW and, so that super-packets
	// keep the size of their segments, Linux 6.2. A packet socket receives packets that netfilter's
	// rules would drop, as an RDMA adapter does. With an IPv6 address it is HeadersNever: there is
	// nothing to see.
	HeadersAlways
)

// Config has the parameters of [Listen].
type Config struct {
	// Local is the address and port to bind; port 0 has the kernel choose one. An IPv6 address is
	// not joined by IPv4. A link-local address needs its zone, an interface's name or index.
	Local netip.AddrPort

	// Socket, if not nil, is a UDP socket to receive on, bound to Local, which others may have
	// theirs beside (SO_REUSEPORT). Datagrams leave from another socket, whose port the kernel
	// chooses: so the datagrams of several processes that share a port are several flows, and no
	// receiver takes their datagrams for one message. There are no Headers then. Listen takes the
	// file over, also when there is an error.
	Socket *os.File

	// Interface is the index of the interface that everything is sent on, even if other interfaces
	// lead to its destination. Where the routing table has none over this one it is taken to be on
	// the link. 0 leaves the choice to the routing table. It needs no privilege.
	Interface int

	NoSegmentation bool // send every datagram by itself even if the kernel can segment
	NoCoalescing   bool // receive every datagram by itself; without effect on a packet socket

	// ReadBuffer and WriteBuffer are the bytes that the kernel may hold in each direction, 0 for
	// 4 MiB. A process without CAP_NET_ADMIN gets no more than net.core.rmem_max and wmem_max.
	ReadBuffer, WriteBuffer int

	Headers HeaderMode

	// Drop, if not nil, is asked about every datagram that was received, and one for which it
	// reports true is not delivered: losses for tests and benchmarks. It is called by Recv and
	// TryRecv, on their goroutines, and must not keep the slice.
	Drop func(datagram []byte) bool

	// Refused, if not nil, is told of datagrams that the kernel would not send, but for want of
	// memory, and the reason, a [unix.Errno]. It is called by senders, on their goroutines, and
	// must not block.
	Refused func(reason error, datagrams int)
}

// Capabilities are the features that a [Socket] uses, after all fallbacks.
type Capabilities struct {
	Segmentation bool // the kernel takes super-packets apart
	Coalescing   bool // messages of more than one datagram can be received
	Headers      bool // identifications are shown

	// ReadBuffer and WriteBuffer are the bytes that were granted, as the kernel counts them: with
	// the memory that its own structures take.
	ReadBuffer, WriteBuffer int
}

// A Socket is a bound, unconnected UDP socket that never fragments. Its methods may be called by any
// number of goroutines at a time.
type Socket struct {
	local   netip.AddrPort
	source  netip.AddrPort // source of sent datagrams: local, but for a shared port
	drop    func([]byte) bool
	refused func(error, int)
	writer  *descriptor // the UDP socket
	packets *descriptor // the packet socket, nil without one
	shared  *descriptor // Config.Socket, nil without one
	reader  *descriptor // packets or shared if there is one, else writer

	coalescing              bool
	readBuffer, writeBuffer int

	// whole is set while super-packets may be sent. It is cleared, for good, when the kernel has
	// refused one whose datagrams it took one by one.
	whole atomic.Bool

	waiting sync.Mutex // held by the sender that waits for room, since there is one deadline
	zones   zones
	stats   stats
}

// Listen binds a socket to cfg.Local. The error wraps the system's, such as EADDRINUSE, and names
// remedies.
func Listen(cfg Config) (*Socket, error) {
	local := netip.AddrPortFrom(cfg.Local.Addr().Unmap(), cfg.Local.Port())
	if !local.IsValid() {
		if cfg.Socket != nil {
			cfg.Socket.Close()
		}
		return nil, fmt.Errorf("udp: listen: %w: no address to bind", unix.EINVAL)
	}
	s := &Socket{drop: cfg.Drop, refused: cfg.Refused}
	if err := s.open(local, &cfg); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// open makes the descriptors of s. After an error Close releases those that were made.
func (s *Socket) open(local netip.AddrPort, cfg *Config) error {
	family := unix.AF_INET6
	if local.Addr().Is4() {
		family = unix.AF_INET
	}
	if cfg.Socket != nil {
		return s.openShared(local, family, cfg)
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return fmt.Errorf("udp: socket: %w", err)
	}
	if s.writer, err = newDescriptor(fd); err != nil {
		return err
	}
	s.reader = s.writer
	if err := s.setOptions(fd, family, cfg, false); err != nil {
		return err
	}

	headers := cfg.Headers == HeadersAlways && family == unix.AF_INET
	if headers {
		// Before the bind, so that nothing is queued that nobody will read.
		if err := discardAll(fd); err != nil {
			return fmt.Errorf("udp: filter: %w", err)
		}
	}
	if s.local, err = s.bind(fd, local); err != nil {
		return err
	}
	s.source = s.local
	if headers {
		return s.openPackets(cfg)
	}
	return nil
}

// setOptions sets the options that must be set before the socket is bound, and finds out the
// kernel's abilities. One that is bound already only receives.
func (s *Socket) setOptions(fd, family int, cfg *Config, bound bool) error {
	must := func(name string, level, option, value int) error {
		if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
			return fmt.Errorf("udp: set %s: %w", name, err)
		}
		return nil
	}
	index := int(int32(hton32(uint32(cfg.Interface)))) // both options want network order
	// "Probe" sets DF, as "do" does, so that the identification of IPv4 is known; but the size of
	// packets is held against the interface's MTU alone. "Do" believes every ICMP message that
	// names a smaller one of the path, and those are easily forged: one would stop the datagrams to
	// a host for ten minutes.
	if family == unix.AF_INET {
		if err := must("IP_MTU_DISCOVER", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER,
			unix.IP_PMTUDISC_PROBE); err != nil {
			return err
		}
		if err := must("IP_UNICAST_IF", unix.IPPROTO_IP, unix.IP_UNICAST_IF, index); err != nil {
			return err
		}
	} else {
		if !bound { // or it is too late
			if err := must("IPV6_UNICAST_IF", unix.IPPROTO_IPV6, unix.IPV6_UNICAST_IF, index); err != nil {
				return err
			}
			if err := must("IPV6_V6ONLY", unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
				return err
			}
		}
		if err := must("IPV6_MTU_DISCOVER", unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER,
			unix.IPV6_PMTUDISC_PROBE); err != nil {
			return err
		}
		// Datagrams without a UDP checksum, as rdma_rxe sends them.
		if err := must("UDP_NO_CHECK6_RX", unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1); err != nil {
			return err
		}
	}

	// Zero is the default of UDP_SEGMENT: only a kernel without it refuses.
	s.whole.Store(!cfg.NoSegmentation && unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) == nil)
	// A UDP socket without UDP_GRO has super-packets taken apart before it sees, or discards, them.
	if !cfg.NoCoalescing || cfg.Headers == HeadersAlways {
		// Before Linux 5.12 segments could be lost: wireguard-go and others do not use it there either.
		s.coalescing = kernelAtLeast(5, 12) &&
			unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
	}
	s.readBuffer = setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, cfg.ReadBuffer)
	s.writeBuffer = setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, cfg.WriteBuffer)
	return nil
}

// hton32 is v as an integer whose bytes in memory are v's in network order.
func hton32(v uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, v))
}

// setBuffer asks for a buffer of size bytes and returns the granted size.
func setBuffer(fd, force, option, size int) int {
	if size <= 0 {
		size = defaultBuffer
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, size) // the size is then read below
	}
	granted, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option)
	if err != nil {
		return 0
	}
	return granted
}

// bind binds fd to local and returns the address that it has then.
func (s *Socket) bind(fd int, local netip.AddrPort) (netip.AddrPort, error) {
	var sa unix.Sockaddr
	if ip := local.Addr(); ip.Is4() {
		sa = &unix.SockaddrInet4{Addr: ip.As4(), Port: int(local.Port())}
	} else {
		index, err := s.zones.index(ip.Zone())
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("udp: listen on %v: %w", local, err)
		}
		sa = &unix.SockaddrInet6{Addr: ip.As16(), Port: int(local.Port()), ZoneId: index}
		s.zones.prefer(index, ip.Zone())
	}
	if err := unix.Bind(fd, sa); err != nil {
		return netip.AddrPort{}, bindError(local, err)
	}
	bound, err := boundTo(fd)
	return netip.AddrPortFrom(local.Addr(), bound.Port()), err
}

// boundTo returns the address of a socket, without a zone.
func boundTo(fd int) (netip.AddrPort, error) {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("udp: getsockname: %w", err)
	}
	switch sa := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port)), nil
	}
	return netip.AddrPort{}, nil // of another family
}

// bindError explains err, of binding local.
func bindError(local netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("udp: port %d of %v is in use: another RoCEv2 stack such as the rdma_rxe kernel module "+
			"or another process owns it; end that, or use another address or network namespace: %w",
			local.Port(), local.Addr(), err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("udp: %v is not an address of this machine, or not yet usable: %w",
			local.Addr(), err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("udp: not permitted to bind port %d of %v; ports below net.ipv4.ip_unprivileged_port_start "+
			"need CAP_NET_BIND_SERVICE: %w", local.Port(), local.Addr(), err)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EINVAL) && local.Addr().IsLinkLocalUnicast():
		return fmt.Errorf("udp: %v needs the zone of an interface that exists: %w", local.Addr(), err)
	}
	return fmt.Errorf("udp: bind %v: %w", local, err)
}

// LocalAddr is the address that the socket is bound to, with the zone that [Config] had.
func (s *Socket) LocalAddr() netip.AddrPort { return s.local }

// SourceAddr is the address that datagrams are sent from: LocalAddr, but for a shared port.
func (s *Socket) SourceAddr() netip.AddrPort { return s.source }

// Capabilities reports the features in use now.
func (s *Socket) Capabilities() Capabilities {
	return Capabilities{
		Segmentation: s.whole.Load(),
		Coalescing:   s.coalescing,
		Headers:      s.packets != nil,
		ReadBuffer:   s.readBuffer,
		WriteBuffer:  s.writeBuffer,
	}
}

// SetReadDeadline makes every Recv that waits after t, now or later, return [os.ErrDeadlineExceeded]
// instead; t in the past wakes those that wait. The zero time means no deadline.
func (s *Socket) SetReadDeadline(t time.Time) error { return s.reader.setDeadline(&s.reader.read, t) }

// Close gives the port back. Calls that wait, and later ones, return [net.ErrClosed]. Closing twice
// is no error.
func (s *Socket) Close() error {
	var errs [3]error
	for i, d := range []*descriptor{s.packets, s.shared, s.writer} {
		if d != nil {
			errs[i] = d.Close()
		}
	}
	return errors.Join(errs[:]...)
}

// kernelAtLeast reports whether the running kernel is Linux major.minor or later.
var kernel = sync.OnceValue(func() [2]int {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return [2]int{}
	}
	return parseRelease(unix.ByteSliceToString(u.Release[:]))
})

func kernelAtLeast(major, minor int) bool {
	v := kernel()
	return v[0] > major || v[0] == major && v[1] >= minor
}

// parseRelease reads the first two numbers of a release such as "6.18.44-generic", 0 for one that
// is not there.
func parseRelease(release string) (version [2]int) {
	for i := range version {
		end := 0
		for end < len(release) && release[end] >= '0' && release[end] <= '9' {
			end++
		}
		version[i], _ = strconv.Atoi(release[:end]) // 0 for no digits
		if end == len(release) || release[end] != '.' {
			break
		}
		release = release[end+1:]
	}
	return version
}
