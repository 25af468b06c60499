package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// newCableRig is newSMCRRig with a network namespace for each host, joined by cables.
func newCableRig(t testing.TB, cables *smctest.Cables, six bool, change func(client, server *Config)) *smcrRig {
	t.Helper()
	var cfg [2]Config
	for i := range cfg {
		cfg[i] = Config{UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"10.99.0.0/16", "fd00::/8"}, Namespace: func(f func()) { cables.Visit(i, f) }}
	}
	if change != nil {
		change(&cfg[0], &cfg[1])
	}
	addrs := cables.Addr[0]
	if six {
		addrs = cables.Six[0]
	}
	r := &smcrRig{t: t, client: newTestHost(t, cfg[0]), server: newTestHost(t, cfg[1]), local: addrs[0]}
	cables.Run[1](func() { r.l = mustListen(t, r.server, netip.AddrPortFrom(addrs[1], 0).String()) })
	r.in = cables.Run[0]
	return r
}

// TestSMCRNamespaces has connections between two network namespaces, in both versions of IP.
func TestSMCRNamespaces(t *testing.T) {
	for _, tt := range []struct {
		name, version string
		six           bool
		change        func(c, s *Config)
	}{
		{"IPv4", "2.1", false, nil},
		{"IPv6", "2.1", true, nil},
		{"IPv4, version 2.0", "2.0", false, func(c, _ *Config) { c.Release0 = true }},
		{"IPv4, version 1", "1.0", false, func(c, s *Config) { c.SMCRv1, s.SMCRv1, c.UEIDs, s.UEIDs = true, true, nil, nil }},
		{"IPv6, version 1", "1.0", true, func(c, s *Config) { c.SMCRv1, s.SMCRv1, c.UEIDs = true, true, nil }},
		{"IPv4, both versions", "2.1", false, func(c, s *Config) { c.SMCRv1, s.SMCRv1 = true, true }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			r := newCableRig(t, smctest.NewCables(t, 1), tt.six, tt.change)
			for range 3 {
				c, s := r.connect()
				checkSMCR(t, c, s)
				if c.Agreed().Version != tt.version || s.Agreed().Version != tt.version {
					t.Errorf("versions %s and %s, want %s", c.Agreed().Version, s.Agreed().Version, tt.version)
				}
				if tt.version != "1.0" && !groupsOf(r.server)[0].Direct {
					t.Error("the server takes the cable for a router")
				}
				checkExchange(t, c, s)
				checkTransfer(t, c, s, 4<<20)
				c.Close()
				s.Close()
			}
			if n := len(groupsOf(r.server)); n != 1 {
				t.Errorf("%d link groups, want one", n)
			}
		})
	}
}

// TestSMCRRoutedLoopback has hosts that are reached at addresses of their loopback interfaces, as
// routers announce them. Packets are of a size that the cable between them can take, even if
// loopback takes larger ones.
func TestSMCRRoutedLoopback(t *testing.T) {
	for _, tt := range []struct {
		name string
		six  bool
	}{{"IPv4", false}, {"IPv6", true}} {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			cables := smctest.NewCables(t, 1)
			at, bits := &cables.Addr[0], 32
			own := [2]netip.Addr{netip.MustParseAddr("10.99.50.1"), netip.MustParseAddr("10.99.50.2")}
			if tt.six {
				at, bits = &cables.Six[0], 128
				own = [2]netip.Addr{netip.MustParseAddr("fd00:50::1"), netip.MustParseAddr("fd00:50::2")}
			}
			for end := range 2 {
				cables.IP(end, fmt.Sprintf("addr add %v/%d dev lo", own[end], bits))
				cables.IP(end, fmt.Sprintf("route add %v/%d via %v", own[1-end], bits, at[1-end]))
			}
			*at = own
			r := newCableRig(t, cables, tt.six, nil)
			c, s := r.connect()
			checkSMCR(t, c, s)
			checkTransfer(t, c, s, 1<<20)
			c.Close()
			s.Close()
		})
	}
}

// TestSMCRRoutedMTU has hosts with jumbo frames, and between them a router and a network that takes Ethernet's.
func TestSMCRRoutedMTU(t *testing.T) {
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 1)
	own := [2]netip.Addr{netip.MustParseAddr("10.99.50.1"), netip.MustParseAddr("10.99.50.2")}
	for end := range 2 {
		cables.IP(end, "link set cable0 mtu 9000")
		cables.IP(end, fmt.Sprintf("addr add %v/32 dev cable0", own[end]))
	}
	for end := range 2 {
		cables.IP(end, fmt.Sprintf("route add %v/32 via %v", own[1-end], cables.Addr[0][1-end]))
	}
	cables.Addr[0] = own
	r := newCableRig(t, cables, false, func(c, s *Config) {
		drop := func(datagram []byte) bool { return len(datagram) > 1500-20-8 }
		c.RDMA.Drop, s.RDMA.Drop = drop, drop
	})
	c, s := r.connect()
	checkSMCR(t, c, s)
	if groupsOf(r.server)[0].Direct {
		t.Error("the server sees no router")
	}
	checkTransfer(t, c, s, 1<<20)
	c.Close()
	s.Close()
}

// checkTransfer moves bytes both ways at once, and closes both ends for writing.
func checkTransfer(t testing.TB, a, b conn.Conn, size int) {
	t.Helper()
	done := make(chan error, 4)
	for _, end := range []conn.Conn{a, b} {
		go func() {
			buf := make([]byte, 100<<10)
			for at := 0; at < size; at += len(buf) {
				buf = buf[:min(len(buf), size-at)]
				smctest.Pattern(buf, uint64(at))
				if _, err := end.Write(buf); err != nil {
					done <- err
					return
				}
			}
			done <- end.CloseWrite()
		}()
		go func() {
			buf := make([]byte, 64<<10)
			at := 0
			for {
				n, err := end.Read(buf)
				if err2 := smctest.CheckPattern(buf[:n], uint64(at)); err2 != nil {
					done <- err2
					return
				}
				at += n
				if err == io.EOF && at == size {
					err = nil
				} else if err == nil {
					continue
				}
				done <- err
				return
			}
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestSMCRLoss has connections over a network that loses one packet in a hundred.
func TestSMCRLoss(t *testing.T) {
	drop := func([]byte) bool { return rand.N(100) == 0 }
	r := newSMCRRig(t, func(c, s *Config) { c.RDMA.Drop, s.RDMA.Drop = drop, drop })
	for range 3 {
		c, s := r.connect()
		checkSMCR(t, c, s)
		checkTransfer(t, c, s, 4<<20)
		c.Close()
		s.Close()
	}
}

// TestSMCRImpatient dials with less patience than it takes to find out that RDMA does not get through: the first dial fails, the
// next one has TCP. When RDMA gets through, and is tried again, it is used.
func TestSMCRImpatient(t *testing.T) {
	var cut atomic.Bool
	cut.Store(true)
	drop := func([]byte) bool { return cut.Load() }
	r := newSMCRRig(t, func(c, s *Config) { c.RDMA.Drop, s.RDMA.Drop = drop, drop })
	dial := func() (conn.Conn, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		return r.client.Dial(ctx, "tcp", r.l.Addr().String(), DialOptions{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(r.local, 0))})
	}
	if c, err := dial(); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Dial = %v, %v; want a timeout", c, err)
	}
	c, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	s := mustAccept(t, r.l)
	for s.RemoteAddr().String() != c.LocalAddr().String() { // of the first dial
		s.Close()
		s = mustAccept(t, r.l)
	}
	if c.Reason().Code != clc.DiagFiltered {
		t.Errorf("reason %v, want %v", c.Reason(), clc.DiagFiltered)
	}
	checkExchange(t, c, s)
	c.Close()
	s.Close()
	cut.Store(false)
	// One that would do without is not tried before the time has come. One that would not is, and all know by it.
	ordinary := r.l
	if r.l, err = r.server.Listen(t.Context(), "tcp", loop2.String()+":0", ListenOptions{Require: conn.RequireSMCR}); err != nil {
		t.Fatal(err)
	}
	defer r.l.Close()
	if c, err = r.dial(DialOptions{Require: conn.RequireSMCR}); err != nil {
		t.Fatal(err)
	}
	s = mustAccept(t, r.l)
	checkExchange(t, c, s)
	c.Close()
	s.Close()
	checkGone(t, r.client, r.server)
	r.l.Close()
	r.l = ordinary
	failLinks(r.client, loop1) // so that the next one makes a link group
	failLinks(r.server, loop2)
	smctest.Eventually(t, patience, "no link group is left", func() bool { return len(groupsOf(r.client))+len(groupsOf(r.server)) == 0 })
	c, s = r.connect()
	checkSMCR(t, c, s)
	checkExchange(t, c, s)
	c.Close()
	s.Close()
}

// TestSMCRFiltered has a network that lets nothing through but TCP, or not in one direction: connections use TCP, and have
// an application's bytes and nothing else.
func TestSMCRFiltered(t *testing.T) {
	smctest.CheckLeaks(t)
	var wg sync.WaitGroup
	for _, tt := range []struct {
		name           string
		client, server bool // packets that arrive there are lost
	}{
		{"both ways", true, true},
		{"to the client", true, false},
		{"to the server", false, true},
	} {
		wg.Go(func() { // they wait for timers
			t.Run(tt.name, func(t *testing.T) {
				all := func([]byte) bool { return true }
				r := makeSMCRRig(t, func(c, s *Config) {
					if tt.client {
						c.RDMA.Drop = all
					}
					if tt.server {
						s.RDMA.Drop = all
					}
				})
				c, s := r.connect()
				if c.Mode() != conn.ModeTCP || s.Mode() != conn.ModeTCP {
					t.Errorf("modes %v and %v, want TCP", c.Mode(), s.Mode())
				}
				checkExchange(t, c, s)
				checkExchange(t, s, c)
				c.Close()
				s.Close()
				// The next one does not wait: at both ends is known that it would be in vain.
				c, s = r.connect()
				if c.Reason().Code != clc.DiagFiltered && !c.ByPeer() || s.Reason().Code != clc.DiagFiltered && !s.ByPeer() {
					t.Errorf("then reasons %v and %v, want %v", c.Reason(), s.Reason(), clc.DiagFiltered)
				}
				checkExchange(t, c, s)
				c.Close()
				s.Close()
				checkFiltered(t, r.client, loop1, r.server, loop2)
				checkFiltered(t, r.server, loop2, r.client, loop1)
				if _, err := r.dial(DialOptions{Require: conn.RequireSMCR}); err == nil { // it is tried
					t.Error("a connection over SMC-R")
				}
				mustAccept(t, r.l).Close()
				for _, h := range []*Host{r.client, r.server} {
					smctest.Eventually(t, patience, "the group is gone", func() bool { return len(groupsOf(h)) == 0 && memoryOf(h) == 0 })
				}
			})
		})
	}
	wg.Wait()
}

// checkFiltered makes sure that a server knows by itself that RDMA does not get through between it and a client.
func checkFiltered(t testing.TB, client *Host, from netip.Addr, server *Host, at netip.Addr) {
	t.Helper()
	l := mustListen(t, server, at.String()+":0")
	c, err := client.Dial(boundedContext(t), "tcp", l.Addr().String(), DialOptions{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))})
	if err != nil {
		t.Fatal(err)
	}
	s := mustAccept(t, l)
	if s.Reason().Code != clc.DiagFiltered || s.ByPeer() {
		t.Errorf("the host at %v has forgotten it: reason %v, by the peer %t", at, s.Reason(), s.ByPeer())
	}
	c.Close()
	s.Close()
	l.Close()
}

// TestSMCRDeviceDown takes the interface and the address of a device away.
func TestSMCRDeviceDown(t *testing.T) {
	smctest.CheckLeaks(t)
	cables := smctest.NewCables(t, 2)
	// TCP over the first cable, RDMA over the second one.
	log := new(record)
	r := newCableRig(t, cables, false, func(c, s *Config) {
		c.Logger = log.logger()
		c.SMCRDevices, s.SMCRDevices = []string{cables.Addr[1][0].String()}, []string{cables.Addr[1][1].String()}
	})
	c, s := r.connect()
	checkSMCR(t, c, s)
	checkExchange(t, c, s)
	cables.IP(0, "link set cable1 down")
	for _, x := range []conn.Conn{c, s} {
		if _, err := x.Read(make([]byte, 1)); err == nil || err == io.EOF {
			t.Errorf("read = %v, want an error", err)
		}
		x.Close()
	}
	log.awaitEnd(t, rdma.EventInterfaceDown.String())
	c, s = r.connect()
	if c.Mode() != conn.ModeTCP || c.Reason().Tag != "RNIC_DOWN" {
		t.Errorf("with the interface down: mode %v, reason %v", c.Mode(), c.Reason())
	}
	checkExchange(t, c, s)
	c.Close()
	s.Close()
	cables.IP(0, "link set cable1 up")
	smctest.AwaitCarrier(t, cables.Run[0], "cable1")
	smctest.Eventually(t, patience, "a connection over SMC-R", func() bool {
		c, s := r.connect()
		defer c.Close()
		defer s.Close()
		checkExchange(t, c, s)
		return c.Mode() == conn.ModeSMCR
	})
}

// nobodys is the reason that the kernel of a peer gives after the peer's process has ended.
const nobodys = "nobody has its UDP port any more"

// awaitEnd waits until a link group has ended for one of the reasons. Earlier lines of the log are
// forgotten.
func (r *record) awaitEnd(t testing.TB, reasons ...string) {
	t.Helper()
	var line string
	smctest.Eventually(t, patience, "a link group has ended", func() bool {
		for l := range strings.Lines(r.String()) {
			if strings.Contains(l, "link group ended") {
				line = l
			}
		}
		return line != ""
	})
	if !slices.ContainsFunc(reasons, func(s string) bool { return strings.Contains(line, s) }) {
		t.Errorf("the log says %q, want one of %q", line, reasons)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text.Reset()
}

// TestSMCRKilled kills the process at the other end.
func TestSMCRKilled(t *testing.T) {
	smctest.CheckLeaks(t)
	log := new(record)
	cfg := Config{UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"127.0.0.0/8"}, RDMA: rdma.Config{Port: smctest.FreePort(t, loop1, loop2)}, Logger: log.logger()}
	h := newTestHost(t, cfg)
	for range 2 { // the next one is another instance
		child := smctest.Start(t, "host-smcr", t.TempDir(), netip.AddrPortFrom(loop2, cfg.RDMA.Port).String(), loop2.String())
		addr := strings.TrimPrefix(child.Hear("listening"), "listening ")
		var conns []conn.Conn
		for range 3 {
			c, err := h.Dial(boundedContext(t), "tcp", addr, DialOptions{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(loop1, 0)), Require: conn.RequireSMCR})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write([]byte("x")); err != nil {
				t.Error(err)
			}
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
			conns = append(conns, c)
		}
		child.Kill()
		for _, c := range conns {
			if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Errorf("read of one whose peer was killed = %d, %v", n, err)
			}
			c.Close()
		}
		checkGone(t, h)
		// The end of the TCP connection makes us ask the peer, and its kernel: the link itself would notice when it has
		// something to send.
		log.awaitEnd(t, llcflow.EndSilent.String(), nobodys)
	}
}

// TestSMCRExit has a process that writes, closes and exits: all of it arrives, and the end of it, as with TCP.
func TestSMCRExit(t *testing.T) {
	smctest.CheckLeaks(t)
	cfg := Config{UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"127.0.0.0/8"}, RDMA: rdma.Config{Port: smctest.FreePort(t, loop1, loop2)}}
	h := newTestHost(t, cfg)
	child := smctest.Start(t, "host-smcr", t.TempDir(), netip.AddrPortFrom(loop2, cfg.RDMA.Port).String(), loop2.String(), "exit")
	addr := strings.TrimPrefix(child.Hear("listening"), "listening ")
	c, err := h.Dial(boundedContext(t), "tcp", addr, DialOptions{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(loop1, 0)), Require: conn.RequireSMCR})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if got, err := io.ReadAll(c); err != nil || len(got) != exitBytes {
		t.Errorf("read %d bytes, %v; want %d", len(got), err, exitBytes)
	}
	child.Wait()
}

// exitBytes is the number of bytes that a process writes before it exits: less than a buffer.
const exitBytes = 900 << 10

// childSMCR echoes over SMC-R at the address of its first argument, with the UDP port of its second one.
func childSMCR(p *smctest.Parent) {
	port := netip.MustParseAddrPort(p.Args[1]).Port()
	h, err := New(Config{Dir: p.Args[0], UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"127.0.0.0/8", "10.99.0.0/16"}, RDMA: rdma.Config{Port: port}})
	p.Check(err)
	l, err := h.Listen(context.Background(), "tcp", p.Args[2]+":0", ListenOptions{Require: conn.RequireSMCR})
	p.Check(err)
	p.Say("listening %v", l.Addr())
	for {
		c, err := l.Accept()
		p.Check(err)
		if len(p.Args) > 3 { // exit
			_, err := c.Write(make([]byte, exitBytes))
			p.Check(err)
			p.Check(c.Close())
			os.Exit(0)
		}
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}
