// Package option asks for TCP option 254, the SMC option, on sockets of this process, and reads
// whether the peer has it too. The option tells the two ends of a connection between hosts that
// both speak CLC.
//
// No ordinary process can put an option on a SYN. 'gosmc agent', which is privileged, attaches
// programs to the root of the control groups that do so for the sockets that ask, and catch the two
// socket options by which they ask: see docs/agent.md and bpf/kernel/option.bpf.c. The process
// needs no privilege, and the agent need not run any more.
//
//	client  Ask, connect, Read
//	server  Ask on the listening socket, listen; Read on each accepted one
//
// No CLC message may be sent, or awaited, on a connection for which Read does not say [Both].
package option

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Level is the level of the socket option that the agent's programs catch, on both sides: Linux's
// SOL_SMC for AF_SMC (include/linux/socket.h), which knows no option of the number Name.
const Level = 286

// Name is the number of the socket option: "SMCR". TestMain of tests that attach programs of their
// own sets another one, so that an agent of this machine, whose programs see all sockets, does not
// catch it too.
var Name uint32 = 0x534d4352

// Layout is the version of the four bytes that getsockopt returns, and of the state that the
// programs keep for a socket.
//
//	offset  size  field
//	     0     1  layout  1
//	     1     1  state   see [State]
//	     2     1  reason  see [Reason]
//	     3     1  flags   of the programs
const (
	Layout   = 1
	valueLen = 4
)

// A State is the outcome, so far, of a socket's wish.
type State uint8

const (
	NotAsked  State = iota // nobody asked for the option
	Asked                  // it will be on the SYN, or on the SYN-ACKs of a socket that listens
	Listening              // the socket listens
	Sent                   // it was on the SYN
	Both                   // it was on the SYN and on the SYN-ACK: CLC follows
	Alone                  // the connection is there, without the option on both: plain TCP
)

var stateNames = [...]string{"not asked", "asked", "listening", "sent", "both", "alone"}

// String implements [fmt.Stringer].
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// A Reason says why a connection is [Alone].
type Reason uint8

const (
	NoReason   Reason = iota
	PeerSilent        // the peer's SYN or SYN-ACK had no option
	NoRoom            // our SYN had no room for it
	FastOpen          // our SYN was one of TCP Fast Open
	NotSent           // our SYN-ACK had none: no room, or the SYN had data or an option that excludes it
	TooMany           // too many listening sockets of this user, or in this network namespace, have asked
	Crossed           // both ends have connected to each other
	Signed            // MD5 or AO signs our SYN
	Mixed             // another socket that listens on the port has not asked for the same
)

var reasonNames = [...]string{
	"", "the peer has not sent TCP option 254", "no room for TCP option 254 on the SYN", "TCP Fast Open",
	"no TCP option 254 on our SYN-ACK", "too many listening sockets have asked for TCP option 254", "both ends have connected to each other",
	"TCP MD5 or AO signs the segments", "another socket that listens on the port has not asked for the same",
}

// String implements [fmt.Stringer].
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// ErrNoAgent means that nothing on this machine catches the socket option: no agent was ever
// started, or it was detached. A socket of another kind than TCP also gets it, such as one of
// multipath TCP.
var ErrNoAgent = errors.New("no agent puts TCP option 254 on segments; an administrator can start 'gosmc agent'")

// ErrTooLate is that a socket is connected or listens already.
var ErrTooLate = errors.New("the socket is connected or listens already")

// Ask asks for the option on the socket fd, which is neither connected nor listening. It fits
// [net.Dialer].Control and [net.ListenConfig].Control, with multipath TCP switched off in both.
// The error is [ErrNoAgent], [ErrTooLate], or the system's.
func Ask(fd uintptr) error { return set(fd, 1) }

// Withdraw takes the wish of Ask back.
func Withdraw(fd uintptr) error { return set(fd, 0) }

func set(fd uintptr, value int) error {
	switch err := unix.SetsockoptInt(int(fd), Level, int(Name), value); err {
	case nil:
		return nil
	case unix.ENOPROTOOPT, unix.EOPNOTSUPP:
		return ErrNoAgent
	case unix.EPERM: // how a program says no
		return ErrTooLate
	default:
		return fmt.Errorf("ask for TCP option 254: %w", err)
	}
}

// Read returns the state of the socket fd, and why it is [Alone]. The error is [ErrNoAgent] or the system's.
func Read(fd uintptr) (State, Reason, error) {
	var value [valueLen]byte
	size := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, Level, uintptr(Name),
		uintptr(unsafe.Pointer(&value)), uintptr(unsafe.Pointer(&size)), 0)
	switch {
	case errno == unix.ENOPROTOOPT || errno == unix.EOPNOTSUPP:
		return NotAsked, NoReason, ErrNoAgent
	case errno != 0:
		return NotAsked, NoReason, fmt.Errorf("read TCP option 254: %w", errno)
	case size != valueLen || value[0] != Layout:
		return NotAsked, NoReason, fmt.Errorf("the agent's programs are of another version, %d in %d bytes, want %d", value[0], size, Layout)
	}
	return State(value[1]), Reason(value[2]), nil
}

// AskConn is [Ask] for a connection's raw form.
func AskConn(c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = Ask(fd) }); cerr != nil {
		return cerr
	}
	return err
}

// ReadConn is [Read] for a connection's raw form.
func ReadConn(c syscall.RawConn) (s State, r Reason, err error) {
	if cerr := c.Control(func(fd uintptr) { s, r, err = Read(fd) }); cerr != nil {
		return NotAsked, NoReason, cerr
	}
	return s, r, err
}
