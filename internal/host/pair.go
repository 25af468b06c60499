package host

import (
	"net"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/ring"
	"github.com/gosmc/smc/internal/run/broker"
)

// finishPair makes p a connection over a pair of Unix sockets. pid is the process at the other end,
// 0 if it is not known.
func (h *Host) finishPair(p *conn.Pending, end *ring.End, pid int) (conn.Conn, error) {
	c := conn.NewUnix(p, end, pid)
	if err := h.add(c); err != nil {
		end.Close()
		c.TraceFailed(err)
		return nil, c.SetupError(err)
	}
	return c, nil
}

// programs is where a listener is announced to programs of 'gosmc run'.
type programs struct {
	broker       *broker.Broker
	announcement broker.Announcement
}

// announceToPrograms lets programs of 'gosmc run' know of a listener that was announced to programs
// of package smc.
func (l *Listener) announceToPrograms() {
	h := l.host
	if h.cfg.Disabled || !l.opts.Require.Met(conn.ModeUnix) {
		return
	}
	f, _, err := h.open()
	if err != nil {
		return
	}
	b, err := f.openBroker(h.cfg.Dir, h.rules.policy)
	if err != nil {
		h.cfg.Logger.Warn("programs of 'gosmc run' will use TCP", "addr", l.addr, "err", err)
		return
	}
	if a, ok := b.Announce(l.tcp); ok {
		l.programs.Store(&programs{b, a})
	}
}

func (l *Listener) withdrawFromPrograms() {
	if p := l.programs.Load(); p != nil { // connections accepted just now are claimed still
		p.broker.Withdraw(p.announcement)
	}
}

// claimPair reports whether an accepted connection is one that a program of 'gosmc run' has offered
// a pair for. Then it has been seen to.
func (l *Listener) claimPair(tcp *net.TCPConn) bool {
	p := l.programs.Load()
	if p == nil {
		return false
	}
	end, pid := p.broker.Claim(tcp)
	if end == nil {
		return false
	}
	if c, err := l.host.finishPair(l.newConn(tcp), ring.New(end, -1, false), pid); err == nil {
		l.deliver(accepted{conn: c})
	} else {
		l.settled()
	}
	return true
}
