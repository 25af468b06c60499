package capture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/frame"
)

// A testPacket is a packet laid out by hand.
type testPacket struct {
	name       string
	six        bool
	tags       []uint16 // VLAN: EtherTypes
	ipOptions  int      // bytes, IPv4
	extension  []byte   // IPv6 extension headers; their first byte is replaced by the protocol
	first      uint8    // protocol of the first extension header
	fragment   uint16   // IPv4: flags and offset
	protocol   uint8
	source     uint16
	port       uint16
	reversed   bool // addresses exchanged
	flags      uint8
	seq, ack   uint32
	tcpOptions []byte
	payload    []byte
	padding    int // of the Ethernet frame

	kernel, user bool // the decisions of the two filters, each for itself
}

var (
	option  = []byte{1, 1, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9}
	message = append([]byte{0xe2, 0xd4, 0xc3, 0xd9, 1, 0, 52, 0x10}, make([]byte, 44)...)
	ismCLC  = append([]byte{0xe2, 0xd4, 0xc3, 0xc4, 2, 0, 52, 0x10}, make([]byte, 44)...)
	hop     = []byte{0, 0, 5, 2, 0, 0, 1, 0}
)

const (
	udp = unix.IPPROTO_UDP
	tcp = unix.IPPROTO_TCP
)

var filterPackets = []testPacket{
	{name: "RoCE", protocol: udp, source: 50000, port: 4791, payload: counting(64), kernel: true, user: true},
	{name: "from the port of RoCE", protocol: udp, source: 4791, port: 50000, kernel: true, user: true},
	{name: "RoCE with IPv4 options", ipOptions: 8, protocol: udp, port: 4791, kernel: true, user: true},
	{name: "first fragment of RoCE", fragment: 0x2000, protocol: udp, port: 4791, kernel: true, user: true},
	{name: "later fragment", fragment: 0x2001, protocol: udp, port: 4791},
	{name: "last fragment", fragment: 0x1000, protocol: udp, port: 4791},
	{name: "another UDP port", protocol: udp, source: 4790, port: 4792, payload: counting(64)},
	{name: "ICMP", protocol: unix.IPPROTO_ICMP, source: 4791, port: 4791},
	{name: "RoCE over IPv6", six: true, protocol: udp, source: 50000, port: 4791, payload: counting(64), kernel: true, user: true},
	{name: "from the port of RoCE over IPv6", six: true, protocol: udp, source: 4791, port: 50000, kernel: true, user: true},
	{name: "another UDP port over IPv6", six: true, protocol: udp, port: 53},
	{name: "ICMPv6", six: true, protocol: unix.IPPROTO_ICMPV6, source: 4791, port: 4791},
	{name: "RoCE behind a hop-by-hop header", six: true, first: 0, extension: hop, protocol: udp, port: 4791, kernel: true, user: true},
	{name: "RoCE behind two headers", six: true, first: 0, extension: append([]byte{60, 0, 5, 2, 0, 0, 1, 0}, hop...),
		protocol: udp, port: 4791, kernel: true, user: true},
	{name: "RoCE behind an authentication header", six: true, first: unix.IPPROTO_AH,
		extension: append([]byte{0, 4}, make([]byte, 22)...), protocol: udp, port: 4791, kernel: true, user: true},
	{name: "first IPv6 fragment of RoCE", six: true, first: unix.IPPROTO_FRAGMENT, extension: []byte{0, 0, 0, 1, 0, 0, 0, 9},
		protocol: udp, port: 4791, kernel: true, user: true},
	{name: "later IPv6 fragment", six: true, first: unix.IPPROTO_FRAGMENT, extension: []byte{0, 0, 0, 9, 0, 0, 0, 9},
		protocol: udp, port: 4791, kernel: true},
	{name: "IPv6 header that goes on", six: true, first: 0, extension: []byte{0, 200, 5, 2, 0, 0, 1, 0}, protocol: udp, port: 4791, kernel: true},
	{name: "RoCE with a VLAN tag", tags: []uint16{frame.TypeVLAN}, protocol: udp, port: 4791, kernel: true, user: true},
	{name: "RoCE with two VLAN tags", tags: []uint16{frame.TypeQinQ, frame.TypeVLAN}, protocol: udp, port: 4791, kernel: true, user: true},
	{name: "RoCE over IPv6 with two VLAN tags", six: true, tags: []uint16{frame.TypeQinQ, frame.TypeVLAN}, protocol: udp, port: 4791, kernel: true, user: true},
	{name: "RoCE with three VLAN tags", tags: []uint16{frame.TypeQinQ, frame.TypeVLAN, frame.TypeVLAN}, protocol: udp, port: 4791, user: true},
	{name: "SYN with the option", protocol: tcp, flags: tcpSYN, tcpOptions: option, kernel: true, user: true},
	{name: "SYN with the option over IPv6", six: true, protocol: tcp, flags: tcpSYN, tcpOptions: option, kernel: true, user: true},
	{name: "SYN-ACK with the option", protocol: tcp, flags: tcpSYN | tcpACK, tcpOptions: option, kernel: true, user: true},
	{name: "SYN without the option", protocol: tcp, flags: tcpSYN, tcpOptions: []byte{2, 4, 5, 0xb4}, kernel: true},
	{name: "SYN with a lying option", protocol: tcp, flags: tcpSYN, tcpOptions: []byte{1, 254, 7, 0xe2, 0xd4, 0xc3}, kernel: true},
	{name: "SYN with an option of length 0", protocol: tcp, flags: tcpSYN, tcpOptions: []byte{2, 0, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9}, kernel: true},
	{name: "SYN with another experiment", protocol: tcp, flags: tcpSYN, tcpOptions: []byte{254, 6, 1, 2, 3, 4, 0, 0}, kernel: true},
	{name: "FIN of nobody", protocol: tcp, flags: tcpFIN | tcpACK, kernel: true},
	{name: "RST of nobody", six: true, protocol: tcp, flags: tcpRST, kernel: true},
	{name: "CLC message", protocol: tcp, flags: tcpACK, payload: message, kernel: true, user: true},
	{name: "CLC message over IPv6", six: true, protocol: tcp, flags: tcpACK, payload: ismCLC, kernel: true, user: true},
	{name: "CLC message behind TCP options", protocol: tcp, flags: tcpACK, tcpOptions: make([]byte, 40), payload: ismCLC, kernel: true, user: true},
	{name: "long CLC message", protocol: tcp, flags: tcpACK, payload: append(bytes.Clone(message), make([]byte, 3000)...), kernel: true, user: true},
	{name: "long CLC message over IPv6", six: true, protocol: tcp, flags: tcpACK,
		payload: append(bytes.Clone(ismCLC), make([]byte, 3000)...), kernel: true, user: true},
	{name: "acknowledgement", protocol: tcp, flags: tcpACK},
	{name: "acknowledgement in a padded frame", protocol: tcp, flags: tcpACK, padding: 6},
	{name: "acknowledgement over IPv6", six: true, protocol: tcp, flags: tcpACK},
	{name: "one byte of data", protocol: tcp, flags: tcpACK, payload: []byte{1}, kernel: true},
	{name: "as much as can go on", protocol: tcp, flags: tcpACK, payload: counting(maxContinuation), kernel: true},
	{name: "more than can go on", protocol: tcp, flags: tcpACK, payload: counting(maxContinuation + 1)},
	{name: "more than can go on over IPv6", six: true, protocol: tcp, flags: tcpACK, payload: counting(maxContinuation + 1)},
}

var (
	macA, macB = []byte{2, 0, 0, 0, 0, 1}, []byte{2, 0, 0, 0, 0, 2}
)

// build returns the EtherType and the bytes after it.
func (p testPacket) build() (uint16, []byte) {
	be := binary.BigEndian
	l4 := be.AppendUint16(nil, p.source)
	l4 = be.AppendUint16(l4, p.port)
	switch p.protocol {
	case tcp:
		l4 = be.AppendUint32(l4, p.seq)
		l4 = be.AppendUint32(l4, p.ack)
		options := append(bytes.Clone(p.tcpOptions), make([]byte, -len(p.tcpOptions)&3)...)
		l4 = append(l4, uint8(20+len(options))/4<<4, p.flags, 0xff, 0xff, 0, 0, 0, 0)
		l4 = append(l4, options...)
	default:
		l4 = be.AppendUint16(l4, uint16(8+len(p.payload)))
		l4 = append(l4, 0, 0)
	}
	l4 = append(l4, p.payload...)
	var b []byte
	ether := uint16(frame.TypeIPv4)
	last, other := byte(1), byte(2)
	if p.reversed {
		last, other = other, last
	}
	if p.six {
		ether = frame.TypeIPv6
		next, extension := p.protocol, bytes.Clone(p.extension)
		if len(extension) > 0 {
			next = p.first
			if len(extension) == 16 { // two headers: the first names the second, that the protocol
				extension[8] = p.protocol
			} else {
				extension[0] = p.protocol
			}
		}
		b = append(b, 0x60, 0, 0, 0)
		b = be.AppendUint16(b, uint16(len(extension)+len(l4)))
		b = append(b, next, 64)
		b = append(b, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last)
		b = append(b, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, other)
		b = append(b, extension...)
	} else {
		b = append(b, 0x45+uint8(p.ipOptions/4), 0)
		b = be.AppendUint16(b, uint16(20+p.ipOptions+len(l4)))
		b = append(b, 0, 0)
		b = be.AppendUint16(b, p.fragment)
		b = append(b, 64, p.protocol, 0, 0, 10, 0, 0, last, 10, 0, 0, other)
		b = append(b, bytes.Repeat([]byte{1}, p.ipOptions)...)
		sum := uint32(0)
		for i := 0; i < len(b); i += 2 {
			sum += uint32(be.Uint16(b[i:]))
		}
		be.PutUint16(b[10:], ^uint16(sum+sum>>16))
	}
	b = append(b, l4...)
	b = append(b, make([]byte, p.padding)...)
	for i := len(p.tags) - 1; i >= 0; i-- {
		b = append(be.AppendUint16(be.AppendUint16(nil, uint16(100+i)), ether), b...)
		ether = p.tags[i]
	}
	return ether, b
}

// frame returns the whole Ethernet frame.
func (p testPacket) frame() []byte {
	ether, b := p.build()
	frame := append(bytes.Clone(macB), macA...)
	return append(binary.BigEndian.AppendUint16(frame, ether), b...)
}

// TestLiveFilter runs the kernel's program on every packet, with and without its Ethernet header, whole and
// cut at every length.
func TestLiveFilter(t *testing.T) {
	const snapLen = 10_000 // more than any packet here
	const typeIPv4, typeIPv6, typeVLAN = frame.TypeIPv4, frame.TypeIPv6, frame.TypeVLAN
	run := func(cooked bool, ether uint16, b []byte) int {
		t.Helper()
		program := liveFilter(cooked, snapLen)
		if cooked { // the machine for tests does not have this extension
			if program[0] != (bpf.LoadExtension{Num: bpf.ExtProto}) {
				t.Fatalf("the program begins with %v", program[0])
			}
			program[0] = bpf.LoadConstant{Dst: bpf.RegA, Val: uint32(ether)}
		}
		vm, err := bpf.NewVM(program)
		if err != nil {
			t.Fatal(err)
		}
		n, err := vm.Run(b)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, p := range filterPackets {
		ether, b := p.build()
		frame := p.frame()
		want := 0
		if p.kernel {
			want = snapLen
		}
		if got := run(false, 0, frame); got != want {
			t.Errorf("%s: filter = %d, want %d", p.name, got, want)
		}
		if got := run(true, ether, b); got != want {
			t.Errorf("%s, cooked: filter = %d, want %d", p.name, got, want)
		}
		if len(p.tags) == 0 && (ether == typeIPv4 || ether == typeIPv6) {
			// Of a packet that is sent the data can begin behind the tag.
			if got := run(true, typeVLAN, b); got != want {
				t.Errorf("%s, cooked, behind the tag: filter = %d, want %d", p.name, got, want)
			}
		}
		for n := range min(len(frame), 200) {
			run(false, 0, frame[:n]) // must not fail
		}
	}
	for _, cooked := range []bool{false, true} {
		raw, err := bpf.Assemble(liveFilter(cooked, snapLen))
		if err != nil || len(raw) > 4096 { // BPF_MAXINSNS
			t.Errorf("Assemble(liveFilter(%v)) = %d instructions, %v", cooked, len(raw), err)
		}
	}
}

// TestWanted gives every packet to a table that knows nothing, whole and cut at every length.
func TestWanted(t *testing.T) {
	for _, p := range filterPackets {
		ether, b := p.build()
		if got := newFlows(10).wanted(inner(ether, b)); got != p.user {
			t.Errorf("%s: wanted = %v, want %v", p.name, got, p.user)
		}
		for n := range len(b) {
			newFlows(10).wanted(inner(ether, b[:n])) // must not panic
		}
	}
}

// TestFlows follows connections: which of their segments are kept.
func TestFlows(t *testing.T) {
	isn, peerISN := uint32(0xfffffff0), uint32(1000) // the sequence numbers wrap
	toServer := testPacket{protocol: tcp, source: 40000, port: 5000, flags: tcpACK}
	toClient := testPacket{protocol: tcp, source: 5000, port: 40000, flags: tcpACK, reversed: true}
	with := func(p testPacket, name string, flags uint8, seq, ack uint32, options, payload []byte, want bool) testPacket {
		p.name, p.flags, p.seq, p.ack, p.tcpOptions, p.payload, p.user = name, flags, seq, ack, options, payload, want
		return p
	}
	data := []byte{1, 2, 3}
	for _, tt := range []struct {
		name    string
		packets []testPacket
	}{
		{"a handshake", []testPacket{
			with(toServer, "SYN", tcpSYN, isn, 0, option, nil, true),
			with(toServer, "SYN again, without the option", tcpSYN, isn, 0, nil, nil, true),
			with(toClient, "SYN-ACK", tcpSYN|tcpACK, peerISN, isn+1, option, nil, true),
			with(toServer, "message", tcpACK, isn+1, peerISN+1, nil, message, true),
			with(toServer, "its rest", tcpACK, isn+53, peerISN+1, nil, data, true),
			with(toServer, "keepalive", tcpACK, isn, peerISN+1, nil, data[:1], true),
			with(toClient, "rest of an answer", tcpACK, peerISN+1+handshakeBytes-1, isn+1, nil, data, true),
			with(toClient, "application", tcpACK, peerISN+1+handshakeBytes, isn+1, nil, data, false),
			with(toServer, "application", tcpACK, isn+1+handshakeBytes, peerISN+1, nil, data, false),
			with(toServer, "far behind", tcpACK, isn+1-handshakeBytes, peerISN+1, nil, data, false),
			with(toClient, "FIN", tcpFIN|tcpACK, 1<<31, isn+1, nil, nil, true),
			with(toServer, "RST", tcpRST, 1<<30, 0, nil, nil, true),
		}},
		{"a server without SMC", []testPacket{
			with(toServer, "SYN", tcpSYN, isn, 0, option, nil, true),
			with(toClient, "SYN-ACK", tcpSYN|tcpACK, peerISN, isn+1, nil, nil, true),
		}},
		{"no SMC", []testPacket{
			with(toServer, "SYN", tcpSYN, isn, 0, nil, nil, false),
			with(toClient, "SYN-ACK", tcpSYN|tcpACK, peerISN, isn+1, nil, nil, false),
			with(toServer, "data", tcpACK, isn+1, peerISN+1, nil, data, false),
			with(toServer, "FIN", tcpFIN|tcpACK, isn+4, peerISN+1, nil, nil, false),
		}},
		{"the SYN was not seen", []testPacket{
			with(toClient, "SYN-ACK", tcpSYN|tcpACK, peerISN, isn+1, option, nil, true),
			with(toServer, "data", tcpACK, isn+1, peerISN+1, nil, data, false),
			with(toServer, "message", tcpACK, isn+1, peerISN+1, nil, message, true),
			with(toServer, "its rest", tcpACK, isn+53, peerISN+1, nil, data, true),
		}},
		{"begun in the middle", []testPacket{
			with(toServer, "data", tcpACK, isn+1, peerISN+1, nil, data, false),
			with(toClient, "message", tcpACK, peerISN+1, isn+20, nil, message, true),
			with(toClient, "its rest", tcpACK, peerISN+53, isn+20, nil, data, true),
			with(toServer, "its answer, split", tcpACK, isn+20, peerISN+60, nil, message[:3], true),
			with(toServer, "far", tcpACK, isn+20+handshakeBytes, peerISN+60, nil, data, false),
			with(toServer, "FIN", tcpFIN|tcpACK, isn, 0, nil, nil, true),
		}},
		{"the ports are used again without SMC", []testPacket{
			with(toServer, "SYN", tcpSYN, isn, 0, option, nil, true),
			with(toServer, "another SYN", tcpSYN, isn+100, 0, nil, nil, false),
			with(toServer, "FIN", tcpFIN, isn+101, 0, nil, nil, false),
		}},
		{"the ports are used again with SMC", []testPacket{
			with(toServer, "SYN", tcpSYN, isn, 0, option, nil, true),
			with(toClient, "SYN-ACK", tcpSYN|tcpACK, peerISN, isn+1, option, nil, true),
			with(toServer, "another SYN", tcpSYN, isn+1<<20, 0, option, nil, true),
			with(toServer, "data", tcpACK, isn+1<<20+1, peerISN+1, nil, data, true),
			with(toServer, "old data", tcpACK, isn+1, peerISN+1, nil, data, false),
			with(toClient, "data of an unknown direction", tcpACK, peerISN+1, isn+1, nil, data, false),
		}},
	} {
		for _, six := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, six), func(t *testing.T) {
				flows := newFlows(maxFlows)
				for _, p := range tt.packets {
					p.six = six
					if got := flows.wanted(inner(p.build())); got != p.user {
						t.Errorf("%s: wanted = %v, want %v", p.name, got, p.user)
					}
				}
			})
		}
	}
}

// TestFlowsBound begins more connections than are known: the one that was not seen for longest is forgotten.
func TestFlowsBound(t *testing.T) {
	const limit = 100
	flows := newFlows(limit)
	syn := testPacket{protocol: tcp, port: 5000, flags: tcpSYN, tcpOptions: option}
	fin := testPacket{protocol: tcp, port: 5000, flags: tcpFIN}
	for i := range 10 * limit {
		syn.source = uint16(1000 + i)
		if !flows.wanted(inner(syn.build())) {
			t.Fatalf("SYN %d is not wanted", i)
		}
		if n := len(flows.young) + len(flows.old); n > limit {
			t.Fatalf("%d flows, at most %d", n, limit)
		}
		fin.source = 1000 // it is seen all the time
		if !flows.wanted(inner(fin.build())) {
			t.Fatalf("flow 0 is forgotten after %d others", i)
		}
	}
	fin.source = 1001
	if flows.wanted(inner(fin.build())) {
		t.Error("flow 1 is not forgotten")
	}
	fin.source = 1000 + 10*limit - 1
	if !flows.wanted(inner(fin.build())) {
		t.Error("the last flow is forgotten")
	}
}

// inner takes VLAN tags off, as the socket does before it asks a flows.
func inner(ether uint16, b []byte) (uint16, []byte) {
	ether, network, _ := frame.StripNetwork(ether, b)
	return ether, network
}
