package host

import (
	"context"
	"fmt"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// joinGroup finds a link group for the connection. With SMC-R it may wait until ctx ends for the first contact of another
// connection, so that many to one peer make one group.
func (s *handshake) joinGroup(ctx context.Context, choice core.Choice) (lg *core.LinkGroup, firstContact bool, err error) {
	s.leaveGroup()
	if choice.Mode == core.SMCR {
		return s.joinSMCR(ctx, choice)
	}
	return s.joinSMCD(choice)
}

func (s *handshake) joinSMCD(choice core.Choice) (lg *core.LinkGroup, firstContact bool, err error) {
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
		s.group, why = h.groups.ClientJoin(choice.Key(core.RoleClient), choice.FirstContact, id, choice.D.LinkID)
	}
	if s.group == nil {
		return nil, false, &declined{why}
	}
	return s.group, firstContact, nil
}

func (s *handshake) joinSMCR(ctx context.Context, choice core.Choice) (*core.LinkGroup, bool, error) {
	h := s.host
	var late <-chan time.Time
	waited := false
	network := h.rnics.PNETIDOf(addrPort(s.conn.tcp.LocalAddr()).Addr().Unmap())
	var vlan uint16
	if w, ok := s.chosen.(*smcrWay); ok && choice.Version == clc.V1 {
		// Packets of version 2 are routed, so that the ends may well be in different ones. Linux net/smc looks no further either.
		vlan = w.vlan // rule: TestSMCRVLAN: w.vlan -> 0*w.vlan
	}
	for {
		h.mu.Lock()
		h.nextLinkID++
		id := wire.LinkID(h.nextLinkID)
		j := h.groups.JoinLinks(core.JoinRequest{
			Role: s.role, Choice: choice, ID: id, MaxConns: maxConnsPerGroup, Waited: waited, PNETID: network, VLAN: vlan,
		})
		if j.Wait && h.changed == nil {
			h.changed = make(chan struct{})
		}
		changed := h.changed
		ended := h.runningLocked(j.Ended)
		h.mu.Unlock()
		for _, g := range ended {
			g.finish(core.EndIdle)
		}
		switch {
		case j.Wait:
		case j.Group == nil:
			return nil, false, &declined{j.Why}
		default:
			s.group = j.Group
			if j.FirstContact && s.require == AnyMode && h.filtered.is(s.remote(), time.Now()) {
				s.leaveGroup()
				return nil, false, &declined{clc.DiagFiltered}
			}
			return j.Group, j.FirstContact, nil
		}
		if late == nil {
			t := time.NewTimer(core.FirstContactWait)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-changed:
		case <-late:
			waited = true
		case <-ctx.Done():
			return nil, false, &declined{clc.DiagBusy}
		}
	}
}

// runningLocked returns the link groups of SMC-R at work behind some of the table. h.mu is held.
func (h *Host) runningLocked(list []*core.LinkGroup) (running []*smcrGroup) {
	for _, lg := range list {
		if g := h.smcrGroups[lg]; g != nil {
			running = append(running, g)
		}
	}
	return running
}

// linksOf returns the links of a link group of SMC-R, nil for one of SMC-D.
func (h *Host) linksOf(lg *core.LinkGroup) []core.GroupLink {
	if lg.Key.Mode != core.SMCR {
		return nil
	}
	g, err := h.smcrGroup(lg)
	if err != nil {
		return nil
	}
	return g.usable()
}

// leaveLocked takes a connection out of its link group. h.mu is held.
func (h *Host) leaveLocked(lg *core.LinkGroup) {
	h.groups.Leave(time.Now(), lg)
	if lg.Key.Mode == core.SMCR {
		h.groupsChanged() // a first contact may have come to nothing, or there is room
		h.armSweepLocked()
	}
}

// armSweepLocked makes sure that idle link groups of SMC-R are ended in time: a peer is told, and holds memory for
// us. Those of SMC-D have nothing that costs anything. h.mu is held.
func (h *Host) armSweepLocked() {
	at := h.groups.Deadline()
	switch {
	case at.IsZero() || h.closing:
	case h.groupTimer == nil:
		h.groupTimer = time.AfterFunc(time.Until(at), func() { h.sweepGroups(time.Now()) })
	default:
		h.groupTimer.Reset(time.Until(at))
	}
}

// sweepGroups ends the link groups that have been idle for too long.
func (h *Host) sweepGroups(now time.Time) {
	h.mu.Lock()
	ended := h.runningLocked(h.groups.Advance(now))
	h.armSweepLocked()
	h.mu.Unlock()
	for _, g := range ended {
		g.finish(core.EndIdle)
	}
}

// declined is an error with a reason of its own.
type declined struct{ why clc.Diagnosis }

func (e *declined) Error() string { return clc.Lookup(e.why, clc.OSUnspecified).Sentence }

// leaveGroup undoes joinGroup for a handshake that came to nothing.
func (s *handshake) leaveGroup() {
	if s.group != nil {
		s.host.mu.Lock()
		s.host.leaveLocked(s.group)
		s.host.mu.Unlock()
		s.group = nil
	}
}

// noteDeclined tells the link group that the peer has declined another connection of it: there may be none of its RMBs that it
// could use.
func (s *handshake) noteDeclined() {
	if s.group == nil || s.group.Key.Mode != core.SMCR || !s.linkSince.IsZero() {
		return
	}
	if g, err := s.host.smcrGroup(s.group); err == nil {
		g.declined()
	}
}

// dropGroup has no more connections join the link group that our Accept named and that the client has lost: "the
// receiving peer must clean up its representation of the link group" (RFC 7609 p.105). The next connection makes a new one.
// Connections that the group has go on: in SMC-D each has memory of its own, and in SMC-R the peer on the link may be another one, so
// it is asked whether it is there.
func (s *handshake) dropGroup() {
	if s.group == nil {
		return
	}
	h := s.host
	h.mu.Lock()
	if s.group.Key.Mode == core.SMCD {
		h.groups.Drop(s.group)
	} else {
		h.groups.Doubt(s.group)
	}
	suspects := h.runningLocked([]*core.LinkGroup{s.group})
	h.mu.Unlock()
	for _, g := range suspects {
		g.suspect()
	}
}

// agreed remembers what a first contact has told, and describes the connection.
func (h *Host) agreed(peerPID int, lg *core.LinkGroup, r core.Result) *Agreed {
	links := h.linksOf(lg)
	var suspects []*smcrGroup // with what may be an instance of the peer that is no more
	h.mu.Lock()
	if r.FirstContact {
		suspects = h.runningLocked(h.groups.Confirm(lg, r))
		if links != nil {
			h.groups.SetLinks(lg, links)
			h.groupsChanged()
		}
	}
	a := h.agreement.about(agreement{r.Version, lg.Result.Release, r.EID, lg.Result.PeerHostName, lg.Result.PeerOS, peerPID})
	h.mu.Unlock()
	for _, g := range suspects {
		g.suspect()
	}
	return a
}

// agreedVersion is a version of SMC as people write it: "2.1".
func agreedVersion(v clc.Version, r clc.Release) string { return fmt.Sprintf("%d.%d", v, r) }

// agreement is what an [Agreed] is about.
type agreement struct {
	version  clc.Version
	release  clc.Release
	eid      wire.EID
	peerHost string
	peerOS   clc.OS
	peerPID  int
}

// An agreedCache has the last agreement in words: that of one connection is most often that of the one before.
type agreedCache struct {
	last  agreement
	words *Agreed
}

// about returns an agreement in words, which are not to be changed.
func (c *agreedCache) about(a agreement) *Agreed {
	if c.words == nil || a != c.last {
		c.last = a
		c.words = &Agreed{
			Version:  agreedVersion(a.version, a.release),
			EID:      a.eid.String(),
			PeerHost: a.peerHost,
			PeerOS:   a.peerOS.String(),
			PeerPID:  a.peerPID,
		}
	}
	return c.words
}
