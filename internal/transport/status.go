package transport

import (
	"fmt"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/clc"
)

// GroupStatus describes a link group as its table has it. Peer is empty
// if no first contact has told a GID of SMC-R.
func GroupStatus(lg *core.LinkGroup) control.StatusGroup {
	s := control.StatusGroup{
		ID: uint32(lg.ID), Mode: lg.Key.Mode.String(), State: "Active", Role: lg.Key.Role.String(),
		VLAN: lg.VLAN, PNETID: lg.PNETID, Conns: lg.Conns, MaxConns: lg.MaxConns, Links: []control.StatusLink{},
	}
	r := &lg.Result
	if r.Mode == 0 {
		s.State = "Pending"
		return s
	}
	s.Version = Version(r.Version, r.Release)
	s.PeerHost, s.PeerOS, s.Direct = r.PeerHostName, r.PeerOS.String(), r.Direct
	if !r.EID.IsZero() {
		s.EID = r.EID.String()
	}
	if r.R != nil {
		s.Peer, s.PeerID = r.R.GID.String(), r.R.PeerID.String()
	}
	return s
}

// Version is a version of SMC as people write it: "2.1".
func Version(v clc.Version, r clc.Release) string { return fmt.Sprintf("%d.%d", v, r) }
