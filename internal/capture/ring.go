package capture

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
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
//	    24     2  data              offset of what was captured
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
}

const (
	frameHeader = 68 // with the sockaddr_ll
	frameUnit   = 2048
)

// newRing makes the ring of a packet socket.
func newRing(fd, size int) (*ring, error) {
	blocks := (size + blockBytes - 1) / blockBytes
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V3); err != nil {
		return nil, os.NewSyscallError("setsockopt PACKET_VERSION", err)
	}
	request := unix.TpacketReq3{
		Block_size: blockBytes, Block_nr: uint32(blocks),
		Frame_size: frameUnit, Frame_nr: uint32(blocks * (blockBytes / frameUnit)), // not used for this version
		Retire_blk_tov: blockPatience,
	}
	if err := unix.SetsockoptTpacketReq3(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &request); err != nil {
		return nil, os.NewSyscallError("setsockopt PACKET_RX_RING", err)
	}
	memory, err := unix.Mmap(fd, 0, blocks*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &ring{memory: memory}, nil
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

// next returns the next frame, which is valid until next is called again. The block of the last is
// handed back only then. If the kernel wrote what cannot be, the rest of the block is dropped.
func (r *ring) next() (f frame, ok bool, err error) {
	for {
		if r.left == 0 {
			if r.at != 0 { // all of the block was read
				atomic.StoreUint32(r.status(), unix.TP_STATUS_KERNEL)
				r.block = (r.block + 1) % (len(r.memory) / blockBytes)
				r.at = 0
			}
			if !r.ready() {
				return frame{}, false, nil
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
		if r.at <= blockBytes-frameHeader {
			b := r.current()[r.at:]
			if f, ok = parseFrame(b); ok {
				r.at += min(binary.NativeEndian.Uint32(b), blockBytes)
				return f, true, nil
			}
		}
		r.left, r.at = 0, blockBytes
		return frame{}, false, errRing
	}
}

// A frame is a packet in the ring.
type frame struct {
	sec, nsec uint32
	length    uint32 // original, in bytes
	data      []byte // in the ring
	tag       uint32 // VLAN EtherType and tag control information; 0 if there was no tag
	link      []byte // the sockaddr_ll
	hardware  uint16 // ARPHRD number
	kind      uint8  // unix.PACKET_OUTGOING and others
}

// parseFrame decodes the packet at the beginning of b, which ends with the block.
func parseFrame(b []byte) (f frame, ok bool) {
	h := binary.NativeEndian
	captured, offset, status := h.Uint32(b[12:]), uint32(h.Uint16(b[24:])), h.Uint32(b[20:])
	if uint64(offset)+uint64(captured) > uint64(len(b)) {
		return f, false
	}
	f = frame{
		sec: h.Uint32(b[4:]), nsec: h.Uint32(b[8:]),
		length:   max(h.Uint32(b[16:]), captured),
		data:     b[offset : offset+captured],
		link:     b[48:frameHeader],
		hardware: h.Uint16(b[56:]),
		kind:     b[58],
	}
	if status&unix.TP_STATUS_VLAN_VALID != 0 {
		kind := uint32(etherVLAN)
		if status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			kind = uint32(h.Uint16(b[36:]))
		}
		f.tag = kind<<16 | h.Uint32(b[32:])&0xffff
	}
	return f, true
}

// etherType returns what [flows.wanted] needs: the EtherType, and what follows it.
func (f *frame) etherType(cooked bool) (uint16, []byte) {
	switch {
	case cooked: // sockaddr_ll: family, protocol in network order
		return binary.BigEndian.Uint16(f.link[2:]), f.data
	case len(f.data) < 14:
		return 0, nil
	}
	return binary.BigEndian.Uint16(f.data[12:]), f.data[14:]
}

// appendTo appends the frame as a file has it: the VLAN tag is put back, and what has no Ethernet
// header gets one of Linux cooked v2.
//
//	offset  size  field of that header, https://www.tcpdump.org/linktypes/LINKTYPE_LINUX_SLL2.html
//	     0     2  EtherType
//	     2     2  reserved
//	     4     4  index of the interface
//	     8     2  ARPHRD number
//	    10     1  type of packet  0 for us, 1 broadcast, 2 multicast, 3 for others, 4 from us
//	    11     1  length of the address
//	    12     8  address         of the sender
//
// Integers are big-endian. A tag is the EtherType here; its control information and the EtherType that it
// hides come after the header.
func (f *frame) appendTo(b []byte, cooked bool) []byte {
	if !cooked {
		if f.tag == 0 || len(f.data) < 12 {
			return append(b, f.data...)
		}
		b = append(b, f.data[:12]...)
		b = binary.BigEndian.AppendUint32(b, f.tag)
		return append(b, f.data[12:]...)
	}
	ether := binary.BigEndian.Uint16(f.link[2:])
	first := ether
	if f.tag != 0 {
		first = uint16(f.tag >> 16)
	}
	b = binary.BigEndian.AppendUint16(b, first)
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint32(b, binary.NativeEndian.Uint32(f.link[4:]))
	b = binary.BigEndian.AppendUint16(b, f.hardware)
	b = append(b, f.kind, f.link[11])
	b = append(b, f.link[12:20]...)
	if f.tag != 0 {
		b = binary.BigEndian.AppendUint16(b, uint16(f.tag))
		b = binary.BigEndian.AppendUint16(b, ether)
	}
	return append(b, f.data...)
}
