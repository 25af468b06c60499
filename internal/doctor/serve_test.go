package doctor

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) { smctest.Main(m) }

// startServe starts a server on a port of 127.0.0.1 and returns its address.
func startServe(t *testing.T) string {
	t.Helper()
	t.Setenv("GOSMC_DIR", t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	at, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- Serve(ctx, "127.0.0.1:0", func(addr string) { at <- addr }) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	select {
	case addr := <-at:
		return addr
	case err := <-done:
		done <- nil
		t.Fatalf("Serve: %v", err)
		return ""
	}
}

// greeted connects from an address and reports whether the server says something.
func greeted(t *testing.T, from, server string) bool {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_, err = readLine(c, greeting)
	return err == nil
}

// TestServeMany has one client hold as many connections as the server has places, and say nothing on
// them. Another client is served.
func TestServeMany(t *testing.T) {
	server := startServe(t)
	n := 0
	for range maxServed {
		if greeted(t, "127.0.0.1", server) {
			n++
		}
	}
	if n != maxServedEach {
		t.Errorf("%d connections of one client were served, want %d", n, maxServedEach)
	}
	if !greeted(t, "127.0.0.2", server) {
		t.Error("another client was not served")
	}
}

// TestPlaces has places be free again, and be no more than there are for all clients together.
func TestPlaces(t *testing.T) {
	var p places
	addr := func(host string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(host), Port: 1} }
	var leave []func()
	for i := range maxServed {
		one, ok := p.take(addr(net.IPv4(192, 0, 2, byte(i)).String()))
		if !ok {
			t.Fatalf("client %d has no place", i)
		}
		leave = append(leave, one)
	}
	if _, ok := p.take(addr("198.51.100.1")); ok {
		t.Errorf("a client has a place after %d others", maxServed)
	}
	for _, one := range leave {
		one()
	}
	if p.all != 0 || len(p.each) != 0 {
		t.Errorf("%d places of %d clients are taken after all have left", p.all, len(p.each))
	}
	for i := range maxServedEach + 1 { // addresses of one network of 64 bits
		_, ok := p.take(addr("2001:db8::" + string(rune('1'+i))))
		if want := i < maxServedEach; ok != want {
			t.Errorf("address %d of a network has a place: %v, want %v", i, ok, want)
		}
	}
	if _, ok := p.take(addr("2001:db8:0:1::1")); !ok {
		t.Error("another network of IPv6 has no place")
	}
}

// silent is a connection whose peer says nothing. It remembers its deadlines.
type silent struct {
	conn.Conn
	said      strings.Builder
	deadlines []time.Time
}

func (s *silent) Mode() conn.Mode             { return conn.ModeTCP }
func (s *silent) Write(b []byte) (int, error) { return s.said.Write(b) }
func (s *silent) Read([]byte) (int, error)    { return 0, os.ErrDeadlineExceeded }
func (s *silent) SetDeadline(t time.Time) error {
	s.deadlines = append(s.deadlines, t)
	return nil
}

// TestServeSilent has the server wait no longer for a client's first word than a client takes that
// speaks at all.
func TestServeSilent(t *testing.T) {
	h, err := host.New(host.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	c, begun := new(silent), time.Now()
	answer(h, c, new(nonces))
	if !strings.HasPrefix(c.said.String(), greeting) {
		t.Errorf("the server said %q", c.said.String())
	}
	if len(c.deadlines) != 1 || c.deadlines[0].After(begun.Add(serveTimeout/2)) {
		t.Errorf("deadlines %v, want one before half of a connection's time", c.deadlines)
	}
}
