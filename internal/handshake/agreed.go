package handshake

import (
	"sync"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// agreement holds the values that an [Agreed] puts into words.
type agreement struct {
	version  clc.Version
	release  clc.Release
	eid      wire.EID
	peerHost string
	peerOS   clc.OS
	peerPID  int
}

// An agreedCache has the last agreement in words: most often a connection has the agreement of the
// one before.
type agreedCache struct {
	mu    sync.Mutex
	last  agreement
	words *conn.Agreed
}

// about returns an agreement in words, which are not to be changed.
func (c *agreedCache) about(a agreement) *conn.Agreed {
	c.mu.Lock()
	defer c.mu.Unlock()
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
