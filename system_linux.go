package smc

import (
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
)

// The types and functions behind the exported ones. On Linux they can use SMC; system_other.go
// names the types and functions of other systems.
type (
	innerHost          = host.Host
	innerConn          = conn.Conn
	innerListener      = host.Listener
	innerDialOptions   = host.DialOptions
	innerListenOptions = host.ListenOptions
	innerRequirement   = conn.Requirement
	innerFallbackError = conn.FallbackError
)

const innerModeTCP = conn.ModeTCP

func newInner(c *Config) (*innerHost, error) { return host.New(c.internal()) }

func newDefault() (*innerHost, error) { return host.New(host.Config{ReleaseIdle: true}) }

// innerRead and innerWrite leave buffers where they are, on the stack of the application if that
// has them there.
func innerRead(c innerConn, b []byte) (int, error)  { return conn.Read(c, b) }
func innerWrite(c innerConn, b []byte) (int, error) { return conn.Write(c, b) }

func checkBuffer(n int) error { return host.CheckBuffer(n) }

// setAgreed fills in the results of the handshake of a connection that is not plain TCP.
func (s *State) setAgreed(c innerConn) {
	agreed := c.Agreed()
	s.Version, s.EID = agreed.Version, agreed.EID
	s.PeerHost, s.PeerOS, s.PeerPID = agreed.PeerHost, agreed.PeerOS, agreed.PeerPID
	s.ReadBuffer, s.WriteBuffer = c.Buffers()
	s.Link = c.Link()
}

func (c *Config) internal() host.Config {
	if c == nil {
		return host.Config{}
	}
	return host.Config{
		Disabled:      c.Disabled,
		Listen:        config.Filter(c.Listen),
		Connect:       config.Filter(c.Connect),
		Dir:           c.Dir,
		UEIDs:         c.UEIDs,
		SMCRPeers:     c.SMCRPeers,
		SMCRDevices:   c.SMCRDevices,
		SMCRLinks:     c.SMCRLinks,
		SMCRSpread:    c.SMCRSpread,
		SMCRKeepAlive: c.SMCRKeepAlive,
		SMCRv1:        c.SMCRv1,
		Spin:          c.Spin,
		ReadBuffer:    c.ReadBuffer,
		MemoryBudget:  c.MemoryBudget,
		AnyUser:       c.AnyUser,
		Users:         c.Users,
		ShortAfter:    c.ShortAfter,
		Logger:        c.Logger,
	}
}
