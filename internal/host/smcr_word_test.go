package host

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// TestSMCRWordLost has a peer that ends TCP, lives, and has not said on the link why, as a kernel of Linux whose word was lost with the link. A connection
// whose link has failed is reset. One that has lost nothing waits on, and so does one whose peer has said that it writes no more.
func TestSMCRWordLost(t *testing.T) {
	r, cables := newTwinRig(t, nil)
	r.server.wordTime = 300 * time.Millisecond
	var pairs [4][2]*Conn // first and third over the first link
	for i := range pairs {
		pairs[i][0], pairs[i][1] = r.connect()
		checkSMCR(t, pairs[i][:]...)
		if i == 0 {
			r.awaitRedundancy("symmetric")
		}
	}
	lost := func(s *Conn) bool { return s.binding.MayMiss() }
	cables.IP(0, "link set cable0 down")
	smctest.Eventually(t, patience, "moves", func() bool {
		n := 0
		for _, p := range pairs {
			if lost(p[1]) {
				n++
			}
		}
		return n == len(pairs)/2
	})
	var silent, done, unhurt *Conn
	for _, p := range pairs {
		c, s := p[0], p[1]
		switch {
		case !lost(s) && unhurt == nil:
			unhurt = s
			c.tcp.CloseWrite()
		case lost(s) && silent == nil:
			silent = s
			checkExchange(t, c, s)
			c.tcp.CloseWrite()
		case lost(s) && done == nil:
			done = s
			if err := c.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			c.tcp.CloseWrite()
		}
	}
	silent.SetDeadline(time.Now().Add(patience))
	if n, err := silent.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %d bytes, %v; want %v", n, err, syscall.ECONNRESET)
	}
	checkEnd(t, r.server, endOfConnection, errWordLost.Error())
	time.Sleep(4 * r.server.wordTime)
	for _, s := range []*Conn{done, unhurt} {
		if _, err := s.Write([]byte("x")); err != nil {
			t.Errorf("a connection that has lost nothing: %v", err)
		}
	}
	for _, p := range pairs {
		p[0].Close()
		p[1].Close()
	}
}
