package run

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/gosmc/smc/wire/clc"
)

// kind is the kind of a message.
type kind uint8

const (
	kindAnnounce  kind = 1 // the sender listens
	kindOffer     kind = 2 // the sender is about to connect, and sends the other end of its pair along
	kindConnected kind = 3 // it has connected, and its TCP socket comes with it; no reply
	kindCancel    kind = 4 // it has not
	kindClaim     kind = 5 // the sender has accepted
	kindBoard     kind = 6 // the sender wants the board
	kindReturn    kind = 7 // the sender gives an end back that is another's, with the letter in it; no reply
	kindTaken     kind = 8 // the sender has accepted, and taken the letter; no reply
	// kindRelay: the sender has bytes in a ring of an end that is about to be somebody else's. The
	// first asks whether there is room. The second brings that end, one of a pair that takes its
	// place, and a file with the bytes.
	kindRelay kind = 9
)

// status is the answer to a message.
type status uint32

const (
	statusOK      status = 0
	statusNo      status = 1 // stay with TCP
	statusClaimed status = 2 // a Cancel that came too late
)

// Integers are in host order: the two ends are processes of one machine.
const (
	messageVersion = 1
	messageLen     = 64
	replyLen       = 16
	flagIPv6       = 1
	replyBit       = 0x80 // of the kind
)

// A message comes from the library, or from a program of package smc.
//
//	offset  size  field
//	     0     1  kind
//	     1     1  version     1
//	     2     2  length      64
//	     4     4  flags       1: the program's socket is AF_INET6
//	     8     8  netns       cookie of its network namespace; Announce and Offer. Taken: process IDs of sender and client.
//	                          The second Relay: how many tokens are in the end, before its bytes
//	    16    16  local       address of the sender's end; IPv4 is mapped
//	    32    16  peer        address of the other end
//	    48     2  local port
//	    50     2  peer port
//	    52     4  reserved
//	    56     8  unique      Announce: cookie of the listener; 0: it stays TCP, whatever was announced on the port before. Offer, Taken: cookie of the client's end of the pair.
//	                          The second Relay: how many bytes are in the file
type message struct {
	kind        kind
	ipv6        bool
	netns       uint64
	local, peer netip.AddrPort // unmapped
	unique      uint64
}

var errMessage = errors.New("run: malformed message")

func parseMessage(b []byte) (message, error) {
	if len(b) != messageLen || b[1] != messageVersion || binary.NativeEndian.Uint16(b[2:]) != messageLen {
		return message{}, errMessage
	}
	k := kind(b[0])
	if k < kindAnnounce || k > kindRelay {
		return message{}, errMessage
	}
	address := func(ip, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[ip:])).Unmap(), binary.NativeEndian.Uint16(b[port:]))
	}
	return message{
		kind:   k,
		ipv6:   binary.NativeEndian.Uint32(b[4:])&flagIPv6 != 0,
		netns:  binary.NativeEndian.Uint64(b[8:]),
		local:  address(16, 48),
		peer:   address(32, 50),
		unique: binary.NativeEndian.Uint64(b[56:]),
	}, nil
}

// append appends the encoded message to b.
func (m message) append(b []byte) []byte {
	flags := uint32(0)
	if m.ipv6 {
		flags = flagIPv6
	}
	b = append(b, byte(m.kind), messageVersion)
	b = binary.NativeEndian.AppendUint16(b, messageLen)
	b = binary.NativeEndian.AppendUint32(b, flags)
	b = binary.NativeEndian.AppendUint64(b, m.netns)
	for _, a := range []netip.AddrPort{m.local, m.peer} {
		ip := a.Addr().As16()
		b = append(b, ip[:]...)
	}
	b = binary.NativeEndian.AppendUint16(b, m.local.Port())
	b = binary.NativeEndian.AppendUint16(b, m.peer.Port())
	b = append(b, 0, 0, 0, 0)
	return binary.NativeEndian.AppendUint64(b, m.unique)
}

// A reply is the answer to a message.
//
//	offset  size  field
//	     0     1  kind        of the message, with 0x80
//	     1     1  version     1
//	     2     2  length      16
//	     4     4  status
//	     8     4  reason      of status 1 to an Offer, as in an SMC Decline; else 0
//	    12     4  reserved
type reply struct {
	kind   kind
	status status
	reason clc.Diagnosis
}

func (r reply) append(b []byte) []byte {
	b = append(b, byte(r.kind)|replyBit, messageVersion)
	b = binary.NativeEndian.AppendUint16(b, replyLen)
	b = binary.NativeEndian.AppendUint32(b, uint32(r.status))
	b = binary.NativeEndian.AppendUint32(b, uint32(r.reason))
	return append(b, 0, 0, 0, 0)
}

// parseReply decodes the answer to a message of a kind.
func parseReply(b []byte, k kind) (reply, error) {
	if len(b) != replyLen || b[0] != byte(k)|replyBit || b[1] != messageVersion || binary.NativeEndian.Uint16(b[2:]) != replyLen {
		return reply{}, errMessage
	}
	r := reply{kind: k, status: status(binary.NativeEndian.Uint32(b[4:])), reason: clc.Diagnosis(binary.NativeEndian.Uint32(b[8:]))}
	if r.status > statusClaimed {
		return reply{}, errMessage
	}
	return r, nil
}
