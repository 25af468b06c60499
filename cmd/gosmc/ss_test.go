package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/wire/clc"
)

// testConnections are connections of three servers: the two ends of some, and one end of others.
func testConnections() []inventory.Conn {
	end := func(local, peer, role, mode, command string, pid int, reason clc.Diagnosis) inventory.Conn {
		c := inventory.Conn{StatusConn: control.StatusConn{Local: local, Peer: peer, Role: role, Mode: mode, ReasonCode: control.ReasonCode(reason)}, PID: pid, Command: command}
		if reason != clc.DiagNone {
			c.Reason = clc.Lookup(reason, clc.OSUnspecified).Sentence
		}
		return c
	}
	list := []inventory.Conn{
		end("127.0.0.1:6379", "127.0.0.1:40000", "server", "Unix", "redis-server", 10, clc.DiagNone),
		end("127.0.0.1:40000", "127.0.0.1:6379", "client", "Unix", "redis-cli", 11, clc.DiagNone),
		end("127.0.0.1:6379", "127.0.0.1:40001", "server", "TCP", "redis-server", 10, clc.DiagPeerNoSMC),
		end("127.0.0.1:6379", "127.0.0.1:40002", "server", "TCP", "redis-server", 10, clc.DiagOtherUser),
		end("127.0.0.1:6379", "127.0.0.1:40003", "server", "TCP", "redis-server", 10, clc.DiagPeerNoSMC),
		end("[2001:db8::1]:8080", "[2001:db8::2]:6379", "server", "SMC-R", "api", 12, clc.DiagNone),
		end("127.0.0.1:40004", "127.0.0.1:5432", "client", "TCP", "psql", 13, clc.DiagPeerNoSMC),
		end("127.0.0.1:8081", "127.0.0.1:40005", "server", "TCP", "web", 14, clc.DiagNone),
	}
	list[2].Bare, list[2].PeerCommand = 4711, "redis\x1bcli"
	list[6].Bare, list[6].PeerCommand = 4712, "postgres"
	list[7].Reason = inventory.Unexplained
	for i := range list {
		list[i].Explain()
	}
	return list
}

// A filter chooses connections by all of its parts, in the words of ss(8).
func TestSSFilter(t *testing.T) {
	for _, tt := range []struct {
		filter string
		want   int
	}{
		{"", 8},
		{"state established", 8}, {"state all", 8}, {"state listening", 0},
		{"sport = :6379", 4}, {"sport eq 6379", 4}, {"sport :6379", 4}, {"dport 6379", 2}, {"dport :40002", 1},
		{"mode tcp", 5}, {"mode TCP and sport :6379", 3}, {"mode unix", 2}, {"mode smc-r", 1},
		{"src 127.0.0.1", 7}, {"src 127.0.0.0/8 dst 127.0.0.1:6379", 1}, {"dst :6379", 2}, {"dst [2001:db8::2]:6379", 1}, {"dst 2001:db8::/32", 1},
		{"dst 127.0.0.1:*", 7}, {"dst *:5432", 1},
		{"dport = :http", 0}, {"sport https", 0}, {"program nobody-has-it", 0}, {"program redis", 5}, {"program psql", 1}, {"program postgres", 1}, {"program redis-server mode tcp", 3},
		{"-4", 7}, {"-6", 1}, {"-4 -6", 8}, {"-6 sport :6379", 0},
	} {
		var f inventory.Filter
		words, four := strings.CutPrefix(tt.filter, "-4")
		words, six := strings.CutPrefix(strings.TrimSpace(words), "-6")
		f, err := inventory.ParseFilter(strings.Fields(words))
		f.Only4, f.Only6 = four, six
		if err != nil {
			t.Errorf("filter %q: %v", tt.filter, err)
			continue
		}
		if f.State == "all" {
			f.State = ""
		}
		n := 0
		for _, c := range testConnections() {
			if f.Connection(&c) {
				n++
			}
		}
		if n != tt.want {
			t.Errorf("filter %q fits %d connections, want %d", tt.filter, n, tt.want)
		}
	}
	l := inventory.Listener{StatusListener: control.StatusListener{Local: "0.0.0.0:6379"}, Command: "redis-server"}
	for filter, want := range map[string]bool{"sport 6379": true, "sport 80": false, "state listening": true, "state established": false, "mode tcp": false, "dport 6379": false, "src 0.0.0.0": true, "src 10.0.0.1": false, "program redis": true, "program psql": false} {
		if f, err := inventory.ParseFilter(strings.Fields(filter)); err != nil || f.Listener(&l) != want {
			t.Errorf("filter %q fits a listener: %t, %v; want %t", filter, f.Listener(&l), err, want)
		}
	}
}

// Flags of ss(8) are taken, and what is not understood is an error that says what is.
func TestSSFlags(t *testing.T) {
	for _, tt := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"-tlnp", exitOK, ""}, {"-tanpo", exitOK, ""}, {"-Hn state established", exitOK, ""}, {"-s", exitOK, ""}, {"--require smc --port 1", exitOK, ""},
		{"state closing", exitUsage, "want established, listening or all"},
		{"sport no-such-service", exitUsage, "or the name of a service"},
		{"-tulpn", exitOK, ""}, {"-46eimO", exitOK, ""},
		{"sport 0", exitUsage, "want a port"}, {"sport 65536", exitUsage, "want a port"},
		{"dst somewhere", exitUsage, "want an address"}, {"( dport = :1 and dport = :2 )", exitOK, ""}, {"dst 10.0.0.0/33", exitUsage, "want an address"},
		{"mode udp", exitUsage, "want tcp, unix, smc-d or smc-r"},
		{"( sport :1 or dport :1 )", exitUsage, "--json and jq"}, {"dst", exitUsage, "needs a value"}, {"sport =", exitUsage, "needs a value"},
		{"x", exitUsage, `filter "x": want state, src`},
		{"-s -l", exitUsage, "excludes"}, {"--require tcp", exitUsage, "want smc, unix"}, {"--watch -1", exitUsage, "want a time"},
	} {
		got := gosmc(t, "", append([]string{"ss", "--dir", t.TempDir()}, strings.Fields(tt.args)...)...)
		if got.code != tt.code || !strings.Contains(got.stderr, tt.stderr) {
			t.Errorf("gosmc ss %s = %d, %q; want %d, %q", tt.args, got.code, got.stderr, tt.code, tt.stderr)
		}
		if heading := strings.Contains(got.stdout, "Local Address"); tt.code == exitOK && heading != !strings.ContainsAny(tt.args, "Hs") && !strings.HasPrefix(tt.args, "--") {
			t.Errorf("gosmc ss %s = %q", tt.args, got.stdout)
		}
	}
}

// --why has the cause and the remedy of each connection that is TCP, and names the program that was
// not started by 'gosmc run'.
func TestSSWhy(t *testing.T) {
	r := ssReport{Report: inventory.Report{Connections: testConnections()}}
	var b strings.Builder
	if err := r.write(&b, &ssFlags{why: true}); err != nil {
		t.Fatal(err)
	}
	golden(t, "ss-why.txt", b.String())
	for _, want := range []string{
		"cause:  The client, 4711/redis?cli, was not started by 'gosmc run'.", "remedy: Start it by 'gosmc run PROGRAM ...'",
		"cause:  The server, 4712/postgres, was not started", "gosmc run --explain 127.0.0.1:8081",
		clc.Lookup(clc.DiagOtherUser, clc.OSUnspecified).Advice,
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("ss --why has no %q:\n%s", want, b.String())
		}
	}
}

// --summary counts each connection once, for the server, with the reasons for TCP.
func TestSSSummary(t *testing.T) {
	r := ssReport{Report: inventory.Report{Services: inventory.Summarize(testConnections())}}
	var b strings.Builder
	if err := r.writeServices(&b, false); err != nil {
		t.Fatal(err)
	}
	golden(t, "ss-summary.txt", b.String())
	total := 0
	for _, s := range r.Services {
		for _, n := range s.Modes {
			total += n
		}
	}
	if total != 7 {
		t.Errorf("%d connections in %+v, want 7", total, r.Services)
	}
}

// --require is met if all connections have the mode.
func TestSSRequire(t *testing.T) {
	all := testConnections()
	for i, tt := range []struct {
		require string
		list    []inventory.Conn
		met     bool
	}{
		{"", all, true}, {"smc", all, false}, {"smc", all[:2], true}, {"unix", all[:2], true}, {"smc-r", all[:2], false}, {"smc-r", all[5:6], true}, {"smc", nil, true},
	} {
		f := ssFlags{require: tt.require}
		err := f.unmet(&ssReport{Report: inventory.Report{Connections: tt.list}})
		if (err == nil) != tt.met {
			t.Errorf("case %d: --require %s = %v, want it met: %t", i, tt.require, err, tt.met)
		}
		if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("of %d ends", len(tt.list))) {
			t.Errorf("case %d: %v", i, err)
		}
	}
}

// A listener says how many clients came without gosmc, unless nobody finds it anyway.
func TestSSBare(t *testing.T) {
	n := uint64(7)
	listener := inventory.Listener{StatusListener: control.StatusListener{Local: "127.0.0.1:6379"}, Mode: modeUnix, BareConns: &n}
	hidden := listener
	hidden.Local, hidden.Unannounced = "127.0.0.1:6380", true
	r := ssReport{Report: inventory.Report{Listeners: []inventory.Listener{listener, hidden}}}
	var b strings.Builder
	if err := r.write(&b, &ssFlags{}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	if !strings.Contains(lines[1], "connections from programs without gosmc so far: 7; 'gosmc ss --why'") || !strings.Contains(lines[2], unannounced) {
		t.Errorf("the table is\n%s", b.String())
	}
}

// The places of both ends can be chosen as columns, and order the lines. They are not shown unasked.
func TestSSPlaces(t *testing.T) {
	list := testConnections()[:3]
	list[0].Place, list[0].PeerUser = inventory.Place{User: "redis", Namespace: "4026531840"}, "web"
	list[1].Place, list[1].PeerUser = inventory.Place{User: "app", Namespace: "blue", Container: "0123456789ab"}, "redis"
	r := ssReport{Report: inventory.Report{Connections: list, Listeners: []inventory.Listener{
		{StatusListener: control.StatusListener{Local: "127.0.0.1:6379"}, PID: 10, Command: "redis-server", Place: list[0].Place},
	}}}
	for _, tt := range []struct {
		columns []string
		sort    string
		golden  string
	}{
		{[]string{"process", "user", "namespace", "container", "peer-process", "peer-user", "peer-container"}, "user", "ss-places.txt"},
		{nil, "peer-user", "ss-usual.txt"},
	} {
		f := ssFlags{columns: tt.columns, sort: tt.sort}
		if err := f.check(nil); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := r.write(&b, &f); err != nil {
			t.Fatal(err)
		}
		golden(t, tt.golden, b.String())
		if shown := strings.Contains(b.String(), "User"); shown != (tt.columns != nil) {
			t.Errorf("columns %v:\n%s", tt.columns, b.String())
		}
	}
}
