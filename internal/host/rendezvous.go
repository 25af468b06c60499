package host

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Rendezvous messages travel as signals over the peering of two Emulated-ISM devices.
// They settle, before any CLC byte is sent, that the program at the other end of one TCP
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
//
//	Refused
//	    12     4  reason       a Diagnosis
//
// The number of bytes is part of the type: anything else is malformed.
type rendezvous struct {
	kind   rendezvousKind
	id     uint64
	netns  uint64         // Expect
	socket uint64         // Expect
	dest   netip.AddrPort // Expect; unmapped, without zone. Of the others only known where they are sent
	reason uint32         // Refused
}

type rendezvousKind uint8

const (
	rvExpect   rendezvousKind = 1
	rvAccepted rendezvousKind = 2
	rvRefused  rendezvousKind = 3
	rvCancel   rendezvousKind = 4
)

const (
	rvHeaderLen  = 12
	rvExpectLen  = 46
	rvRefusedLen = 16
)

var errRendezvous = errors.New("malformed rendezvous message")

// append appends the encoded message.
func (m *rendezvous) append(b []byte) []byte {
	b = append(b, byte(m.kind), 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, m.id)
	switch m.kind {
	case rvExpect:
		b = binary.LittleEndian.AppendUint64(b, m.netns)
		b = binary.LittleEndian.AppendUint64(b, m.socket)
		b = binary.LittleEndian.AppendUint16(b, m.dest.Port())
		addr := m.dest.Addr().As16()
		b = append(b, addr[:]...)
	case rvRefused:
		b = binary.LittleEndian.AppendUint32(b, m.reason)
	}
	return b
}

// parseRendezvous decodes a message. The reserved bytes are not looked at.
func parseRendezvous(b []byte) (m rendezvous, err error) {
	if len(b) < rvHeaderLen {
		return rendezvous{}, errRendezvous
	}
	m.kind = rendezvousKind(b[0])
	m.id = binary.LittleEndian.Uint64(b[4:])
	want := rvHeaderLen
	switch m.kind {
	case rvExpect:
		want = rvExpectLen
	case rvRefused:
		want = rvRefusedLen
	case rvAccepted, rvCancel:
	default:
		return rendezvous{}, errRendezvous
	}
	if len(b) != want {
		return rendezvous{}, errRendezvous
	}
	switch m.kind {
	case rvExpect:
		m.netns = binary.LittleEndian.Uint64(b[12:])
		m.socket = binary.LittleEndian.Uint64(b[20:])
		m.dest = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[30:])).Unmap(), binary.LittleEndian.Uint16(b[28:]))
	case rvRefused:
		m.reason = binary.LittleEndian.Uint32(b[12:])
	}
	return m, nil
}
