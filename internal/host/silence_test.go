package host

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/handshake"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// slack is how much later than its deadline a handshake may end on a busy machine. Which deadline that was is in the
// error.
const slack = 8 * time.Second

// TestSilence waits for the deadlines that a user would wait for, for all at the same time.
func TestSilence(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the deadlines of handshakes, some 10 seconds")
	}
	smctest.CheckLeaks(t)
	var wg sync.WaitGroup
	for name, test := range map[string]func(*testing.T){
		"server, silent clients": testServerSilentClients,
		"server, deaf client":    testServerDeafClient,
		"client, silent servers": testClientSilentServers,
		"client, deaf server":    testClientDeafServer,
		"client, no answer":      testClientNoRendezvousAnswer,
		"server, slow client":    testServerSlowClient,
		"client, slow server":    testClientSlowServer,
	} {
		wg.Go(func() { t.Run(name, test) }) // Parallel would run as many as there are processors
	}
	wg.Wait()
}

// testServerSilentClients has clients that say nothing more after each point of the handshake.
func testServerSilentClients(t *testing.T) {
	r := makeServerRig(t)
	var wg sync.WaitGroup
	for _, tt := range []struct {
		name   string
		at     step
		length int // bytes of the message that are sent; negative: all but so many
		within time.Duration
		ends   string
	}{
		{"nothing", atProposal, 0, handshake.CLCTimeout, "CLC Proposal"},
		{"part of a header", atProposal, 5, handshake.CLCTimeout, "CLC Proposal"},
		{"a header", atProposal, clc.HeaderLen, handshake.CLCTimeout, "CLC Proposal"},
		{"all but a byte", atProposal, -1, handshake.CLCTimeout, "CLC Proposal"},
		{"no Confirm", atConfirm, 0, handshake.CLCTimeout, "CLC Confirm"},
		{"part of a Confirm", atConfirm, 40, handshake.CLCTimeout, "CLC Confirm"},
		{"all but a byte of a Confirm", atConfirm, -1, handshake.CLCTimeout, "CLC Confirm"},
	} {
		start := time.Now() // before the server's clock starts
		c := r.begin(tt.at)
		b := c.encoded()
		if tt.length < 0 {
			b = b[:len(b)+tt.length]
		} else {
			b = b[:tt.length]
		}
		c.write(b)
		wg.Go(func() {
			c.checkEnded()
			if took := time.Since(start); took < tt.within-time.Second || took > tt.within+slack {
				t.Errorf("%s: ended after %v, want %v", tt.name, took, tt.within)
			}
			r.checkFailed(c, "timeout waiting for "+tt.ends)
		})
	}
	// One that never stops sending has the same time for a message, and 10 seconds for all.
	slow := r.begin(atProposal)
	proposal := slow.encoded()
	start := time.Now()
	wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for _, b := range proposal {
			if _, err := slow.tcp.Write([]byte{b}); err != nil {
				break
			}
			<-tick.C
		}
		slow.checkEnded()
		if took := time.Since(start); took > handshake.CLCTimeout+slack {
			t.Errorf("byte by byte: ended after %v, want %v", took, handshake.CLCTimeout)
		}
	})
	lateStart := time.Now()
	late := r.begin(atProposal)
	wg.Go(func() {
		<-time.After(handshake.CLCTimeout - 3*time.Second/2)
		late.write(late.encoded())
		if _, err := late.read(); err != nil {
			t.Errorf("no Accept for a Proposal that came in time: %v", err)
		}
		late.checkEnded()
		if took := time.Since(lateStart); took < handshake.ServerTimeout-time.Second || took > handshake.ServerTimeout+slack {
			t.Errorf("late Proposal and no Confirm: ended after %v, want %v", took, handshake.ServerTimeout)
		}
		r.checkFailed(late, context.DeadlineExceeded.Error())
	})
	honest := time.Now()
	checkServes(t, r.client, r.l) // the others do not have to wait
	if took := time.Since(honest); took > handshake.CLCTimeout-time.Second {
		t.Errorf("an honest connection took %v beside silent ones", took)
	}
	wg.Wait()
	checkServes(t, r.client, r.l)
	r.checkIdle()
}

// testClientSilentServers has servers that say nothing more after each point of the handshake.
func testClientSilentServers(t *testing.T) {
	r := makeClientRig(t)
	var wg sync.WaitGroup
	for _, length := range []int{0, 5, clc.HeaderLen, 77} {
		start := time.Now()
		c, result := r.begin()
		c.write(c.encoded()[:length])
		wg.Go(func() {
			res := <-result
			var ne net.Error
			if !errors.As(res.err, &ne) || !ne.Timeout() || !strings.Contains(res.err.Error(), "timeout waiting for CLC Accept") {
				t.Errorf("%d bytes: Dial = %+v, want a timeout waiting for an Accept", length, res)
			}
			if took := time.Since(start); took < handshake.CLCTimeout-time.Second || took > handshake.CLCTimeout+slack {
				t.Errorf("%d bytes: ended after %v, want %v", length, took, handshake.CLCTimeout)
			}
			c.checkEnded()
		})
	}
	// A context that ends earlier counts.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	result := r.dial(ctx)
	tcp, _ := r.a.accept(r.evil)
	defer tcp.Close()
	if res := <-result; !errors.Is(res.err, context.DeadlineExceeded) {
		t.Errorf("Dial with a context of 1 s = %+v, want %v", res, context.DeadlineExceeded)
	}
	wg.Wait()
	r.checkServes()
	r.checkIdle()
}

// slowness is how late slow peers are, and patienceWithSlow how long they are waited for at least: once more than handshake.CLCTimeout.
const (
	slowness         = handshake.CLCTimeout + time.Second
	patienceWithSlow = handshake.CLCTimeout + handshake.CLCTimeout/2
)

// testServerSlowClient has clients that are slow. The server waits for them while their process
// lives, but not for ever.
func testServerSlowClient(t *testing.T) {
	r := makeServerRig(t)
	r.server.localPatience = patienceWithSlow
	slow, silent := r.begin(atProposal), r.begin(atConfirm)
	start := time.Now()
	time.Sleep(slowness)
	slow.write(slow.encoded())
	if _, err := slow.read(); err != nil {
		t.Errorf("no Accept for a Proposal after %v: %v", slowness, err)
	}
	silent.checkEnded()
	if took := time.Since(start); took < 2*handshake.CLCTimeout-time.Second || took > 2*handshake.CLCTimeout+slack {
		t.Errorf("no Confirm: ended after %v, want %v", took, 2*handshake.CLCTimeout)
	}
	r.checkFailed(silent, "timeout waiting for CLC Confirm")
	slow.checkEnded()
	r.checkIdle()
}

// testClientSlowServer is testServerSlowClient for servers.
func testClientSlowServer(t *testing.T) {
	r := makeClientRig(t)
	r.client.localPatience = patienceWithSlow
	slow, came := r.begin()
	silent, ended := r.begin()
	start := time.Now()
	time.Sleep(slowness)
	slow.write(slow.encoded())
	if m, err := readCLC(slow.tcp); err != nil {
		t.Errorf("no answer to an Accept after %v: %v", slowness, err)
	} else if _, ok := m.(clc.Confirm); !ok {
		t.Errorf("the answer to an Accept after %v = %v, want a Confirm", slowness, m)
	}
	if res := <-came; res.err != nil {
		t.Errorf("Dial of a slow server = %+v", res)
	} else {
		res.conn.Close()
	}
	res := <-ended
	if took := time.Since(start); took < 2*handshake.CLCTimeout-time.Second || took > 2*handshake.CLCTimeout+slack {
		t.Errorf("no Accept: ended after %v, want %v", took, 2*handshake.CLCTimeout)
	}
	if res.err == nil || !strings.Contains(res.err.Error(), "timeout waiting for CLC Accept") {
		t.Errorf("Dial of a silent server = %+v, want a timeout", res)
	}
	silent.checkEnded()
	r.checkServes()
	r.checkIdle()
}

// testClientNoRendezvousAnswer dials a server that takes the connection and answers nothing, not
// even a Cancel: the connection cannot be used, because CLC may still be expected on it.
func testClientNoRendezvousAnswer(t *testing.T) {
	r := makeClientRig(t)
	start := time.Now()
	result := r.dial(boundedContext(t))
	tcp, err := r.evil.AcceptTCP() // else the client would wait longer for that
	if err != nil {
		t.Fatal(err)
	}
	res := <-result
	if took := time.Since(start); took < rendezvous.CancelTime || took > rendezvous.AcceptTime+rendezvous.CancelTime+slack {
		t.Errorf("ended after %v, want %v", took, rendezvous.AcceptTime+rendezvous.CancelTime)
	}
	if !errors.Is(res.err, syscall.ETIMEDOUT) {
		t.Errorf("Dial = %+v, want %v", res, syscall.ETIMEDOUT)
	}
	(&clcPeer{a: r.a, tcp: tcp}).checkEnded() // without a byte
	tcp.Close()
	r.checkServes()
}

// deafen blocks the adversary in its handler at the next message, so that it answers nothing
// more, as if its process were stopped. The function that is returned ends that.
func (a *adversary) deafen() (end func()) {
	released := make(chan struct{})
	a.hold.Store(released)
	end = sync.OnceFunc(func() { close(released) }) // from then on it holds nothing up
	a.tb.Cleanup(end)
	return end
}

// testClientDeafServer has a server process that stops before it has handed out its buffer. The
// client has to decline while the server, when it goes on, still listens for that.
func testClientDeafServer(t *testing.T) {
	r := makeClientRig(t)
	c, result := r.begin()
	end := r.a.deafen()
	other := r.dial(boundedContext(t)) // its Expect is the message at which the adversary stops
	smctest.Eventually(t, patience, "deafness", r.a.deaf.Load)
	start := time.Now()
	c.write(c.encoded())
	m, err := readCLC(c.tcp)
	if _, ok := m.(clc.Decline); !ok {
		t.Fatalf("the client sent %v, %v, want a Decline", m, err)
	}
	if took := time.Since(start); took > core.HandshakeTimeout-time.Second {
		t.Errorf("declined after %v, want %v: a server listens for %v", took, core.PrepareTimeout, core.HandshakeTimeout)
	}
	res := <-result
	if res.err != nil || res.conn.Mode() != conn.ModeTCP {
		t.Fatalf("Dial = %+v, want TCP", res)
	}
	checkExchange(t, res.conn, c.tcp)
	res.conn.Close()
	if res := <-other; !errors.Is(res.err, syscall.ETIMEDOUT) {
		t.Errorf("Dial of a server that is stopped = %+v, want %v", res, syscall.ETIMEDOUT)
	}
	end()
	r.checkServes()
	r.checkIdle()
}

// testServerDeafClient has a client process that stops after its Confirm.
func testServerDeafClient(t *testing.T) {
	r := makeServerRig(t)
	c := r.begin(atConfirm)
	end := r.a.deafen()
	d := r.a.reserve(r.p, r.l, r.a.ids.Add(1)) // Accepted is the message at which the adversary stops
	other, err := d.Dial("tcp", r.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	smctest.Eventually(t, patience, "deafness", r.a.deaf.Load)
	start := time.Now()
	c.write(c.encoded())
	r.checkFailed(c, "attach the client's buffer")
	if took := time.Since(start); took > handshake.CLCTimeout+slack {
		t.Errorf("ended after %v, want %v", took, handshake.CLCTimeout)
	}
	end()
	checkServes(t, r.client, r.l)
	other.SetReadDeadline(time.Now().Add(patience))
	if _, err := other.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection of the client that was stopped does not end")
	}
	r.checkIdle()
}

// TestHandshakeLimit fills a listener with handshakes that do not go on: connections above the
// limit are plain TCP at once, and the client is told.
func TestHandshakeLimit(t *testing.T) {
	r := newServerRig(t)
	for range handshake.MaxOfListener {
		r.l.busy <- struct{}{}
	}
	c := mustDial(t, r.client, r.l.Addr())
	s := mustAccept(t, r.l)
	for _, end := range []conn.Conn{c, s} {
		if end.Mode() != conn.ModeTCP || end.Reason().Code != clc.DiagBusy {
			t.Errorf("mode %v, reason %v; want TCP, %v", end.Mode(), end.Reason(), clc.DiagBusy)
		}
	}
	checkExchange(t, c, s)
	c.Close()
	s.Close()
	for range handshake.MaxOfListener {
		<-r.l.busy
	}
	checkServes(t, r.client, r.l)
	smctest.Eventually(t, patience, "the end of all handshakes", func() bool { return len(r.l.busy) == 0 })
}
