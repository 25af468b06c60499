package capture

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/frame"
)

// Ports, sizes and bits by which the filters choose packets.
const (
	rocePort   = 4791 // of RoCEv2: IBTA A17
	eyeSMCR    = 0xe2d4c3d9
	eyeSMCD    = 0xe2d4c3c4
	optionSMC  = 254 // RFC 7609 p.92
	tcpFIN     = 0x01
	tcpSYN     = 0x02
	tcpRST     = 0x04
	tcpACK     = 0x10
	ipv4Offset = 0x1fff // of a fragment
)

// liveFilter returns the program by which the kernel chooses packets, of which at most snapLen bytes
// are wanted. The kernel cannot know connections, so it passes more than is wanted and [flows] drops the
// rest. It passes:
//
//	UDP   source or destination port 4791
//	TCP   with SYN, FIN or RST
//	      whose data begins with an eyecatcher: a CLC message of any length
//	      with 1 to maxContinuation bytes of data: it can go on with a message that was split
//	IPv6  with an extension header: this filter does not look behind it
//
// Later fragments are not passed, since nothing in them tells their connection; first fragments are
// like other packets. Up to two VLAN tags are looked behind.
//
// cooked is for a socket that gives packets from the network header on.
func liveFilter(cooked bool, snapLen uint32) (a filter) {
	if cooked {
		return cookedFilter(snapLen)
	}
	a.add(bpf.LoadAbsolute{Off: 12, Size: 2})
	a.network(14, 2, snapLen)
	return a
}

// cookedFilter is liveFilter for a cooked socket. Where the kernel says that there is a tag, the
// data may begin with the tag. It may also begin with the header behind the tag, if the kernel has
// put the tag into a packet that is being sent.
func cookedFilter(snapLen uint32) (a filter) {
	a.add(bpf.LoadExtension{Num: bpf.ExtProto})
	a.when(frame.TypeIPv4, ipv4Filter(0, snapLen))
	a.when(frame.TypeIPv6, ipv6Filter(0, snapLen))
	a.skipTags(filter{bpf.RetConstant{Val: 0}})

	version := func(base uint32) filter { // its half byte in the accumulator
		return filter{bpf.LoadAbsolute{Off: base, Size: 1}, bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf0}}
	}
	direct := version(0)
	direct.when(0x40, ipv4Filter(0, snapLen))
	direct.when(0x60, ipv6Filter(0, snapLen))
	direct.add(bpf.RetConstant{Val: 0})

	four, six := version(4), version(4)
	four.when(0x40, ipv4Filter(4, snapLen))
	six.when(0x60, ipv6Filter(4, snapLen))
	a.add(bpf.LoadAbsolute{Off: 2, Size: 2})
	a.when(frame.TypeIPv4, append(four, direct...))
	a.when(frame.TypeIPv6, append(six, direct...))
	a.skipTags(direct)
	a.add(bpf.LoadAbsolute{Off: 6, Size: 2})
	a.network(8, 0, snapLen)
	return a
}

// A filter is a program that grows. Jumps go to the end of a block made by the caller, so that
// none is longer than the 255 instructions that one byte can say.
type filter []bpf.Instruction

func (a *filter) add(ins ...bpf.Instruction) { *a = append(*a, ins...) }

// network appends the choice by the EtherType in the accumulator, of a packet with its network
// header, or next VLAN tag, at base. It ends with a decision in any case.
func (a *filter) network(base uint32, tags int, snapLen uint32) {
	a.when(frame.TypeIPv4, ipv4Filter(base, snapLen))
	a.when(frame.TypeIPv6, ipv6Filter(base, snapLen))
	if tags == 0 {
		a.add(bpf.RetConstant{Val: 0})
		return
	}
	// A tag: 2 bytes of its own, then the next EtherType.
	a.skipTags(filter{bpf.RetConstant{Val: 0}})
	a.add(bpf.LoadAbsolute{Off: base + 2, Size: 2})
	a.network(base+4, tags-1, snapLen)
}

// when appends a block that is run if the accumulator is value, and ends with a decision.
func (a *filter) when(value uint32, block filter) {
	a.add(bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: value, SkipTrue: uint8(len(block))})
	a.add(block...)
}

// skipTags appends a block that is run unless the accumulator is the EtherType of a tag, and ends with a
// decision.
func (a *filter) skipTags(block filter) {
	kinds := frame.Tags()
	for i, kind := range kinds {
		a.add(bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(kind),
			SkipTrue: uint8(len(kinds) - 1 - i + len(block))})
	}
	a.add(block...)
}

func ipv4Filter(base, snapLen uint32) (a filter) {
	accept, reject := bpf.RetConstant{Val: snapLen}, bpf.RetConstant{Val: 0}
	a.add(
		bpf.LoadAbsolute{Off: base + 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: ipv4Offset, SkipTrue: 1},
		reject,
		bpf.LoadMemShift{Off: base}, // X: the length of the IPv4 header
		bpf.LoadAbsolute{Off: base + 9, Size: 1},
	)
	a.when(unix.IPPROTO_UDP, filter{
		bpf.LoadIndirect{Off: base, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: rocePort, SkipTrue: 2},
		bpf.LoadIndirect{Off: base + 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: rocePort, SkipTrue: 1},
		accept,
		reject,
	})
	a.add(
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipTrue: 1},
		reject,
		bpf.LoadIndirect{Off: base + 13, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: tcpFIN | tcpSYN | tcpRST, SkipTrue: 1},
		accept,
		bpf.LoadIndirect{Off: base + 12, Size: 1}, // the data offset: words, in the upper half
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf0},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 2},
		bpf.ALUOpX{Op: bpf.ALUOpAdd},
		bpf.TAX{}, // X: all headers
		bpf.LoadAbsolute{Off: base + 2, Size: 2},
	)
	return append(a, payloadFilter(base, accept, reject)...)
}

func ipv6Filter(base, snapLen uint32) (a filter) {
	const header = 40
	accept, reject := bpf.RetConstant{Val: snapLen}, bpf.RetConstant{Val: 0}
	a.add(bpf.LoadAbsolute{Off: base + 6, Size: 1})
	a.when(unix.IPPROTO_UDP, filter{
		bpf.LoadAbsolute{Off: base + header, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: rocePort, SkipTrue: 2},
		bpf.LoadAbsolute{Off: base + header + 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: rocePort, SkipTrue: 1},
		accept,
		reject,
	})
	for _, extension := range ipv6Extensions {
		a.when(uint32(extension), filter{accept})
	}
	a.add(
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_TCP, SkipTrue: 1},
		reject,
		bpf.LoadAbsolute{Off: base + header + 13, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: tcpFIN | tcpSYN | tcpRST, SkipTrue: 1},
		accept,
		bpf.LoadAbsolute{Off: base + header + 12, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf0},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 2},
		bpf.TAX{}, // X: the TCP header
		bpf.LoadAbsolute{Off: base + 4, Size: 2},
	)
	return append(a, payloadFilter(base+header, accept, reject)...)
}

// ipv6Extensions are the extension headers that can be before TCP and UDP: RFC 8200 §4, RFC 4302.
var ipv6Extensions = []uint8{
	unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_DSTOPTS, unix.IPPROTO_AH,
}

// payloadFilter decides by a TCP payload that begins X bytes after base, where the accumulator is the
// length that X and the payload have together. Packets longer than a length field can say have 0
// there: the difference is then huge, and only the beginning counts.
func payloadFilter(base uint32, accept, reject bpf.RetConstant) filter {
	return filter{
		bpf.ALUOpX{Op: bpf.ALUOpSub},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1},
		reject,
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: maxContinuation, SkipTrue: 1},
		accept,
		bpf.LoadIndirect{Off: base, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: eyeSMCR, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: eyeSMCD, SkipTrue: 1},
		reject,
		accept,
	}
}
