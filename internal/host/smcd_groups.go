package host

import (
	"sync"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// smcdGroups are the link groups of SMC-D: little more than their numbers, and what the peers have told each other.
type smcdGroups struct {
	newID func() wire.LinkID

	mu    sync.Mutex
	table *core.Groups
	swept time.Time // when idle ones were last looked for: they cost nothing that anybody waits for
}

func newSMCDGroups(newID func() wire.LinkID) *smcdGroups {
	return &smcdGroups{newID: newID, table: core.NewGroups(maxGroups)}
}

// join finds or makes the link group of a connection.
func (g *smcdGroups) join(role core.Role, choice core.Choice) (lg *core.LinkGroup, firstContact bool, err error) {
	now := time.Now()
	id := g.newID()
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.swept) > groupSweepEvery {
		g.swept = now
		g.table.Advance(now)
	}
	var why clc.Diagnosis
	if role == core.RoleServer {
		lg, firstContact, why = g.table.ServerJoin(choice.Key(core.RoleServer), id, maxConnsPerGroup)
	} else {
		lg, why = g.table.ClientJoin(choice.Key(core.RoleClient), choice.FirstContact, id, choice.D.LinkID)
	}
	if lg == nil {
		return nil, false, &transport.DeclinedError{Why: why}
	}
	return lg, firstContact, nil
}

// leave takes a connection out of its link group.
func (g *smcdGroups) leave(lg *core.LinkGroup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.table.Leave(time.Now(), lg)
}

// confirm takes what the handshake of a connection has told, the first one above all, and returns what that of the group has.
func (g *smcdGroups) confirm(lg *core.LinkGroup, r core.Result) core.Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.FirstContact {
		g.table.Confirm(lg, r)
	}
	return lg.Result
}

// drop has no more connections join a link group.
func (g *smcdGroups) drop(lg *core.LinkGroup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.table.Drop(lg)
}

// peerGone drops the groups with a peer that is no more.
func (g *smcdGroups) peerGone(gid wire.ISMGID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.table.PeerGone(gid)
}
