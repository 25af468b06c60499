package dissect

import (
	"net/netip"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// An OptionState tells whether one side's SYN has the SMC option, as far as that is known.
type OptionState uint8

// All states.
const (
	OptionUnknown OptionState = iota // the capture does not have the SYN, or not yet
	OptionAbsent
	OptionPresent
)

// String returns "unknown", "no" or "yes".
func (o OptionState) String() string {
	switch o {
	case OptionAbsent:
		return "no"
	case OptionPresent:
		return "yes"
	}
	return "unknown"
}

// A ConnState is how far a connection has come.
type ConnState uint8

// All states. If the message that a state awaits does not come, that is a timeout.
const (
	ConnSYN         ConnState = iota // a SYN with the option was seen; awaits the SYN-ACK
	ConnOptions                      // both sides have sent the option; awaits the Proposal
	ConnProposed                     // Proposal seen; awaits Accept or Decline
	ConnAccepted                     // Accept seen; awaits Confirm or Decline
	ConnEstablished                  // Confirm seen: the connection uses SMC
	ConnDeclined                     // Decline seen: the connection goes on over TCP
	ConnTCP                          // the server does not do SMC: the connection is TCP
	ConnFailed                       // the handshake ended with neither: bytes that are no CLC, FIN or RST
)

// String returns one or two words.
func (s ConnState) String() string {
	switch s {
	case ConnSYN:
		return "SYN"
	case ConnOptions:
		return "options"
	case ConnProposed:
		return "proposed"
	case ConnAccepted:
		return "accepted"
	case ConnEstablished:
		return "established"
	case ConnDeclined:
		return "declined"
	case ConnTCP:
		return "TCP"
	case ConnFailed:
		return "failed"
	}
	return "impossible state"
}

// A Conn is a TCP connection that has, or tried, an SMC handshake. The tracker changes it as the capture
// goes on; others read it between calls of the tracker.
type Conn struct {
	ID             int // from 1, in the order in which they appear
	Client, Server netip.AddrPort
	State          ConnState
	// Mode is "SMC-Rv1", "SMC-Dv1", "SMC-Rv2", "SMC-Rv2.1" and so on, "TCP", or "unknown".
	// The release is missing where a later connection of a link group has not said it and the first
	// contact is not in the capture.
	Mode                       string
	ClientOption, ServerOption OptionState

	Proposal *clc.Proposal
	Accept   *clc.Accept
	Confirm  *clc.Confirm
	Decline  *clc.Decline
	// DeclinedBy is the direction of the Decline, DirUnknown if there is none. Reason explains
	// it, in the terms of its sender's operating system; its Code is 0 if there is none.
	DeclinedBy Direction
	Reason     clc.Reason

	Opened time.Time // first packet
	Closed time.Time // RST, or the second FIN; zero until then

	// ToServer is the server's receive buffer, which the client writes to; ToClient is the client's.
	// They are known once Accept and Confirm are.
	ToServer, ToClient Ring

	Group     *LinkGroup // nil until Accept and Confirm are known
	Link      *Link      // that the connection uses now; nil with SMC-D
	Failovers int        // how often it changed the link because one failed
	Moves     int        // how often it changed the link otherwise, as to spread load
	SMCClosed bool       // both sides have said in CDC that they are done

	key       connKey
	toServer  *stream // of the handshake
	toClient  *stream
	isn       uint32 // of the client's SYN, if it is known
	isnKnown  bool
	sideKnown bool // else Client and Server are a guess
	onLink    bool // counted in Link.Conns
	moved     bool // its newest change of the link counts in Moves

	used      entry[Conn] // in connTable
	wait      entry[Conn] // in Tracker.waits
	waitSince time.Time   // of the message before the one that it awaits
}

// Ring returns the buffer that is written to in direction d, nil if d is not known.
func (c *Conn) Ring(d Direction) *Ring {
	switch d {
	case ClientToServer:
		return &c.ToServer
	case ServerToClient:
		return &c.ToClient
	}
	return nil
}

// A Ring is a receive buffer: an element of an RMB or DMB. One side owns it and reads it, the
// other writes to it.
type Ring struct {
	Conn *Conn
	Dir  Direction // in which bytes go through it
	// Known means that the handshake has told of it: the fields up to Size are set.
	Known      bool
	RKey       wire.RKey // on the link of the handshake; SMC-R
	VA         uint64    // of the element, on that link: RMB address, index and size; SMC-R
	RMBEIndex  uint8     // from 1 with Linux; SMC-R. The DMB element's, from 0, with SMC-D
	AlertToken wire.AlertToken
	Token      wire.Token // SMC-D
	Size       int        // of the element in bytes
	Capacity   int        // bytes of data that it holds: Size without eyecatcher or header

	// Producer is the writer's cursor, Consumer the reader's, as the newest CDC messages have them; for
	// each whether it is known.
	Producer, Consumer           cdc.Cursor
	ProducerKnown, ConsumerKnown bool
	Flags                        cdc.ProducerFlags // of the writer's newest message
	// ConnFlags are the writer's, for its end of the connection.
	ConnFlags cdc.ConnFlags
	Seq       uint16 // number of the writer's newest CDC message; 0 if there was none
	Messages  uint64 // CDC messages of the writer, without retransmissions
	Written   uint64 // bytes of RDMA WRITEs, without retransmissions
	Produced  uint64 // bytes by the producer cursor, since it is known
	Consumed  uint64 // bytes by the consumer cursor, since it is known

	base   uint32 // of the cursors: 4 with an eyecatcher
	offset uint64 // of the element in its RMB
	rmb    *rmb
	link   *Link // of the writer's newest CDC message, and at first the link of the handshake
	// The writer's newest CDC message had the producer cursor, the reader's the consumer cursor;
	// the knowledge about a side is worth nothing once its packets have a gap.
	writerAt, readerAt mark
	pending            uint64 // bytes written since the writer's newest CDC message
	suspected          bool   // a suspicion has it
	replays            bool   // the writer's newest message was a failover validation
}

// Window returns how many bytes the writer may still write, as far as the reader has told; -1 if that is
// not known.
func (r *Ring) Window() int {
	if !r.Known || !r.ProducerKnown || !r.ConsumerKnown {
		return -1
	}
	used := cdc.Diff(r.at(r.Consumer), r.at(r.Producer), uint32(r.Capacity))
	return r.Capacity - int(min(used, uint32(r.Capacity)))
}

// at returns a cursor as it would be in a buffer without an eyecatcher.
func (r *Ring) at(c cdc.Cursor) cdc.Cursor {
	c.Count -= r.base
	return c
}

// inside reports whether a cursor points into the buffer.
func (r *Ring) inside(c cdc.Cursor) bool {
	return c.Count >= r.base && c.Count < uint32(r.Size)
}

// done reports whether the writer has said that it is done with the connection.
func (r *Ring) done() bool { return r.ConnFlags&(cdc.Closed|cdc.Abort) != 0 }
