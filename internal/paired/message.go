package paired

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/gosmc/smc/internal/rendezvous"
)

// Tokens are the pairing tokens of one end of a TCP connection.
type Tokens struct{ Mine, Theirs uint64 }

// A Name stands for a TCP connection in messages. Nobody can learn the tokens from it, and a process
// that has seen a name cannot prove that it has the connection.
type Name uint64

// A Proof shows one peer that a process has the tokens of a connection. Another peer cannot use it, because
// the secret of the introduction is part of it.
type Proof [16]byte

// hash hashes a word of 8 bytes, a secret and the tokens of both ends: the client's and the server's.
func hash(word string, secret [16]byte, client, server uint64) [sha256.Size]byte {
	var b [40]byte
	copy(b[:8], word)
	copy(b[8:24], secret[:])
	binary.BigEndian.PutUint64(b[24:], client)
	binary.BigEndian.PutUint64(b[32:], server)
	return sha256.Sum256(b[:])
}

func nameOf(client, server uint64) Name {
	sum := hash("name", [16]byte{}, client, server)
	return Name(binary.BigEndian.Uint64(sum[:]))
}

func proofOf(secret [16]byte, client, server uint64) Proof {
	sum := hash("proof", secret, client, server)
	return Proof(sum[:16])
}

// A Message travels as a signal over the peering of two Emulated-ISM devices that were introduced.
// Messages settle, before any CLC byte is sent, that the program at the other end of a TCP connection
// expects CLC on it.
//
//	client                                      server
//	  connect ----------- TCP ------------------->   accept
//	  Expect(id, name, proof) ------------------->   before or after that
//	  <------------------------------ Accepted(id)   CLC will be read from it
//	  Proposal ---------- TCP ------------------->
//
// The client sends its Proposal only after Accepted. If that does not come the connection is plain TCP
// after
//
//	Cancel(id) -------------------------------->   forgotten, or too late
//	<----------------- Refused(id) or Accepted(id)
//
// All integers are big-endian.
//
//	offset  size  field
//	     0     1  kind   16 Expect, 17 Accepted, 18 Refused, 19 Cancel
//	     1     3  zero
//	     4     8  id     chosen by the client, unique among its own
//
//	Expect, 36 bytes
//	    12     8  name
//	    20    16  proof
//
//	Refused, 16 bytes
//	    12     4  reason a Diagnosis
//
// The number of bytes is part of the kind: anything else is malformed.
type Message struct {
	Kind   Kind
	ID     uint64
	Name   Name   // Expect
	Proof  Proof  // Expect
	Reason uint32 // Refused
}

// A Kind is the first byte of a message. The kinds of the rendezvous are below [Expect].
type Kind uint8

// The kinds of messages. Expect and Cancel go to the server, the others to the client.
const (
	Expect   Kind = 16
	Accepted Kind = 17
	Refused  Kind = 18
	Cancel   Kind = 19
)

// Rendezvous returns the kind of the rendezvous that means the same.
func (k Kind) Rendezvous() rendezvous.Kind {
	switch k {
	case Expect:
		return rendezvous.Expect
	case Accepted:
		return rendezvous.Accepted
	case Refused:
		return rendezvous.Refused
	}
	return rendezvous.Cancel
}

// IsMessage reports whether a signal is a message of this package, not of the rendezvous.
func IsMessage(signal []byte) bool { return len(signal) > 0 && Kind(signal[0]) >= Expect }

// Lengths in bytes.
const (
	headerLen  = 12
	expectLen  = 36
	refusedLen = 16
)

var errMessage = errors.New("malformed message about a connection with tokens")

func (k Kind) length() int {
	switch k {
	case Expect:
		return expectLen
	case Refused:
		return refusedLen
	case Accepted, Cancel:
		return headerLen
	}
	return 0
}

// Append appends the encoded message to b and returns the extended slice.
func (m *Message) Append(b []byte) []byte {
	b = append(b, byte(m.Kind), 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, m.ID)
	switch m.Kind {
	case Expect:
		b = binary.BigEndian.AppendUint64(b, uint64(m.Name))
		b = append(b, m.Proof[:]...)
	case Refused:
		b = binary.BigEndian.AppendUint32(b, m.Reason)
	}
	return b
}

// Parse decodes a message, which is all of b. The reserved bytes are not looked at.
func Parse(b []byte) (m Message, err error) {
	if len(b) < headerLen {
		return m, errMessage
	}
	m.Kind = Kind(b[0])
	if len(b) != m.Kind.length() { // rule: TestParse
		return Message{}, errMessage
	}
	m.ID = binary.BigEndian.Uint64(b[4:])
	switch m.Kind {
	case Expect:
		m.Name = Name(binary.BigEndian.Uint64(b[12:]))
		m.Proof = Proof(b[20:])
	case Refused:
		m.Reason = binary.BigEndian.Uint32(b[12:])
	}
	return m, nil
}
