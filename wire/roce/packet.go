// Package roce holds the packets of RoCEv2, RDMA over Converged Ethernet in UDP datagrams to port
// 4791, as far as SMC-R and tools that look at it need them: the base transport header, its
// extensions for reliable connections, and the invariant CRC.
//
//	BTH  extension headers  payload  pad (0 to 3 bytes)  ICRC
//
// Integers are big-endian, but for the ICRC. Nothing here allocates but errors and text.
//
// Sources: IBTA is the InfiniBand Architecture Specification, volume 1, with annex A17 on RoCEv2 of
// 2014; Linux drivers/infiniband/sw/rxe has the same numbers.
package roce

import (
	"encoding/binary"
	"fmt"

	"github.com/gosmc/smc/wire"
)

// Port is the UDP destination port of RoCEv2.
const Port = 4791

// Lengths in bytes.
const (
	BTHLen          = 12
	RETHLen         = 16
	AETHLen         = 4
	ImmLen          = 4
	IETHLen         = 4
	AtomicETHLen    = 28
	AtomicAckETHLen = 8
	ICRCLen         = 4

	// MaxHeaderLen is the length of the longest BTH with extension headers.
	MaxHeaderLen = BTHLen + AtomicETHLen
	// MinPacketLen is the length of the shortest packet.
	MinPacketLen = BTHLen + ICRCLen
)

// DefaultPKey is the key of the default partition, with full membership, which RoCE uses.
const DefaultPKey = 0xffff

// A BTH is the base transport header, which all packets have.
//
//	offset  size  field
//	     0     1  opcode
//	     1     1  flags            solicited event (0x80), MigReq (0x40), pad count (0x30), version (0x0f)
//	     2     2  P_Key
//	     4     1  congestion       FECN (0x80), BECN (0x40), reserved (0x3f)
//	     5     3  destination QPN
//	     8     1  acknowledge      request (0x80), reserved (0x7f)
//	     9     3  PSN
//
// Reserved bits are sent as zero and not looked at on receipt. The pad count is not a field of the
// struct: it follows from the length of the payload.
//
// IBTA 9.2, Linux drivers/infiniband/sw/rxe/rxe_hdr.h.
type BTH struct {
	Opcode    Opcode
	Solicited bool  // the receiver asked to be woken for this message
	MigReq    bool  // path migration state: adapters send true, Linux rxe false; not to be checked
	AckReq    bool  // the responder has to acknowledge this packet
	FECN      bool  // a switch on the way saw a full queue
	BECN      bool  // set in a CNP
	Version   uint8 // 4 bits; 0 in all packets that there are
	PKey      uint16
	DestQPN   wire.QPN // 24 bits
	PSN       wire.PSN // 24 bits
}

const (
	flagSolicited = 0x80 // in byte 1
	flagMigReq    = 0x40
	flagFECN      = 0x80 // in byte 4
	flagBECN      = 0x40
	flagAckReq    = 0x80 // in byte 8
)

// An RETH says where an RDMA WRITE or READ goes.
//
//	offset  size  field
//	     0     8  virtual address  of the responder
//	     8     4  R_Key
//	    12     4  DMA length       of the whole message, in bytes, at most 1<<31
//
// IBTA 9.3, Linux drivers/infiniband/sw/rxe/rxe_hdr.h. [Packet.Parse] does not check the length.
type RETH struct {
	VA     uint64
	RKey   wire.RKey
	Length uint32
}

// An AtomicETH has the parameters of an atomic operation.
//
//	offset  size  field
//	     0     8  virtual address  of the responder
//	     8     4  R_Key
//	    12     8  swap or add
//	    20     8  compare
//
// IBTA 9.3, Linux drivers/infiniband/sw/rxe/rxe_hdr.h.
type AtomicETH struct {
	VA      uint64
	RKey    wire.RKey
	SwapAdd uint64
	Compare uint64
}

// A Packet is a RoCEv2 packet without its ICRC. Which of the extension headers it has is a matter of
// its opcode; those that it has not are neither sent nor set: [Packet.Parse] leaves them as they were.
//
//	field           packets
//	RETH            WRITE FIRST and ONLY, READ REQUEST: Opcode.HasRETH
//	AETH            ACKNOWLEDGE, ATOMIC ACKNOWLEDGE, READ RESPONSE but MIDDLE: Opcode.HasAETH
//	Imm             those with immediate data, after the RETH if there is one: Opcode.HasImm
//	InvalidateRKey  SEND with invalidate: Opcode.HasIETH
//	Atomic          COMPARE SWAP, FETCH ADD: Opcode.HasAtomicETH
//	AtomicAck       ATOMIC ACKNOWLEDGE, after the AETH: Opcode.HasAtomicAckETH
//
// A Packet may be used again for the next datagram, as the data path does.
type Packet struct {
	BTH
	RETH           RETH
	AETH           AETH
	Imm            uint32 // opaque: its four bytes, first byte highest
	InvalidateRKey wire.RKey
	Atomic         AtomicETH
	AtomicAck      uint64 // the value in memory before the operation
	Payload        []byte // without pad
}

// Pad returns the number of zero bytes after a payload of n bytes, 0 to 3.
func Pad(n int) int { return -n & 3 }

// ParseBTH decodes the BTH at the start of b, whatever its opcode and version, and says how many
// bytes of pad it counts: for programs that look at packets. The data path uses [Packet.Parse].
// Errors are of type [*wire.DecodeError].
func ParseBTH(b []byte) (h BTH, pad int, err error) {
	if len(b) < BTHLen {
		return BTH{}, 0, &wire.DecodeError{Message: "roce.BTH", Field: "message", Offset: len(b),
			Err: wire.ErrTruncated}
	}
	h.set(b)
	return h, int(b[1] >> 4 & 3), nil
}

// set decodes the BTH in the first 12 bytes of b.
func (h *BTH) set(b []byte) {
	_ = b[BTHLen-1]
	h.Opcode = Opcode(b[0])
	h.Solicited = b[1]&flagSolicited != 0
	h.MigReq = b[1]&flagMigReq != 0
	h.Version = b[1] & 0x0f
	h.PKey = binary.BigEndian.Uint16(b[2:])
	h.FECN = b[4]&flagFECN != 0
	h.BECN = b[4]&flagBECN != 0
	h.DestQPN = wire.QPN(binary.BigEndian.Uint32(b[4:])) & wire.MaxQPN
	h.AckReq = b[8]&flagAckReq != 0
	h.PSN = wire.PSN(binary.BigEndian.Uint32(b[8:])) & wire.MaxPSN
}

// Parse decodes b, the whole payload of a UDP datagram, BTH to ICRC. The ICRC is not checked, see
// [Flow.Verify]. Payload is a part of b, not a copy.
//
// It fails if the version is not 0, the opcode is not known, or the length is impossible: shorter
// than headers, pad and ICRC, or not a multiple of four. Once it has succeeded the pad count fits
// the length of the payload, and need not be checked. The rules of an opcode, such as on a payload
// in an acknowledgement, are not looked at. Errors are of type [*wire.DecodeError]; p is then as it
// was. Packets that do not parse are dropped without an answer.
func (p *Packet) Parse(b []byte) error {
	if len(b) < MinPacketLen {
		return parseError(b)
	}
	info := &opcodes[b[0]]
	headerLen := uint(info.headerLen)
	// A payload of less than nothing becomes a huge number.
	payloadEnd := uint(len(b)) - ICRCLen - uint(b[1]>>4&3)
	// rule: TestPacketOpcodes: headerLen == 0 -> false
	if headerLen == 0 || b[1]&0x0f != 0 || len(b)&3 != 0 || payloadEnd < headerLen ||
		payloadEnd > uint(len(b)) {
		return parseError(b)
	}
	p.BTH.set(b)
	e := b[BTHLen:headerLen]
	p.Payload = b[headerLen:payloadEnd]
	switch info.layout {
	case layoutNone:
	case layoutRETH:
		p.RETH.set(e)
	case layoutRETHImm:
		p.RETH.set(e)
		p.Imm = binary.BigEndian.Uint32(e[RETHLen:])
	case layoutImm:
		p.Imm = binary.BigEndian.Uint32(e)
	case layoutAETH:
		p.AETH.set(e)
	case layoutIETH:
		p.InvalidateRKey = wire.RKey(binary.BigEndian.Uint32(e))
	case layoutAtomicETH:
		p.Atomic.set(e)
	case layoutAtomicAckETH:
		p.AETH.set(e)
		p.AtomicAck = binary.BigEndian.Uint64(e[AETHLen:])
	}
	return nil
}

func (r *RETH) set(b []byte) {
	_ = b[RETHLen-1]
	r.VA = binary.BigEndian.Uint64(b)
	r.RKey = wire.RKey(binary.BigEndian.Uint32(b[8:]))
	r.Length = binary.BigEndian.Uint32(b[12:])
}

func (a *AETH) set(b []byte) {
	v := binary.BigEndian.Uint32(b)
	a.Syndrome, a.MSN = Syndrome(v>>24), v&0xffffff
}

func (a *AtomicETH) set(b []byte) {
	_ = b[AtomicETHLen-1]
	a.VA = binary.BigEndian.Uint64(b)
	a.RKey = wire.RKey(binary.BigEndian.Uint32(b[8:]))
	a.SwapAdd = binary.BigEndian.Uint64(b[12:])
	a.Compare = binary.BigEndian.Uint64(b[20:])
}

// parseError says why b is no packet.
func parseError(b []byte) error {
	fail := func(field string, offset int, err error) error {
		return &wire.DecodeError{Message: "roce.Packet", Field: field, Offset: offset, Err: err}
	}
	if len(b) < MinPacketLen {
		return fail("message", len(b), wire.ErrTruncated)
	}
	headerLen := Opcode(b[0]).HeaderLen()
	switch {
	case b[1]&0x0f != 0:
		return fail("version", 1, wire.ErrVersion)
	case headerLen == 0:
		return fail("opcode", 0, wire.ErrType)
	case len(b) < headerLen+ICRCLen:
		return fail("message", len(b), wire.ErrTruncated)
	case len(b)&3 != 0:
		return fail("message", len(b), wire.ErrLength)
	}
	return fail("pad count", 1, wire.ErrLength) // more than there is after the headers
}

// AppendHeader appends BTH and extension headers, [Opcode.HeaderLen] bytes, to b and returns the
// extended slice: for senders that copy the payload themselves, of payloadLen bytes, and then
// [Pad](payloadLen) zero bytes. It panics if the opcode is not known. Bits of numbers that have no room
// are not sent.
func (p *Packet) AppendHeader(b []byte, payloadLen int) []byte {
	info := &opcodes[p.Opcode]
	if info.headerLen == 0 {
		panic("roce: impossible opcode to send: " + p.Opcode.String())
	}
	flags := p.Version&0x0f | byte(Pad(payloadLen))<<4
	if p.Solicited {
		flags |= flagSolicited
	}
	if p.MigReq {
		flags |= flagMigReq
	}
	qpn := uint32(p.DestQPN & wire.MaxQPN)
	if p.FECN {
		qpn |= flagFECN << 24
	}
	if p.BECN {
		qpn |= flagBECN << 24
	}
	psn := uint32(p.PSN & wire.MaxPSN)
	if p.AckReq {
		psn |= flagAckReq << 24
	}
	b = append(b, byte(p.Opcode), flags, byte(p.PKey>>8), byte(p.PKey))
	b = binary.BigEndian.AppendUint32(b, qpn)
	b = binary.BigEndian.AppendUint32(b, psn)
	switch info.layout {
	case layoutNone:
	case layoutRETH:
		b = p.RETH.append(b)
	case layoutRETHImm:
		b = p.RETH.append(b)
		b = binary.BigEndian.AppendUint32(b, p.Imm)
	case layoutImm:
		b = binary.BigEndian.AppendUint32(b, p.Imm)
	case layoutAETH:
		b = p.AETH.append(b)
	case layoutIETH:
		b = binary.BigEndian.AppendUint32(b, uint32(p.InvalidateRKey))
	case layoutAtomicETH:
		b = p.Atomic.append(b)
	case layoutAtomicAckETH:
		b = p.AETH.append(b)
		b = binary.BigEndian.AppendUint64(b, p.AtomicAck)
	}
	return b
}

func (r *RETH) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, r.VA)
	b = binary.BigEndian.AppendUint32(b, uint32(r.RKey))
	return binary.BigEndian.AppendUint32(b, r.Length)
}

func (a *AETH) append(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(a.Syndrome)<<24|a.MSN&0xffffff)
}

func (a *AtomicETH) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, a.VA)
	b = binary.BigEndian.AppendUint32(b, uint32(a.RKey))
	b = binary.BigEndian.AppendUint64(b, a.SwapAdd)
	return binary.BigEndian.AppendUint64(b, a.Compare)
}

// Append appends the packet to b, from BTH to pad and without the ICRC, and returns the extended
// slice. It panics if the opcode is not known.
func (p *Packet) Append(b []byte) []byte {
	b = p.AppendHeader(b, len(p.Payload))
	b = append(b, p.Payload...)
	return append(b, "\x00\x00\x00"[:Pad(len(p.Payload))]...)
}

// String returns one line for traces, without the payload.
func (p *Packet) String() string {
	s := fmt.Sprintf("%v qpn=%v psn=%v", p.Opcode, p.DestQPN, p.PSN)
	for _, f := range []struct {
		set  bool
		name string
	}{
		{p.AckReq, "ack-request"}, {p.Solicited, "solicited"}, {p.FECN, "fecn"}, {p.BECN, "becn"},
	} {
		if f.set {
			s += " " + f.name
		}
	}
	if p.PKey != DefaultPKey {
		s += fmt.Sprintf(" pkey=%#04x", p.PKey)
	}
	if p.Opcode.HasRETH() {
		s += fmt.Sprintf(" va=%#x rkey=%v length=%d", p.RETH.VA, p.RETH.RKey, p.RETH.Length)
	}
	if p.Opcode.HasAETH() {
		s += fmt.Sprintf(" %v msn=%d", p.AETH.Syndrome, p.AETH.MSN)
	}
	if p.Opcode.HasImm() {
		s += fmt.Sprintf(" imm=%#x", p.Imm)
	}
	if p.Opcode.HasIETH() {
		s += fmt.Sprintf(" invalidate=%v", p.InvalidateRKey)
	}
	if p.Opcode.HasAtomicETH() {
		s += fmt.Sprintf(" va=%#x rkey=%v swap-add=%#x compare=%#x", p.Atomic.VA, p.Atomic.RKey,
			p.Atomic.SwapAdd, p.Atomic.Compare)
	}
	if p.Opcode.HasAtomicAckETH() {
		s += fmt.Sprintf(" found=%#x", p.AtomicAck)
	}
	if len(p.Payload) > 0 {
		s += fmt.Sprintf(" payload=%d", len(p.Payload))
	}
	return s
}
