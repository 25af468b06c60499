package capture

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/frame"
)

// A ring is memory shared with the kernel, in blocks of blockBytes. The kernel fills a block with
// packets and hands it over by its status; we read it and hand it back the same way. Integers are
// in host order. Layout: Linux include/uapi/linux/if_packet.h, struct tpacket_block_desc and tpacket3_hdr.
//
//	offset  size  field of a block
//	     0     8  version, offset to private data
//	     8     4  status             bit 0: the block is ours
//	    12     4  packets
//	    16     4  offset of the first packet
//	    20    28  not used here
//
//	offset  size  field of a packet
//	     0     4  next               offset from this packet to the next of the block
//	     4     8  seconds, nanoseconds
//	    12     4  captured length
//	    16     4  original length
//	    20     4  status            bits 4 and 6: a tag, and its EtherType, are below
//	    24     2  data              offset of the captured bytes
//	    26     2  offset of the network header
//	    28     4  hash
//	    32     4  VLAN tag control information
//	    36     2  VLAN EtherType
//	    38    10  padding
//	    48    20  sockaddr_ll
//
// A ring is for one goroutine at a time.
type ring struct {
	memory []byte
	block  int    // index of the block that is read, or comes next
	left   int    // packets of it that were not read
	at     uint32 // offset of the next one in the block
	cooked bool   // packets begin with the network header
}

const (
	slotHeader = 68 // with the sockaddr_ll
	slotUnit   = 2048
)

// newRing makes the ring of a packet socket.
func newRing(fd, size int, cooked bool) (*ring, error) {
	blocks := (size + blockBytes - 1) / blockBytes
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return nil, os.NewSyscallError("setsockopt PACKET_VERSION", err)
	}
	request := unix.TpacketReq3{
		Block_size: blockBytes, Block_nr: uint32(blocks),
		Frame_size: slotUnit, Frame_nr: uint32(blocks * (blockBytes / slotUnit)), // not used for this version
		Retire_blk_tov: blockPatience,
	}
	if err := unix.SetsockoptTpacketReq3(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &request); err != nil {
		return nil, os.NewSyscallError("setsockopt PACKET_RX_RING", err)
	}
	memory, err := unix.Mmap(fd, 0, blocks*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &ring{memory: memory, cooked: cooked}, nil
}

func (r *ring) close() error { return os.NewSyscallError("munmap", unix.Munmap(r.memory)) }

// current is the block that is read.
func (r *ring) current() []byte { return r.memory[r.block*blockBytes:][:blockBytes] }

// status is the word by which a block is handed over.
func (r *ring) status() *uint32 { return (*uint32)(unsafe.Pointer(&r.current()[8])) }

// ready reports whether next has something to look at.
func (r *ring) ready() bool {
	return r.left > 0 || atomic.LoadUint32(r.status())&unix.TP_STATUS_USER != 0
}

// errRing cannot happen, but a kernel can have faults.
var errRing = errors.New("the kernel's ring has an offset or length that cannot be")

// next returns the next packet, which is valid until next is called again. The block of the last is
// handed back only then. If the kernel wrote impossible values, the rest of the block is dropped.
func (r *ring) next() (s slot, ok bool, err error) {
	for {
		if r.left == 0 {
			if r.at != 0 { // all of the block was read
				atomic.StoreUint32(r.status(), unix.TP_STATUS_KERNEL)
				r.block = (r.block + 1) % (len(r.memory) / blockBytes)
				r.at = 0
			}
			if !r.ready() {
				return slot{}, false, nil
			}
			b := r.current()
			r.left = int(binary.NativeEndian.Uint32(b[12:]))
			r.at = binary.NativeEndian.Uint32(b[16:])
			if r.left == 0 { // the kernel hands over empty blocks when it waited long
				r.at = blockBytes
				continue
			}
		}
		r.left--
		if r.at <= blockBytes-slotHeader {
			b := r.current()[r.at:]
			if s, ok = parseSlot(b, r.cooked); ok {
				r.at += min(binary.NativeEndian.Uint32(b), blockBytes)
				return s, true, nil
			}
		}
		r.left, r.at = 0, blockBytes
		return slot{}, false, errRing
	}
}

// A slot is a packet in the ring.
type slot struct {
	sec, nsec uint32
	length    uint32 // original, in bytes
	data      []byte // in the ring
	tag       uint32 // VLAN EtherType and tag control information; 0 if none was taken out of data
	ether     uint16 // EtherType of the first header of data, unless it is an Ethernet header
	link      []byte // the sockaddr_ll
	hardware  uint16 // ARPHRD number
	kind      uint8  // unix.PACKET_OUTGOING and others
}

// parseSlot decodes the packet at the beginning of b, which ends with the block. cooked is true for
// a socket that gives packets from the network header on.
func parseSlot(b []byte, cooked bool) (s slot, ok bool) {
	h := binary.NativeEndian
	captured, offset, status := h.Uint32(b[12:]), uint32(h.Uint16(b[24:])), h.Uint32(b[20:])
	if uint64(offset)+uint64(captured) > uint64(len(b)) {
		return s, false
	}
	s = slot{
		sec: h.Uint32(b[4:]), nsec: h.Uint32(b[8:]),
		length:   max(h.Uint32(b[16:]), captured),
		data:     b[offset : offset+captured],
		ether:    binary.BigEndian.Uint16(b[50:]), // sockaddr_ll: family, protocol in network order
		link:     b[48:slotHeader],
		hardware: h.Uint16(b[56:]),
		kind:     b[58],
	}
	if status&unix.TP_STATUS_VLAN_VALID != 0 {
		kind := uint32(frame.TypeVLAN)
		if status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			kind = uint32(h.Uint16(b[36:]))
		}
		s.tag = kind<<16 | h.Uint32(b[32:])&0xffff
	}
	if cooked {
		s.settle()
	}
	return s, true
}

// settle finds out with which header the data of a cooked socket begins. If the data begins with a
// tag, the kernel may report the tag as one that was taken out, too.
func (s *slot) settle() {
	told := s.ether
	s.ether = frame.Begins(told, s.data, int(s.length))
	if s.ether != told && frame.IsTag(s.ether) && s.tag != 0 &&
		uint16(s.tag) == binary.BigEndian.Uint16(s.data) && s.kind == unix.PACKET_OUTGOING {
		s.ether, s.tag = uint16(s.tag>>16), 0
	}
}

// network returns the arguments of [flows.wanted]: the EtherType behind all tags, and the bytes
// after it.
func (s *slot) network(cooked bool) (uint16, []byte) {
	if cooked {
		ether, network, _ := frame.StripNetwork(s.ether, s.data)
		return ether, network
	}
	ether, network, _ := frame.Strip(frame.Ethernet, s.data)
	return ether, network
}

// appendTo appends the packet as a file has it: the VLAN tag is put back, and a packet without an
// Ethernet header gets a header of Linux cooked v2.
func (s *slot) appendTo(b []byte, cooked bool) []byte {
	switch {
	case cooked:
		return frame.AppendCooked2(b, &frame.Header{
			EtherType: s.ether, Interface: binary.NativeEndian.Uint32(s.link[4:]), Hardware: s.hardware,
			Kind: s.kind, AddrLen: s.link[11], Addr: [8]byte(s.link[12:20]),
		}, s.tag, s.data)
	case s.tag != 0:
		return frame.AppendTagged(b, s.data, s.tag)
	}
	return append(b, s.data...)
}
