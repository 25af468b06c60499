package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// sockets counts the sockets below a run directory.
func sockets(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type() == fs.ModeSocket {
			n++
		}
		if errors.Is(err, fs.ErrNotExist) { // a file that is just going away
			err = nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// talk makes a connection between two hosts, uses it and ends it.
func talk(t testing.TB, client, server *Host, want conn.Mode) {
	t.Helper()
	l, err := server.Listen(context.Background(), "tcp", "127.0.0.1:0", ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := mustDial(t, client, l.Addr())
	s := mustAccept(t, l)
	if c.Mode() != want || s.Mode() != want {
		t.Fatalf("modes are %v and %v (%v), want %v", c.Mode(), s.Mode(), c.Reason(), want)
	}
	checkExchange(t, c, s)
	c.Close()
	s.Close()
	l.Close()
}

// A host that nobody uses has no goroutine, no descriptor and no file, and can be used again.
func TestReleaseIdle(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		t.Run(fmt.Sprintf("disabled=%v", disabled), func(t *testing.T) {
			smctest.CheckLeaks(t) // at the end: the hosts are not closed
			before := goleak.IgnoreCurrent()
			dir := t.TempDir()
			cfg := Config{Dir: dir, ReleaseIdle: true, Disabled: disabled}
			want := conn.ModeSMCD
			if disabled {
				want = conn.ModeTCP
			}
			client, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			server, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				talk(t, client, server, want)
				smctest.Eventually(t, patience, "the hosts give back what they have", func() bool {
					return sockets(t, dir) == 0 && goleak.Find(before) == nil
				})
			}
			if got := server.Status().Counters.Connections[want.String()]; got != 3 {
				t.Errorf("the server counts %d connections, want 3", got)
			}
			client.Close()
			server.Close()
		})
	}
}

// A host is released neither beside a listener or a connection, nor while somebody looks at it.
func TestReleaseIdleNotYet(t *testing.T) {
	dir := t.TempDir()
	server := newTestHost(t, Config{Dir: dir, ReleaseIdle: true})
	client := newTestHost(t, Config{Dir: dir, ReleaseIdle: true})
	l := mustListen(t, server, "127.0.0.1:0")
	c := mustDial(t, client, l.Addr())
	s := mustAccept(t, l)
	if n := sockets(t, dir); n != 5 {
		t.Fatalf("two hosts have %d sockets, want a device's and a control socket each, and the server's broker", n)
	}
	gids := [2]string{gidOf(t, client).String(), gidOf(t, server).String()}
	realSleep(2 * idleLinger)
	if got := [2]string{gidOf(t, client).String(), gidOf(t, server).String()}; got != gids {
		t.Errorf("devices %s were replaced by %s beside a connection and a listener", gids, got)
	}
	f := followHost(t, client, control.TraceOptions{History: 100})
	c.Close()
	s.Close()
	f.await("closed")
	realSleep(2 * idleLinger)
	if got := gidOf(t, client).String(); got != gids[0] {
		t.Errorf("device %s was replaced by %s, though somebody follows the host", gids[0], got)
	}
	f.cancel()
	<-f.end
	smctest.Eventually(t, patience, "the client's sockets are gone", func() bool { return sockets(t, dir) == 3 })
}

// A host that was used while it lingered goes on to linger.
func TestReleaseIdleUsedMeanwhile(t *testing.T) {
	h := newTestHost(t, Config{}) // which does not linger by itself
	gid := gidOf(t, h)
	h.hold()
	h.letGo()
	if h.lingered(0) || h.openFabricOrNil() == nil {
		t.Error("a host was released that had been used while it lingered")
	}
	if !h.lingered(1) || h.openFabricOrNil() != nil {
		t.Error("an idle host was not released")
	}
	if gidOf(t, h) == gid {
		t.Error("a device that was closed and opened again has its old GID")
	}
	h.hold()
	defer h.letGo()
	if !h.lingered(2) || h.openFabricOrNil() == nil {
		t.Error("a host was released that is held")
	}
}

// The result is the same in a bubble of synctest. Its clock stands still while anything waits for
// the network.
func TestReleaseIdleInBubble(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			cfg := Config{Dir: dir, ReleaseIdle: true}
			client, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			server, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			talk(t, client, server, conn.ModeSMCD)
		}) // returns when every goroutine of the bubble has ended
	}
}

// A host that is in use outside of a bubble is one for TCP inside, and the other way round: their goroutines
// cannot wake each other, and the runtime ends a process that tries.
func TestBubble(t *testing.T) {
	for _, opened := range []string{"outside", "inside"} {
		t.Run(opened, func(t *testing.T) {
			smctest.CheckLeaks(t)
			dir := t.TempDir()
			var client, server *Host
			start := func(t *testing.T) *Listener { // opens the resources of the hosts
				cfg := Config{Dir: dir, ReleaseIdle: true}
				var err error
				if client, err = New(cfg); err != nil {
					t.Fatal(err)
				}
				if server, err = New(cfg); err != nil {
					t.Fatal(err)
				}
				l, err := server.Listen(context.Background(), "tcp", "127.0.0.1:0", ListenOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			// stay holds a connection over SMC-D open while the other side talks.
			stay := func(t *testing.T, other func(l *Listener)) {
				l := start(t)
				c := mustDial(t, client, l.Addr())
				s := mustAccept(t, l)
				if c.Mode() != conn.ModeSMCD {
					t.Errorf("on its own side of the bubble a connection is %v because of %v", c.Mode(), c.Reason())
				}
				other(l)
				checkExchange(t, c, s)
				c.Close()
				s.Close()
				l.Close()
			}
			across := func(t *testing.T, other *Listener) {
				announced := mustDial(t, client, other.Addr())
				if r := announced.Reason(); announced.Mode() != conn.ModeTCP || r.Code != clc.DiagBubble {
					t.Errorf("to a listener across a bubble a connection is %v because of %v, want TCP because of the bubble", announced.Mode(), r)
				}
				announced.Close()
				l, err := server.Listen(context.Background(), "tcp", "127.0.0.1:0", ListenOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				c := mustDial(t, client, l.Addr())
				s := mustAccept(t, l)
				if c.Mode() != conn.ModeTCP || s.Mode() != conn.ModeTCP {
					t.Errorf("across a bubble the modes are %v and %v, want TCP", c.Mode(), s.Mode())
				}
				checkExchange(t, c, s)
				c.Close()
				s.Close()
				l.Close()
			}
			if opened == "outside" {
				stay(t, func(l *Listener) {
					synctest.Test(t, func(t *testing.T) { across(t, l) })
				})
				return
			}
			ask, done := make(chan *Listener), make(chan struct{})
			go func() {
				defer close(done)
				across(t, <-ask)
			}()
			synctest.Test(t, func(t *testing.T) {
				stay(t, func(l *Listener) {
					ask <- l
					<-done
				})
			})
		})
	}
}

// BenchmarkOpen measures the cost of a host that was released, or is new.
func BenchmarkOpen(b *testing.B) {
	h := newTestHost(b, Config{})
	for b.Loop() {
		if _, _, err := h.open(); err != nil {
			b.Fatal(err)
		}
		h.lingered(0)
	}
}
