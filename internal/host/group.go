package host

import (
	"fmt"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// joinGroup finds a link group for the connection.
func (s *handshake) joinGroup(choice core.Choice) (lg *core.LinkGroup, firstContact bool, err error) {
	h := s.host
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Sub(h.groupsSwept) > groupSweepEvery {
		h.groupsSwept = now
		h.groups.Advance(now)
	}
	h.nextLinkID++
	id := wire.LinkID(h.nextLinkID)
	var why clc.Diagnosis
	if s.role == core.RoleServer {
		s.group, firstContact, why = h.groups.ServerJoin(choice.Key(core.RoleServer), id, maxConnsPerGroup)
	} else {
		var peerID wire.LinkID // SMC-R's groups are told apart by their links
		if choice.D != nil {
			peerID = choice.D.LinkID
		}
		s.group, why = h.groups.ClientJoin(choice.Key(core.RoleClient), choice.FirstContact, id, peerID)
	}
	if s.group == nil {
		return nil, false, &declined{why}
	}
	return s.group, firstContact, nil
}

// declined is an error with a reason of its own.
type declined struct{ why clc.Diagnosis }

func (e *declined) Error() string { return clc.Lookup(e.why, clc.OSUnspecified).Sentence }

// leaveGroup undoes joinGroup for a handshake that came to nothing.
func (s *handshake) leaveGroup() {
	if s.group != nil {
		s.host.mu.Lock()
		s.host.groups.Leave(time.Now(), s.group)
		s.host.mu.Unlock()
		s.group = nil
	}
}

// dropGroup forgets the link group that our Accept named and that the client has lost: "the
// receiving peer must clean up its representation of the link group" (RFC 7609 p.105). The next
// connection makes a new one. Connections that the group has go on: each has memory of its own.
func (s *handshake) dropGroup() {
	if s.group != nil {
		s.host.mu.Lock()
		s.host.groups.Drop(s.group)
		s.host.mu.Unlock()
	}
}

// agreed remembers what a first contact has told, and describes the connection.
func (h *Host) agreed(peerPID int, lg *core.LinkGroup, r core.Result) Agreed {
	h.mu.Lock()
	if r.FirstContact {
		h.groups.Confirm(lg, r)
	}
	first := lg.Result
	h.mu.Unlock()
	return Agreed{
		Version:  fmt.Sprintf("%d.%d", r.Version, first.Release),
		EID:      r.EID.String(),
		PeerHost: first.PeerHostName,
		PeerOS:   first.PeerOS.String(),
		PeerPID:  peerPID,
	}
}
