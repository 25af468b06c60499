package handshake

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// An Owner counts the messages and the outcomes of handshakes. Any goroutine may call its methods.
type Owner interface {
	// Message counts a CLC message as it is on the wire, or bytes that came in place of one.
	Message(message []byte, sent bool)

	// Established counts a handshake that has made an SMC connection, and the time since the TCP
	// connection was taken over.
	Established(took time.Duration)

	// Failed counts a handshake that has ended its TCP connection.
	Failed(reason string)
}

// Config gives the name of a host, and the capabilities that it offers to every peer.
type Config struct {
	HostName string
	SEID     wire.EID // zero: none
	UEIDs    []wire.EID
	Release  clc.Release
	MaxLinks uint8 // symmetric links of a link group
	MaxConns uint8 // connections of a link group of SMC-R
	Owner    Owner
	Logger   *slog.Logger
}

// A Driver runs the handshakes of one host.
type Driver struct {
	cfg    Config
	turns  turns
	agreed agreedCache
}

// New returns a driver that has begun nothing.
func New(cfg Config) *Driver { return &Driver{cfg: cfg} }

// A Request asks for one handshake.
type Request struct {
	Role    core.Role
	Conn    *conn.Pending
	Paths   []transport.Path // to the peer: at least one, no two of a mode
	Buffer  int              // size of our buffer in bytes
	Require conn.Requirement // for a connection that is less the result is an error

	// Patience is how long a silent process of this machine is waited for in addition to the times
	// of core. Such a process is known to live: the machine is busy, or the process is stopped.
	// With TCP the connection would come about once it goes on.
	Patience time.Duration
}

// PeerAddr returns the address by which a host knows the peer of a handshake, zero if TCP is closed.
func PeerAddr(c *conn.Pending) netip.Addr {
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// Run does one handshake. After an error the TCP connection is closed.
func (d *Driver) Run(ctx context.Context, q Request) (conn.Conn, error) {
	s := handshakes.Get().(*handshake)
	defer s.recycle()
	s.driver, s.Request = d, q
	s.ctx, s.conn, s.owner = ctx, q.Conn, d.cfg.Owner
	s.caps.ISM = s.ism[:0]
	d.capabilities(&s.caps, q.Paths, q.Conn.Remote().Addr())
	s.engine.Reset(q.Role, &s.caps)
	s.patient = time.Now()
	if q.Paths[0].Traits().Local {
		s.patient = s.patient.Add(q.Patience)
	}
	if q.Role == core.RoleServer {
		s.end = s.patient.Add(ServerTimeout)
	}
	tcp := q.Conn.TCP()
	s.events.tcp = tcp
	defer func() { s.turn.leave(time.Now()) }()
	if ctx.Done() == nil { // it never ends
		s.run()
		return s.result, s.err
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { // which knows nothing of s
		tcp.SetDeadline(longAgo)
		close(interrupted)
	})
	s.run()
	if !stop() {
		<-interrupted
		tcp.SetDeadline(time.Time{}) // if the handshake had just ended well, so it has
	}
	return s.result, s.err
}

// capabilities fills in the values that the host offers and accepts for a connection to a peer, by
// these paths. There may be memory for its devices in caps.
func (d *Driver) capabilities(caps *core.Capabilities, paths []transport.Path, peer netip.Addr) {
	*caps = core.Capabilities{
		Peer:     peer, // rule: TestCapabilitiesPeer: peer -> netip.Addr{}
		OS:       clc.OSLinux,
		HostName: d.cfg.HostName,
		Release:  d.cfg.Release,
		SEID:     d.cfg.SEID,
		UEIDs:    d.cfg.UEIDs,
		MaxConns: d.cfg.MaxConns,
		MaxLinks: d.cfg.MaxLinks,
		ISM:      caps.ISM[:0],
	}
	for _, p := range paths {
		p.Offer(caps)
	}
}
