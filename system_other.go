//go:build !linux

package smc

import "github.com/gosmc/smc/internal/plain"

// The types and functions behind the exported ones. On systems other than Linux all connections are
// plain TCP, with the reason NOT_SUPPORTED.
type (
	innerHost          = plain.Host
	innerConn          = *plain.Conn
	innerListener      = plain.Listener
	innerDialOptions   = plain.DialOptions
	innerListenOptions = plain.ListenOptions
	innerRequirement   = plain.Requirement
	innerFallbackError = plain.FallbackError
)

const innerModeTCP = plain.ModeTCP

func newInner(c *Config) (*innerHost, error) {
	if c == nil {
		c = &Config{}
	}
	return plain.New(plain.Config{Dir: c.Dir, UEIDs: c.UEIDs, ReadBuffer: c.ReadBuffer})
}

func newDefault() (*innerHost, error) { return plain.New(plain.Config{}) }

func innerRead(c innerConn, b []byte) (int, error)  { return c.Read(b) }
func innerWrite(c innerConn, b []byte) (int, error) { return c.Write(b) }

func checkBuffer(n int) error { return plain.CheckBuffer(n) }

// setAgreed does nothing: there is no handshake.
func (s *State) setAgreed(innerConn) {}

// fill fills in the numbers of a host.
func (s *HostStats) fill(h *innerHost) {
	n, reason := h.Numbers()
	s.Started = n.Started
	s.Modes[ModeTCP] = ModeStats{
		OpenClient: n.OpenClient, OpenServer: n.OpenServer, Client: n.Client, Server: n.Server,
		BytesRead: n.In, BytesWritten: n.Out,
	}
	if n.Client+n.Server > 0 {
		s.addFallback(FallbackStats{
			Code: uint32(reason.Code), Tag: reason.Tag, Text: reason.Sentence, Client: n.Client, Server: n.Server,
		})
	}
}
