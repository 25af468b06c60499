package host

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/rnic"
	"github.com/gosmc/smc/internal/smctest"
)

// retransmitted counts the packets that both ends have sent again over a cable.
func (r *smcrRig) retransmitted(cable int, cables *smctest.Cables) (n uint64) {
	for end, h := range []*Host{r.client, r.server} {
		for _, g := range groupsOf(h) {
			for _, l := range g.Links {
				if l.Device == cables.Addr[cable][end].String() {
					n += l.Retransmitted
				}
			}
		}
	}
	return n
}

// vanish has the packets of a cable vanish in both directions. An interface that goes down forgets it.
func vanish(c *smctest.Cables, cable int) {
	for end := range 2 {
		c.IP(end, fmt.Sprintf("neigh replace %v lladdr 02:00:00:00:00:99 dev cable%d nud permanent", c.Addr[cable][1-end], cable))
	}
}

// TestSMCRLastDown takes all interfaces of a host. The group is given a moment, and ends with a reason then; a
// connection that has heard the peer's last word can still be read to its end, the others say that they are lost.
func TestSMCRLastDown(t *testing.T) {
	r, cables := newTwinRig(t, nil)
	var ended, idle [2]conn.Conn
	ended[0], ended[1] = r.connect()
	idle[0], idle[1] = r.connect()
	checkSMCR(t, ended[0], idle[0])
	r.awaitRedundancy("symmetric")
	checkExchange(t, idle[0], idle[1])
	if _, err := ended[1].Write([]byte("bye")); err != nil {
		t.Fatal(err)
	}
	if err := ended[1].CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadFull(ended[0], make([]byte, 1)); n != 1 || err != nil { // it has come
		t.Fatal(err)
	}
	smctest.Eventually(t, patience, "the peer's last word", func() bool { return peerMessage(t, ended[0]).ConnFlags != 0 })
	cables.IP(0, "link set cable0 down")
	r.awaitRedundancy("single")
	cables.IP(0, "link set cable1 down")
	for i, x := range idle {
		if _, err := x.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNABORTED) {
			t.Errorf("end %d, whose peer might have said more: read = %v, want %v", i, err, syscall.ECONNABORTED)
		}
	}
	<-ended[0].Association().Done()
	if got, err := io.ReadAll(ended[0]); string(got) != "ye" || err != nil {
		t.Errorf("of what the peer had said last %q is left, %v", got, err)
	}
	if _, err := ended[0].Write([]byte{1}); err == nil {
		t.Error("a write over a link group that has ended")
	}
	checkEnd(t, r.client, endOfLinkGroup, "link failed: "+rnic.ErrDown.Error())
	for _, x := range append(ended[:], idle[:]...) {
		x.Close()
	}
	smctest.Eventually(t, patience, "no link group is left", func() bool { return len(groupsOf(r.server)) == 0 })
	checkGone(t, r.client, r.server)
}

// TestSMCRMoveClosing loses a link over which connections have said their last word, that has not arrived yet: they move too.
func TestSMCRMoveClosing(t *testing.T) {
	r, cables := newTwinRig(t, nil)
	const count, size = 4, 48 << 10
	var pairs [count][2]conn.Conn
	for i := range pairs {
		pairs[i][0], pairs[i][1] = r.connect()
		checkSMCR(t, pairs[i][0])
	}
	r.awaitRedundancy("symmetric")
	vanish(cables, 1)
	var closing sync.WaitGroup
	for _, p := range pairs {
		b := make([]byte, size)
		smctest.Pattern(b, 0)
		if _, err := p[1].Write(b); err != nil {
			t.Fatal(err)
		}
		closing.Go(func() {
			if err := p[1].Close(); err != nil {
				t.Errorf("close = %v", err)
			}
		})
	}
	smctest.Eventually(t, patience, "all are closing", func() bool {
		for _, p := range pairs {
			if !p[1].IsClosed() {
				return false
			}
		}
		return true
	})
	cables.IP(1, "link set cable1 down")
	for i, p := range pairs {
		got, err := io.ReadAll(p[0])
		if err != nil || len(got) != size {
			t.Errorf("connection %d: %d bytes, %v, want all %d and the end", i, len(got), err, size)
		} else if err := smctest.CheckPattern(got, 0); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
		p[0].Close()
	}
	closing.Wait()
	checkGone(t, r.client, r.server)
	if a, b := len(groupsOf(r.client)), len(groupsOf(r.server)); a != 1 || b != 1 {
		t.Errorf("%d and %d link groups, want the one there was", a, b)
	}
}

// TestSMCRLostInExchange loses a link while it carries the messages that make a connection, and a
// link that is being made.
func TestSMCRLostInExchange(t *testing.T) {
	r, cables := newTwinRig(t, nil)
	first, firstPeer := r.connect()
	checkSMCR(t, first, firstPeer)
	r.awaitRedundancy("symmetric")
	// The second link is to be the one that exchanges go over, as TCP is on the first one.
	cables.IP(0, "link set cable0 down")
	r.awaitRedundancy("single")
	cables.IP(0, "link set cable0 up")
	r.awaitRedundancy("symmetric")
	for end := range 2 {
		cables.IP(end, fmt.Sprintf("route add %v/32 dev cable0", cables.Addr[0][1-end]))
	}

	t.Log("CONFIRM RKEY, and with it CLC")
	vanish(cables, 1)
	before := r.retransmitted(1, cables)
	type result struct {
		c, s conn.Conn
	}
	made := make(chan result)
	go func() {
		c, err := r.dial(DialOptions{ReadBuffer: 64 << 10})
		if err != nil {
			t.Error(err)
			close(made)
			return
		}
		s, err := r.l.Accept()
		if err != nil {
			t.Error(err)
			close(made)
			return
		}
		made <- result{c, s}
	}()
	smctest.Eventually(t, patience, "a message is on the link", func() bool { return r.retransmitted(1, cables) > before })
	cables.IP(1, "link set cable1 down")
	x, ok := <-made
	if !ok {
		t.FailNow()
	}
	checkSMCR(t, x.c, x.s)
	checkTransfer(t, x.c, x.s, 1<<20)

	t.Log("ADD LINK")
	cables.IP(1, "link set cable1 up")
	smctest.AwaitCarrier(t, cables.Run[1], "cable1")
	vanish(cables, 1)
	smctest.Eventually(t, patience, "a link is being made", func() bool {
		links := groupsOf(r.client)[0].Links
		return len(links) == 2 && links[1].State != "LINK_ACTIVE"
	})
	cables.IP(1, "link set cable1 down")
	c, s := r.connect()
	checkSMCR(t, c, s)
	checkTransfer(t, c, s, 1<<20)
	checkTransfer(t, first, firstPeer, 1<<20)
	cables.IP(1, "link set cable1 up")
	cables.IP(0, fmt.Sprintf("neigh del %v dev cable1", cables.Addr[1][1])) // the other end has forgotten it
	r.awaitRedundancy("symmetric")
	for _, x := range []conn.Conn{c, s, x.c, x.s, first, firstPeer} {
		x.Close()
	}
	checkGone(t, r.client, r.server)
}

// TestSMCRLinkFlaps takes an interface down and up again, over and over: links are made less and less often, and connections do
// not notice.
func TestSMCRLinkFlaps(t *testing.T) {
	r, cables := newTwinRig(t, nil)
	c, s := r.connect()
	checkSMCR(t, c, s)
	r.awaitRedundancy("symmetric")
	began := time.Now()
	const flaps = 30
	var all sync.WaitGroup
	all.Go(func() { checkTransfer(t, c, s, 64<<20) })
	for range flaps {
		cables.IP(0, "link set cable1 down")
		smctest.Eventually(t, patience, "down", func() bool { return !usable(r.client.rnicOf(cables.Addr[1][0])) })
		cables.IP(0, "link set cable1 up")
		smctest.Eventually(t, patience, "up", func() bool { return usable(r.client.rnicOf(cables.Addr[1][0])) })
	}
	all.Wait()
	r.awaitRedundancy("symmetric")
	took := time.Since(began)
	for _, h := range []*Host{r.client, r.server} {
		links := groupsOf(h)[0].Links
		last := links[len(links)-1].Number
		if limit := 3 + int(took/time.Second); int(last) > limit {
			t.Errorf("link %d has been made in %v, want at most %d", last, took, limit)
		}
	}
	st := r.server.Status()
	asked := uint64(flaps + 1 + took/llcflow.AddLinkPause) // once for each, and again where a busy machine takes longer for an answer
	for _, m := range st.Counters.LLC {
		if m.Type == "REQUEST ADD LINK" && m.Rcvd > asked || strings.HasPrefix(m.Type, "DELETE LINK") && m.Rcvd > 2*(flaps+1) {
			t.Errorf("%d of %s for %d flaps", m.Rcvd, m.Type, flaps)
		}
	}
	c.Close()
	s.Close()
}

// rnicOf returns the open device of an address, nil if there is none.
func (h *Host) rnicOf(addr netip.Addr) *rnic.Device { return h.rnics.Find(addr) }

func usable(n *rnic.Device) bool { return n != nil && !n.IsDown() }
