package proto

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/gosmc/smc/wire/clc"
)

// Kind is the kind of a message.
type Kind uint8

// Kinds of messages.
const (
	KindAnnounce  Kind = 1 // the sender listens
	KindOffer     Kind = 2 // the sender is about to connect, and sends the other end of its pair along
	KindConnected Kind = 3 // it has connected, and its TCP socket comes with it; no reply
	KindCancel    Kind = 4 // it has not
	KindClaim     Kind = 5 // the sender has accepted
	KindBoard     Kind = 6 // the sender wants the board
	KindReturn    Kind = 7 // the sender gives an end back that is another's, with the letter in it; no reply
	KindTaken     Kind = 8 // the sender has accepted, and taken the letter; no reply
	// kindRelay: the sender has bytes in a ring of an end that is about to be somebody else's. The
	// first asks whether there is room. The second brings that end, one of a pair that takes its
	// place, and a file with the bytes.
	KindRelay Kind = 9
	// KindReach: the sender has connected, and its TCP socket, which comes with it, has pairing tokens. The
	// reply brings its end of a pair, and perhaps the memory of rings.
	KindReach Kind = 16
	// KindMeet: the sender has accepted, and its TCP socket, which comes with it, has pairing tokens. The
	// reply brings its end of a pair, and perhaps the memory of rings.
	KindMeet Kind = 17
	// KindCarry: the sender has connected to a peer that speaks SMC-R, and its TCP socket comes with it. The
	// reply brings its end of a pair, at whose other end an engine carries the connection.
	KindCarry Kind = 18
	// KindCarried: the sender has accepted a connection of such a peer, and its TCP socket comes with it.
	// The reply brings its end of a pair, as that to KindCarry does.
	KindCarried Kind = 19
)

// isKnown reports whether there are messages of a kind.
func (k Kind) isKnown() bool {
	return KindAnnounce <= k && k <= KindRelay || KindReach <= k && k <= KindCarried
}

// Status is the answer to a message.
type Status uint32

// Statuses of replies.
const (
	StatusOK      Status = 0
	StatusNo      Status = 1 // stay with TCP
	StatusClaimed Status = 2 // a Cancel that came too late
)

// Lengths of messages and replies, in bytes. Integers are in host order: the two ends are processes of
// one machine.
const (
	messageVersion = 1
	MessageLen     = 64
	ReplyLen       = 16
	flagIPv6       = 1
	flagRings      = 2
	flagSpeaks     = 4
	replyBit       = 0x80 // of the kind
)

// A Message comes from the library, or from a program of package smc.
//
//	offset  size  field
//	     0     1  kind
//	     1     1  version     1
//	     2     2  length      64
//	     4     4  flags       1: the program's socket is AF_INET6
//	                          2: Reach, Meet: the memory of rings may come with the end
//	                          4: Carried: the client has said by TCP option 254 that it begins with CLC
//	     8     8  netns       cookie of its network namespace; Announce and Offer. Taken: process IDs of sender and client.
//	                          The second Relay: how many tokens are in the end, before its bytes
//	    16    16  local       address of the sender's end; IPv4 is mapped
//	    32    16  peer        address of the other end
//	    48     2  local port
//	    50     2  peer port
//	    52     4  reserved
//	    56     8  unique      Announce: cookie of the listener; 0: it stays TCP, whatever was announced on the port before. Offer, Taken: cookie of the client's end of the pair.
//	                          The second Relay: how many bytes are in the file
type Message struct {
	Kind        Kind
	IPv6        bool
	Rings       bool // Reach, Meet
	Speaks      bool // Carried
	NetNS       uint64
	Local, Peer netip.AddrPort // unmapped
	Unique      uint64
}

// ErrMessage means that bytes are no message, or no answer, of this protocol.
var ErrMessage = errors.New("run: malformed message")

// ParseMessage decodes a message, which has to be all of b. The error is [ErrMessage].
func ParseMessage(b []byte) (Message, error) {
	if len(b) != MessageLen || b[1] != messageVersion || binary.NativeEndian.Uint16(b[2:]) != MessageLen {
		return Message{}, ErrMessage
	}
	k := Kind(b[0])
	if !k.isKnown() {
		return Message{}, ErrMessage
	}
	address := func(ip, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[ip:])).Unmap(),
			binary.NativeEndian.Uint16(b[port:]))
	}
	return Message{
		Kind:   k,
		IPv6:   binary.NativeEndian.Uint32(b[4:])&flagIPv6 != 0,
		Rings:  (k == KindReach || k == KindMeet) && binary.NativeEndian.Uint32(b[4:])&flagRings != 0,
		Speaks: k == KindCarried && binary.NativeEndian.Uint32(b[4:])&flagSpeaks != 0,
		NetNS:  binary.NativeEndian.Uint64(b[8:]),
		Local:  address(16, 48),
		Peer:   address(32, 50),
		Unique: binary.NativeEndian.Uint64(b[56:]),
	}, nil
}

// Append appends the encoded message to b.
func (m Message) Append(b []byte) []byte {
	flags := uint32(0)
	if m.IPv6 {
		flags = flagIPv6
	}
	if m.Rings {
		flags |= flagRings
	}
	if m.Speaks {
		flags |= flagSpeaks
	}
	b = append(b, byte(m.Kind), messageVersion)
	b = binary.NativeEndian.AppendUint16(b, MessageLen)
	b = binary.NativeEndian.AppendUint32(b, flags)
	b = binary.NativeEndian.AppendUint64(b, m.NetNS)
	for _, a := range []netip.AddrPort{m.Local, m.Peer} {
		ip := a.Addr().As16()
		b = append(b, ip[:]...)
	}
	b = binary.NativeEndian.AppendUint16(b, m.Local.Port())
	b = binary.NativeEndian.AppendUint16(b, m.Peer.Port())
	b = append(b, 0, 0, 0, 0)
	return binary.NativeEndian.AppendUint64(b, m.Unique)
}

// A Reply is the answer to a message.
//
//	offset  size  field
//	     0     1  kind        of the message, with 0x80
//	     1     1  version     1
//	     2     2  length      16
//	     4     4  status
//	     8     4  reason      of status 1 to an Offer, as in an SMC Decline; else 0
//	    12     4  reserved
type Reply struct {
	Kind   Kind
	Status Status
	Reason clc.Diagnosis
}

// Append appends the encoded reply to b.
func (r Reply) Append(b []byte) []byte {
	b = append(b, byte(r.Kind)|replyBit, messageVersion)
	b = binary.NativeEndian.AppendUint16(b, ReplyLen)
	b = binary.NativeEndian.AppendUint32(b, uint32(r.Status))
	b = binary.NativeEndian.AppendUint32(b, uint32(r.Reason))
	return append(b, 0, 0, 0, 0)
}

// ParseReply decodes the answer to a message of a kind, which has to be all of b. The error is
// [ErrMessage].
func ParseReply(b []byte, k Kind) (Reply, error) {
	if len(b) != ReplyLen || b[0] != byte(k)|replyBit || b[1] != messageVersion ||
		binary.NativeEndian.Uint16(b[2:]) != ReplyLen {
		return Reply{}, ErrMessage
	}
	r := Reply{Kind: k, Status: Status(binary.NativeEndian.Uint32(b[4:])),
		Reason: clc.Diagnosis(binary.NativeEndian.Uint32(b[8:]))}
	if r.Status > StatusClaimed {
		return Reply{}, ErrMessage
	}
	return r, nil
}
