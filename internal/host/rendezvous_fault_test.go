package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// checkPlain makes sure that a client's connection has fallen back for the reason, and that the
// plain program at its other end gets nothing but the application's bytes.
func checkPlain(tb testing.TB, res dialed, l *net.TCPListener, reason clc.Diagnosis) {
	tb.Helper()
	if res.err != nil {
		tb.Fatalf("Dial = %v, want TCP because of %v", res.err, reason)
	}
	defer res.conn.Close()
	if res.conn.Mode() != conn.ModeTCP || res.conn.Reason().Code != reason {
		tb.Errorf("mode %v, reason %v; want TCP, %v", res.conn.Mode(), res.conn.Reason(), reason)
	}
	l.SetDeadline(time.Now().Add(patience))
	tcp, err := l.AcceptTCP()
	if err != nil {
		tb.Fatal(err)
	}
	defer tcp.Close()
	tcp.SetDeadline(time.Now().Add(patience))
	checkExchange(tb, res.conn, tcp)
	res.conn.CloseWrite()
	if rest, err := io.ReadAll(tcp); len(rest) > 0 || err != nil {
		tb.Errorf("after the application's bytes: %x, %v", rest, err)
	}
}

// TestForgedAnnouncement has an adversary announce the port of a plain program.
func TestForgedAnnouncement(t *testing.T) {
	refuse := func(a *adversary, reason clc.Diagnosis) func(*ism.Peer, rendezvous.Message) {
		return func(p *ism.Peer, m rendezvous.Message) {
			a.send(p, rendezvous.Message{Kind: rendezvous.Refused, ID: m.ID, Reason: uint32(reason)})
		}
	}
	for _, tt := range []struct {
		name   string
		expect func(a *adversary) func(*ism.Peer, rendezvous.Message)
		reason clc.Diagnosis
	}{
		{"refuses", func(a *adversary) func(*ism.Peer, rendezvous.Message) { return refuse(a, clc.DiagNoListener) }, clc.DiagNoListener},
		{"refuses with a reason of the wire", func(a *adversary) func(*ism.Peer, rendezvous.Message) { return refuse(a, clc.DiagMemory) }, clc.DiagRefused},
		{"refuses twice", func(a *adversary) func(*ism.Peer, rendezvous.Message) {
			return func(p *ism.Peer, m rendezvous.Message) {
				for range 2 {
					refuse(a, clc.DiagBusy)(p, m)
				}
			}
		}, clc.DiagBusy},
		{"says nothing until it is asked", func(*adversary) func(*ism.Peer, rendezvous.Message) {
			return func(*ism.Peer, rendezvous.Message) {}
		}, clc.DiagNotAccepted},
		{"accepts other connections", func(a *adversary) func(*ism.Peer, rendezvous.Message) {
			return func(p *ism.Peer, m rendezvous.Message) {
				for i := uint64(1); i < 100; i++ {
					a.send(p, rendezvous.Message{Kind: rendezvous.Accepted, ID: m.ID + i})
					a.send(p, rendezvous.Message{Kind: rendezvous.Accepted, ID: m.ID - i})
				}
			}
		}, clc.DiagNotAccepted},
		{"expects something itself", func(a *adversary) func(*ism.Peer, rendezvous.Message) {
			return func(p *ism.Peer, m rendezvous.Message) { a.send(p, m); refuse(a, clc.DiagNoListener)(p, m) }
		}, clc.DiagNoListener},
		{"sends garbage", func(a *adversary) func(*ism.Peer, rendezvous.Message) {
			return func(p *ism.Peer, m rendezvous.Message) { p.Send([]byte{99, 1, 2, 3}) }
		}, clc.DiagStale},
		{"ends", func(a *adversary) func(*ism.Peer, rendezvous.Message) {
			return func(p *ism.Peer, m rendezvous.Message) { p.Close() }
		}, clc.DiagStale},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newClientRig(t)
			r.a.keepPolling()
			r.a.handle(rendezvous.Expect, tt.expect(r.a))
			r.a.handle(rendezvous.Cancel, refuse(r.a, clc.DiagNotAccepted))
			checkPlain(t, <-r.dial(boundedContext(t)), r.evil, tt.reason)
			r.checkServes()
			r.checkIdle()
		})
	}
}

// TestAcceptedByStranger has a host that was not asked say that it has the connection.
func TestAcceptedByStranger(t *testing.T) {
	r := newClientRig(t)
	stranger := newAdversary(t, r.a.dir, false)
	p := stranger.peering(r.client)
	r.a.keepPolling()
	r.a.handle(rendezvous.Expect, func(_ *ism.Peer, m rendezvous.Message) {
		stranger.send(p, rendezvous.Message{Kind: rendezvous.Accepted, ID: m.ID})
	})
	r.a.handle(rendezvous.Cancel, func(p *ism.Peer, m rendezvous.Message) {
		r.a.send(p, rendezvous.Message{Kind: rendezvous.Refused, ID: m.ID, Reason: uint32(clc.DiagNotAccepted)})
	})
	checkPlain(t, <-r.dial(boundedContext(t)), r.evil, clc.DiagNotAccepted)
}

// TestMalformedSignals sends a server bytes that are no rendezvous message: that peering ends, and
// only that.
func TestMalformedSignals(t *testing.T) {
	r := newServerRig(t)
	expect := rendezvous.Message{Kind: rendezvous.Expect, ID: 1, Dest: addrPort(r.l.Addr())}
	valid := expect.Append(nil)
	var bad [][]byte
	for n := range valid {
		bad = append(bad, valid[:n])
	}
	bad = append(bad, append(valid, 0), make([]byte, rendezvous.HeaderLen), []byte{5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		append((&rendezvous.Message{Kind: rendezvous.Cancel}).Append(nil), 0), (&rendezvous.Message{Kind: rendezvous.Refused}).Append(nil)[:rendezvous.HeaderLen])
	for _, b := range bad {
		p := r.a.peering(r.server)
		if err := p.Send(b); err != nil {
			t.Fatalf("Send(%x) = %v", b, err)
		}
		select {
		case <-p.Done():
		case <-time.After(patience):
			t.Fatalf("the server goes on after %x", b)
		}
	}
	checkServes(t, r.client, r.l)
	r.checkIdle()
}

// TestExpectFlood announces more connections than a server remembers. Others are not affected.
func TestExpectFlood(t *testing.T) {
	r := newServerRig(t)
	dest := addrPort(r.l.Addr())
	netns := r.l.meeting.Load().Netns()
	var busy atomic.Uint32
	r.a.handle(rendezvous.Refused, func(_ *ism.Peer, m rendezvous.Message) {
		if m.Reason != uint32(clc.DiagBusy) {
			t.Errorf("refused with %#x, want %v", m.Reason, clc.DiagBusy)
		}
		busy.Add(1)
	})
	const more = 1000
	for i := range rendezvous.MaxExpected + more {
		m := rendezvous.Message{Kind: rendezvous.Expect, ID: uint64(i), Netns: netns, Socket: uint64(i + 1), Dest: dest}
		for {
			err := r.p.Send(m.Append(nil))
			if err == nil {
				break
			}
			if r.p.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	smctest.Eventually(t, patience, "the refusals", func() bool { return busy.Load() == more })
	if n := r.server.meeting.Expected(); n != rendezvous.MaxExpected {
		t.Errorf("the server remembers %d connections, want %d", n, rendezvous.MaxExpected)
	}
	checkServes(t, r.client, r.l)

	// Expects for addresses without a listener are refused, and not remembered.
	r.p.Close()
	smctest.Eventually(t, patience, "the end of the flood", func() bool { return r.server.meeting.Expected() == 0 })
	checkServes(t, r.client, r.l)
}

// TestContestedSocket has two peers claim one socket. The connection that comes is plain TCP for
// everybody, and nobody waits.
func TestContestedSocket(t *testing.T) {
	r := newServerRig(t)
	other := newAdversary(t, r.a.dir, false)
	for _, second := range []*adversary{other, r.a} {
		id := r.a.ids.Add(2)
		d := r.a.reserve(r.p, r.l, id)
		control := d.Control
		d.Control = func(network, address string, raw syscall.RawConn) error {
			if err := control(network, address, raw); err != nil {
				return err
			}
			// The server has noted the first when it reads the second.
			smctest.Eventually(t, patience, "the first Expect", func() bool { return r.server.meeting.Expected() == 1 })
			socket, err := rendezvous.SocketCookie(raw)
			if err != nil {
				return err
			}
			p := second.peering(r.server)
			if second == r.a {
				p = r.p
			}
			second.send(p, rendezvous.Message{Kind: rendezvous.Expect, ID: id + 1, Netns: r.l.meeting.Load().Netns(), Socket: socket, Dest: addrPort(r.l.Addr())})
			if m := second.awaitSignal(rendezvous.Refused, id+1); clc.Diagnosis(m.Reason) != clc.DiagRefused {
				t.Errorf("second refused with %#x, want %v", m.Reason, clc.DiagRefused)
			}
			return nil
		}
		c, err := d.Dial("tcp", r.l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		if m := r.a.awaitSignal(rendezvous.Refused, id); clc.Diagnosis(m.Reason) != clc.DiagRefused {
			t.Errorf("first refused with %#x, want %v", m.Reason, clc.DiagRefused)
		}
		s := mustAccept(t, r.l)
		if s.Mode() != conn.ModeTCP {
			t.Errorf("mode %v, want TCP", s.Mode())
		}
		checkExchange(t, c, s)
		c.Close()
		s.Close()
	}
	checkServes(t, r.client, r.l)
	r.checkIdle()
}

// TestFewSourcePorts dials from few ports, so that sockets of one host, and sockets of plain
// programs, take each other's. None may wait for long, fail for another reason than that ports are
// used up, or get bytes that are not the application's.
func TestFewSourcePorts(t *testing.T) {
	r := newServerRig(t)
	const (
		count, rounds    = 8, 150
		ipLocalPortRange = 51 // IP_LOCAL_PORT_RANGE, Linux 6.3
	)
	var low, high int
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err != nil {
		t.Fatal(err)
	} else if _, err := fmt.Sscan(string(text), &low, &high); err != nil {
		t.Fatal(err)
	}
	few := func(raw syscall.RawConn) (err error) {
		raw.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, ipLocalPortRange, high<<16|(high-count+1))
		})
		return err
	}
	go func() {
		for {
			s, err := r.l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer s.Close()
				s.SetDeadline(time.Now().Add(patience))
				io.Copy(s, s)
			}()
		}
	}()
	plain := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error { return few(raw) }}
	opts := DialOptions{Control: func(_ context.Context, _, _ string, raw syscall.RawConn) error { return few(raw) }}
	var wg sync.WaitGroup
	outcomes := make(map[string]int)
	var mu sync.Mutex
	for i := range 8 {
		wg.Go(func() {
			for range rounds {
				start := time.Now()
				var c net.Conn
				var err error
				if i%2 == 0 {
					c, err = plain.Dial("tcp", r.l.Addr().String())
				} else {
					c, err = r.client.Dial(boundedContext(t), "tcp", r.l.Addr().String(), opts)
				}
				if isUsedUp(err) {
					continue
				}
				if err != nil {
					t.Errorf("dial: %v", err)
					return
				}
				c.SetDeadline(time.Now().Add(patience))
				if err := echo(c); err != nil {
					t.Errorf("plain %v: %v", i%2 == 0, err)
				}
				if sc, ok := c.(conn.Conn); ok {
					mu.Lock()
					outcomes[sc.Mode().String()+" "+sc.Reason().Tag]++
					mu.Unlock()
				}
				c.(interface{ SetLinger(int) error }).SetLinger(0) // leaves nothing in TIME_WAIT
				c.Close()
				if took := time.Since(start); took > rendezvous.CancelTime {
					t.Errorf("plain %v: took %v", i%2 == 0, took)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%v", outcomes)
	if outcomes["SMC-D "] == 0 {
		t.Error("no connection used SMC-D")
	}
}

// isUsedUp reports whether a dial found no free port.
func isUsedUp(err error) bool {
	return errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EADDRINUSE)
}

// echo sends bytes and reads them back.
func echo(c net.Conn) error {
	sent := binary.LittleEndian.AppendUint64([]byte("echo"), uint64(time.Now().UnixNano()))
	if _, err := c.Write(sent); err != nil {
		return err
	}
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != string(sent) {
		return fmt.Errorf("got %x, want %x", got, sent)
	}
	return nil
}
