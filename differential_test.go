package smc

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// TestLikeTCP does the same random calls on pairs of connections of package net, of ours over TCP
// and over SMC-D, and compares the results.
func TestLikeTCP(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	client, server := newHost(t, Config{Dir: dir}), newHost(t, Config{Dir: dir})
	plain := newHost(t, Config{Dir: dir, Disabled: true})
	rounds := 1000
	if testing.Short() {
		rounds = 50
	}
	for seed := range uint64(rounds) {
		want := play(t, seed, func() (a, b testConn) { return netPair(t) })
		for _, kind := range []struct {
			name string
			pair func() (a, b testConn)
		}{
			{"TCP", func() (a, b testConn) { return connect(t, plain, server, ModeTCP) }},
			{"SMC-D", func() (a, b testConn) { return connect(t, client, server, ModeSMCD) }},
		} {
			if got := play(t, seed, kind.pair); !slices.Equal(got, want) {
				i := 0
				for i < len(got) && i < len(want) && got[i] == want[i] {
					i++
				}
				t.Errorf("seed %d: after %d calls that were the same\n%s\n%-6s %s\n%-6s %s", seed, i,
					strings.Join(want[:i], "\n"), "net:", at(want, i), kind.name+":", at(got, i))
			}
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(end)"
}

// A testConn has the methods that a net.TCPConn and a Conn share.
type testConn interface {
	net.Conn
	CloseRead() error
	CloseWrite() error
	SetLinger(int) error
}

func netPair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// A playedEnd is one end of a pair, with the state that is known without asking: it says which
// calls have a result that does not depend on time.
type playedEnd struct {
	name     string
	conn     testConn
	written  uint64 // bytes so far
	read     uint64
	fin      bool // no more is written
	shutRead bool
	closed   bool
	reset    bool // the other end has reset the connection
	spent    bool // an error that TCP reports once was reported
}

// maxUnread is less than any buffer holds, so that no write has to wait.
const maxUnread = 8 << 10

// play does the calls that a seed stands for, and describes the result of each.
func play(t *testing.T, seed uint64, pair func() (a, b testConn)) (log []string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	ca, cb := pair()
	ends := [2]*playedEnd{{name: "a", conn: ca}, {name: "b", conn: cb}}
	defer ca.Close()
	defer cb.Close()
	say := func(e *playedEnd, format string, args ...any) {
		log = append(log, e.name+" "+fmt.Sprintf(format, args...))
	}
	for range 30 {
		e, peer := ends[0], ends[1]
		if rng.IntN(2) == 1 {
			e, peer = peer, e
		}
		e.conn.SetDeadline(time.Now().Add(patience))
		unread := peer.written - e.read
		n := 1 + rng.IntN(3000)
		switch call := rng.IntN(20); {
		case call < 7: // write
			unreadThere := e.written - peer.read
			switch {
			case e.closed, e.fin && !e.reset: // a reset is reported once, by whichever call comes first
				m, err := e.conn.Write(make([]byte, n))
				say(e, "write: %d, %s", m, class(err))
			case peer.closed || peer.shutRead || e.reset:
				// TCP takes some bytes before it hears that nobody wants them.
			case unreadThere+uint64(n) <= maxUnread:
				b := make([]byte, n)
				smctest.Pattern(b, e.written)
				m, err := e.conn.Write(b)
				e.written += uint64(m)
				say(e, "write %d: %d, %s", n, m, class(err))
			}
		case call < 13: // read
			switch {
			case e.closed || e.shutRead && unread == 0 || unread == 0 && !e.spent && (peer.fin || peer.closed):
				if e.reset {
					e.spent = true
				}
				m, err := e.conn.Read(make([]byte, n))
				say(e, "read at the end: %d, %s", m, class(err))
			case unread == 0 && !peer.fin && !peer.closed && !e.shutRead:
				e.conn.SetReadDeadline(time.Unix(1, 0))
				m, err := e.conn.Read(make([]byte, n))
				say(e, "read nothing: %d, %s", m, class(err))
			case unread > 0 && !e.shutRead:
				b := make([]byte, min(uint64(n), unread))
				m, err := io.ReadFull(e.conn, b)
				e.read += uint64(m)
				say(e, "read %d: %d, %s, %08x", len(b), m, class(err), crc32.ChecksumIEEE(b))
			}
		case call == 13: // a deadline that has passed counts more than bytes that are there
			if !e.reset || e.closed {
				e.conn.SetDeadline(time.Unix(1, 0))
				m, err := e.conn.Read(make([]byte, n))
				say(e, "late read: %d, %s", m, class(err))
				m, err = e.conn.Write(make([]byte, n))
				say(e, "late write: %d, %s", m, class(err))
			}
		case call == 14 || call == 15:
			// When both have said it, TCP forgets the connection and says that it is not connected.
			if !peer.closed && !e.reset && !(e.fin && peer.fin) {
				say(e, "close write: %s", class(e.conn.CloseWrite()))
				e.fin = true
			}
		case call == 16:
			if !e.closed && (e.reset || peer.closed) {
				continue // TCP may not know yet that nobody is there
			}
			say(e, "no bytes: %s", class(func() error { _, err := e.conn.Write(nil); return err }()))
		case call == 17:
			say(e, "deadline: %s", class(e.conn.SetDeadline(time.Time{})))
		case call == 18 && rng.IntN(3) == 0: // reset
			err := e.conn.SetLinger(0)
			say(e, "linger: %s", class(err))
			if err == nil && !peer.closed {
				peer.reset = true
			}
			say(e, "close: %s", class(e.conn.Close()))
			e.closed = true
		case call == 19 && rng.IntN(3) == 0:
			if !e.closed && unread > 0 && !peer.closed {
				peer.reset = true
			}
			say(e, "close: %s", class(e.conn.Close()))
			e.closed = true
		}
	}
	return log
}

// class returns the properties of an error that a program can tell.
func class(err error) string {
	var ne net.Error
	switch {
	case err == nil:
		return "ok"
	case err == io.EOF:
		return "EOF"
	case errors.Is(err, net.ErrClosed):
		return "closed"
	case errors.Is(err, os.ErrDeadlineExceeded) && errors.As(err, &ne) && ne.Timeout():
		return "timeout"
	case errors.Is(err, syscall.EPIPE):
		return "EPIPE"
	case errors.Is(err, syscall.ECONNRESET):
		return "ECONNRESET"
	}
	return err.Error()
}
