package smcd

import (
	"cmp"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// Groups are the link groups of SMC-D: little more than their numbers, and the facts that the peers
// have told each other.
type Groups struct {
	newID    func() wire.LinkID
	maxConns int // of a link group; this number is offered

	mu    sync.Mutex
	table *core.Groups
	swept time.Time // when idle ones were last looked for: they cost nothing that anybody waits for
}

// NewGroups returns a table. newID returns the number of a new group; a group has at most maxConns
// connections.
func NewGroups(newID func() wire.LinkID, maxConns int) *Groups {
	return &Groups{newID: newID, maxConns: maxConns, table: core.NewGroups(maxGroups)}
}

// join finds or makes the link group of a connection.
func (g *Groups) join(role core.Role, choice core.Choice) (lg *core.LinkGroup, firstContact bool, err error) {
	now := time.Now()
	id := g.newID()
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.swept) > sweepEvery {
		g.swept = now
		g.table.Advance(now)
	}
	var why clc.Diagnosis
	if role == core.RoleServer {
		lg, firstContact, why = g.table.ServerJoin(choice.Key(core.RoleServer), id, g.maxConns)
	} else {
		lg, why = g.table.ClientJoin(choice.Key(core.RoleClient), choice.FirstContact, id, choice.D.LinkID)
	}
	if lg == nil {
		return nil, false, &transport.DeclinedError{Why: why}
	}
	return lg, firstContact, nil
}

// leave takes a connection out of its link group.
func (g *Groups) leave(lg *core.LinkGroup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.table.Leave(time.Now(), lg)
}

// confirm takes the result of a connection's handshake, the first one above all, and returns the
// result that the group has.
func (g *Groups) confirm(lg *core.LinkGroup, r core.Result) core.Result {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.FirstContact {
		g.table.Confirm(lg, r)
	}
	return lg.Result
}

// drop has no more connections join a link group.
func (g *Groups) drop(lg *core.LinkGroup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.table.Drop(lg)
}

// PeerGone drops the groups with a peer that is no more.
func (g *Groups) PeerGone(gid wire.ISMGID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.table.PeerGone(gid)
}

// Mode implements [transport.Fabric].
func (*Groups) Mode() core.Mode { return core.SMCD }

// Status implements [transport.Fabric]: it appends the status of each link group.
func (g *Groups) Status(list []control.StatusGroup) []control.StatusGroup {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, lg := range g.table.All() {
		s := transport.GroupStatus(lg)
		s.Peer = cmp.Or(s.Peer, lg.Key.Remote.GID.String())
		list = append(list, s)
	}
	return list
}

// maxGroups bounds the link groups, with those whose first contact is under way.
const maxGroups = 4096

// sweepEvery is how often, at most, idle link groups are looked for.
const sweepEvery = time.Second
