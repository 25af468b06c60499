package roce

import "fmt"

// An Opcode is the kind of a packet: its transport in the upper three bits (000 for reliable
// connections, RC) and the operation in the lower five. It decides which extension headers follow
// the BTH.
//
// IBTA 9.2; the values are as in Linux include/rdma/ib_pack.h.
type Opcode uint8

// Operations of reliable connections, and the congestion notification packet.
const (
	SendFirst          Opcode = 0x00
	SendMiddle         Opcode = 0x01
	SendLast           Opcode = 0x02
	SendLastImm        Opcode = 0x03 // with immediate data
	SendOnly           Opcode = 0x04
	SendOnlyImm        Opcode = 0x05
	WriteFirst         Opcode = 0x06
	WriteMiddle        Opcode = 0x07
	WriteLast          Opcode = 0x08
	WriteLastImm       Opcode = 0x09
	WriteOnly          Opcode = 0x0a
	WriteOnlyImm       Opcode = 0x0b
	ReadRequest        Opcode = 0x0c
	ReadResponseFirst  Opcode = 0x0d
	ReadResponseMiddle Opcode = 0x0e
	ReadResponseLast   Opcode = 0x0f
	ReadResponseOnly   Opcode = 0x10
	Acknowledge        Opcode = 0x11
	AtomicAcknowledge  Opcode = 0x12
	CompareSwap        Opcode = 0x13
	FetchAdd           Opcode = 0x14
	SendLastInvalidate Opcode = 0x16 // with the R_Key that the receiver has to invalidate
	SendOnlyInvalidate Opcode = 0x17
	CNP                Opcode = 0x81 // congestion notification: a switch saw a full queue
)

// The properties of an opcode, one bit each.
const (
	hasRETH uint16 = 1 << iota
	hasAETH
	hasImm
	hasIETH
	hasAtomicETH
	hasAtomicAckETH
	isSend
	isWrite
	starts
	ends
	isRequest
	isResponse
)

type opcodeInfo struct {
	name      string
	headerLen uint8 // BTH and extension headers in bytes; 0 if the opcode is not known
	layout    layout
	bits      uint16
}

// A layout is the sequence of extension headers after the BTH.
type layout uint8

const (
	layoutNone layout = iota
	layoutRETH
	layoutRETHImm
	layoutImm
	layoutAETH
	layoutIETH
	layoutAtomicETH
	layoutAtomicAckETH // AETH, AtomicAckETH
)

// opcodes has the properties of every opcode. Opcodes of other transports, the reserved ones, and
// FLUSH and ATOMIC WRITE of IBTA 1.5, which SMC has no use for, are not known.
var opcodes = [256]opcodeInfo{
	SendFirst:  {"RC SEND FIRST", BTHLen, layoutNone, isRequest | isSend | starts},
	SendMiddle: {"RC SEND MIDDLE", BTHLen, layoutNone, isRequest | isSend},
	SendLast:   {"RC SEND LAST", BTHLen, layoutNone, isRequest | isSend | ends},
	SendLastImm: {"RC SEND LAST with immediate", BTHLen + ImmLen, layoutImm,
		isRequest | isSend | ends | hasImm},
	SendOnly: {"RC SEND ONLY", BTHLen, layoutNone, isRequest | isSend | starts | ends},
	SendOnlyImm: {"RC SEND ONLY with immediate", BTHLen + ImmLen, layoutImm,
		isRequest | isSend | starts | ends | hasImm},
	WriteFirst: {"RC WRITE FIRST", BTHLen + RETHLen, layoutRETH,
		isRequest | isWrite | starts | hasRETH},
	WriteMiddle: {"RC WRITE MIDDLE", BTHLen, layoutNone, isRequest | isWrite},
	WriteLast:   {"RC WRITE LAST", BTHLen, layoutNone, isRequest | isWrite | ends},
	WriteLastImm: {"RC WRITE LAST with immediate", BTHLen + ImmLen, layoutImm,
		isRequest | isWrite | ends | hasImm},
	WriteOnly: {"RC WRITE ONLY", BTHLen + RETHLen, layoutRETH,
		isRequest | isWrite | starts | ends | hasRETH},
	WriteOnlyImm: {"RC WRITE ONLY with immediate", BTHLen + RETHLen + ImmLen, layoutRETHImm,
		isRequest | isWrite | starts | ends | hasRETH | hasImm},
	ReadRequest: {"RC READ REQUEST", BTHLen + RETHLen, layoutRETH, isRequest | hasRETH},
	ReadResponseFirst: {"RC READ RESPONSE FIRST", BTHLen + AETHLen, layoutAETH,
		isResponse | starts | hasAETH},
	ReadResponseMiddle: {"RC READ RESPONSE MIDDLE", BTHLen, layoutNone, isResponse},
	ReadResponseLast:   {"RC READ RESPONSE LAST", BTHLen + AETHLen, layoutAETH, isResponse | ends | hasAETH},
	ReadResponseOnly: {"RC READ RESPONSE ONLY", BTHLen + AETHLen, layoutAETH,
		isResponse | starts | ends | hasAETH},
	Acknowledge: {"RC ACKNOWLEDGE", BTHLen + AETHLen, layoutAETH, isResponse | hasAETH},
	AtomicAcknowledge: {"RC ATOMIC ACKNOWLEDGE", BTHLen + AETHLen + AtomicAckETHLen, layoutAtomicAckETH,
		isResponse | hasAETH | hasAtomicAckETH},
	CompareSwap: {"RC COMPARE SWAP", BTHLen + AtomicETHLen, layoutAtomicETH, isRequest | hasAtomicETH},
	FetchAdd:    {"RC FETCH ADD", BTHLen + AtomicETHLen, layoutAtomicETH, isRequest | hasAtomicETH},
	SendLastInvalidate: {"RC SEND LAST with invalidate", BTHLen + IETHLen, layoutIETH,
		isRequest | isSend | ends | hasIETH},
	SendOnlyInvalidate: {"RC SEND ONLY with invalidate", BTHLen + IETHLen, layoutIETH,
		isRequest | isSend | starts | ends | hasIETH},
	CNP: {"CNP", BTHLen, layoutNone, 0},
}

// Known reports whether o is one of the constants of this package.
func (o Opcode) Known() bool { return opcodes[o].headerLen != 0 }

// HeaderLen returns the length of the BTH and of the extension headers of o, 12 to 40 bytes; 0 if o
// is not known.
func (o Opcode) HeaderLen() int { return int(opcodes[o].headerLen) }

func (o Opcode) is(bits uint16) bool { return opcodes[o].bits&bits != 0 }

// HasRETH reports whether packets of o have an RETH: WRITE FIRST and ONLY, READ REQUEST.
func (o Opcode) HasRETH() bool { return o.is(hasRETH) }

// HasAETH reports whether packets of o have an AETH: acknowledgements and responses.
func (o Opcode) HasAETH() bool { return o.is(hasAETH) }

// HasImm reports whether packets of o have immediate data.
func (o Opcode) HasImm() bool { return o.is(hasImm) }

// HasIETH reports whether packets of o have the R_Key to invalidate.
func (o Opcode) HasIETH() bool { return o.is(hasIETH) }

// HasAtomicETH reports whether packets of o have an AtomicETH: COMPARE SWAP and FETCH ADD.
func (o Opcode) HasAtomicETH() bool { return o.is(hasAtomicETH) }

// HasAtomicAckETH reports whether packets of o have the value that an atomic operation found.
func (o Opcode) HasAtomicAckETH() bool { return o.is(hasAtomicAckETH) }

// IsSend reports whether o is a part of a SEND.
func (o Opcode) IsSend() bool { return o.is(isSend) }

// IsWrite reports whether o is a part of an RDMA WRITE.
func (o Opcode) IsWrite() bool { return o.is(isWrite) }

// Starts reports whether a packet of o is the first of those that make a message: FIRST or ONLY.
func (o Opcode) Starts() bool { return o.is(starts) }

// Ends reports whether a packet of o is the last of those that make a message: LAST or ONLY.
func (o Opcode) Ends() bool { return o.is(ends) }

// IsRequest reports whether packets of o go to the responder: SEND, WRITE, READ REQUEST and the
// atomic operations.
func (o Opcode) IsRequest() bool { return o.is(isRequest) }

// IsResponse reports whether packets of o go back to the requester: acknowledgements and the
// responses to READ and to atomic operations. A CNP is neither request nor response.
func (o Opcode) IsResponse() bool { return o.is(isResponse) }

// String returns "RC WRITE FIRST", or "opcode 0x24" if o is not known.
func (o Opcode) String() string {
	if name := opcodes[o].name; name != "" {
		return name
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}
