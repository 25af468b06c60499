package host

import (
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
)

// TestSMCRGone kills the process at the other end, whose kernel says that its UDP port is nobody's any more.
func TestSMCRGone(t *testing.T) {
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 1)
	cables.Sysctl(1, "net/ipv4/icmp_ratelimit", "0") // what RDMA sends to that port is answered, too
	cfg := Config{
		UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"10.99.0.0/16"}, RDMA: rdma.Config{Port: 4791},
		Namespace: func(f func()) { cables.Visit(0, f) },
	}
	h := newTestHost(t, cfg)
	var child *smctest.Process
	server := cables.Addr[0][1]
	cables.Run[1](func() {
		child = smctest.Start(t, "host-smcr", t.TempDir(), netip.AddrPortFrom(server, 4791).String(), server.String())
	})
	addr := strings.TrimPrefix(child.Hear("listening"), "listening ")
	var conns []*Conn
	for range 3 {
		var c *Conn
		var err error
		cables.Run[0](func() {
			c, err = h.Dial(boundedContext(t), "tcp", addr, DialOptions{Require: RequireSMCR})
		})
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	g := conns[0].carrier.end().(*smcrGroup)
	child.Kill()
	for _, c := range conns {
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || err == io.EOF {
			t.Errorf("read of one whose peer was killed = %d, %v", n, err)
		}
		c.Close()
	}
	checkGone(t, h)
	<-g.stopped
	if why := g.ctl.Failure(); !errors.Is(why.Err, errPeerGone) { // rule: TestSMCRGone
		t.Errorf("the group ended for %v, want %v", why, errPeerGone)
	}
}

// TestSMCRKnockDuringChange asks the kernel of a peer while links are made, whose other ends are not known before. It is for the race detector.
func TestSMCRKnockDuringChange(t *testing.T) {
	r := newSMCRRig(t, nil)
	c, s := r.connect()
	defer c.Close()
	defer s.Close()
	checkSMCR(t, c, s)
	g := groupsOf(r.client)[0]
	g.knock()
	smctest.Eventually(t, patience, "it is asked", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		l := g.links[0]
		was := l.peer
		l.peer = netip.Addr{}
		l.peer = was
		return !g.knocking.Load()
	})
	checkExchange(t, c, s)
}

// A countedCarrier counts how often its peer was suspected to be gone.
type countedCarrier struct {
	carrier
	suspects atomic.Int32
}

func (c *countedCarrier) suspect() {
	c.suspects.Add(1)
	c.carrier.suspect()
}

// TestSMCRHalfFIN ends one direction of TCP without a flag: the peer is asked whether it is there, more than once as data on
// its way is a sign of life too, but not for ever. The connection goes on.
func TestSMCRHalfFIN(t *testing.T) {
	r := newSMCRRig(t, nil)
	c, s := r.connect()
	defer c.Close()
	defer s.Close()
	checkSMCR(t, c, s)
	counted := &countedCarrier{carrier: s.carrier}
	s.mu.Lock()
	s.carrier = counted
	s.mu.Unlock()
	if err := c.tcp.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	asked := 0
	for after := suspectAfter; after <= suspectUntil; after *= 2 {
		asked++
	}
	smctest.Eventually(t, patience, "the peer was asked", func() bool { return int(counted.suspects.Load()) == asked })
	checkExchange(t, c, s)
	if n := int(counted.suspects.Load()); n != asked {
		t.Errorf("asked %d times, want %d", n, asked)
	}
}

// TestSMCRCloseAfterPeer closes a connection whose peer has closed, over a network that has stopped: there is nobody to
// wait for.
func TestSMCRCloseAfterPeer(t *testing.T) {
	var cut atomic.Bool
	drop := func([]byte) bool { return cut.Load() }
	r := newSMCRRig(t, func(c, s *Config) { c.RDMA.Drop, s.RDMA.Drop = drop, drop })
	c, s := r.connect()
	checkSMCR(t, c, s)
	c.Close()
	if _, err := s.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("read = %v, want EOF", err)
	}
	smctest.Eventually(t, patience, "the peer's flag", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.peerFinished()
	})
	cut.Store(true)
	defer cut.Store(false)
	begun := time.Now()
	s.Close()
	if took := time.Since(begun); took >= pendingCloseTime { // rule: TestSMCRCloseAfterPeer
		t.Errorf("Close took %v", took)
	}
}
