package host

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/handshake"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// TestSMCRGrowth makes more connections than a link group has room for.
func TestSMCRGrowth(t *testing.T) {
	r := newSMCRRig(t, nil)
	const count = handshake.MaxConnsPerGroup + 20
	var clients, servers [count]conn.Conn
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range servers {
			servers[i] = mustAccept(t, r.l)
		}
	})
	for part := range 5 { // at a time
		wg.Go(func() {
			for i := part; i < count; i += 5 {
				c, err := r.dial(DialOptions{ReadBuffer: 16 << 10, Require: conn.RequireSMCR})
				if err != nil {
					t.Error(err)
					return
				}
				clients[i] = c
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	checkSMCR(t, servers[:]...)
	if a, b := groupsOf(r.client), groupsOf(r.server); len(a) != 2 || len(b) != 2 {
		t.Errorf("%d and %d link groups, want 2", len(a), len(b))
	}
	for i, c := range clients {
		if _, err := c.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range servers {
		if _, err := s.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range clients {
		clients[i].Close()
		servers[i].Close()
	}
	checkGone(t, r.client, r.server)
}

// TestSMCRChurn makes and closes many connections one after the other. Their memory is used again: none of it is taken
// for such that the peer may still write to.
func TestSMCRChurn(t *testing.T) {
	r := newSMCRRig(t, nil)
	go func() {
		for {
			c, err := r.l.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(io.Discard, c)
				c.Close()
			}()
		}
	}()
	const count = 600
	for i := range count {
		c, err := r.dial(DialOptions{Require: conn.RequireSMCR, ReadBuffer: 16 << 10})
		if err != nil {
			t.Fatalf("dial %d: %v", i, err)
		}
		c.Close()
	}
	checkGone(t, r.client, r.server)
	for _, h := range []*Host{r.client, r.server} {
		groups := groupsOf(h)
		if len(groups) != 1 {
			t.Fatalf("%d link groups, want one", len(groups))
		}
		if g := groups[0]; g.IdleRMBs != g.RMBs || g.Quarantined != 0 || g.RMBs > count/4 {
			t.Errorf("%d RMBs are left of %d connections, %d of them free and %d in quarantine", g.RMBs, count, g.IdleRMBs, g.Quarantined)
		}
	}
}

// TestSMCRStalled has a client that stalls its first contact: other clients of its host wait for a
// while, and clients of other hosts not at all.
func TestSMCRStalled(t *testing.T) {
	r := newSMCRRig(t, nil)
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(loop1, 0))}
	tcp, err := d.Dial("tcp", r.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	stalled := tcp.(*net.TCPConn)
	defer stalled.Close()
	stalled.SetDeadline(time.Now().Add(patience))
	caps := core.Capabilities{
		PeerID: r.client.peerID /* it says that it is the same host */, OS: clc.OSLinux, Release: clc.Release1, UEIDs: r.client.ueids,
		RoCEv2: &core.RNIC{GID: wire.GIDFromAddr(loop1), MAC: wire.MAC{2, 1}}, MaxConns: 16, MaxLinks: 2,
	}
	for _, out := range core.NewHandshake(core.RoleClient, caps).Start(time.Now(), nil) {
		if send, ok := out.(core.SendCLC); ok {
			if _, err := stalled.Write(send.Message.Append(nil)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if m, err := readCLC(stalled); err != nil || m.Type() != clc.TypeAccept {
		t.Fatalf("the server answers %v, %v, want an Accept", m, err)
	}

	other := newTestHost(t, Config{UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"127.0.0.0/8"}, RDMA: rdma.Config{Port: r.client.cfg.RDMA.Port}})
	began := time.Now()
	c, err := other.Dial(boundedContext(t), "tcp", r.l.Addr().String(), DialOptions{Require: conn.RequireSMCR, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(loop3, 0))})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took >= core.FirstContactWait {
		t.Errorf("a client of another host waited %v", took)
	}
	s := mustAccept(t, r.l)
	checkSMCR(t, c, s)
	checkExchange(t, c, s)
	c.Close()
	s.Close()

	began = time.Now()
	c, s = r.connect()
	if took := time.Since(began); took < core.FirstContactWait {
		t.Errorf("a client of the same host waited %v, want %v at least", took, core.FirstContactWait)
	}
	checkSMCR(t, c, s)
	checkExchange(t, c, s)
	c.Close()
	s.Close()
}

// TestSMCRCrowd has as many clients that stall as a listener takes handshakes: others are served all the same.
func TestSMCRCrowd(t *testing.T) {
	r := newSMCRRig(t, nil)
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(loop3, 0))}
	began := time.Now()
	for range handshake.MaxOfListener {
		c, err := d.Dial("tcp", r.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for range 3 {
		c, s := r.connect()
		checkSMCR(t, c, s)
		checkExchange(t, c, s)
		c.Close()
		s.Close()
	}
	if took := time.Since(began); took >= core.HandshakeTimeout { // when the others go by themselves
		t.Errorf("three connections took %v beside clients that stall", took)
	}
}

// TestSMCRReuse fills a link group, closes all, and makes connections again, also with buffers of
// other sizes: they use the same group and the RMBs that it has. Its tables of RMBs are full.
func TestSMCRReuse(t *testing.T) {
	r := newSMCRRig(t, nil)
	fill := func(count, buffer int) {
		t.Helper()
		var conns []conn.Conn
		for range count {
			c, err := r.dial(DialOptions{ReadBuffer: buffer, Require: conn.RequireSMCR})
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c, mustAccept(t, r.l))
		}
		checkExchange(t, conns[0], conns[1])
		for _, c := range conns {
			c.Close()
		}
		checkGone(t, r.client, r.server)
		if a, b := groupsOf(r.client), groupsOf(r.server); len(a) != 1 || len(b) != 1 {
			t.Errorf("%d and %d link groups after %d connections of %d bytes, want one", len(a), len(b), count, buffer)
		}
	}
	fill(handshake.MaxConnsPerGroup, 16<<10)
	fill(3, 16<<10)
	fill(3, 64<<10) // has less
	if n := rmbsOf(r.client); n != handshake.MaxConnsPerGroup*16<<10 {
		t.Errorf("%d bytes of RMBs, want %d", n, handshake.MaxConnsPerGroup*16<<10)
	}
}
