package smcr

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/wire/llc"
)

// This file has the end of a link in order: its connections leave it while it still works.

// linkLeaving has connections leave a link. The requests on their way over it complete first;
// link.EventLeft says when the connections have left, and llcflow does not wait for ever. g.mu is
// held.
func (s *groupLinks) linkLeaving(o llcflow.LinkLeaving) {
	g := s.group
	l := s.get(o.Link)
	l.left = false
	l.moved, _ = newSpread(g).moveAll(l)
	g.fabric.cfg.Logger.Info("link is about to end, connections go to others",
		"group", g.lg.ID, "link", o.Link, "local", l.rnic.Addr(), "peer", l.peer, "connections", l.moved)
	l.net.Leave()
}

// leaves reports whether a link is about to end. g.mu is held.
func (s *groupLinks) leaves(l *groupLink) bool {
	ctl := s.group.ctl
	return ctl != nil && slices.ContainsFunc(ctl.Links(),
		func(x core.GroupLink) bool { return x.Leaving && x.Num == l.num })
}

// delete is DeleteLink for a link of the group. One that leaves already does so, and that is all.
// g.mu is held.
func (s *groupLinks) delete(num llc.LinkNum) error {
	g := s.group
	id := uint32(g.lg.ID)
	if g.ctl == nil || g.ctl.State() != llcflow.StateActive {
		return fmt.Errorf("link group %08x is being made, or ends: it has no links that could be deleted", id)
	}
	var others []string
	known, leaves, stay := false, false, 0
	for _, x := range g.ctl.Links() {
		switch {
		case x.Num == num:
			known, leaves = true, x.Leaving
			continue
		case !x.Leaving:
			stay++
		}
		others = append(others, strconv.Itoa(int(x.Num)))
	}
	switch {
	case !known: // rule: internal/host TestSMCRDeleteLink
		return fmt.Errorf("link group %08x has no link %d, but %s", id, num, strings.Join(others, ", "))
	case len(others) == 0: // rule: internal/host TestSMCRDeleteLink
		return fmt.Errorf("link %d is the last one of link group %08x: it ends with its connections", num, id)
	case stay == 0 && !leaves: // rule: TestLeavingShown
		return fmt.Errorf("link %d is the last one of link group %08x that does not end already", num, id)
	}
	g.doLocked(func(now time.Time, out []llcflow.Output) []llcflow.Output {
		return g.ctl.DeleteLink(now, num, out)
	})
	return nil
}
