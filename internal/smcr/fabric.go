// Package smcr carries connections over SMC-R: through RMBs of link groups, whose links are
// reliable queue pairs of software RNICs. It carries out the decisions of llcflow for a link group
// with the links and RMBs of package link, on the devices of package rnic.
//
//	[Fabric]  SMC-R of one host: the table of its link groups, those at work, and their memory
//	[Path]    a handshake with a peer on another machine
//	[Owner]   is told of the events of link groups
//
// Locks, in the order in which they are taken: the lock of a link group, which guards all its
// parts, then the lock of the fabric. An owner may be called with the former held. The locks of
// freedOwners, filteredPeers and tcpWatch come last, and no group or fabric is called with them
// held.
package smcr

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/llc"
)

// A Config says how connections over SMC-R are made. All fields are set, but for KeepAlive.
type Config struct {
	RNICs    *rnic.Set
	PeerID   wire.PeerID
	HaveUEID bool // there is a UEID, without which there is no version 2
	V1       bool // version 1 is on

	MaxConns     int   // of a link group; this number is offered
	MaxLinks     int   // symmetric ones of a link group
	ReadBuffer   int   // bytes that a connection has by default
	MemoryBudget int64 // bytes of RMBs and send rings together
	// how long a link may be silent before it is tested; 0: llcflow's default, negative: for ever
	KeepAlive time.Duration
	Spread    string // SpreadConnections or SpreadBytes

	Namespace func(func()) // runs a function in the network namespace of the RNICs
	Logger    *slog.Logger
	NewID     func() wire.LinkID // of a link group; any goroutine may call it
	Owner     Owner
}

// An Owner is told of the events of link groups. It may be called with the lock of a group held,
// but for GroupEnded, and does not call the group.
type Owner interface {
	// GroupMade is told of a group before connections use it.
	GroupMade(a transport.Association)

	// GroupEnded tells the connections of a group that it has ended, after tell was told how many
	// they are. lost tells the same connections that the links are gone, once they are: some may
	// await an answer that cannot come any more.
	GroupEnded(a transport.Association, tell func(count int)) (lost func())

	// FailedOver counts a link whose connections go on over other links of its group.
	FailedOver()

	// Ended counts the end of a group, or of one of its links, by a reason in words.
	Ended(what, reason string)

	// TraceLLC traces an LLC message, or the bytes that came in place of one.
	TraceLLC(g *core.LinkGroup, local, peer netip.Addr, message []byte, sent bool)
}

// A Fabric is SMC-R of one host: the table of its link groups, those at work, and their memory.
type Fabric struct {
	cfg   Config
	rnics *rnic.Set // cfg.RNICs

	watch        tcpWatch // for the TCP sockets of connections
	filtered     filteredPeers
	memory       memoryBudget // of all RMBs and send rings
	rnicPatience func(func()) // calls it when an RNIC was down for rnicPatience, but in tests

	mu      sync.Mutex // comes after a group's; nothing is called with it held but groups
	groups  *core.Groups
	running map[*core.LinkGroup]*group // that connections may join
	changed chan struct{}              // closed when a first contact is over; nil if nobody waits
	timer   *time.Timer                // runs sweep; nil before it was needed
	closed  bool                       // for good
}

// New returns a fabric without link groups.
func New(cfg Config) *Fabric {
	return &Fabric{
		cfg: cfg, rnics: cfg.RNICs,
		rnicPatience: func(over func()) { time.AfterFunc(rnicPatience, over) },
		memory:       memoryBudget{limit: cfg.MemoryBudget},
		groups:       core.NewGroups(maxGroups),
		running:      make(map[*core.LinkGroup]*group),
	}
}

// Memory implements [transport.Network]: it returns the size of all RMBs and send rings, each
// counted in full, and the size of the RMBs alone.
func (f *Fabric) Memory() (all, rmbs int64) {
	return f.memory.used(), f.memory.rmbs.Load()
}

// Mode implements [transport.Fabric].
func (f *Fabric) Mode() core.Mode { return core.SMCR }

// DeleteLink implements [transport.Network]: it ends a link of a group, as an operator asks. A
// client asks its server to; nobody waits for that here.
func (f *Fabric) DeleteLink(id uint32, num uint8) error {
	f.mu.Lock()
	var g *group
	for lg, x := range f.running {
		if uint32(lg.ID) == id {
			g = x
		}
	}
	f.mu.Unlock()
	if g == nil {
		return &transport.NoGroupError{Group: id, Mode: core.SMCR}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.links.delete(llc.LinkNum(num))
}

// Close implements [transport.Network]: it ends all link groups, in order as far as that does not
// take long, and closes the devices, and the watcher of the TCP sockets of their connections. With
// forGood none is opened afterwards.
func (f *Fabric) Close(forGood bool) {
	f.mu.Lock()
	f.closed = f.closed || forGood
	groups := make([]*group, 0, len(f.running))
	for _, g := range f.running {
		groups = append(groups, g)
	}
	if f.timer != nil {
		f.timer.Stop()
	}
	f.mu.Unlock()
	for _, g := range groups {
		g.end.finish(llcflow.EndShutdown)
	}
	late := time.NewTimer(groupEndTime)
	defer late.Stop()
	expired := false
	for _, g := range groups {
		if !g.started() {
			continue // its handshake ends it
		}
		if !expired {
			select {
			case <-g.loop.stopped:
				continue
			case <-late.C:
				expired = true
			}
		}
		g.links.fail(transport.ErrClosed)
		<-g.loop.stopped
	}
	f.rnics.Close(forGood)
	f.watch.close(forGood)
}
