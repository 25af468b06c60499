// Package transport has the interfaces between a connection and the fabric that carries it. A
// handshake and a connection know nothing else of a fabric: a third one is another package that
// implements them.
//
//	[Fabric]       one that a host can carry connections over; a [Network] is one between machines
//	[Path]         one way for a handshake to reach its peer
//	[Binding]      the parts of a fabric that one connection has
//	[Association]  its end ends connections together: a peering, a link group
package transport

import (
	"context"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// A Path is one way for a handshake to reach its peer: one fabric, and the peer's place on it.
type Path interface {
	// Mode is the mode of the connections over this path.
	Mode() core.Mode

	// Offer adds the devices of this path to the capabilities that the handshake offers and
	// accepts.
	Offer(caps *core.Capabilities)

	// Traits tell the handshake about the peer before anything is agreed.
	Traits() PathTraits

	// Alive reports whether a peer with PathTraits.Local is there.
	Alive() bool

	// Examine tells a server's handshake, before it takes the client's Proposal, which of the
	// client's devices can be reached: none if the client is not admitted, since its host has as
	// many handshakes under way as it may.
	Examine(p *clc.Proposal, h *core.Handshake, admitted bool)

	// Watcher watches the TCP sockets of the path's connections.
	Watcher() *tcpwatch.Watcher

	// LinkMissing says that a link was waited for and did not come about, though TCP works.
	LinkMissing(waited time.Duration)

	// Prepare joins or makes the connection's link group and makes our buffer ready for core's
	// choice; a client's reaches the server's buffer too. It may wait until ctx ends. If it fails
	// it has given everything back.
	Prepare(ctx context.Context, q Request) (Binding, core.Resources, error)
}

// PathTraits are the facts that a handshake has to know of the peer at the end of a path.
type PathTraits struct {
	Local    bool // a process of this machine: if it is silent and lives it is only slow
	Stranger bool // as a client it may be a program that does not speak CLC
	Turns    bool // its connections confirm one after the other
}

// A Request asks a Path for a Binding. Any goroutine may call its functions.
type Request struct {
	Role     core.Role
	Choice   core.Choice
	Optional bool   // without the fabric the connection goes on over TCP
	Buffer   int    // size of our buffer in bytes
	Wake     func() // is called when something may have arrived
	Left     func() // is called once the peer is known to have no part in the connection any more
	Lost     func() // is called when the peer has given our element of its buffer to another connection
}

// A Binding holds the parts of a fabric that one connection has: our buffer, the way to the peer's,
// and its part in a link group. One goroutine at a time calls its methods.
type Binding interface {
	// StartLink begins the first contact of SMC-R: the server sends CONFIRM LINK, the client awaits
	// it. It does not wait: each step of the link is told, from any goroutine. An error ends it.
	StartLink(r core.Result, tell func(core.LinkStep)) error

	// Attach reaches the peer's buffer as told in its last message, unless Prepare has. An error that matches
	// ErrGone says that there is no peer any more.
	Attach(ctx context.Context, r core.Result) error

	// Confirm says that the handshake is over: other connections may join the link group.
	Confirm(r core.Result) Membership

	// OutOfSync says that the client has lost the link group that our Accept named: no connection
	// joins it any more. "The receiving peer must clean up its representation of the link group"
	// (RFC 7609 p.105). The next connection makes a new one.
	OutOfSync()

	// Declined says that the peer has declined a connection of a link group that there was before:
	// it may have found no RMB that it could use.
	Declined()

	// Leave takes the connection out of its link group. It is called once, after Release.
	Leave()

	// Stream returns the fields of the data path's configuration that belong to the fabric. If
	// Attach has failed, bytes that are written go nowhere.
	Stream() stream.Config

	// AppendHeader appends a CDC header as it is on the way to the peer, or from it if own is false.
	AppendHeader(b []byte, h cdc.Header, own bool) []byte

	// Detach ends the use of the peer's buffer, and Release the use of ours. clean says that the
	// connection has ended in order and that the memory may be used again. The data path must not
	// touch either afterwards. Calls after the first do nothing.
	Detach(clean bool)
	Release(clean bool)

	// ReturnPages gives pages of the peer's buffer back that hold nothing, as stream.Conn.ReturnPages asks.
	ReturnPages(from, to int) error

	// Association is the association whose end is also this connection's.
	Association() Association

	// Flush waits, after the application has closed and for a limited time, until the end of this
	// process cannot lose bytes that were written.
	Flush()

	// Suspect says that the peer may be gone, since its TCP connection has ended and it has not closed.
	Suspect()

	// MayMiss reports whether the peer may have said something that has not come and is not said again.
	MayMiss() bool

	// SetNoDelay is the option of TCP. A fabric on which bytes are visible at once ignores it.
	SetNoDelay(on bool)

	// SetQuiet says how long the way to the peer may be silent before it is tested, 0: the host's
	// default. It is called if Traits.Tests is set.
	SetQuiet(d time.Duration)

	// LinkNumber is the number of the link that carries the written bytes, 0 if there are no links.
	LinkNumber() uint8

	// Traits never change.
	Traits() Traits
}

// Traits are the facts that a connection has to know of its fabric. Each connection keeps them, so
// they are small.
type Traits struct {
	PeerPID   int32 // the process at the other end, 0 if it cannot be seen
	HeaderLen uint8 // bytes of a buffer that are not data

	// KeepAlive says that a peer's end may go unnoticed, so that TCP's keepalive is of use.
	KeepAlive bool

	// Tests says that the fabric itself tests whether a silent peer is there: TCP's own test is for
	// others on the way.
	Tests bool

	// Overtaken says that TCP may overtake bytes and flags of the peer, and that these may be lost
	// with a link.
	Overtaken bool
}

// A Membership describes the link group of a connection.
type Membership struct {
	Group    wire.LinkID
	Release  clc.Release // as the first contact has told, like the fields that follow
	PeerHost string
	PeerOS   clc.OS
}

// MembershipOf describes a link group by the result of its first contact.
func MembershipOf(group wire.LinkID, first *core.Result) Membership {
	return Membership{Group: group, Release: first.Release, PeerHost: first.PeerHostName,
		PeerOS: first.PeerOS}
}

// An Association ends the connections that depend on it: a peering of SMC-D, a link group of SMC-R.
// Its fabric tells the host of its end.
type Association interface {
	// Done is closed when it has ended.
	Done() <-chan struct{}

	// Cause is the event for its connections then.
	Cause() core.ConnEventKind
}

// NoLinks has the methods of a [Binding] whose peer sees written bytes at once, and whose end is
// known at once.
type NoLinks struct{}

// StartLink implements [Binding].
func (NoLinks) StartLink(core.Result, func(core.LinkStep)) error { return ErrNoLinks }

// Declined implements [Binding].
func (NoLinks) Declined() {}

// Flush implements [Binding].
func (NoLinks) Flush() {}

// Suspect implements [Binding].
func (NoLinks) Suspect() {}

// MayMiss implements [Binding].
func (NoLinks) MayMiss() bool { return false }

// SetNoDelay implements [Binding].
func (NoLinks) SetNoDelay(bool) {}

// SetQuiet implements [Binding].
func (NoLinks) SetQuiet(time.Duration) {}

// LinkNumber implements [Binding].
func (NoLinks) LinkNumber() uint8 { return 0 }
