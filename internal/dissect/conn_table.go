package dissect

import (
	"net/netip"
)

// A connKey names a TCP connection by its two ends, the lower one first.
type connKey struct {
	lo, hi         [16]byte
	loPort, hiPort uint16
}

// makeConnKey returns the key of the connection between two ends.
func makeConnKey(a netip.Addr, aPort uint16, b netip.Addr, bPort uint16) connKey {
	k := connKey{a.As16(), b.As16(), aPort, bPort}
	switch c := a.Compare(b); {
	case c > 0, c == 0 && aPort > bPort:
		return connKey{k.hi, k.lo, k.hiPort, k.loPort}
	}
	return k
}

// A connTable has the connections that are remembered, in the order of their last packet.
type connTable struct {
	byKey map[connKey]*Conn
	used  list[Conn]
}

func (t *connTable) init() { t.byKey = make(map[connKey]*Conn) }

// newConn remembers a connection that the current packet begins.
func (t *Tracker) newConn(key connKey, client, server netip.AddrPort) *Conn {
	if old := t.conns.byKey[key]; old != nil {
		t.forget(old)
	}
	if len(t.conns.byKey) >= maxConns {
		t.count.Evicted.Conns++
		t.forget(t.conns.used.first())
	}
	t.lastID.conn++
	t.count.Conns++
	c := &Conn{
		ID: t.lastID.conn, Client: client, Server: server, Opened: t.packet.Time, key: key,
		ToServer: Ring{Dir: ClientToServer}, ToClient: Ring{Dir: ServerToClient},
		toServer: &stream{}, toClient: &stream{},
	}
	c.ToServer.Conn, c.ToClient.Conn = c, c
	t.setMode(c, modeUnknown)
	t.conns.byKey[key] = c
	t.conns.used.add(&c.used, c)
	return c
}

// forget drops a connection from all tables. Events that have it keep it.
func (t *Tracker) forget(c *Conn) {
	if c.used.of == nil {
		return
	}
	t.waits.remove(&c.wait)
	t.conns.used.remove(&c.used)
	delete(t.conns.byKey, c.key)
	t.buffered -= c.toServer.size() + c.toClient.size()
	c.toServer, c.toClient = &stream{over: true}, &stream{over: true}
	t.leaveGroup(c)
}

const (
	modeUnknown = "unknown"
	modeTCP     = "TCP"
)

// setMode is the only writer of c.Mode.
func (t *Tracker) setMode(c *Conn, mode string) {
	if c.Mode != "" {
		t.count.modes[c.Mode]--
	}
	c.Mode = mode
	t.count.modes[mode]++
}

// setState is the only writer of c.State.
func (t *Tracker) setState(c *Conn, s ConnState) {
	c.State = s
	switch s {
	case ConnOptions, ConnProposed, ConnAccepted:
		if c.Mode == modeTCP {
			t.setMode(c, modeUnknown)
		}
		c.waitSince = t.now
		t.waits.add(&c.wait, c)
	case ConnSYN, ConnEstablished, ConnFailed:
		t.waits.remove(&c.wait)
	case ConnDeclined, ConnTCP:
		t.waits.remove(&c.wait)
		t.setMode(c, modeTCP)
	}
}
