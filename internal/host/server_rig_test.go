package host

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// A serverRig is a server of ours, an honest client, and an adversary that plays a client.
type serverRig struct {
	tb     testing.TB
	server *Host
	client *Host
	l      *Listener
	log    *record
	a      *adversary
	p      *ism.Peer
}

func newServerRig(tb testing.TB) *serverRig {
	tb.Helper()
	smctest.CheckLeaks(tb)
	return makeServerRig(tb)
}

// makeServerRig is newServerRig without a check for leaks, for tests that run at the same time.
func makeServerRig(tb testing.TB) *serverRig {
	tb.Helper()
	dir := tb.TempDir()
	r := &serverRig{tb: tb, log: new(record)}
	r.server = newTestHost(tb, Config{Dir: dir, Logger: r.log.logger()})
	r.client = newTestHost(tb, Config{Dir: dir})
	r.server.localPatience = 0 // the adversary lives; TestSilence has hosts that wait
	r.l = mustListen(tb, r.server, "127.0.0.1:0")
	r.a = newAdversary(tb, dir, false)
	r.p = r.a.peering(r.server)
	return r
}

// client step of a handshake at which the adversary lies.
type step int

const (
	atProposal step = iota // in place of the Proposal
	atConfirm              // in place of the Confirm
	afterAll               // after the Confirm
)

// begin brings a handshake to a step; next is the message that an honest client would send then.
func (r *serverRig) begin(at step) *clcPeer {
	r.tb.Helper()
	if r.p.Err() != nil {
		r.p = r.a.peering(r.server) // the adversary's own device ends a peering over bad tokens
	}
	c := r.a.start(core.RoleClient, r.a.connect(r.p, r.l), r.p)
	for s := atProposal; s < at; s++ {
		c.write(c.encoded())
		if s == atProposal {
			if m, err := c.read(); err != nil || m.Type() != clc.TypeAccept {
				r.tb.Fatalf("the server answered %v, %v, want an Accept", m, err)
			}
		}
	}
	return c
}

// checkFailed waits until the server has given the connection up for the reason.
func (r *serverRig) checkFailed(c *clcPeer, reason string) {
	r.tb.Helper()
	c.checkEnded()
	var line string
	smctest.Eventually(r.tb, patience, "a line in the log", func() bool {
		for l := range strings.Lines(r.log.String()) {
			if strings.Contains(l, "handshake ended") && strings.Contains(l, c.tcp.LocalAddr().String()) {
				line = l
				return true
			}
		}
		return false
	})
	if !strings.Contains(line, reason) || !strings.Contains(line, "accept tcp") {
		r.tb.Errorf("the server says %q, want something with \"accept tcp\" and %q", line, reason)
	}
}

// checkFallback waits for the connection to come out of Accept as plain TCP.
func (r *serverRig) checkFallback(c *clcPeer, reason clc.Diagnosis, byPeer bool) {
	r.tb.Helper()
	s := mustAccept(r.tb, r.l)
	defer s.Close()
	if s.Mode() != conn.ModeTCP || s.Reason().Code != reason || s.ByPeer() != byPeer {
		r.tb.Errorf("accepted: mode %v, reason %v, by peer %v; want TCP, %v, %v", s.Mode(), s.Reason(), s.ByPeer(), reason, byPeer)
		return
	}
	checkExchange(r.tb, s, c.tcp)
}

// put returns a change of a message: bytes at an offset.
func put(offset int, b ...byte) func([]byte) []byte {
	return func(m []byte) []byte {
		copy(m[offset:], b)
		return m
	}
}

// resized returns a change of the length of a message that keeps its last eyecatcher.
func resized(n int) func([]byte) []byte {
	return func(m []byte) []byte {
		tail := m[len(m)-4:]
		out := make([]byte, max(n, 4))
		copy(out[:len(out)-4], m[:len(m)-4])
		copy(out[len(out)-4:], tail)
		binary.BigEndian.PutUint16(out[5:], uint16(n))
		return out
	}
}
