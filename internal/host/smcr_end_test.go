package host

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/llcflow"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// TestSMCREnds ends connections in all ways, as TCP has them. The group and its memory are used again.
func TestSMCREnds(t *testing.T) {
	r := newSMCRRig(t, nil)
	data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, c, s conn.Conn)
	}{
		{"close after data", func(t *testing.T, c, s conn.Conn) {
			go func() { c.Write(data); c.Close() }()
			if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read %d bytes, %v; want %d", len(got), err, len(data))
			}
		}},
		{"half close", func(t *testing.T, c, s conn.Conn) {
			go func() { c.Write(data); c.CloseWrite() }()
			got, err := io.ReadAll(s)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("read %d bytes, %v; want %d", len(got), err, len(data))
			}
			go func() { s.Write(got); s.Close() }()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read %d bytes back, %v; want %d", len(got), err, len(data))
			}
			if _, err := c.Write(data); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("a write after CloseWrite = %v", err)
			}
		}},
		{"close with unread data", func(t *testing.T, c, s conn.Conn) {
			c.Write(data[:1000])
			if _, err := io.ReadFull(s, make([]byte, 500)); err != nil {
				t.Error(err)
			}
			s.Close()
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ECONNABORTED) {
				t.Errorf("read = %v, want a reset", err)
			}
		}},
		{"reset", func(t *testing.T, c, s conn.Conn) {
			s.Write(data[:100])
			if _, err := io.ReadFull(c, make([]byte, 100)); err != nil { // which a reset overtakes, as with TCP
				t.Error(err)
			}
			s.SetLinger(0)
			s.Close()
			if got, err := io.ReadAll(c); err == nil || len(got) != 0 {
				t.Errorf("read %d bytes, %v; want a reset", len(got), err)
			}
		}},
		{"close with a writer blocked", func(t *testing.T, c, s conn.Conn) {
			ended := make(chan error)
			go func() {
				for {
					if _, err := c.Write(data); err != nil {
						ended <- err
						return
					}
				}
			}()
			if _, err := io.ReadFull(s, make([]byte, 2<<20)); err != nil {
				t.Error(err)
			}
			s.Close()
			if err := <-ended; !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("write = %v", err)
			}
		}},
		{"TCP reset", func(t *testing.T, c, s conn.Conn) {
			tcpOf(s).SetLinger(0)
			tcpOf(s).Close()
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("read = %v, want a reset", err)
			}
		}},
		{"both at once", func(t *testing.T, c, s conn.Conn) {
			done := make(chan struct{})
			go func() { c.Close(); close(done) }()
			s.Close()
			<-done
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, s := r.connect()
			defer c.Close()
			defer s.Close()
			checkSMCR(t, c, s)
			tt.run(t, c, s)
		})
	}
	checkGone(t, r.client, r.server)
	if a, b := groupsOf(r.client), groupsOf(r.server); len(a) != 1 || len(b) != 1 {
		t.Errorf("%d and %d link groups, want one", len(a), len(b))
	}
	c, s := r.connect()
	checkExchange(t, c, s)
	c.Close()
	s.Close()
}

// TestSMCRResetOvertakes resets a connection while its last bytes are on their way: TCP is faster, and they are read all the same.
func TestSMCRResetOvertakes(t *testing.T) {
	smctest.CheckLeaks(t)
	var cut atomic.Bool
	r := newSMCRRig(t, func(c, _ *Config) { c.RDMA.Drop = func([]byte) bool { return cut.Load() } })
	r.client.connEnv.ResetPatience = patience
	counted := countSuspects(r.client)
	c, s := r.connect()
	defer c.Close()
	checkSMCR(t, c, s)
	checkExchange(t, c, s)
	cut.Store(true)
	want := bytes.Repeat([]byte("last"), 5000)
	if _, err := s.Write(want); err != nil {
		t.Error(err)
	}
	s.SetLinger(0)
	s.Close()
	smctest.Eventually(t, patience, "the reset of TCP", func() bool { return counted.suspects.Load() > 0 })
	cut.Store(false)
	if got, err := io.ReadAll(c); !bytes.Equal(got, want) || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read %d bytes, %v; want %d and a reset", len(got), err, len(want))
	}
}

// checkGone waits until hosts have no connections.
func checkGone(t testing.TB, hosts ...*Host) {
	t.Helper()
	defer func() { // on a failure
		for _, h := range hosts {
			h.mu.Lock()
			left := slices.Collect(maps.Keys(h.conns))
			h.mu.Unlock()
			for _, c := range left {
				t.Logf("left: %+v, closed %v", c.Status(), c.IsClosed())
			}
		}
	}()
	for _, h := range hosts {
		smctest.Eventually(t, patience, "no connection is left", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return len(h.conns) == 0
		})
	}
}

// TestSMCRHostCloses closes a host in the middle of connections: the peer's connections end after
// the bytes that had arrived, and its link group is gone.
func TestSMCRHostCloses(t *testing.T) {
	for _, end := range []string{"client", "server"} {
		t.Run(end, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			c, s := r.connect()
			idleC, idleS := r.connect()
			checkSMCR(t, c, s, idleC, idleS)
			ended, still, other := r.client, r.server, s
			if end == "server" {
				ended, still, other = r.server, r.client, c
			}
			ended.Close()
			checkEnd(t, ended, endOfLinkGroup, llcflow.EndShutdown.String())
			if _, err := other.Read(make([]byte, 1)); err == nil || err == io.EOF {
				t.Errorf("read = %v, want an error", err)
			}
			if !isOver(other) {
				t.Error("the group is still there")
			}
			checkEnd(t, still, endOfLinkGroup, llcflow.EndPeer.String())
			for _, x := range []conn.Conn{c, s, idleC, idleS} {
				x.Close()
			}
			checkGone(t, r.client, r.server)
			for _, h := range []*Host{r.client, r.server} {
				smctest.Eventually(t, patience, "no buffers are left", func() bool { return memoryOf(h) == 0 })
			}
		})
	}
}

// TestSMCRCloseAll closes a host while the application closes its connections: the peer gets the
// bytes that were written to them, and their ends.
func TestSMCRCloseAll(t *testing.T) {
	r := newSMCRRig(t, func(c, s *Config) { c.ReadBuffer, s.ReadBuffer = 1<<20, 1<<20 })
	data := make([]byte, 1<<19-1<<12) // the peer's room, at a first contact too, and more than is on its way at a time
	smctest.Pattern(data, 0)
	const count = 32
	var clients, servers [count]conn.Conn
	for i := range clients {
		clients[i], servers[i] = r.connect()
	}
	checkSMCR(t, clients[:]...)
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			if _, err := c.Write(data); err != nil {
				t.Error(err)
			}
			c.Close()
		})
	}
	for _, c := range clients {
		smctest.Eventually(t, patience, "Close was called", c.IsClosed)
	}
	r.client.Close()
	wg.Wait()
	for i, s := range servers {
		if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, data) {
			t.Errorf("connection %d: read %d bytes, %v; want %d", i, len(got), err, len(data))
		}
		s.Close()
	}
}

// TestSMCRAsksForClosed has a link fail at one end only, while the other has but a closed connection that awaits its peer's last
// word: nothing is sent over the link, and TCP is closed.
func TestSMCRAsksForClosed(t *testing.T) {
	r := newSMCRRig(t, nil)
	c, s := r.connect()
	checkSMCR(t, c, s)
	checkExchange(t, c, s)
	c.Close()
	failLinks(r.server, loop2)
	checkGone(t, r.client) // long before a silent link is tested
	s.Close()
	checkGone(t, r.server)
}

// TestSMCRDecline has handshakes that lead to TCP, with the same reason at both ends.
func TestSMCRDecline(t *testing.T) {
	for _, tt := range []struct {
		name           string
		change         func(client, server *Config)
		client, server clc.Diagnosis
	}{
		{"no common UEID", func(c, s *Config) { s.UEIDs = []string{"OTHER"} }, clc.DiagNoUEID, clc.DiagNoUEID},
		{"client without UEID", func(c, s *Config) { c.UEIDs = nil }, clc.DiagNoUEID, clc.DiagNoUEID},
		{"server without UEID", func(c, s *Config) { s.UEIDs = nil }, clc.DiagNoUEID, clc.DiagNoUEID},
		{"no memory of the server", func(c, s *Config) { s.MemoryBudget = 1 << 10 }, clc.DiagMemory, clc.DiagBudget},
		{"no memory of the client", func(c, s *Config) { c.MemoryBudget = 1 << 10 }, clc.DiagBudget, clc.DiagMemory},
		{"no device of the client", func(c, s *Config) { c.SMCRDevices = []string{"192.0.2.1"} }, clc.DiagNoSMCRDevice, clc.DiagNoSMCRDevice},
		{"no device of the server", func(c, s *Config) { s.SMCRDevices = []string{"192.0.2.1"} }, clc.DiagNoSMCRDevice, clc.DiagNoSMCRDevice},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newSMCRRig(t, tt.change)
			for range 2 {
				c, s := r.connect()
				if c.Mode() != conn.ModeTCP || s.Mode() != conn.ModeTCP || c.Reason().Code != tt.client || s.Reason().Code != tt.server {
					t.Errorf("modes %v, %v, reasons %v, %v; want TCP, %v, %v", c.Mode(), s.Mode(), c.Reason(), s.Reason(), tt.client, tt.server)
				}
				checkExchange(t, c, s)
				c.Close()
				s.Close()
			}
			if a, b := groupsOf(r.client), groupsOf(r.server); len(a) != 0 || len(b) != 0 {
				t.Errorf("%d and %d link groups are left", len(a), len(b))
			}
			for _, h := range []*Host{r.client, r.server} {
				if n := memoryOf(h); n != 0 {
					t.Errorf("%d bytes of buffers are left", n)
				}
			}
		})
	}
}

// rings are the bytes of the send rings of a host.
func rings(h *Host) int64 { return memoryOf(h) - rmbsOf(h) }

// TestSMCRBudget has a budget with room for the receive buffers of three connections, and the send buffers of two.
func TestSMCRBudget(t *testing.T) {
	const buffer = 64 << 10
	for _, end := range []string{"client", "server"} {
		t.Run(end, func(t *testing.T) {
			r := newSMCRRig(t, func(c, s *Config) {
				c.ReadBuffer, s.ReadBuffer = buffer, buffer
				if end == "client" {
					c.MemoryBudget = 5 * buffer
				} else {
					s.MemoryBudget = 5 * buffer
				}
			})
			short := map[string]*Host{"client": r.client, "server": r.server}[end]
			wantC, wantS := clc.DiagBudget, clc.DiagMemory
			if end == "server" {
				wantC, wantS = wantS, wantC
			}
			for range 2 { // the counted memory is given back
				var conns []conn.Conn
				for range 2 {
					c, s := r.connect()
					checkSMCR(t, c, s)
					checkExchange(t, c, s)
					conns = append(conns, c, s)
				}
				if n := rings(short); n != 2*buffer {
					t.Errorf("%d bytes of send rings count, want %d", n, 2*buffer)
				}
				c, s := r.connect()
				if c.Mode() != conn.ModeTCP || s.Mode() != conn.ModeTCP || c.Reason().Code != wantC || s.Reason().Code != wantS {
					t.Errorf("modes %v, %v, reasons %v, %v; want TCP, %v, %v", c.Mode(), s.Mode(), c.Reason(), s.Reason(), wantC, wantS)
				}
				checkExchange(t, c, s)
				for _, c := range append(conns, c, s) {
					c.Close()
				}
				checkGone(t, r.client, r.server)
				smctest.Eventually(t, patience, "all send rings are given back", func() bool { return rings(short) == 0 })
			}
		})
	}
}

// TestSMCRRequire dials and listens where SMC-R will not do, or nothing else will.
func TestSMCRRequire(t *testing.T) {
	r := newSMCRRig(t, nil)
	var fell *conn.FallbackError
	if c, err := r.dial(DialOptions{Require: conn.RequireSMCD}); !errors.As(err, &fell) || fell.Reason.Code != clc.DiagPolicy {
		t.Errorf("Dial that requires SMC-D = %v, %v", c, err)
	}
	s := mustAccept(t, r.l)
	if s.Mode() != conn.ModeTCP || !s.ByPeer() {
		t.Errorf("the server's end is %v, by peer %v", s.Mode(), s.ByPeer())
	}
	s.Close()
	c, err := r.dial(DialOptions{Require: conn.RequireSMCR})
	if err != nil {
		t.Fatal(err)
	}
	s = mustAccept(t, r.l)
	checkSMCR(t, c, s)
	c.Close()
	s.Close()
}

// TestSMCRPort has a device's port in use.
func TestSMCRPort(t *testing.T) {
	var port uint16
	r := newSMCRRig(t, func(c, _ *Config) { port = c.RDMA.Port })
	taken, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(loop2, port)))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c, s := r.connect()
	if c.Mode() != conn.ModeTCP || s.Mode() != conn.ModeTCP || c.Reason().Code != clc.DiagNoSMCRDevice || s.Reason().Code != clc.DiagPortInUse {
		t.Errorf("modes %v, %v, reasons %v, %v", c.Mode(), s.Mode(), c.Reason(), s.Reason())
	}
	checkExchange(t, c, s)
	c.Close()
	s.Close()
}

// TestSMCRReleases has hosts of version 2.0 and 2.1.
func TestSMCRReleases(t *testing.T) {
	for _, old := range []string{"client", "server", "client and server"} {
		t.Run(old, func(t *testing.T) {
			r := newSMCRRig(t, func(c, s *Config) {
				c.Release0, s.Release0 = strings.Contains(old, "client"), strings.Contains(old, "server")
			})
			for range 2 {
				c, s := r.connect()
				checkSMCR(t, c, s)
				if c.Agreed().Version != "2.0" || s.Agreed().Version != "2.0" {
					t.Errorf("versions %s and %s, want 2.0", c.Agreed().Version, s.Agreed().Version)
				}
				checkExchange(t, c, s)
				c.Close()
				s.Close()
			}
		})
	}
}

// TestSMCRLinkFails takes a link away at one end: connections at both learn of it, and later ones have a new link. The
// other end may learn of the link only when it does not answer, which costs a connection its SMC.
func TestSMCRLinkFails(t *testing.T) {
	for _, end := range []string{"client", "server"} {
		t.Run(end, func(t *testing.T) {
			r := newSMCRRig(t, nil)
			c, s := r.connect()
			checkSMCR(t, c, s)
			checkExchange(t, c, s)
			if end == "client" {
				failLinks(r.client, loop1)
			} else {
				failLinks(r.server, loop2)
			}
			for _, x := range []conn.Conn{c, s} {
				if _, err := x.Read(make([]byte, 1)); err == nil || err == io.EOF {
					t.Errorf("read = %v, want an error", err)
				}
				x.Close()
			}
			smctest.Eventually(t, patience, "a connection over SMC-R", func() bool {
				c, s := r.connect()
				defer c.Close()
				defer s.Close()
				checkExchange(t, c, s)
				return c.Mode() == conn.ModeSMCR && s.Mode() == conn.ModeSMCR
			})
			checkGone(t, r.client, r.server)
		})
	}
}
