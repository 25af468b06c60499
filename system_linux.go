package smc

import (
	"math"
	"slices"
	"time"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
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

// fill fills in the numbers of a host.
func (s *HostStats) fill(h *innerHost) {
	st, open := h.Numbers()
	k := &st.Counters
	s.Started = st.Started
	for m, e := range s.Modes {
		all, server, bytes := k.Connections[m.String()], k.AsServer[m.String()], k.Bytes[m.String()]
		e.OpenClient, e.OpenServer = open[m].Client, open[m].Server
		e.Client, e.Server = all-min(all, server), server
		e.BytesRead, e.BytesWritten = bytes.In, bytes.Out
		s.Modes[m] = e
	}
	for _, f := range k.Fallbacks {
		s.addFallback(FallbackStats{Code: uint32(f.Code), Tag: f.Tag, Text: f.Text,
			Client: f.Count - f.AsServer, Server: f.AsServer})
	}
	s.sortFallbacks()
	s.Handshakes = HandshakeStats{Done: k.HandshakesOK, Failed: k.HandshakesFailed, Took: Histogram{
		Bounds: slices.Clone(control.HandshakeBounds[:]), Counts: slices.Clone(k.HandshakeTimes.Counts[:]),
		Sum: time.Duration(min(k.HandshakeTimes.Nanoseconds, math.MaxInt64)),
	}}
	for _, e := range k.Ends {
		s.Ends = append(s.Ends, EndStats{Of: e.What, Reason: e.Reason, Count: e.Count})
	}
	s.Failovers, s.BuffersFull = k.Failovers, k.BuffersFull
	s.Doorbells, s.WaitsSpinning, s.WaitsAsleep = k.DoorbellsRung, k.Spins, k.Sleeps
	for m := range s.LinkGroups {
		s.LinkGroups[m] = k.Groups[m.String()]
	}
	for _, g := range st.Groups {
		for _, l := range g.Links {
			s.Links[l.State]++
		}
	}
	s.RMBBytes = k.RMBBytes
	for _, l := range st.Limits {
		if l.Limit > 0 && l.Used >= 0 {
			s.Limits = append(s.Limits, LimitStats{Name: l.Name, Used: l.Used, Limit: l.Limit, Unit: l.Unit})
		}
	}
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
		SMCRConns:     c.SMCRConns,
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
