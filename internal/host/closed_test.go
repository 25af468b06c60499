package host

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/smcd"
	"github.com/gosmc/smc/internal/smctest"
)

// TestClosedKeepsNothing closes many connections on one side only. Their sockets are gone at once;
// later actions of the peers, and their ends, are learned all the same, long before a timer.
func TestClosedKeepsNothing(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	descriptors := func() int {
		u, err := smctest.UsageOf(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return len(u.Descriptors)
	}
	count := func(h *Host) int {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.conns)
	}
	const conns = 60
	var ours, theirs []conn.Conn
	for range conns {
		ours = append(ours, mustDial(t, client, l.Addr()))
		theirs = append(theirs, mustAccept(t, l))
	}
	// A goroutine of the client has waited for rings itself, and none does now.
	read := make(chan error, 1)
	go func() {
		_, err := ours[0].Read(make([]byte, 1))
		read <- err
	}()
	smctest.Eventually(t, patience, "a parked reader", func() bool { return client.counters.Data.Sleeps.Load() > 0 })
	if _, err := theirs[0].Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	before := descriptors()
	for _, c := range ours {
		c.Close()
	}
	if now := descriptors(); now > before-conns {
		t.Errorf("%d descriptors with both sides open, %d with one side closed: each of %d should be gone", before, now, conns)
	}
	if n := count(client); n != conns {
		t.Errorf("%d connections wait for their peers, want %d", n, conns)
	}
	ours[5].Abort() // as the host does when it closes: this one waits no more
	start := time.Now()
	for i, c := range theirs {
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("Read = %d, %v, want EOF", n, err)
		}
		switch i % 3 {
		case 0: // D, then C
			c.CloseWrite()
		case 1: // A
			c.SetLinger(0)
		}
		c.Close()
	}
	smctest.Eventually(t, core.PeerCloseWaitTimeout/2, "the end of the closed connections", func() bool { return count(client) == 0 })
	t.Logf("after %v", time.Since(start))
	client.mu.Lock()
	defer client.mu.Unlock()
	for e := range client.ends {
		if n := e.(smcd.Peering).Parked().Load(); n != 0 {
			t.Errorf("%d waits are left behind", n)
		}
	}
}

// TestClosedThenDead is TestClosedKeepsNothing with peers that never answer: their device ends.
func TestClosedThenDead(t *testing.T) {
	smctest.CheckLeaks(t)
	r := newServerRig(t)
	c := r.begin(afterAll)
	s := mustAccept(t, r.l)
	s.Close()
	r.p.Close()
	smctest.Eventually(t, core.PeerCloseWaitTimeout/2, "the end of the closed connection", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return len(r.server.conns) == 0
	})
	c.tcp.Close()
}
