package smcr

import (
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// groupDevices are the devices that the links of a group are or were on. They are kept open for as
// long as the group lasts, so that it is known when one can be used again. The group's mu guards
// them; it is not held where the RNICs of the host are asked for.
type groupDevices struct {
	group *group
	all   []*rnic.Device
}

// watch keeps a device.
func (s *groupDevices) watch(n *rnic.Device) {
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.end.gone || slices.Contains(s.all, n) {
		return
	}
	n.Retain()
	n.TellGroup(s, true)
	s.all = append(s.all, n)
}

// at returns the device with a GID, nil if there is none. g.mu is held.
func (s *groupDevices) at(gid wire.GID) *rnic.Device {
	for _, n := range s.all {
		if gid == n.Verbs().GID() {
			return n
		}
	}
	return nil
}

// take returns all devices, and forgets them. g.mu is held.
func (s *groupDevices) take() []*rnic.Device {
	list := s.all
	s.all = nil
	return list
}

// First implements [rnic.Group].
func (s *groupDevices) First() (*rnic.Device, clc.Version) {
	return s.group.rnic, s.group.lg.Key.Version
}

// RNICsChanged implements [rnic.Group]: it tells llcflow which devices there are. It does not block.
func (s *groupDevices) RNICsChanged() {
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctl == nil || g.end.gone {
		return
	}
	g.loop.afterwards(func() { s.SetRNICs(g.fabric.rnics.Alternatives(g.rnic, g.lg.Key.Version)) })
}

// SetRNICs implements [rnic.Group].
func (s *groupDevices) SetRNICs(list []core.RNIC) {
	g := s.group
	g.do(func(now time.Time, out []llcflow.Output) []llcflow.Output {
		if g.ctl == nil || g.end.gone {
			return out
		}
		return g.ctl.SetRNICs(now, list, out)
	})
}

// gidsOf returns the addresses of RNICs.
func gidsOf(list []core.RNIC) []wire.GID {
	gids := make([]wire.GID, len(list))
	for i, r := range list {
		gids[i] = r.GID
	}
	return gids
}
