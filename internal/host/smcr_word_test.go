package host

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/transport"
)

// TestSMCRWordLost has a peer that ends TCP, lives, and has not said on the link why, as a Linux
// kernel does if its message was lost with the link. A connection is reset if its link has failed.
// A connection that has lost nothing waits on, and so does a connection after its peer has said
// that it writes no more.
func TestSMCRWordLost(t *testing.T) {
	r, cables := newTwinRig(t, nil)
	r.server.connEnv.WordTime = 300 * time.Millisecond
	var bindings []transport.Binding // of the server's connections, in their order
	wrapBindings(r.server, func(b transport.Binding) transport.Binding {
		bindings = append(bindings, b)
		return b
	})
	var pairs [4][2]conn.Conn // first and third over the first link
	for i := range pairs {
		pairs[i][0], pairs[i][1] = r.connect()
		checkSMCR(t, pairs[i][:]...)
		if i == 0 {
			r.awaitRedundancy("symmetric")
		}
	}
	lost := func(i int) bool { return bindings[i].MayMiss() }
	cables.IP(0, "link set cable0 down")
	smctest.Eventually(t, patience, "moves", func() bool {
		n := 0
		for i := range pairs {
			if lost(i) {
				n++
			}
		}
		return n == len(pairs)/2
	})
	var silent, done, unhurt conn.Conn
	for i, p := range pairs {
		c, s := p[0], p[1]
		switch {
		case !lost(i) && unhurt == nil:
			unhurt = s
			tcpOf(c).CloseWrite()
		case lost(i) && silent == nil:
			silent = s
			checkExchange(t, c, s)
			tcpOf(c).CloseWrite()
		case lost(i) && done == nil:
			done = s
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			tcpOf(c).CloseWrite()
		}
	}
	silent.SetDeadline(time.Now().Add(patience))
	if n, err := silent.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %d bytes, %v; want %v", n, err, syscall.ECONNRESET)
	}
	checkEnd(t, r.server, endOfConnection, "the peer has ended TCP, and what it said before was lost with a link")
	time.Sleep(4 * r.server.connEnv.WordTime)
	for _, s := range []conn.Conn{done, unhurt} {
		if _, err := s.Write([]byte("x")); err != nil {
			t.Errorf("a connection that has lost nothing: %v", err)
		}
	}
	for _, p := range pairs {
		p[0].Close()
		p[1].Close()
	}
}
