package host

import (
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// nextGroupID returns the number of another link group, which no other one of the host has.
func (h *Host) nextGroupID() wire.LinkID { return wire.LinkID(h.groupIDs.Add(1)) }

// agreed describes the connection.
func (h *Host) agreed(peerPID int, eid wire.EID, v clc.Version, m transport.Membership) *conn.Agreed {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.agreement.about(agreement{v, m.Release, eid, m.PeerHost, m.PeerOS, peerPID})
}

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
	words *conn.Agreed
}

// about returns an agreement in words, which are not to be changed.
func (c *agreedCache) about(a agreement) *conn.Agreed {
	if c.words == nil || a != c.last {
		c.last = a
		c.words = &conn.Agreed{
			Version:  transport.Version(a.version, a.release),
			EID:      a.eid.String(),
			PeerHost: a.peerHost,
			PeerOS:   a.peerOS.String(),
			PeerPID:  a.peerPID,
		}
	}
	return c.words
}
