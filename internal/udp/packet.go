package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The header that PACKET_VNET_HDR puts before each packet: struct virtio_net_hdr, in host order.
// Linux include/uapi/linux/virtio_net.h.
//
//	offset  size  field
//	     0     1  flags          state of the checksum
//	     1     1  GSO type       0, or a super-packet's; 0x80 is ECN
//	     2     2  header length
//	     4     2  GSO size       bytes of payload per segment
//	     6     2  checksum start
//	     8     2  checksum offset
const (
	vnetHeaderLen   = 10
	vnetNeedsSum    = 0x01 // the checksum is not computed yet: the packet is from this machine
	vnetSumValid    = 0x02 // the adapter or the kernel has verified it
	vnetGSOUDP      = 5    // UDP_SEGMENT: since Linux 6.2
	vnetGSOTypeMask = 0x7f

	// packetHeaderLen is the most that a packet socket puts before the payload.
	packetHeaderLen = vnetHeaderLen + etherHeaderLen + ipv4HeaderLen + udpHeaderLen
	etherHeaderLen  = 14 // on lo, too

	loopbackIndex = 1 // of lo, in every network namespace: LOOPBACK_IFINDEX

	// The values that a filter can load besides the packet, and where the IPv4 header begins for
	// it: Linux include/uapi/linux/filter.h, SKF_AD_OFF and SKF_NET_OFF, which are negative.
	filterPacketType = 1<<32 - 0x1000 + 4
	filterIfindex    = 1<<32 - 0x1000 + 8
	filterIPv4       = 1<<32 - 0x100000

	filterAccept = 1 << 18 // bytes: all
)

// errOptions is that a packet has IPv4 options, which the ICRC of RoCEv2 has no rule for.
var errOptions = errors.New("IPv4 options")

// openPackets opens the socket that shows IPv4 headers.
//
// A packet socket sees received packets before the firewall and the routing code do. So it is
// filtered down to the packets that the UDP socket would get. A packet that the routing code would
// refuse as a forgery (a loopback address from outside) is refused in [Socket.packet]. Rules of
// netfilter do not apply, which is one of the reasons why it has to be asked for.
func (s *Socket) openPackets(cfg *Config) error {
	if !kernelAtLeast(6, 2) {
		return fmt.Errorf("udp: IPv4 headers need Linux 6.2, which shows the segments of super-packets: %w",
			unix.EOPNOTSUPP)
	}
	// Protocol 0 receives nothing until the bind, when the filter is there.
	// SOCK_DGRAM would cut the link's header off, but has no PACKET_VNET_HDR.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("udp: IPv4 headers need a packet socket, and that CAP_NET_RAW: %w", err)
		}
		return fmt.Errorf("udp: packet socket: %w", err)
	}
	if s.packets, err = newDescriptor(fd); err != nil {
		return err
	}
	s.reader = s.packets
	if err := setFilter(fd, packetFilter(s.local)); err != nil {
		return fmt.Errorf("udp: packet socket: filter: %w", err)
	}
	for _, o := range []struct {
		name   string
		option int
	}{{"PACKET_VNET_HDR", unix.PACKET_VNET_HDR}, {"PACKET_IGNORE_OUTGOING", unix.PACKET_IGNORE_OUTGOING}} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, o.option, 1); err != nil {
			return fmt.Errorf("udp: packet socket: set %s: %w", o.name, err)
		}
	}
	s.readBuffer = setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, cfg.ReadBuffer)
	protocol := uint16(unix.ETH_P_IP)
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8&0xff}); err != nil {
		return fmt.Errorf("udp: packet socket: bind: %w", err)
	}
	return nil
}

// packetFilter accepts the packets that the UDP socket at local would get: IPv4 to this machine,
// UDP, not a fragment, to the address, if one was bound, and the port. Links differ in the size of
// their header, so offsets count from the IPv4 header.
func packetFilter(local netip.AddrPort) []unix.SockFilter {
	const (
		loadByte = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		loadHalf = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		loadWord = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		isEqual  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	)
	filter := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}} // where a test that fails goes
	// The tests are put before it, last first, so that the distance to it is known.
	test := func(want uint32, load ...unix.SockFilter) {
		distance := uint8(len(filter) - 1)
		jump := unix.SockFilter{Code: isEqual, Jt: 0, Jf: distance, K: want}
		filter = append(append(load, jump), filter...)
	}
	filter = append([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: filterAccept}}, filter...)
	and := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: k}
	}
	test(uint32(local.Port()),
		// X = the header's length
		unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: filterIPv4},
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: filterIPv4 + 2})
	if ip := local.Addr(); !ip.IsUnspecified() {
		four := ip.As4()
		test(binary.BigEndian.Uint32(four[:]), unix.SockFilter{Code: loadWord, K: filterIPv4 + 16})
	}
	if local.Addr().IsLoopback() {
		test(loopbackIndex, unix.SockFilter{Code: loadWord, K: filterIfindex})
	}
	// more fragments, fragment offset
	test(0, unix.SockFilter{Code: loadHalf, K: filterIPv4 + 6}, and(0x3fff))
	test(unix.IPPROTO_UDP, unix.SockFilter{Code: loadByte, K: filterIPv4 + 9})
	test(4<<4, unix.SockFilter{Code: loadByte, K: filterIPv4}, and(0xf0))
	test(unix.PACKET_HOST, unix.SockFilter{Code: loadByte, K: filterPacketType})
	return filter
}

// discardAll makes the socket drop whatever it receives.
func discardAll(fd int) error {
	return setFilter(fd, []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}})
}

func setFilter(fd int, filter []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// packet is message i of the last call on the packet socket. It reports whether there is one: a
// packet that the UDP layer would refuse is counted and not delivered.
func (s *Socket) packet(b *RxBatch, i int) (Message, bool) {
	h := &b.headers[i]
	start := i*b.size + rxHeadroom - packetHeaderLen
	room := b.size - rxHeadroom + packetHeaderLen
	n := min(int(h.length), room)
	frame := b.buf[start : start+n : start+n]
	ifindex, link, err := b.names[i].link(h.Namelen)
	var m Message
	if err == nil {
		m, err = parsePacket(frame, link, h.Flags&unix.MSG_TRUNC != 0)
	}
	if err == nil && ifindex != loopbackIndex {
		// Nobody else can be or reach 127.0.0.0/8: RFC 1122 §3.2.1.3.
		if ip := frame[vnetHeaderLen+link:]; ip[12] == 127 || ip[16] == 127 {
			err = errSource
		}
	}
	switch err {
	case nil:
		return m, true
	case errOptions:
		s.stats.options.Add(1)
	default:
		s.stats.malformed.Add(1)
	}
	return Message{}, false
}

// Why a packet is not delivered. They are counted, not shown.
var (
	errLink     = errors.New("unknown kind of link")
	errShort    = errors.New("shorter than its headers")
	errHeader   = errors.New("bad IPv4 header")
	errLength   = errors.New("lengths disagree")
	errChecksum = errors.New("bad checksum")
	errSource   = errors.New("not an address of a host")
)

// link reads an address of length bytes of a packet socket: the interface, and how long the headers
// of its link are.
func (sa *sockaddr) link(length uint32) (ifindex uint32, headerLen int, err error) {
	if length < sockaddrLLLen || binary.NativeEndian.Uint16(sa[0:]) != unix.AF_PACKET {
		return 0, 0, errLink
	}
	ifindex = binary.NativeEndian.Uint32(sa[4:])
	switch binary.NativeEndian.Uint16(sa[8:]) {
	case unix.ARPHRD_ETHER, unix.ARPHRD_LOOPBACK:
		return ifindex, etherHeaderLen, nil
	case unix.ARPHRD_NONE: // tunnels
		return ifindex, 0, nil
	}
	return 0, 0, errLink
}

// parsePacket makes a Message of the bytes that a packet socket with PACKET_VNET_HDR has given:
// that header, a link's header of linkLen bytes, an IPv4 and a UDP header, the payload, and perhaps
// bytes that only fill an Ethernet frame. The Message's Data is part of b.
//
// The checksums of the packet are verified, the UDP checksum only where nobody has done that
// before, it is there, and the packet is whole.
func parsePacket(b []byte, linkLen int, truncated bool) (Message, error) {
	if len(b) < vnetHeaderLen+linkLen+ipv4HeaderLen+udpHeaderLen {
		return Message{}, errShort
	}
	vnet, ip := b[:vnetHeaderLen], b[vnetHeaderLen+linkLen:]
	udp := ip[ipv4HeaderLen:]
	if ip[0] != 0x45 {
		if ip[0]>>4 == 4 && ip[0]&0xf > 5 {
			return Message{}, errOptions
		}
		return Message{}, errHeader
	}
	total := int(binary.BigEndian.Uint16(ip[2:]))
	udpLen := int(binary.BigEndian.Uint16(udp[4:]))
	switch {
	case ip[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(ip[6:])&0x3fff != 0:
		return Message{}, errHeader
	case udpLen < udpHeaderLen || total != ipv4HeaderLen+udpLen:
		return Message{}, errLength
	case total > len(ip) && !truncated:
		return Message{}, errLength
	case fold(sum(0, ip[:ipv4HeaderLen])) != 0xffff:
		return Message{}, errChecksum
	}
	udp = udp[:min(udpLen, len(udp))]
	data := udp[udpHeaderLen:len(udp):len(udp)]

	segment := max(len(data), 1)
	gso := vnet[1] & vnetGSOTypeMask
	if size := int(binary.NativeEndian.Uint16(vnet[4:])); gso == vnetGSOUDP && size > 0 && size < len(data) {
		segment = size
	}
	unverified := vnet[0]&(vnetNeedsSum|vnetSumValid) == 0 && gso == 0 && len(udp) == udpLen
	if checksum := binary.BigEndian.Uint16(udp[6:]); unverified && checksum != 0 {
		pseudo := sum(uint64(unix.IPPROTO_UDP+udpLen), ip[12:20])
		if fold(sum(pseudo, udp)) != 0xffff {
			return Message{}, errChecksum
		}
	}
	source := netip.AddrFrom4([4]byte(ip[12:16]))
	if source.IsMulticast() || source.IsUnspecified() ||
		source == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return Message{}, errSource
	}
	return Message{
		Data:        data,
		SegmentSize: segment,
		From:        netip.AddrPortFrom(source, binary.BigEndian.Uint16(udp[0:])),
		FirstID:     binary.BigEndian.Uint16(ip[4:]),
		HasID:       true,
		Truncated:   len(udp) < udpLen,
	}, nil
}

// sum adds the 16-bit words of b to s, for the checksum of RFC 1071. Its words are added as 32-bit
// ones, which is the same once folded; 64 KiB of them do not overflow.
func sum(s uint64, b []byte) uint64 {
	for ; len(b) >= 16; b = b[16:] {
		v, w := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
		s += v>>32 + v&0xffffffff + w>>32 + w&0xffffffff
	}
	for ; len(b) >= 2; b = b[2:] {
		s += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint64(b[0]) << 8
	}
	return s
}

// fold is the ones'-complement sum s in 16 bits.
func fold(s uint64) uint16 {
	for bits.Len64(s) > 16 {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// kernelDrops is how many messages the socket has dropped: SK_MEMINFO_DROPS, the last of the nine
// words of SO_MEMINFO (Linux include/uapi/linux/sock_diag.h), 0 if the kernel does not say.
func kernelDrops(fd uintptr) uint32 {
	const drops = 8
	var info [drops + 1]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0
	}
	return info[drops]
}
