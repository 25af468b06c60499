package smc

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/gosmc/smc/wire/clc"
)

// Mode is the transport that carries a connection's bytes.
type Mode uint8

// The modes.
const (
	ModeTCP  Mode = iota // plain TCP
	ModeSMCD             // shared memory of one machine
	ModeSMCR             // RDMA
	// a pair of Unix sockets, with a program that was started by 'gosmc run'; no SMC on the wire
	ModeUnix
)

// String returns "TCP", "SMC-D", "SMC-R" or "Unix".
func (m Mode) String() string { return modeNames[m] }

var modeNames = [...]string{ModeTCP: "TCP", ModeSMCD: "SMC-D", ModeSMCR: "SMC-R", ModeUnix: "Unix"}

// MarshalText implements [encoding.TextMarshaler].
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]: it takes the names that String returns.
func (m *Mode) UnmarshalText(text []byte) error {
	i := slices.Index(modeNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("smc: mode %q is none of %q", text, modeNames)
	}
	*m = Mode(i)
	return nil
}

// A State describes a connection: its mode, its peer, and the bytes that have passed through it.
type State struct {
	Mode    Mode
	Version string // of SMC, as "2.1"; empty where there is none
	EID     string // the enterprise ID that both ends have; empty without SMC
	Reason  Reason // why TCP; zero on anything else

	PeerHost string // host name that the peer gave; may be empty
	PeerOS   string // operating system that the peer gave, as "Linux"
	PeerPID  int    // process at the other end of SMC-D, and of ModeUnix for servers; 0 if unknown

	// Link is the number of the link of SMC-R over which our writes go, 0 with anything else. It
	// changes when a link is lost or has come.
	Link uint8

	// ReadBuffer and WriteBuffer are the sizes in bytes of our receive buffer and of the
	// peer's; 0 without SMC.
	ReadBuffer, WriteBuffer int

	BytesRead, BytesWritten uint64 // by the application
}

// A Reason says why a connection is plain TCP.
type Reason struct {
	Code   uint32 // as in an SMC Decline; 0x7e01.... are our own and are not sent
	Tag    string // short name, as tools show it
	Text   string // in words
	Cause  string // the likely cause
	Advice string // the remedy
}

// String returns the text, the tag and the number; nothing for the zero value.
func (r Reason) String() string {
	if r == (Reason{}) {
		return ""
	}
	return fmt.Sprintf("%s [%s 0x%08x]", r.Text, r.Tag, r.Code)
}

func publicReason(r clc.Reason) Reason {
	return Reason{Code: uint32(r.Code), Tag: r.Tag, Text: r.Sentence, Cause: r.Cause, Advice: r.Advice}
}

// State returns the connection's state. It is cheap.
func (c *Conn) State() State {
	in, out := c.c.Totals()
	s := State{Mode: Mode(c.c.Mode()), BytesRead: in, BytesWritten: out}
	if s.Mode == ModeTCP {
		s.Reason = publicReason(c.c.Reason())
		return s
	}
	s.setAgreed(c.c)
	return s
}

// ErrFallback is matched, with [errors.Is], by every error that means that SMC was
// required and could not be used, though the TCP connection was good.
var ErrFallback = errors.New("smc: fell back to TCP")

// A FallbackError is the error of a dial with a [Requirement] that was not met.
type FallbackError struct {
	Reason Reason
	ByPeer bool  // the peer declined
	Err    error // the error on this side; may be nil
}

// Error gives the reason in words.
func (e *FallbackError) Error() string {
	who := "fell back to TCP"
	if e.ByPeer {
		who = "declined by peer"
	}
	if e.Err != nil {
		return fmt.Sprintf("smc: %s: %v: %v", who, e.Reason, e.Err)
	}
	return fmt.Sprintf("smc: %s: %v", who, e.Reason)
}

// Unwrap returns the error on this side.
func (e *FallbackError) Unwrap() error { return e.Err }

// Is makes a FallbackError match [ErrFallback].
func (e *FallbackError) Is(target error) bool { return target == ErrFallback }

// publicError replaces errors of internal types by exported ones.
func publicError(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) {
		return err
	}
	if fb, ok := op.Err.(*innerFallbackError); ok {
		op.Err = &FallbackError{Reason: publicReason(fb.Reason), ByPeer: fb.ByPeer, Err: fb.Err}
	}
	return err
}
