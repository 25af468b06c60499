package host

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

// checkPolicy dials, and checks the modes of both ends and the reasons: DiagNone is SMC-D.
func checkPolicy(t *testing.T, client *Host, l *Listener, addr string, wantClient, wantServer clc.Diagnosis) {
	t.Helper()
	c, err := client.Dial(context.Background(), "tcp", addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := mustAccept(t, l)
	for _, tt := range []struct {
		c    conn.Conn
		want clc.Diagnosis
	}{{c, wantClient}, {s, wantServer}} {
		mode := conn.ModeTCP
		if tt.want == clc.DiagNone {
			mode = conn.ModeSMCD
		}
		if tt.c.Mode() != mode || tt.c.Reason().Code != tt.want {
			t.Errorf("%s of %s is %v, %v; want %v, %v", tt.c.Status().Role, addr, tt.c.Mode(), tt.c.Reason(), mode, tt.want)
		}
	}
	checkExchange(t, c, s)
	c.Close()
	s.Close()
}

// portOf returns the port of a listener, as a policy has it.
func portOf(l *Listener) string {
	_, p, _ := net.SplitHostPort(l.Addr().String())
	return p
}

// TestPolicyDial checks that clients ask a server for nothing if their policy leaves it out, by
// port or by address.
func TestPolicyDial(t *testing.T) {
	dir := t.TempDir()
	l := mustListen(t, newTestHost(t, Config{Dir: dir}), "127.0.0.1:0")
	for _, f := range []config.Filter{{Ports: []string{"!" + portOf(l)}}, {Addresses: []string{"::1", "127.0.0.2"}}} {
		client := newTestHost(t, Config{Dir: dir, Connect: f})
		checkPolicy(t, client, l, l.Addr().String(), clc.DiagNotAllowed, clc.DiagPeerNoSMC)
		if n := client.Status().Counters.Fallbacks; len(n) != 1 || n[0].Tag != "NOT_ALLOWED" || n[0].Count != 1 {
			t.Errorf("fallbacks are %+v, want one, NOT_ALLOWED", n)
		}
	}
	allowed := newTestHost(t, Config{Dir: dir, Connect: config.Filter{Ports: []string{portOf(l)}, Addresses: []string{"127.0.0.0/8", "!127.0.0.2"}}})
	checkPolicy(t, allowed, l, l.Addr().String(), clc.DiagNone, clc.DiagNone)
}

// TestPolicyListen has a listener that the policy leaves out announced to nobody, also if its
// socket is shared.
func TestPolicyListen(t *testing.T) {
	dir := t.TempDir()
	client := newTestHost(t, Config{Dir: dir})
	refused := newTestHost(t, Config{Dir: dir, Listen: config.Filter{Addresses: []string{"!127.0.0.1"}}})
	l := mustListen(t, refused, "127.0.0.1:0")
	checkPolicy(t, client, l, l.Addr().String(), clc.DiagNoListener, clc.DiagNotAllowed)
	shared, err := refused.ListenOn(plainListener(t, "127.0.0.1:0"), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer shared.Close()
	accepted := make(chan conn.Conn, 1)
	go func() {
		c, err := shared.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	smctest.Eventually(t, patience, "Accept waits, which would announce the listener", func() bool {
		shared.crier.mu.Lock()
		defer shared.crier.mu.Unlock()
		return !shared.crier.silent
	})
	c, err := client.Dial(context.Background(), "tcp", shared.Addr().String(), DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if s := <-accepted; c.Reason().Code != clc.DiagNoListener || s.Reason().Code != clc.DiagNotAllowed {
		t.Errorf("the ends of a shared listener are TCP for %v and %v, want NO_LISTENER and NOT_ALLOWED", c.Reason(), s.Reason())
	} else {
		s.Close()
	}
	if n := refused.Status().Listeners; len(n) != 2 {
		t.Errorf("listeners are %+v, want two", n)
	}
}

// TestPolicyAccept has a listener for all addresses. Its policy leaves one of them out.
func TestPolicyAccept(t *testing.T) {
	dir := t.TempDir()
	client := newTestHost(t, Config{Dir: dir})
	l := mustListen(t, newTestHost(t, Config{Dir: dir, Listen: config.Filter{Addresses: []string{"!127.0.0.2/31"}}}), "0.0.0.0:0")
	checkPolicy(t, client, l, "127.0.0.1:"+portOf(l), clc.DiagNone, clc.DiagNone)
	checkPolicy(t, client, l, "127.0.0.2:"+portOf(l), clc.DiagNotAllowed, clc.DiagNotAllowed)
	checkPolicy(t, client, l, "127.0.0.4:"+portOf(l), clc.DiagNone, clc.DiagNone)
}

// TestPolicySMCR has a server decline the CLC of a client that it may not speak SMC-R with, and a client not begin with it.
func TestPolicySMCR(t *testing.T) {
	r := newSMCRRig(t, func(_, server *Config) { server.Listen.Addresses = []string{"192.0.2.1"} })
	c, s := r.connect()
	if c.Mode() != conn.ModeTCP || c.Reason().Code != clc.DiagConfig || !c.ByPeer() || s.Mode() != conn.ModeTCP || s.Reason().Code != clc.DiagNotAllowed || s.ByPeer() {
		t.Errorf("client %v, %v, by peer %t; server %v, %v, by peer %t", c.Mode(), c.Reason(), c.ByPeer(), s.Mode(), s.Reason(), s.ByPeer())
	}
	checkExchange(t, c, s)
	c.Close()
	s.Close()
}

// TestPolicySettings has the configuration file count where a program says nothing, also for its
// name; a malformed value in a program is an error; a malformed value elsewhere makes everything
// TCP.
func TestPolicySettings(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gosmc.conf")
	t.Setenv("GOSMC_CONFIG", path)
	t.Setenv(config.EnvDisabled, "")
	server := newTestHost(t, Config{})
	l := mustListen(t, server, "127.0.0.1:0")
	for _, tt := range []struct {
		name, file string
		cfg        Config
		want       clc.Diagnosis
	}{
		{"nothing", "", Config{}, clc.DiagNone},
		{"file", "connect-address none\n", Config{}, clc.DiagNotAllowed},
		{"program before file", "connect-address none\n", Config{Connect: config.Filter{Addresses: []string{"any"}}}, clc.DiagNone},
		{"name", "program !tool\n", Config{Program: "tool"}, clc.DiagNotAllowed},
		{"another name", "program !tool\n", Config{Program: "tools"}, clc.DiagNone},
		{"malformed", "connect-port http\n", Config{}, clc.DiagNotAllowed},
		{"off", "smc off\n", Config{}, clc.DiagDisabled},
		{"off before policy", "smc off\nconnect-address none\n", Config{}, clc.DiagDisabled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			tt.cfg.Dir = server.cfg.Dir
			atServer := clc.DiagPeerNoSMC
			if tt.want == clc.DiagNone {
				atServer = clc.DiagNone
			}
			checkPolicy(t, newTestHost(t, tt.cfg), l, l.Addr().String(), tt.want, atServer)
		})
	}
	if _, err := New(Config{Listen: config.Filter{Ports: []string{"http"}}}); err == nil {
		t.Error("New takes a port that is none")
	}
	if err := os.WriteFile(path, []byte("memory 1MiB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if h := newTestHost(t, Config{}); h.cfg.MemoryBudget != 1<<20 {
		t.Errorf("the budget is %d, want what the file says", h.cfg.MemoryBudget)
	}
}
