// Package pairing has the kernel say which two sockets are the ends of one connection, whatever
// network namespaces, users and translations of addresses lie between them.
//
// 'gosmc agent' attaches programs to the root of the control groups. For the sockets that ask they
// put a token on the SYN, in a TCP option beside the SMC option, and one on the SYN-ACK. Each end
// keeps both: its own, and its peer's. See docs/agent.md and bpf/kernel/token.h.
//
//	client  Request, connect, TokensOf
//	server  Request on the listening socket, listen; TokensOf on each accepted one
//
// Two sockets are one connection if and only if [Match] says so of tokens that the kernel has told.
// A process learns the tokens of its own sockets here. They are no proof for anybody else, as
// numbers can be repeated: an agent reads them itself, from sockets that it was given (package bpf,
// Pairing.Read).
//
// No privilege is needed, and the agent need not run any more.
package pairing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Level is the level of the socket options that the agent's programs catch: Linux's SOL_SMC
// (include/linux/socket.h).
const Level = 286

// Name and NameOption are the numbers of the socket options: "PAIR" for the tokens and "SMNS" for
// the agent's name. Tests that attach programs of their own set others, so that an agent of this
// machine does not catch them.
var (
	Name       uint32 = 0x50414952
	NameOption uint32 = 0x534d4e53
)

// Magic is the identifier of the TCP option with a token, of kind 254 (RFC 6994): "PAIR". OptionLen
// is its length, in bytes.
const (
	Magic     = "PAIR"
	OptionLen = 14
)

// Layout is the version of the value that getsockopt returns, which is also what the programs keep
// for a socket.
//
//	offset  size  field
//	     0     1  layout  1
//	     1     1  state
//	     2     1  cause   see [Cause]
//	     3     5  zero
//	     8     8  mine    in the byte order of the machine
//	    16     8  theirs
const (
	Layout   = 1
	ValueLen = 24
)

// Tokens are the two numbers that a socket keeps of its connection's handshake. The zero value is
// no pair.
type Tokens struct {
	Mine   uint64 // was sent by this end
	Theirs uint64 // was received from the peer
}

// Match reports whether two pairs of tokens are those of the two ends of one connection.
func Match(a, b Tokens) bool {
	return a.Mine != 0 && a.Theirs != 0 && // rule: TestMatch: a.Mine != 0 && a.Theirs != 0 -> true
		a.Mine == b.Theirs && // rule: TestMatch: a.Mine == b.Theirs -> true
		a.Theirs == b.Mine // rule: TestMatch: a.Theirs == b.Mine -> true
}

// A Cause says why a socket has no tokens. Its text is for users.
type Cause uint8

// The causes, in the order of bpf/kernel/token.h, enum pairing_cause.
const (
	Paired      Cause = iota // it has tokens
	PeerSilent               // the peer's SYN or SYN-ACK had no token
	NoRoom                   // our SYN had no room for one
	FastOpen                 // our SYN was one of TCP Fast Open
	NotSent                  // our SYN-ACK had none: no room, or the SYN excludes it
	TooMany                  // too many listening sockets of this user or namespace have asked
	Crossed                  // both ends have connected to each other, or the socket to itself
	Signed                   // MD5 or AO signs our SYN
	Mixed                    // other sockets that listen on the port have asked for something else
	SentAgain                // our SYN was lost, and sent again without the token
	Cookie                   // our SYN-ACK had a SYN cookie
	OtherKernel              // the peer has an agent, on another kernel
)

// Causes that are states of the socket, and no part of the kernel's value.
const (
	Pending   Cause = iota + 64 // the socket asked, and is not connected yet
	Listening                   // the socket asked, and listens
	NotAsked                    // the socket did not ask
)

var causes = map[Cause]string{
	Paired:      "paired",
	PeerSilent:  "the peer has sent no pairing token",
	NoRoom:      "no room for a pairing token on the SYN",
	FastOpen:    "TCP Fast Open leaves no room for a pairing token",
	NotSent:     "no pairing token on our SYN-ACK: no room, or the SYN excludes it",
	TooMany:     "too many listening sockets have asked for pairing tokens",
	Crossed:     "both ends have connected to each other",
	Signed:      "TCP MD5 or AO signs the segments",
	Mixed:       "another socket that listens on the port has not asked for the same",
	SentAgain:   "the SYN with a pairing token was lost, perhaps to a firewall",
	Cookie:      "the SYN was answered with a cookie",
	OtherKernel: "the peer is on another kernel",
	Pending:     "the connection is not established yet",
	Listening:   "the socket listens",
	NotAsked:    "the socket did not ask for a pairing token",
}

// String implements [fmt.Stringer].
func (c Cause) String() string {
	if text, ok := causes[c]; ok {
		return text
	}
	return fmt.Sprintf("Cause(%d)", uint8(c))
}

var (
	// ErrNoService means that nothing on this machine pairs sockets: no agent was ever started, it
	// was detached, or the kernel lacks something ('gosmc agent --status' names it).
	ErrNoService = errors.New("no agent pairs sockets here; an administrator can start 'gosmc agent'")
	// ErrTooLate means that the socket is connected or listens already.
	ErrTooLate = errors.New("the socket is connected or listens already")
	// ErrMultipath means that the socket is one of multipath TCP, whose options leave no room for a
	// token.
	ErrMultipath = errors.New("multipath TCP leaves no room for a pairing token")
	// ErrNoName means that the agent does not serve the socket's network namespace yet. It was told
	// of it.
	ErrNoName = errors.New("the agent does not serve this network namespace yet")
)

// Request asks for tokens on the TCP socket fd, which is neither connected nor listening. It fits
// [net.Dialer].Control and [net.ListenConfig].Control, with multipath TCP switched off in both. A
// connection that a listening socket makes has asked if the listening socket has. The first request
// in a network namespace tells the agent of it. The error is [ErrNoService], [ErrTooLate],
// [ErrMultipath] or the system's.
func Request(fd uintptr) error { return set(fd, 1) }

// Withdraw takes the wish of Request back. The errors are those of Request.
func Withdraw(fd uintptr) error { return set(fd, 0) }

func set(fd uintptr, value int) error {
	switch err := unix.SetsockoptInt(int(fd), Level, int(Name), value); err {
	case nil:
		return nil
	case unix.EPERM: // how a program says no
		return ErrTooLate
	default:
		return explain(fd, "ask for a pairing token", err)
	}
}

// explain returns an error of a socket option with its meaning.
func explain(fd uintptr, doing string, err error) error {
	if err != unix.ENOPROTOOPT && err != unix.EOPNOTSUPP {
		return fmt.Errorf("%s: %w", doing, err)
	}
	protocol, perr := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if perr == nil && protocol == unix.IPPROTO_MPTCP {
		return ErrMultipath
	}
	return ErrNoService
}

// TokensOf returns the tokens of the TCP socket fd, and [Paired], or zero tokens and the cause. The
// error is [ErrNoService], [ErrMultipath] or the system's.
func TokensOf(fd uintptr) (Tokens, Cause, error) {
	var value [ValueLen]byte
	n, err := get(fd, Name, value[:])
	if err != nil {
		return Tokens{}, NotAsked, explain(fd, "read pairing tokens", err)
	}
	return Decode(value[:n])
}

func get(fd uintptr, name uint32, value []byte) (int, error) {
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, Level, uintptr(name),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return min(int(size), len(value)), nil
}

// States of the value, bpf/kernel/token.h: enum pairing_state.
const (
	stateNotAsked = iota
	stateAsked
	stateListening
	stateSent
	statePaired
	stateAlone
)

// Decode reads the value that the programs keep for a socket, of [ValueLen] bytes. Tokens are zero
// unless the cause is [Paired].
func Decode(value []byte) (Tokens, Cause, error) {
	if len(value) != ValueLen || value[0] != Layout {
		return Tokens{}, NotAsked, otherVersion("%d bytes, want %d", len(value), ValueLen)
	}
	t := Tokens{Mine: binary.NativeEndian.Uint64(value[8:]), Theirs: binary.NativeEndian.Uint64(value[16:])}
	switch cause := Cause(value[2]); value[1] {
	case statePaired:
		if t.Mine != 0 && t.Theirs != 0 {
			return t, Paired, nil
		}
	case stateAlone:
		if cause != Paired && cause <= OtherKernel {
			return Tokens{}, cause, nil
		}
	case stateAsked, stateSent:
		if cause == TooMany || cause == Mixed || cause == NotSent {
			return Tokens{}, cause, nil // a listening socket that was refused
		}
		return Tokens{}, Pending, nil
	case stateListening:
		return Tokens{}, Listening, nil
	case stateNotAsked:
		return Tokens{}, NotAsked, nil
	}
	return Tokens{}, NotAsked, otherVersion("state %d, cause %d", value[1], value[2])
}

// otherVersion is the error for a value that makes no sense.
func otherVersion(format string, args ...any) error {
	return fmt.Errorf("the agent's programs are of another version: "+format, args...)
}

// The value with the agent's name:
//
//	offset  size  field
//	     0     4  length of the name, in the byte order of the machine; 0 for none
//	     4    60  name
const (
	nameValueLen = 64
	MaxName      = 60 // bytes of a name
)

// ServiceName returns the name of the abstract Unix socket at which the agent is reached in the
// network namespace of the TCP socket fd, without the zero byte in front. The agent has told it to
// the kernel, and the kernel tells it to the process: no other process can have put it there. The
// error is [ErrNoService], [ErrMultipath], [ErrNoName] or the system's.
func ServiceName(fd uintptr) (string, error) {
	var value [nameValueLen]byte
	n, err := get(fd, NameOption, value[:])
	if err != nil {
		return "", explain(fd, "read the agent's name", err)
	}
	length := binary.NativeEndian.Uint32(value[:])
	switch {
	case n != nameValueLen || length > MaxName:
		return "", otherVersion("%d bytes, want %d", n, nameValueLen)
	case length == 0:
		return "", ErrNoName
	}
	return string(value[4 : 4+length]), nil
}

// Attached reports whether the programs of an agent see the sockets that this process makes. They stay
// when the agent ends, for the next one.
func Attached() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = ServiceName(uintptr(fd))
	return err == nil || errors.Is(err, ErrNoName)
}
