package host

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/handshake"
	"github.com/gosmc/smc/internal/smctest"
)

// TestCloseResets closes an SMC connection in several ways and looks at the result at the peer. The
// peer gets the end of the stream, or a reset if bytes were left unread (RFC 7609 p.83, 3A) or the
// application asked for one by SO_LINGER with zero seconds.
func TestCloseResets(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	for _, tt := range []struct {
		name  string
		close func(c conn.Conn) // c has 10 bytes to read
		want  error
	}{
		{"all read", func(c conn.Conn) { io.ReadFull(c, make([]byte, 10)) }, io.EOF},
		{"one byte unread", func(c conn.Conn) { io.ReadFull(c, make([]byte, 9)) }, syscall.ECONNRESET},
		{"nothing read", func(conn.Conn) {}, syscall.ECONNRESET},
		{"linger 0", func(c conn.Conn) { io.ReadFull(c, make([]byte, 10)); c.SetLinger(0) }, syscall.ECONNRESET},
		{"linger 1", func(c conn.Conn) { io.ReadFull(c, make([]byte, 10)); c.SetLinger(1) }, io.EOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, closer := range []string{"client", "server"} {
				c := mustDial(t, client, l.Addr())
				peer := mustAccept(t, l)
				if closer == "server" {
					c, peer = peer, c
				}
				if c.Mode() != conn.ModeSMCD {
					t.Fatalf("mode = %v (%v), want SMC-D", c.Mode(), c.Reason().Tag)
				}
				if _, err := peer.Write(make([]byte, 10)); err != nil {
					t.Fatal(err)
				}
				tt.close(c)
				if err := c.Close(); err != nil {
					t.Fatalf("%s: Close = %v", closer, err)
				}
				if n, err := peer.Read(make([]byte, 1)); n != 0 || !errors.Is(err, tt.want) {
					t.Errorf("%s closes: the peer's Read = %d, %v, want %v", closer, n, err, tt.want)
				}
				peer.Close()
			}
		})
	}
}

// TestCloseInHandshake closes a listener while a client is in its handshake. A call of Accept that waits gets
// the connection, for which others may have been refused; without one it is reset, and so it is if the host closes.
func TestCloseInHandshake(t *testing.T) {
	for _, tt := range []struct {
		name   string
		waits  bool
		end    func(*serverRig)
		served bool
	}{
		{"Accept waits", true, func(r *serverRig) { r.l.Close() }, true},
		{"Shutdown, Accept waits", true, func(r *serverRig) { go r.server.Shutdown(t.Context()); <-r.l.closed }, true},
		{"nobody waits", false, func(r *serverRig) { r.l.Close() }, false},
		{"Host.Close", true, func(r *serverRig) { r.server.Close() }, false},
		{"Close, then Host.Close", true, func(r *serverRig) { r.l.Close(); r.server.Close() }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newServerRig(t)
			results := make(chan accepted, 2)
			accept := func() {
				c, err := r.l.Accept()
				results <- accepted{c, err}
			}
			if tt.waits {
				go accept()
				smctest.Eventually(t, patience, "a call of Accept that waits", func() bool { return r.l.pace.waiting.Load() > 0 })
			}
			client := r.begin(atConfirm)
			tt.end(r)
			if tt.served {
				client.write(client.encoded())
				a := <-results
				if a.err != nil || a.conn.Mode() != conn.ModeSMCD {
					t.Fatalf("Accept = %+v, want a connection over SMC-D", a)
				}
				a.conn.Close()
			} else {
				client.checkEnded()
			}
			if !tt.waits || tt.served {
				accept()
			}
			if a := <-results; !errors.Is(a.err, net.ErrClosed) {
				t.Errorf("Accept after that = %+v, want ErrClosed", a)
			}
		})
	}
}

// TestSharedListenerSilentClient has clients that fall silent in their handshake with a listener that accepts only for
// calls of Accept: others do not wait for them.
func TestSharedListenerSilentClient(t *testing.T) {
	r := newServerRig(t)
	f, err := r.l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	results := make(chan accepted, 1)
	go func() {
		c, err := r.l.Accept()
		results <- accepted{c, err}
	}()
	smctest.Eventually(t, patience, "the announcement, by Accept", func() bool {
		r.l.crier.mu.Lock()
		defer r.l.crier.mu.Unlock()
		return r.l.crier.calls > 0 && !r.l.crier.silent
	})
	for _, at := range []step{atProposal, atConfirm} {
		r.begin(at)
	}
	dialPlain(t, r.l)
	select {
	case a := <-results:
		if a.err != nil || a.conn.Mode() != conn.ModeTCP {
			t.Fatalf("Accept beside silent clients = %+v, want the connection over TCP", a)
		}
		a.conn.Close()
	case <-time.After(handshake.CLCTimeout / 2):
		t.Error("Accept waits for silent clients")
	}
}

// TestTCPReset has a client that resets the idle TCP connection and says nothing in shared memory:
// that is an abort (RFC 7609 p.88).
func TestTCPReset(t *testing.T) {
	r := newServerRig(t)
	c := r.begin(atConfirm)
	c.write(c.encoded())
	s := mustAccept(t, r.l)
	defer s.Close()
	if s.Mode() != conn.ModeSMCD {
		t.Fatalf("mode = %v (%v), want SMC-D", s.Mode(), s.Reason().Tag)
	}
	c.tcp.SetLinger(0)
	c.tcp.Close()
	if n, err := s.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Read = %d, %v, want ECONNRESET", n, err)
	}
	checkEnd(t, r.server, endOfConnection, core.FailReset.String())
}
