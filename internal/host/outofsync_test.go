package host

import (
	"testing"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// TestOutOfSync lets a client lose its link groups while the server still has them. The next dial
// falls back, because the server names a group that the client does not know; the server drops
// that group, so that the one after it is a first contact and uses shared memory again. The
// connection that was in the lost group is not touched.
func TestOutOfSync(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	pair := func() (c, s conn.Conn) {
		t.Helper()
		c = mustDial(t, client, l.Addr())
		s = mustAccept(t, l)
		t.Cleanup(func() { c.Close(); s.Close() })
		checkExchange(t, c, s)
		return c, s
	}
	oldC, oldS := pair()
	if oldC.Mode() != conn.ModeSMCD {
		t.Fatalf("mode = %v (%v), want SMC-D", oldC.Mode(), oldC.Reason().Tag)
	}

	client.smcd.PeerGone(gidOf(t, server))

	c, s := pair()
	if c.Mode() != conn.ModeTCP || s.Mode() != conn.ModeTCP || c.Reason().Code != clc.DiagSync || s.Reason().Code != clc.DiagSync || c.ByPeer() || !s.ByPeer() {
		t.Errorf("after the loss: modes = %v (%v), %v (%v), want TCP by the client's %v", c.Mode(), c.Reason(), s.Mode(), s.Reason(), clc.DiagSync)
	}
	for range 2 { // a first contact, and one in the new group
		if c, s := pair(); c.Mode() != conn.ModeSMCD || s.Mode() != conn.ModeSMCD {
			t.Errorf("afterwards: modes = %v (%v), %v (%v), want SMC-D", c.Mode(), c.Reason(), s.Mode(), s.Reason())
		}
	}
	checkExchange(t, oldC, oldS)
}
