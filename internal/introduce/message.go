package introduce

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/gosmc/smc/wire"
)

// Version is the version of the messages. An agent hangs up on a process of another version.
const Version = 1

// A Kind is the first byte of a message.
type Kind uint8

// The kinds of messages. Hello, Ask, Withdraw and Ready go to the agent, the others to a process;
// Taken and Returned go both ways. Those from Lent on are about pairs.
const (
	KindHello      Kind = 1 // opens the conversation
	KindWelcome    Kind = 2 // answers Hello
	KindAsk        Kind = 3 // asks for the process at the other end of a TCP connection; carries the socket
	KindWithdraw   Kind = 4 // takes a question back
	KindIntroduced Kind = 5 // answers a question; carries a socket to the other process
	KindRefused    Kind = 6 // answers a question
	KindLent       Kind = 7 // brings a client its end of a pair; one of the next two follows
	KindTaken      Kind = 8 // says that the server's program has the other end
	KindReturned   Kind = 9 // brings the other end back: the connection is TCP

	KindReady  Kind = 10 // says that the client's program has its end
	KindWanted Kind = 11 // tells the client that the server waits for that
)

// A Role says which end of a TCP connection a process holds.
type Role uint8

// The roles. A socket that was accepted has the role of the server.
const (
	RoleClient Role = 1
	RoleServer Role = 2
)

// Flags of Introduced.
const (
	flagSameUser = 1
	flagPair     = 2
)

// withMemory is a flag of the header.
const withMemory = 1

// Offers.
const (
	offerNone   = 0 // the connection is to be plain TCP
	offerDevice = 1 // a peering of two SMC-D devices
	offerPair   = 2 // a pair of Unix stream sockets, which takes the place of the connection
	offerEither = 3 // a peering; a pair, if the other end offers that alone
)

// common returns the offer that two offers have in common.
func common(a, b uint8) uint8 {
	switch {
	case a == b && a == offerEither:
		return offerDevice
	case a == b || b == offerEither:
		return a
	case a == offerEither:
		return b
	}
	return offerNone
}

// A Refusal is the reason why an agent does not introduce two processes.
type Refusal uint32

// The reasons.
const (
	RefusedAlone     Refusal = 1 // the other end has not asked in time, or the question was withdrawn
	RefusedUsers     Refusal = 2 // a policy does not admit the user of the other process
	RefusedBusy      Refusal = 3 // a quota of the user, or of the agent
	RefusedSocket    Refusal = 4 // the descriptor is no socket of a live TCP connection
	RefusedToken     Refusal = 5 // the socket has no pairing tokens
	RefusedContested Refusal = 6 // two processes ask for one end, or one socket is both ends
	RefusedOffer     Refusal = 7 // an offer that this agent does not know
	RefusedDeclined  Refusal = 8 // the other end, or this one, leaves the connection to TCP
	RefusedGivenBack Refusal = 9 // the server has had its end of a pair, but its program has not
)

var refusals = [...]string{
	"no reason", "the other end has not asked", "a policy does not admit the other user",
	"a quota is used up",
	"not a live TCP connection", "the socket has no pairing tokens", "two processes ask for one end",
	"an unknown offer", "the other end leaves the connection to TCP", "the other end has given the pair back",
}

// String implements [fmt.Stringer].
func (r Refusal) String() string {
	if int(r) < len(refusals) {
		return refusals[r]
	}
	return fmt.Sprintf("Refusal(%d)", uint32(r))
}

// Lengths in bytes.
const (
	headerLen     = 16
	helloLen      = 60 // without users and groups
	welcomeLen    = 104
	askLen        = 24
	introducedLen = 80
	refusedLen    = 24

	maxMessage = helloLen + 4*MaxUsers
)

// A Message is any message between a process and the agent; Kind says which fields count. A
// message is one packet of a Unix socket of the type SOCK_SEQPACKET, and begins with
//
//	offset  size  field
//	     0     1  kind
//	     1     1  version   1
//	     2     2  length    of the whole message
//	     4     1  flags     1: Ask: the process takes the memory of rings; Lent, Introduced: it comes along,
//	                        as a second descriptor ([newMemory]). Else 0, not checked
//	     5     3  reserved  sent as zero, not checked
//	     8     8  ID        of the question, chosen by the process; zero in Hello and Welcome
//
// Hello, 60 bytes and more.
//
//	16    16  GID       of the process's device
//	32     1  mode      of the users policy: 0 same, 1 any, 2 list
//	33     3  reserved
//	36     2  users     their number; all three together at most 256
//	38     2  groups    likewise
//	40     2  excepted  likewise
//	42     2  reserved
//	44    16  challenge  random
//	60     -  4 bytes for each user, then for each group, then for each excepted user
//
// Welcome, 104 bytes.
//
//	16    16  boot ID
//	32     4  PID       of the agent, in its own PID namespace
//	36     1  overcommit  vm.overcommit_memory of this kernel
//	37     1  offers      1: the agent knows the offer 3. 0, of older agents: it does not
//	38     2  reserved
//	40    64  signature  of the challenge, by the key of the room; see [Room]. Zero at a path
//
// Ask, 24 bytes, with the TCP socket.
//
//	16     1  role      1 client, 2 server
//	17     1  offer     1: a socket to the device of the other process. 0: none, the connection stays TCP.
//	                    2: a pair of stream sockets takes the place of the connection. 3: 1, or 2 if the
//	                    other end offers 2. Only an agent whose Welcome says so knows 3
//	18     2  reserved
//	20     4  wait      in milliseconds, for the other end's question; at most 3000 count
//
// Withdraw, 16 bytes: the header.
//
// Introduced, 80 bytes, with a socket to the other process, of the type SOCK_SEQPACKET; if both ends
// offer a pair, with this process's end of it.
//
//	16    16  GID       of the other process's device
//	32    16  secret    random, the same for both processes and for nobody else
//	48     4  UID       of the other process, in the user namespace of the agent
//	52     4  GID       of its user, likewise
//	56     4  PID       of the other process, in the PID namespace of the agent
//	60     1  flags     1: both processes have the same user. 2: the socket is an end of a pair; older
//	                    agents do not say so
//	61     3  reserved
//	64    16  process   names the other process: no other one has it
//
// Refused, 24 bytes; Returned, 24 bytes, with the server's end of a pair.
//
//	16     4  reason
//	20     4  reserved
//
// Lent, 16 bytes: the header, with the client's end of a pair, and perhaps memory. Taken, Ready and
// Wanted, 16 bytes: the header.
//
// Integers are big-endian.
type Message struct {
	Kind       Kind
	ID         uint64
	Memory     bool          // Ask, Lent, Introduced
	GID        wire.ISMGID   // Hello, Introduced
	Users      Users         // Hello
	Challenge  [16]byte      // Hello
	BootID     [16]byte      // Welcome
	PID        int32         // Welcome, Introduced
	Overcommit uint8         // Welcome
	Either     bool          // Welcome
	Signature  [64]byte      // Welcome
	Role       Role          // Ask
	Offer      uint8         // Ask
	Wait       time.Duration // Ask
	Secret     [16]byte      // Introduced
	Process    [16]byte      // Introduced
	SameUser   bool          // Introduced
	Pair       bool          // Introduced
	UID        uint32        // Introduced
	Group      uint32        // Introduced
	Reason     Refusal       // Refused, Returned
}

// length returns the number of bytes that Append adds.
func (m *Message) length() int {
	switch m.Kind {
	case KindHello:
		return helloLen + 4*m.Users.Len()
	case KindWelcome:
		return welcomeLen
	case KindAsk:
		return askLen
	case KindWithdraw, KindLent, KindTaken, KindReady, KindWanted:
		return headerLen
	case KindIntroduced:
		return introducedLen
	case KindRefused, KindReturned:
		return refusedLen
	}
	panic("introduce: impossible kind of message")
}

// rights returns how many descriptors come with a message.
func (m *Message) rights() int {
	switch m.Kind {
	case KindAsk, KindReturned:
		return 1
	case KindIntroduced, KindLent:
		if m.Memory {
			return 2
		}
		return 1
	}
	return 0
}

// Append appends the encoded message to b and returns the extended slice. A policy has at most
// [MaxUsers] entries.
func (m *Message) Append(b []byte) []byte {
	be := binary.BigEndian
	b = append(b, byte(m.Kind), Version)
	b = be.AppendUint16(b, uint16(m.length()))
	b = append(b, bit(m.Memory, withMemory), 0, 0, 0)
	b = be.AppendUint64(b, m.ID)
	switch m.Kind {
	case KindHello:
		gid := m.GID.UUID()
		b = append(b, gid[:]...)
		b = append(b, byte(m.Users.Mode), 0, 0, 0)
		b = be.AppendUint16(b, uint16(len(m.Users.Users)))
		b = be.AppendUint16(b, uint16(len(m.Users.Groups)))
		b = be.AppendUint16(b, uint16(len(m.Users.Excepted)))
		b = append(b, 0, 0)
		b = append(b, m.Challenge[:]...)
		for _, list := range [][]uint32{m.Users.Users, m.Users.Groups, m.Users.Excepted} {
			for _, id := range list {
				b = be.AppendUint32(b, id)
			}
		}
	case KindWelcome:
		b = append(b, m.BootID[:]...)
		b = be.AppendUint32(b, uint32(m.PID))
		b = append(b, m.Overcommit, bit(m.Either, 1), 0, 0)
		b = append(b, m.Signature[:]...)
	case KindAsk:
		b = append(b, byte(m.Role), m.Offer, 0, 0)
		b = be.AppendUint32(b, uint32(m.Wait.Milliseconds()))
	case KindIntroduced:
		gid := m.GID.UUID()
		b = append(b, gid[:]...)
		b = append(b, m.Secret[:]...)
		b = be.AppendUint32(b, m.UID)
		b = be.AppendUint32(b, m.Group)
		b = be.AppendUint32(b, uint32(m.PID))
		b = append(b, bit(m.SameUser, flagSameUser)|bit(m.Pair, flagPair), 0, 0, 0)
		b = append(b, m.Process[:]...)
	case KindRefused, KindReturned:
		b = be.AppendUint32(b, uint32(m.Reason))
		b = be.AppendUint32(b, 0)
	}
	return b
}

// bit returns a flag if it is set, else 0.
func bit(set bool, flag byte) byte {
	if set {
		return flag
	}
	return 0
}

// Parse decodes b, which is exactly one message. The result does not alias b. Errors are of type
// [*wire.DecodeError]; one with the cause [wire.ErrVersion] is of another version.
func Parse(b []byte) (Message, error) {
	be := binary.BigEndian
	fail := func(field string, offset int, err error) (Message, error) {
		return Message{}, &wire.DecodeError{Message: "introduce.Message", Field: field, Offset: offset,
			Err: err}
	}
	if len(b) < headerLen {
		return fail("header", len(b), wire.ErrTruncated)
	}
	if b[1] != Version { // rule: TestParseErrors
		return fail("version", 1, wire.ErrVersion)
	}
	m := Message{Kind: Kind(b[0]), ID: be.Uint64(b[8:])}
	switch m.Kind {
	case KindAsk, KindLent, KindIntroduced:
		m.Memory = b[4]&withMemory != 0
	}
	want := headerLen
	switch m.Kind {
	case KindHello:
		if len(b) < helloLen {
			return fail("message", len(b), wire.ErrTruncated)
		}
		entries := int(be.Uint16(b[36:])) + int(be.Uint16(b[38:])) + int(be.Uint16(b[40:]))
		if entries > MaxUsers { // rule: TestParseErrors
			return fail("users", 36, wire.ErrValue)
		}
		want = helloLen + 4*entries
	case KindWelcome, KindAsk, KindWithdraw, KindIntroduced, KindRefused, KindLent, KindTaken, KindReturned,
		KindReady, KindWanted:
		want = m.length()
	default:
		return fail("kind", 0, wire.ErrType)
	}
	switch {
	case len(b) < want:
		return fail("message", len(b), wire.ErrTruncated)
	case len(b) > want || int(be.Uint16(b[2:])) != want: // rule: TestParseErrors
		return fail("length", 2, wire.ErrLength)
	}
	switch m.Kind {
	case KindHello:
		m.GID = wire.ISMGIDFromUUID([16]byte(b[16:]))
		m.Challenge = [16]byte(b[44:])
		m.Users.Mode = Mode(b[32])
		switch {
		case m.GID.IsZero():
			return fail("GID", 16, wire.ErrValue)
		case m.Users.Mode > ModeList:
			return fail("mode", 32, wire.ErrValue)
		}
		rest := b[helloLen:]
		for i, list := range []*[]uint32{&m.Users.Users, &m.Users.Groups, &m.Users.Excepted} {
			n := int(be.Uint16(b[36+2*i:]))
			*list = numbers(rest, n)
			rest = rest[4*n:]
		}
	case KindWelcome:
		m.BootID = [16]byte(b[16:])
		m.PID = int32(be.Uint32(b[32:]))
		m.Overcommit = b[36]
		m.Either = b[37] != 0
		m.Signature = [64]byte(b[40:])
	case KindAsk:
		m.Role, m.Offer = Role(b[16]), b[17]
		m.Wait = time.Duration(be.Uint32(b[20:])) * time.Millisecond
		if m.Role != RoleClient && m.Role != RoleServer {
			return fail("role", 16, wire.ErrValue)
		}
	case KindIntroduced:
		m.GID = wire.ISMGIDFromUUID([16]byte(b[16:]))
		m.Secret = [16]byte(b[32:])
		m.UID, m.Group, m.PID = be.Uint32(b[48:]), be.Uint32(b[52:]), int32(be.Uint32(b[56:]))
		m.SameUser = b[60]&flagSameUser != 0
		m.Pair = b[60]&flagPair != 0
		m.Process = [16]byte(b[64:])
		if m.GID.IsZero() {
			return fail("GID", 16, wire.ErrValue)
		}
	case KindRefused, KindReturned:
		m.Reason = Refusal(be.Uint32(b[16:]))
	}
	return m, nil
}

// numbers decodes n numbers, nil for none.
func numbers(b []byte, n int) (list []uint32) {
	for i := range n {
		list = append(list, binary.BigEndian.Uint32(b[4*i:]))
	}
	return list
}
