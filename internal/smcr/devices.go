package smcr

import (
	"slices"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// This file has which devices the links of a group may be on, and that groups learn when those change.

// watchDevice keeps a device for as long as the group lasts, so that it is known when it can be used again.
func (g *group) watchDevice(n *rnic.Device) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone || slices.Contains(g.devices, n) {
		return
	}
	n.Retain()
	n.TellGroup(g, true)
	g.devices = append(g.devices, n)
}

// First implements [rnic.Group].
func (g *group) First() (*rnic.Device, clc.Version) { return g.rnic, g.lg.Key.Version }

// RNICsChanged implements [rnic.Group]: it tells core which devices there are. It does not block.
func (g *group) RNICsChanged() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctl == nil || g.gone {
		return
	}
	g.afterwards(func() { g.SetRNICs(g.fabric.rnics.Alternatives(g.rnic, g.lg.Key.Version)) })
}

// SetRNICs implements [rnic.Group].
func (g *group) SetRNICs(list []core.RNIC) {
	g.do(func(now time.Time, out []core.Output) []core.Output {
		if g.ctl == nil || g.gone {
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
