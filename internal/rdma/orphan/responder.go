package orphan

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/udp"
	"github.com/gosmc/smc/wire/roce"
)

// A Responder answers the orphans of an address whose UDP port nobody has any more: the
// queue pairs of soft-RoCE that send to processes which have ended. A device answers them while
// there is one.
//
// It does not take the port. A raw socket gives it copies of the packets, so that every process and
// every module of the kernel can have the port at any time. While anybody has it, the responder
// answers nothing: a packet may be for a queue pair that lives.
type Responder struct {
	local   netip.AddrPort
	raw     *os.File
	sock    *udp.Socket // sends the NAKs, from a port of its own
	mu      sync.Mutex  // held while the tables are read
	tables  []*os.File  // the UDP sockets of the network namespace: /proc/net/udp, and udp6
	epoch   time.Time
	orphans List
	refused atomic.Uint64 // answers
	// withheld counts answers that were not given as the port may have an owner.
	withheld atomic.Uint64
	stopped  chan struct{} // closed when run has ended
}

const (
	// responderPause is between two answers of a responder, which looks at all UDP sockets of the
	// namespace before each.
	responderPause = 100 * time.Millisecond
	// responderBuffer is the bytes that the kernel may hold for the raw socket: some rounds of
	// packets of a few orphans.
	responderBuffer = 256 << 10
	// unusedBuffer is for the socket that only sends.
	unusedBuffer = 4 << 10
	// packetBytes is room for a packet: one with the largest path MTU has less.
	packetBytes = 9 << 10
	// errorPause is how long the responder waits after a failed receive, so as not to spin.
	errorPause = time.Millisecond
	// pkeyBits are the bits of two P_Keys that must match: all but the membership, IBTA 10.9.3.
	pkeyBits = 0x7fff

	ipv4HeaderLen = 20
	udpHeaderLen  = 8
)

// Respond starts a responder for a port of a local address, in the network namespace of
// the calling thread. The zone of a link-local address is the number of its interface. It needs
// CAP_NET_RAW.
func Respond(local netip.AddrPort) (*Responder, error) {
	o := &Responder{
		local: netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), epoch: time.Now(),
		orphans: List{pause: responderPause}, stopped: make(chan struct{}),
	}
	if err := o.open(); err != nil {
		o.release()
		return nil, fmt.Errorf("rdma: orphans of %v: %w", local, err)
	}
	go o.run()
	return o, nil
}

func (o *Responder) open() (err error) {
	for _, name := range []string{"udp", "udp6"} {
		f, err := os.Open("/proc/thread-self/net/" + name)
		if errors.Is(err, os.ErrNotExist) && name == "udp6" { // a kernel without IPv6
			continue
		}
		if err != nil {
			return err
		}
		o.tables = append(o.tables, f)
	}
	if err := o.openRaw(); err != nil {
		return err
	}
	o.sock, err = udp.Listen(udp.Config{
		Local: netip.AddrPortFrom(o.local.Addr(), 0), NoCoalescing: true, ReadBuffer: unusedBuffer,
	})
	return err
}

// openRaw makes the raw socket, which takes only packets to the port from a port of soft-RoCE.
func (o *Responder) openRaw() error {
	ip := o.local.Addr()
	family, sa := unix.AF_INET, unix.Sockaddr(nil)
	if ip.Is4() {
		sa = &unix.SockaddrInet4{Addr: ip.As4()}
	} else {
		six := &unix.SockaddrInet6{Addr: ip.As16()}
		if zone := ip.Zone(); zone != "" {
			index, err := strconv.ParseUint(zone, 10, 31)
			if err != nil {
				return fmt.Errorf("zone %q: %w", zone, err)
			}
			six.ZoneId = uint32(index)
		}
		family, sa = unix.AF_INET6, six
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		return fmt.Errorf("raw socket: %w", err)
	}
	o.raw = os.NewFile(uintptr(fd), "raw socket")
	filter := portFilter(family, o.local.Port())
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return fmt.Errorf("raw socket: filter: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, responderBuffer) // less is less
	if err := unix.Bind(fd, sa); err != nil {
		return fmt.Errorf("raw socket: bind: %w", err)
	}
	return nil
}

// portFilter is a filter for raw sockets: a socket of IPv4 sees the IP header before the UDP
// header, one of IPv6 does not.
func portFilter(family int, port uint16) []unix.SockFilter {
	load := unix.SockFilter{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS}
	var filter []unix.SockFilter
	if family == unix.AF_INET {
		load.Code = unix.BPF_LD | unix.BPF_H | unix.BPF_IND
		// X = the IP header's length
		filter = append(filter, unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH})
	}
	source, dest := load, load
	dest.K = 2
	return append(filter,
		dest, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 3},
		source, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: minRxePort, Jf: 1},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint16},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0})
}

// release closes what there is.
func (o *Responder) release() {
	if o.raw != nil {
		o.raw.Close()
	}
	if o.sock != nil {
		o.sock.Close()
	}
	for _, f := range o.tables {
		f.Close()
	}
}

// Close ends the responder, and waits until it answers nothing more.
func (o *Responder) Close() {
	o.raw.Close() // ends run
	<-o.stopped
	o.release()
}

// Refused returns how many orphans were answered; one that sends on is answered again.
func (o *Responder) Refused() uint64 { return o.refused.Load() }

// run answers orphans until the raw socket is closed.
func (o *Responder) run() {
	defer close(o.stopped)
	raw, err := o.raw.SyscallConn()
	if err != nil {
		return
	}
	b := make([]byte, packetBytes)
	for {
		var n int
		var from unix.Sockaddr
		var rerr error
		if err := raw.Read(func(fd uintptr) bool {
			n, from, rerr = unix.Recvfrom(int(fd), b, 0)
			return rerr != unix.EAGAIN
		}); err != nil {
			return
		}
		if rerr != nil {
			time.Sleep(errorPause)
			continue
		}
		o.take(b[:n], from)
	}
}

// take takes what the raw socket has received from a host.
func (o *Responder) take(b []byte, host unix.Sockaddr) {
	from, data, id, ok := o.parse(b, host)
	var p roce.Packet
	if !ok || p.Parse(data) != nil || p.PKey&pkeyBits != roce.DefaultPKey&pkeyBits {
		return
	}
	x := o.orphans.Look(time.Since(o.epoch)+1, from, o.local.Addr(), &p, func() bool {
		flow := roce.NewFlow(from, o.local)
		_, v := flow.Verify(id, data)
		return v == roce.Exact // the identification is known
	})
	if x == nil {
		return
	}
	owned, err := o.Owned()
	if owned || err != nil { // rule: TestOrphanResponderOwned
		o.withheld.Add(1)
		return
	}
	if o.orphans.Refuse(x, o.sock, o.local.Port()) == nil {
		o.refused.Add(1)
	}
}

// parse takes the headers off a datagram to the port. id is the IPv4 identification.
func (o *Responder) parse(b []byte, host unix.Sockaddr) (
	from netip.AddrPort, data []byte, id uint16, ok bool,
) {
	var ip netip.Addr
	switch sa := host.(type) {
	case *unix.SockaddrInet4:
		// A packet with options, or one that is not whole, has no ICRC that we can check.
		if len(b) < ipv4HeaderLen || b[0] != 0x45 || netip.AddrFrom4([4]byte(b[16:])) != o.local.Addr() {
			return from, nil, 0, false
		}
		ip, id, b = netip.AddrFrom4(sa.Addr), binary.BigEndian.Uint16(b[4:]), b[ipv4HeaderLen:]
	case *unix.SockaddrInet6:
		if ip = netip.AddrFrom16(sa.Addr); ip.IsLinkLocalUnicast() {
			ip = ip.WithZone(o.local.Addr().Zone())
		}
	default:
		return from, nil, 0, false
	}
	if len(b) < udpHeaderLen || binary.BigEndian.Uint16(b[2:]) != o.local.Port() ||
		int(binary.BigEndian.Uint16(b[4:])) != len(b) {
		return from, nil, 0, false
	}
	return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b)), b[udpHeaderLen:], id, true
}

// Owned reports whether somebody has the port: a process, alone or with others, or a module of the
// kernel.
func (o *Responder) Owned() (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.tables {
		owned, err := listsOwner(io.NewSectionReader(f, 0, math.MaxInt64), o.local)
		if owned || err != nil {
			return owned, err
		}
	}
	return false, nil
}

// listsOwner reports whether a table of UDP sockets, as in /proc/net/udp, has one that may get the
// packets to local. The table does not say which sockets of all IPv6 addresses take packets of IPv4,
// so each of them counts.
func listsOwner(table io.Reader, local netip.AddrPort) (bool, error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		addr, port, _ := strings.Cut(fields[1], ":")
		if n, err := strconv.ParseUint(port, 16, 16); err != nil || uint16(n) != local.Port() {
			continue // the table's head is one of these
		}
		ip, ok := tableAddr(addr)
		if !ok || ip == local.Addr().WithZone("") || ip.IsUnspecified() && (ip.Is6() || local.Addr().Is4()) {
			return true, nil
		}
	}
	return false, lines.Err()
}

// tableAddr reads an address of /proc/net/udp: words of 32 bits as the machine reads them.
func tableAddr(text string) (netip.Addr, bool) {
	var b []byte
	for ; len(text) >= 8; text = text[8:] {
		word, err := strconv.ParseUint(text[:8], 16, 32)
		if err != nil {
			return netip.Addr{}, false
		}
		b = binary.NativeEndian.AppendUint32(b, uint32(word))
	}
	ip, ok := netip.AddrFromSlice(b)
	return ip.Unmap(), ok && text == ""
}
