package host

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/wire/clc"
)

// rewriter returns a function that writes the configuration file of this test.
func rewriter(t *testing.T) func(text string) {
	path := filepath.Join(t.TempDir(), "gosmc.conf")
	t.Setenv(config.EnvFile, path)
	return func(text string) {
		t.Helper()
		if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+"~", path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReload changes the policy of hosts that run. A connection that is there goes on as it was, and
// a file that is not understood changes nothing.
func TestReload(t *testing.T) {
	write := rewriter(t)
	write("")
	dir := t.TempDir()
	log := new(record)
	server := newTestHost(t, Config{Dir: dir, Logger: log.logger()})
	client := newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	addr := l.Addr().String()
	old, err := client.Dial(context.Background(), "tcp", addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	oldServer := mustAccept(t, l)
	defer old.Close()
	defer oldServer.Close()
	for _, step := range []struct {
		text           string
		client, server clc.Diagnosis // DiagNone: SMC-D; another one: TCP
	}{
		{"", clc.DiagNone, clc.DiagNone},
		{"connect-port !" + portOf(l) + "\n", clc.DiagNotAllowed, clc.DiagPeerNoSMC},
		{"listen-address !127.0.0.1\n", clc.DiagNotAllowed, clc.DiagNotAllowed},
		{"listen-prot\n", clc.DiagNotAllowed, clc.DiagNotAllowed},
		{"smc off\n", clc.DiagNotAllowed, clc.DiagNotAllowed},
		{"", clc.DiagNone, clc.DiagNone},
	} {
		write(step.text)
		for _, h := range []*Host{client, server} { // they look once a second by themselves
			st := h.Status().Config
			if wrong := step.text == "listen-prot\n"; st == nil || st.File != config.Path() || (st.Error != "") != wrong {
				t.Errorf("with %q the status says %+v", step.text, st)
			}
		}
		c, err := client.Dial(context.Background(), "tcp", addr, DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := mustAccept(t, l)
		if got := c.Reason().Code; (got == clc.DiagNone) != (step.client == clc.DiagNone) {
			t.Errorf("with %q the client's reason is %v, want %v", step.text, c.Reason(), step.client)
		}
		if got := s.Reason().Code; (got == clc.DiagNone) != (step.server == clc.DiagNone) {
			t.Errorf("with %q the server's reason is %v, want %v", step.text, s.Reason(), step.server)
		}
		checkExchange(t, c, s)
		checkExchange(t, old, oldServer)
		c.Close()
		s.Close()
	}
	if old.Reason().Code != clc.DiagNone {
		t.Errorf("the connection from before has become %v", old.Reason())
	}
	if got := strings.Count(log.String(), "its values before stay"); got != 1 {
		t.Errorf("the log has the wrong file %d times, want once:\n%s", got, log.String())
	}
}

// TestReloadLoosens announces a listener that the file has kept from that when it began.
func TestReloadLoosens(t *testing.T) {
	write := rewriter(t)
	write("listen-address !127.0.0.1\nshort-after 1\n")
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	checkPolicy(t, client, l, l.Addr().String(), clc.DiagNoListener, clc.DiagNotAllowed)
	server.Status() // it looks at the file, and at the listener
	checkPolicy(t, client, l, l.Addr().String(), clc.DiagNoListener, clc.DiagNotAllowed)
	write("short-after 2\n")
	t.Setenv(config.Variables[config.ShortAfter], "")
	all := "smc program listen-port listen-address connect-port connect-address short-after"
	for i, cfg := range []Config{{}, {ShortAfter: 3}, {Listen: config.Filter{Ports: []string{"any"}}}, {Disabled: true}} {
		h, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		without := []string{"", " short-after", " listen-port", "smc "}[i]
		if got, want := h.rules.status().Live, strings.Replace(all, without, "", 1); got != want {
			t.Errorf("without%q: live are %q, want %q", without, got, want)
		}
		h.Close()
	}
	server.Status() // it looks at the file
	checkPolicy(t, client, l, l.Addr().String(), clc.DiagNone, clc.DiagNone)
}

// TestReloadDial changes the policy while a dial is under way. The server was told that the client
// speaks SMC, so the dial keeps the policy that it began with.
func TestReloadDial(t *testing.T) {
	write := rewriter(t)
	write("")
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	for i, want := range []clc.Diagnosis{clc.DiagNone, clc.DiagNotAllowed} {
		c, err := client.Dial(context.Background(), "tcp", l.Addr().String(), DialOptions{
			Control: func(context.Context, string, string, syscall.RawConn) error {
				write("connect-port !" + portOf(l) + "\n")
				client.Status() // it looks at the file
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		s := mustAccept(t, l)
		if got := c.Reason().Code; got != want {
			t.Errorf("dial %d has the reason %v, want %v", i, c.Reason(), want)
		}
		checkExchange(t, c, s)
		c.Close()
		s.Close()
	}
}
