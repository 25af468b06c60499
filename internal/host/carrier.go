package host

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// What a connection needs of its fabric, whichever that is. Handshake and Conn know these interfaces and carry out
// what core decides; smcd.go has SMC-D's.

// A way is how one handshake can reach its peer: one fabric, and where on it the peer is.
type way interface {
	// mode is that of the connections that go this way.
	mode() core.Mode

	// offer adds what this way has to what the handshake offers and accepts.
	offer(caps *core.Capabilities)

	// traits are what the handshake has to know of its peer before anything is agreed.
	traits() wayTraits

	// lives reports whether a peer with wayTraits.local is there.
	lives() bool

	// meet tells a server's handshake, before it takes the client's Proposal, what of that can be reached this way: nothing
	// if the client is not admitted, since its host has as many handshakes under way as it may.
	meet(p *clc.Proposal, h *core.Handshake, admitted bool)

	// watcher is what looks after the TCP sockets of its connections.
	watcher() *tcpwatch.Watcher

	// filtered says that a link was waited for and did not come about, though TCP works.
	filtered(waited time.Duration)

	// prepare joins or makes the connection's link group and makes our buffer ready for what core has chosen; on the client it reaches
	// the server's. It may wait until ctx ends. When it fails nothing is left of it.
	prepare(ctx context.Context, t terms) (carrier, core.Resources, error)
}

// wayTraits are what is known of a peer that is reached one way.
type wayTraits struct {
	local    bool // a process of this machine: where it is silent and lives it is only slow
	stranger bool // as a client it may be a program that does not speak CLC
	turns    bool // its connections confirm one after the other
}

// Terms are what prepare is asked for.
type terms struct {
	role     core.Role
	choice   core.Choice
	optional bool   // without the fabric the connection goes on over TCP
	buffer   int    // size of our buffer in bytes
	wake     func() // to be called when something may have arrived, from any goroutine
	left     func() // to be called, from any goroutine, once the peer is known to have no part in the connection any more
	lost     func() // to be called when the peer has given our element of its buffer to another connection
}

// A membership is what a connection has of its link group to tell.
type membership struct {
	group    wire.LinkID
	release  clc.Release // as the first contact has told, like what follows
	peerHost string
	peerOS   clc.OS
}

// A carrier is what one connection has of a fabric: our buffer, the way to the peer's, and the peer's end.
// Its methods are called by one goroutine at a time.
type carrier interface {
	// startLink begins the first contact of SMC-R: the server sends CONFIRM LINK, the client awaits it. It does not
	// wait: each step of the link is told, from any goroutine. An error ends it.
	startLink(r core.Result, tell func(core.LinkStep)) error

	// attach reaches the peer's buffer as told in its last message, unless prepare has. An error that matches
	// errGone says that there is no peer any more.
	attach(ctx context.Context, r core.Result) error

	// confirm says that the handshake is over: other connections may join the link group.
	confirm(r core.Result) membership

	// outOfSync says that the client has lost the link group that our Accept named: no connection joins it any more. "The
	// receiving peer must clean up its representation of the link group" (RFC 7609 p.105). The next connection makes a new one.
	outOfSync()

	// declined says that the peer has declined a connection of a link group that there was before: it may have found no RMB
	// that it could use.
	declined()

	// leave takes the connection out of its link group. It is called once, after release.
	leave()

	// stream is what the data path goes through: the fields of the configuration that belong to the
	// fabric. Where attach has failed, what is written goes nowhere.
	stream() stream.Config

	// appendHeader appends a CDC header as it is on the way to the peer, or from it if own is false.
	appendHeader(b []byte, h cdc.Header, own bool) []byte

	// detach ends the use of the peer's buffer, and release that of ours. clean says that the connection has
	// ended in order and that the memory may be used again. The data path must not touch either afterwards. Calls
	// after the first do nothing.
	detach(clean bool)
	release(clean bool)

	// returnPages gives pages of the peer's buffer back that hold nothing, as stream.Conn.ReturnPages asks.
	returnPages(from, to int) error

	// end is what this connection shares its end with.
	end() end

	// sent waits, after the application has closed and for a limited time, until what it has written is where the end of this
	// process does not matter any more.
	sent()

	// suspect says that the peer may be gone, since its TCP connection has ended and it has not closed.
	suspect()

	// mayMiss reports whether the peer may have said something that has not come and is not said again.
	mayMiss() bool

	// setNoDelay is the option of TCP. What is visible at once needs none.
	setNoDelay(on bool)

	// setQuiet says how long the way to the peer may be silent before it is tested, 0: as the host likes. With traits.tests.
	setQuiet(d time.Duration)

	// linkNumber is the number of the link that what is written goes over, 0 if there are no links.
	linkNumber() uint8

	// traits never change.
	traits() traits
}

// traits are what a connection has to know of its fabric.
type traits struct {
	headerLen int // bytes of a buffer that are not data
	peerPID   int // the process at the other end, 0 if it cannot be seen

	// keepAlive says that a peer's end may go unnoticed, so that TCP's keepalive is of use.
	keepAlive bool

	// tests says that the fabric tests by itself whether a silent peer is there: that of TCP is for others on the way.
	tests bool

	// overtaken says that TCP may overtake what the peer wrote, and its flags, which may be lost, too.
	overtaken bool
}

// noLinks are the methods of a carrier whose peer sees at once what is written, and whose end is known at once.
type noLinks struct{}

func (noLinks) startLink(core.Result, func(core.LinkStep)) error { return errNoLinks }

func (noLinks) declined() {}

func (noLinks) sent() {}

func (noLinks) suspect() {}

func (noLinks) mayMiss() bool { return false }

func (noLinks) setNoDelay(bool) {}

func (noLinks) setQuiet(time.Duration) {}

func (noLinks) linkNumber() uint8 { return 0 }

// An end ends the connections that depend on it: a peering on SMC-D, a link group on SMC-R. Who serves
// the fabric calls [Host.endGone].
type end interface {
	// Done is closed when it has ended.
	Done() <-chan struct{}

	// Cause is what connections are told then.
	Cause() core.ConnEventKind
}

var (
	errUnreachable = errors.New("the peer's device is not the one that the connection was agreed on with")
	errGone        = errors.New("the peer is gone")
	errNoLinks     = errors.New("this fabric has no links")
)

// addEnd makes sure that the host knows an end. It reports false for one that has come.
func (h *Host) addEnd(e end) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-e.Done():
		return false // endGone was called, or will be and find what we add
	default:
	}
	if h.ends[e] == nil {
		h.ends[e] = make(map[*Conn]struct{})
	}
	return true
}

// endGone tells the connections of an end that it has come, after tell was told how many they are. To be
// called once, after Done was closed. It returns these connections.
func (h *Host) endGone(e end, tell func(count int)) []*Conn {
	h.mu.Lock()
	conns := slices.Collect(maps.Keys(h.ends[e]))
	delete(h.ends, e)
	h.mu.Unlock()
	tell(len(conns))
	for _, c := range conns {
		c.event(core.ConnEvent{Kind: e.Cause()})
		c.wake() // it may have died after it published its last bytes and its close, and before it rang
	}
	return conns
}
