package rendezvous

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// A Message of the rendezvous travels as a signal over the peering of two Emulated-ISM devices.
// Messages settle, before any CLC byte is sent, that the program at the other end of one TCP
// connection expects CLC on it.
//
//	client                                      server
//	  make a socket
//	  Expect(id, socket, destination) ----------->   noted
//	  connect ----------- TCP ------------------->   accept: is it one that we expect?
//	  <------------------------------ Accepted(id)   yes: CLC will be read from it
//	  Proposal ---------- TCP ------------------->
//
// The client sends its Expect before it connects, so a server that has accepted the
// connection has already been sent it. And it sends its Proposal only after Accepted: a
// connection that address translation, a second listener on the port or an inherited
// socket took to another program gets none, and goes on as plain TCP after
//
//	Cancel(id) -------------------------------->   forgotten, or too late
//	<----------------- Refused(id) or Accepted(id)
//
// A socket is named by its cookie, a number that the kernel never uses again (SO_COOKIE). The
// server finds the cookie of the socket at the other end of a connection that it has accepted
// by asking the kernel (sock_diag): so it is certain that it has the connection which was
// meant, and not another that has come from the same port. Source ports are free to be chosen
// by the kernel.
//
// All integers are little-endian.
//
//	offset  size  field
//	     0     1  type
//	     1     3  zero
//	     4     8  id           chosen by the client, unique among its own
//
//	Expect
//	    12     8  netns        cookie of the client's network namespace
//	    20     8  socket       cookie of the client's socket
//	    28     2  destination port
//	    30    16  destination  IPv6 or IPv4-mapped address
//	    46     4  interface    index of the one that the client's socket is bound to, 0 for none
//
//	Refused
//	    12     4  reason       a Diagnosis
//
// The number of bytes is part of the type: anything else is malformed.
type Message struct {
	Kind   Kind
	ID     uint64
	Netns  uint64         // Expect
	Socket uint64         // Expect
	Dest   netip.AddrPort // Expect; unmapped, without zone. Of the others only known where they are sent
	Iface  uint32         // Expect
	Reason uint32         // Refused
}

// A Kind is the first byte of a message.
type Kind uint8

// The kinds of messages. Expect and Cancel go to the server, the others to the client.
const (
	Expect   Kind = 1
	Accepted Kind = 2
	Refused  Kind = 3
	Cancel   Kind = 4
)

// Lengths in bytes.
const (
	HeaderLen  = 12 // Accepted and Cancel
	expectLen  = 50
	refusedLen = 16
)

var errRendezvous = errors.New("malformed rendezvous message")

// Append appends the encoded message to b and returns the extended slice.
func (m *Message) Append(b []byte) []byte {
	b = append(b, byte(m.Kind), 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, m.ID)
	switch m.Kind {
	case Expect:
		b = binary.LittleEndian.AppendUint64(b, m.Netns)
		b = binary.LittleEndian.AppendUint64(b, m.Socket)
		b = binary.LittleEndian.AppendUint16(b, m.Dest.Port())
		addr := m.Dest.Addr().As16()
		b = append(b, addr[:]...)
		b = binary.LittleEndian.AppendUint32(b, m.Iface)
	case Refused:
		b = binary.LittleEndian.AppendUint32(b, m.Reason)
	}
	return b
}

// Parse decodes a message, which is all of b. The reserved bytes are not looked at.
func Parse(b []byte) (m Message, err error) {
	if len(b) < HeaderLen {
		return Message{}, errRendezvous
	}
	m.Kind = Kind(b[0])
	m.ID = binary.LittleEndian.Uint64(b[4:])
	want := HeaderLen
	switch m.Kind {
	case Expect:
		want = expectLen
	case Refused:
		want = refusedLen
	case Accepted, Cancel:
	default:
		return Message{}, errRendezvous
	}
	if len(b) != want {
		return Message{}, errRendezvous
	}
	switch m.Kind {
	case Expect:
		m.Netns = binary.LittleEndian.Uint64(b[12:])
		m.Socket = binary.LittleEndian.Uint64(b[20:])
		m.Dest = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[30:])).Unmap(),
			binary.LittleEndian.Uint16(b[28:]))
		m.Iface = binary.LittleEndian.Uint32(b[46:])
	case Refused:
		m.Reason = binary.LittleEndian.Uint32(b[12:])
	}
	return m, nil
}
