package host

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A clientRig is a client of ours, an honest server, and an adversary that plays a server.
type clientRig struct {
	tb     testing.TB
	client *Host
	server *Host
	l      *Listener        // of the honest server
	evil   *net.TCPListener // of the adversary
	a      *adversary
}

func newClientRig(tb testing.TB) *clientRig {
	tb.Helper()
	smctest.CheckLeaks(tb)
	return makeClientRig(tb)
}

// makeClientRig is newClientRig without a check for leaks, for tests that run at the same time.
func makeClientRig(tb testing.TB) *clientRig {
	tb.Helper()
	dir := tb.TempDir()
	r := &clientRig{tb: tb, client: newTestHost(tb, Config{Dir: dir}), server: newTestHost(tb, Config{Dir: dir})}
	r.client.localPatience = 0 // the adversary lives; TestSilence has hosts that wait
	r.l = mustListen(tb, r.server, "127.0.0.1:0")
	r.evil = plainListener(tb, "127.0.0.1:0")
	r.a = newAdversary(tb, dir, false)
	r.a.announceAt(r.evil)
	return r
}

func (r *clientRig) in(tb testing.TB) *clientRig {
	sub := *r
	sub.tb = tb
	return &sub
}

type dialed struct {
	conn conn.Conn
	err  error
}

// dial lets the client dial the adversary.
func (r *clientRig) dial(ctx context.Context) <-chan dialed {
	result := make(chan dialed, 1)
	go func() {
		c, err := r.client.Dial(ctx, "tcp", r.evil.Addr().String(), DialOptions{})
		if err == nil {
			c.SetDeadline(time.Now().Add(patience))
		}
		result <- dialed{c, err}
	}()
	return result
}

// begin lets the client dial, and brings the handshake to where the server sends its Accept,
// which is then in next.
func (r *clientRig) begin() (*clcPeer, <-chan dialed) {
	r.tb.Helper()
	result := r.dial(boundedContext(r.tb))
	tcp, peer := r.a.accept(r.evil)
	if tcp == nil {
		r.tb.Fatalf("dial: %+v", <-result)
	}
	r.tb.Cleanup(func() { tcp.Close() })
	c := r.a.start(core.RoleServer, tcp, peer)
	if m, err := c.read(); err != nil || m.Type() != clc.TypeProposal {
		r.tb.Fatalf("the client sent %v, %v, want a Proposal", m, err)
	}
	return c, result
}

// changed returns the Accept with a field changed.
func changed(change func(*clc.Accept)) func(*clcPeer) []byte {
	return func(c *clcPeer) []byte {
		a := c.next.(clc.Accept)
		d, fce := *a.D, *a.FCE
		a.D, a.FCE = &d, &fce
		change(&a)
		return a.Append(nil)
	}
}

func TestClientLies(t *testing.T) {
	r := newClientRig(t)
	raw := func(change func([]byte) []byte) func(*clcPeer) []byte {
		return func(c *clcPeer) []byte { return change(c.encoded()) }
	}
	for _, tt := range []struct {
		name   string
		accept func(*clcPeer) []byte
		ends   string        // the dial fails, and the error has this
		reason clc.Diagnosis // or the client declines, and this is why
	}{
		{"application bytes", raw(func([]byte) []byte { return []byte("SSH-2.0-OpenSSH_9.6\r\n") }), "eyecatcher", 0},
		{"zeros", raw(func(m []byte) []byte { return make([]byte, len(m)) }), "eyecatcher", 0},
		{"eyecatcher", raw(put(3, 0xc5)), "eyecatcher", 0},
		{"type 0", raw(put(4, 0)), "type", 0},
		{"type 255", raw(put(4, 255)), "type", 0},
		{"version 0", raw(put(7, 0x09)), "version", 0},
		{"version 1", raw(put(7, 0x19)), "clc.Accept", 0},
		{"SMC-R", raw(put(7, 0x20)), "", clc.DiagMode},
		{"SMC type 2", raw(put(7, 0x2a)), "", clc.DiagVersion},
		{"SMC type 3", raw(put(7, 0x2b)), "", clc.DiagVersion},
		{"length 0", raw(put(5, 0, 0)), "length", 0},
		{"length 65535", raw(put(5, 0xff, 0xff)), "length", 0},
		{"cut before the first contact extension", raw(resized(78)), "length", 0},
		{"short", raw(resized(48)), "length", 0},
		{"a Confirm", func(c *clcPeer) []byte {
			a := c.next.(clc.Accept)
			return clc.Confirm{Version: a.Version, FirstContact: true, EID: a.EID, D: a.D, FCE: a.FCE}.Append(nil)
		}, "CLC Confirm in state AwaitAccept", 0},
		{"a Proposal", func(c *clcPeer) []byte { return proposalBytes(c.a) }, "CLC Proposal in state AwaitAccept", 0},
		{"EID that was not offered", changed(func(a *clc.Accept) { a.EID[0] ^= 1 }), "EID", 0},
		{"no EID", changed(func(a *clc.Accept) { a.EID = wire.EID{} }), "EID", 0},
		{"CHID that was not offered", changed(func(a *clc.Accept) { a.D.CHID = 0xfffe }), "CHID", 0},
		{"release 15", changed(func(a *clc.Accept) { a.FCE.Release = 15 }), "", clc.DiagRelease},
		{"no first contact between strangers", changed(func(a *clc.Accept) { a.FirstContact, a.FCE = false, nil }), "", clc.DiagSync},
		{"GID of another device", changed(func(a *clc.Accept) { a.D.GID.Hi ^= 1 }), "", clc.DiagUnreachable},
		{"no GID", changed(func(a *clc.Accept) { a.D.GID = wire.ISMGID{} }), "no GID", 0},
		{"token of nothing", changed(func(a *clc.Accept) { a.D.Token ^= 1 }), "", clc.DiagUnreachable},
		{"token 0", changed(func(a *clc.Accept) { a.D.Token = 0 }), "", clc.DiagUnreachable},
		{"another size", changed(func(a *clc.Accept) { a.D.DMBESize++ }), "", clc.DiagUnreachable},
		{"largest size", changed(func(a *clc.Accept) { a.D.DMBESize = 15 }), "", clc.DiagUnreachable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := r.in(t)
			c, result := r.begin()
			c.write(tt.accept(c))
			if tt.ends != "" {
				c.tcp.CloseWrite() // in case it waits for more bytes
				c.checkEnded()
				res := <-result
				var op *net.OpError
				if !errors.As(res.err, &op) || op.Addr.String() != r.evil.Addr().String() || !strings.Contains(res.err.Error(), tt.ends) {
					t.Errorf("Dial = %+v; want an OpError with the peer's address and %q", res, tt.ends)
				}
			} else {
				m, err := readCLC(c.tcp)
				d, ok := m.(clc.Decline)
				if err != nil || !ok || d.Diagnosis != tt.reason.WireCode() {
					t.Fatalf("the client answered %v, %v, want a Decline with %v", m, err, tt.reason.WireCode())
				}
				res := <-result
				if res.err != nil || res.conn.Mode() != conn.ModeTCP || res.conn.Reason().Code != tt.reason || res.conn.ByPeer() {
					t.Fatalf("Dial = %+v; want TCP because of %v", res, tt.reason)
				}
				checkExchange(t, res.conn, c.tcp)
				res.conn.Close()
			}
			r.checkServes()
		})
	}
}

// checkServes makes sure that honest connections still work.
func (r *clientRig) checkServes() {
	r.tb.Helper()
	checkServes(r.tb, r.client, r.l)
}

// TestClientEveryByte puts other values into every byte of the server's Accept. The client may
// take it or not; the dial must end, and lose nothing.
func TestClientEveryByte(t *testing.T) {
	r := newClientRig(t)
	c, result := r.begin()
	honest := c.encoded()
	c.tcp.Close()
	<-result
	for offset := range honest {
		values := []byte{0, 1, 0x7f, 0x80, 0xff, honest[offset] + 1, honest[offset] ^ 0xff}
		if testing.Short() {
			values = values[4:5]
		}
		for _, v := range values {
			if v == honest[offset] {
				continue
			}
			c, result := r.begin()
			b := c.encoded()
			b[offset] = v
			c.write(b)
			c.tcp.CloseWrite()
			select {
			case res := <-result:
				if res.err == nil {
					res.conn.Close()
				}
			case <-time.After(patience):
				t.Fatalf("byte %d = %#x: the dial does not end", offset, v)
			}
			c.tcp.Close()
		}
	}
	r.checkServes()
	r.checkIdle()
}

// TestClientEveryTruncation ends the connection after each byte of the Accept.
func TestClientEveryTruncation(t *testing.T) {
	r := newClientRig(t)
	for n, total := 0, 1; n < total; n++ {
		c, result := r.begin()
		total = len(c.encoded())
		c.write(c.encoded()[:n])
		c.tcp.CloseWrite()
		if res := <-result; !errors.Is(res.err, io.EOF) && !errors.Is(res.err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d bytes: Dial = %+v, want the end of the stream", n, res)
		}
		c.checkEnded()
		c.tcp.Close()
	}
	r.checkServes()
	r.checkIdle()
}

// checkIdle waits until nothing is left of all connections.
func (r *clientRig) checkIdle() {
	r.tb.Helper()
	r.a.close()
	smctest.Eventually(r.tb, patience, "the end of all connections", func() bool {
		r.client.mu.Lock()
		defer r.client.mu.Unlock()
		return len(r.client.conns) == 0 && r.client.meeting.Attempts() == 0
	})
	f, _, err := r.client.open()
	if err != nil {
		r.tb.Fatal(err)
	}
	smctest.Eventually(r.tb, patience, "the release of all buffers", func() bool {
		s := f.device.Stats()
		return s.DMBs == 0 && s.Windows == 0
	})
}

// TestClientByteByByte sends the Accept in pieces of one byte.
func TestClientByteByByte(t *testing.T) {
	r := newClientRig(t)
	c, result := r.begin()
	c.tcp.SetNoDelay(true)
	for _, b := range c.encoded() {
		c.write([]byte{b})
	}
	if m, err := c.read(); err != nil || m.Type() != clc.TypeConfirm {
		t.Errorf("the client sent %v, %v, want a Confirm", m, err)
	}
	res := <-result
	if res.err != nil || res.conn.Mode() != conn.ModeSMCD {
		t.Fatalf("Dial = %+v, want SMC-D", res)
	}
	res.conn.Close()
}

// TestClientDeclined plays a server that declines, and goes on with the application's bytes in
// the same segment.
func TestClientDeclined(t *testing.T) {
	r := newClientRig(t)
	for _, m := range []clc.Decline{
		{Version: clc.V2, Diagnosis: clc.DiagConfig, OS: clc.OSLinux},
		{Version: clc.V1, Diagnosis: clc.DiagMemory},
		{Version: clc.V2, OutOfSync: true, Diagnosis: clc.DiagSync, OS: clc.OSLinux},
	} {
		c, result := r.begin()
		payload := append(clc.Decline{Version: clc.V2}.Append(nil), acceptBytes(r.a)...)
		c.write(append(m.Append(nil), payload...))
		res := <-result
		if res.err != nil || res.conn.Mode() != conn.ModeTCP || res.conn.Reason().Code != m.Diagnosis || !res.conn.ByPeer() {
			t.Fatalf("%v: Dial = %+v; want TCP by the peer's wish", m, res)
		}
		got := make([]byte, len(payload))
		if _, err := io.ReadFull(res.conn, got); err != nil || !bytes.Equal(got, payload) {
			t.Errorf("Read = %x, %v; want %x", got, err, payload)
		}
		checkExchange(t, res.conn, c.tcp)
		res.conn.Close()
		r.checkServes()
	}
}

// TestClientTrailingBytes sends bytes behind the Accept. On SMC they would be nobody's, so the
// connection cannot be used.
func TestClientTrailingBytes(t *testing.T) {
	r := newClientRig(t)
	c, result := r.begin()
	c.write(append(c.encoded(), "too early"...))
	res := <-result
	if res.err == nil {
		if n, err := res.conn.Read(make([]byte, 8)); n != 0 || err == nil || err == io.EOF {
			t.Errorf("Read = %d, %v; want an error", n, err)
		}
		res.conn.Close()
	}
	r.checkServes()
}

// TestClientPeerVanishes ends the adversary's device at each step of the handshake.
func TestClientPeerVanishes(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(*clcPeer)
	}{
		{"after the Proposal", func(c *clcPeer) { c.tcp.CloseWrite() }},
		{"with the Accept", func(c *clcPeer) { c.write(c.encoded()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newClientRig(t)
			c, result := r.begin()
			c.peer.Close()
			smctest.Eventually(t, patience, "the end of the peering", func() bool {
				f, _, _ := r.client.open()
				return f.device.Stats().PeersDialed == 0
			})
			tt.end(c)
			res := <-result
			if res.err == nil {
				if res.conn.Mode() != conn.ModeTCP {
					t.Errorf("mode = %v, want TCP: there is nobody to share memory with", res.conn.Mode())
				}
				res.conn.Close()
			}
			r.checkServes()
		})
	}
}

// TestServerLeaves has a server that gives up after the client's Confirm, which is all that the client waits for: a
// client that has closed and waits for the server's flags does not sit out its timer.
func TestServerLeaves(t *testing.T) {
	r := newClientRig(t)
	for range 2 {
		c, result := r.begin()
		c.write(c.encoded())
		res := <-result
		if res.err != nil || res.conn.Mode() != conn.ModeSMCD {
			t.Fatalf("Dial = %+v, want a connection over SMC-D", res)
		}
		if _, err := res.conn.Write([]byte("nobody will read this")); err != nil {
			t.Error(err)
		}
		res.conn.Close()
		c.dmb.Release(false) // and nothing of the client's was attached
		smctest.Eventually(t, patience, "the end of the client's connection", func() bool {
			r.client.mu.Lock()
			defer r.client.mu.Unlock()
			return len(r.client.conns) == 0
		})
	}
	r.checkServes()
	r.checkIdle()
}

// TestClientCancelled ends the context of a dial at each step of the handshake.
func TestClientCancelled(t *testing.T) {
	for _, tt := range []struct {
		name  string
		until func(r *clientRig) *net.TCPConn
	}{
		{"before Accepted", func(r *clientRig) *net.TCPConn {
			c, err := r.evil.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			return c
		}},
		{"after Accepted", func(r *clientRig) *net.TCPConn {
			c, _ := r.a.accept(r.evil)
			return c
		}},
		{"after the Proposal", func(r *clientRig) *net.TCPConn {
			c, _ := r.a.accept(r.evil)
			readCLC(c)
			return c
		}},
		{"in the Accept", func(r *clientRig) *net.TCPConn {
			c, p := r.a.accept(r.evil)
			s := r.a.start(core.RoleServer, c, p)
			s.read()
			s.write(s.encoded()[:20])
			return c
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newClientRig(t)
			ctx, cancel := context.WithCancel(boundedContext(t))
			result := r.dial(ctx)
			tcp := tt.until(r)
			defer tcp.Close()
			cancel()
			if res := <-result; !errors.Is(res.err, context.Canceled) {
				t.Errorf("Dial = %+v, want %v", res, context.Canceled)
			}
			tcp.SetDeadline(time.Now().Add(patience))
			if _, err := io.Copy(io.Discard, tcp); err != nil && !isReset(err) {
				t.Errorf("the connection does not end: %v", err)
			}
			r.checkServes()
			r.checkIdle()
		})
	}
}
