package dissect

import (
	"fmt"
	"net/netip"

	"github.com/gosmc/smc/wire/roce"
)

// A Family says which protocol an event belongs to.
type Family uint8

// All families.
const (
	TCPOption Family = iota + 1 // option 254 on a SYN or SYN-ACK
	CLC                         // a message of the handshake
	LLC                         // a message about links and buffers
	CDC                         // a message about cursors and the state of a connection
	RoCE                        // a RoCEv2 packet that completes no SMC message: data, acknowledgement, NAK
	TCP                         // the end of a TCP connection that has an SMC handshake: FIN, RST
	Note                        // no packet's content: something did not come, or cannot be decoded
)

// String returns the name of the family.
func (f Family) String() string {
	switch f {
	case TCPOption:
		return "TCP option"
	case CLC:
		return "CLC"
	case LLC:
		return "LLC"
	case CDC:
		return "CDC"
	case RoCE:
		return "RoCE"
	case TCP:
		return "TCP"
	case Note:
		return "note"
	}
	return fmt.Sprintf("family %d", uint8(f))
}

// A Direction says which end of a connection or link group sent.
type Direction uint8

// All directions. Client and server are the roles in the TCP connection; of a link group, the roles
// in its first contact.
const (
	DirUnknown Direction = iota
	ClientToServer
	ServerToClient
)

// String returns "client > server", "server > client" or "unknown".
func (d Direction) String() string {
	switch d {
	case DirUnknown:
		return "unknown"
	case ClientToServer:
		return "client > server"
	case ServerToClient:
		return "server > client"
	}
	return fmt.Sprintf("direction %d", uint8(d))
}

// Reverse returns the other direction; for DirUnknown it returns DirUnknown.
func (d Direction) Reverse() Direction {
	switch d {
	case ClientToServer:
		return ServerToClient
	case ServerToClient:
		return ClientToServer
	}
	return DirUnknown
}

// An Event is a message, a packet or an observation that the tracker found in a packet, or in the
// absence of one.
//
// The event, and all that it points to but Conn and Link, belong to the tracker and are valid only
// during the call to emit. A caller that keeps an event has to copy it, with the bytes. Conn and
// Link stay valid, and change as the capture goes on. An event may also be made by hand, see
// [MessageEvent]: only Family, Name and Message or Bytes are needed to render it.
//
//	Family     Message                                            Bytes
//	TCPOption  Option                                             the option, 6 bytes; nil if it is missing
//	CLC        clc.Proposal, clc.Accept, clc.Confirm, clc.Decline the message
//	LLC        llc.AddLink and the other messages of package llc  the SEND's payload
//	CDC        *cdc.Message; *cdc.Header for SMC-D                the message, the header
//	RoCE       *roce.Packet                                       the UDP payload, BTH to ICRC
//	TCP, Note  nil                                                nil
//
// Message is nil if the bytes could not be decoded; Problems then says why.
type Event struct {
	Packet Packet // that completed the message; of a Note the last one that was seen, without data
	Family Family
	// Name is the event's name, such as "SYN", "Proposal", "CONFIRM LINK", "CDC", "RDMA WRITE",
	// "ACK", "NAK PSN sequence error". Whether an LLC message is a reply is in its Head.
	Name     string
	Src, Dst netip.AddrPort // of the packet; with RoCE of UDP
	Dir      Direction
	Conn     *Conn // nil if there is none or it is not known
	Link     *Link // nil if there is none or it is not known
	Message  any
	Bytes    []byte
	RoCE     *Transport // of an event from a RoCEv2 packet, else nil
	Write    *Write     // of a RoCE event that is a part of an RDMA WRITE, else nil
	Progress *Progress  // of a CDC event of a known connection, else nil
	Text     string     // of a Note, and of other events where there is something to add; may be empty
	Problems []Problem
}

// An Option is the Message of a TCPOption event.
type Option struct {
	SYNACK  bool // else it is a SYN
	Present bool // false is told of a SYN-ACK only: the SYN had the option, and this is the refusal
}

// ICRC is the result of checking a packet's invariant CRC.
type ICRC uint8

// All values.
const (
	ICRCUnchecked ICRC = iota // the capture does not have the whole packet
	ICRCGood
	ICRCBad
)

// String returns "not checkable", "good" or "bad".
func (i ICRC) String() string {
	switch i {
	case ICRCUnchecked:
		return "not checkable"
	case ICRCGood:
		return "good"
	case ICRCBad:
		return "bad"
	}
	return fmt.Sprintf("ICRC %d", uint8(i))
}

// A Transport holds the contents of a RoCEv2 packet besides the SMC message that it carries.
type Transport struct {
	// Packet is decoded as far as the capture has it; Payload is a part of Event.Packet.Data.
	Packet     *roce.Packet
	PayloadLen int // bytes on the wire, without pad; more than len(Packet.Payload) if truncated
	ICRC       ICRC
	// Retransmission means that the capture has this PSN in this direction already.
	Retransmission bool
	// Gap is how many PSNs are missing between this packet and those before it: lost on the way, or
	// by the capture. Beyond [MaxGap] it is -1: the numbers begin anew.
	Gap int
}

// A Write says where the bytes of a packet go. Offset and Ring are known if the RKey is: from the
// handshake, CONFIRM RKEY or ADD LINK.
type Write struct {
	Start  bool   // the packet has an RETH: VA, RKey and Length are in it, and not only remembered
	Known  bool   // VA, RKey and Length are known: the capture has the start of the WRITE
	VA     uint64 // of the packet's first byte
	Length uint32 // of the whole WRITE, in bytes
	Bytes  int    // in this packet
	// Ring is the buffer that is written to, nil if it is not known.
	Ring   *Ring
	Offset uint32 // of the packet's first byte in the buffer element of Ring
	Total  uint64 // bytes written to Ring so far, this packet included, without retransmissions
}

// Progress holds the changes that a CDC message made. Bytes are differences of cursors; they are -1
// where the cursor before it is not known.
type Progress struct {
	// Out is the buffer that the sender writes to: the message has its producer cursor. In is
	// the sender's own buffer: the message has its consumer cursor.
	Out, In *Ring
	// Repeated means that the message was seen before, or is older than the newest: it has
	// changed nothing.
	Repeated bool
	Produced int // bytes that Out's producer cursor went on
	Consumed int // bytes that In's consumer cursor went on
	Window   int // bytes that the sender may still write to Out; -1 if not known
	PeerRoom int // bytes that the receiver may still write to In; -1 if not known
	// SeqGap is how many CDC messages are missing before this one, by their numbers.
	SeqGap int
	// Failover means that the message came over another link than those before, as that one failed; Moved
	// means that it did so for another reason.
	Failover, Moved bool
}
