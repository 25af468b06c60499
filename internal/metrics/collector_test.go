package metrics

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/sockdiag"
	"github.com/gosmc/smc/internal/survey"
	"github.com/gosmc/smc/wire/clc"
)

// host is a host with a few counters.
func host(pid int, smcd uint64) control.Status {
	return control.Status{
		PID: pid, Dir: "/run/gosmc", Name: fmt.Sprint(pid), Started: time.Unix(1000, 0),
		Counters: control.StatusCounters{
			Connections: map[string]uint64{"SMC-D": smcd}, AsServer: map[string]uint64{"SMC-D": smcd / 2},
		},
	}
}

// value returns the value of a series in text, or "" if it is not there.
func value(text, series string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// collect gives snapshots with hosts to a collector, one after the other, and returns the last text.
func collect(t *testing.T, c *Collector, list ...control.Status) string {
	t.Helper()
	s := Snapshot{Answers: survey.Answers{Hosts: list}}
	return string(Append(nil, c.collect(&s), Prometheus))
}

const smcdServer, smcdClient = `smc_connections_total{mode="SMC-D",role="server"}`, `smc_connections_total{mode="SMC-D",role="client"}`

// TestCollectorKeepsEnded checks that sums do not become less when a host ends, and that one with the
// same process number later is another one.
func TestCollectorKeepsEnded(t *testing.T) {
	c := New(nil)
	collect(t, c, host(1, 10), host(2, 4))
	text := collect(t, c, host(2, 6))
	if got := value(text, smcdServer) + "+" + value(text, smcdClient); got != "8+8" { // 5+3
		t.Errorf("after a host with 10 connections has ended there are %s, want 8+8", got)
	}
	again := host(1, 2)
	again.Started = time.Unix(2000, 0)
	text = collect(t, c, again, host(2, 6))
	if got := value(text, smcdServer); got != "9" {
		t.Errorf("with another host of the same number there are %s, want 9", got)
	}
	// A host that did not answer once is not counted twice.
	text = collect(t, c, host(1, 10), again, host(2, 6))
	if got := value(text, smcdServer); got != "9" {
		t.Errorf("with the first host again there are %s, want 9", got)
	}
}

// TestCollectorOnlyGrows checks that a host cannot make a sum less, or more than a counter holds.
func TestCollectorOnlyGrows(t *testing.T) {
	c := New(nil)
	collect(t, c, host(1, 10))
	if got := value(collect(t, c, host(1, 2)), smcdServer); got != "5" {
		t.Errorf("a host that reports less makes %s of 5", got)
	}
	big := host(2, math.MaxUint64)
	big.Counters.AsServer["SMC-D"] = math.MaxUint64
	if got := value(collect(t, c, host(1, 10), big), smcdServer); got != fmt.Sprint(uint64(math.MaxUint64)) {
		t.Errorf("a host that reports the largest number makes %s", got)
	}
}

// TestCollectorBounded checks that neither hosts nor their labels make the metrics grow without bound.
func TestCollectorBounded(t *testing.T) {
	const maxHosts = 300
	c := New(nil)
	c.most = maxHosts
	before := len(collect(t, c))
	for round := range 3 {
		var list []control.Status
		for i := range maxHosts {
			h := host(1+round*maxHosts+i, 2)
			if i%100 == 0 {
				word := fmt.Sprintf("inven\"ted\n%d", i)
				h.Counters.Connections[word] = 1
				h.Counters.Bytes = map[string]control.ByteCount{word: {In: 1, Out: 2}}
				h.Counters.Fallbacks = []control.FallbackCount{{Code: control.ReasonCode(0x12340000 + i), Tag: word, Count: 1}}
				h.Counters.Ends = []control.EndCount{{What: word, Reason: word, Count: 1}}
				h.Groups = []control.StatusGroup{{Mode: word, Links: control.LinkList{{State: word}}}}
				h.Limits = []control.StatusLimit{{Name: word, Limit: 1, Used: 1}}
			}
			list = append(list, h)
		}
		text := collect(t, c, list...)
		if want := fmt.Sprint((round + 1) * maxHosts); value(text, smcdServer) != want || len(c.hosts) > maxHosts {
			t.Errorf("round %d: %s connections of %d hosts, want %s of %d", round, value(text, smcdServer), len(c.hosts), want, maxHosts)
		}
		if len(text) > before+2000 || strings.Contains(text, "ted\\n") {
			t.Errorf("the text has %d bytes, and %d without hosts", len(text), before)
		}
	}
}

// TestCollectorCaches checks that many scrapes do not ask the hosts each time.
func TestCollectorCaches(t *testing.T) {
	n := 0
	c := New(func(context.Context) Snapshot { n++; return Snapshot{} })
	for range 10 {
		c.Text(t.Context(), OpenMetrics)
	}
	if n >= 10 { // more than minInterval may have passed on a busy machine, but not each time
		t.Errorf("ten scrapes took %d snapshots", n)
	}
}

// TestCollectorInterrupted checks that a part of the answers is not taken for all: neither is a file
// written that says so when the exporter is told to end, nor is it kept for later.
func TestCollectorInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	c := New(func(ctx context.Context) Snapshot {
		stop()
		if ctx.Err() != nil {
			return Snapshot{}
		}
		return testSnapshot()
	})
	name := filepath.Join(t.TempDir(), "x.prom")
	if err := c.WriteFile(ctx, name); !errors.Is(err, context.Canceled) {
		t.Errorf("WriteFile = %v when its context ends", err)
	}
	if _, err := os.Stat(name); err == nil {
		t.Error("a file was written")
	}
	c.take = func(context.Context) Snapshot { return testSnapshot() }
	if text, err := c.Text(t.Context(), Prometheus); err != nil || value(string(text), "smc_hosts") != "1" {
		t.Errorf("later: %s hosts, %v", value(string(text), "smc_hosts"), err)
	}
}

// testSnapshot has something of everything.
func testSnapshot() Snapshot {
	h := host(1, 3)
	h.Counters = control.StatusCounters{
		Connections: map[string]uint64{"SMC-D": 3, "SMC-R": 1, "TCP": 4}, AsServer: map[string]uint64{"SMC-D": 3, "TCP": 1},
		Bytes:        map[string]control.ByteCount{"SMC-D": {In: 100, Out: 200}, "TCP": {In: 1, Out: 2}},
		HandshakesOK: 4, HandshakesFailed: 1, Failovers: 2, BuffersFull: 7, DoorbellsRung: 8, Sleeps: 9, Spins: 10,
		Fallbacks: []control.FallbackCount{{Code: control.ReasonCode(clc.DiagPeerNoSMC), Count: 4, AsServer: 1}},
		Ends:      []control.EndCount{{What: "link", Reason: "failed", Count: 2}},
		RMBBytes:  65536,
	}
	h.Counters.HandshakeTimes.Counts[0], h.Counters.HandshakeTimes.Counts[2] = 1, 3
	h.Counters.HandshakeTimes.Nanoseconds = 1250000
	h.Groups = []control.StatusGroup{{Mode: "SMC-R", Links: control.LinkList{{State: "LINK_ACTIVE"}, {State: "LINK_ACTIVATING"}}}, {Mode: "SMC-D"}}
	h.Limits = []control.StatusLimit{{Name: "memory", Limit: 100, Used: 25}, {Name: "peers", Limit: -1, Used: 3}, {Name: "read buffer", Limit: 5, Used: -1}}
	return Snapshot{
		Answers: survey.Answers{Hosts: []control.Status{h}, Errors: []survey.Error{{Path: "x", Text: "y"}}, Denied: 2},
		Connections: []inventory.Conn{
			{StatusConn: control.StatusConn{Mode: "Unix", Role: "server"}}, {StatusConn: control.StatusConn{Mode: "Unix", Role: "client"}},
			{StatusConn: control.StatusConn{Mode: "TCP", Role: "client"}},
		},
		Programs: []inspect.Process{{PID: 1}, {PID: 2, Ended: true}, {PID: 3, Old: true}},
		Agent:    &AgentStatus{Ports: 2}, Version: `v1 "x"\`, Took: 5 * time.Millisecond,
	}
}

// TestFamilies checks that no two families have the same name, in either format.
func TestFamilies(t *testing.T) {
	s := testSnapshot()
	seen := make(map[string]bool)
	for _, f := range New(nil).collect(&s) {
		name := strings.TrimSuffix(f.Name, "_total")
		if seen[name] || !strings.HasPrefix(name, "smc_") || f.Kind == counter && name == f.Name || f.Help == "" {
			t.Errorf("family %+v", f)
		}
		seen[name] = true
	}
}

// TestKernel has the counters of the kernel's SMC beside those of hosts, and not in them. Codes that
// the catalogue does not have are one series, and the sums do not become less when SMC is loaded anew.
func TestKernel(t *testing.T) {
	k := &Kernel{
		Stats: sockdiag.SMCStats{
			SMCR:         sockdiag.SMCTech{Client: 3, Server: 4, In: 5, Out: 6, PeerFull: 7},
			ClientErrors: 1, ServerErrors: 2, ClientFallbacks: 8, ServerFallbacks: 9,
			Reasons: []sockdiag.SMCReason{{Code: 0x03010000, Count: 2}, {Server: true, Code: 0x77, Count: 3}, {Server: true, Code: 0x78, Count: 4}},
		},
		Sockets: []sockdiag.SMCSocket{
			{State: sockdiag.TCPListen}, {State: sockdiag.TCPEstablished, Peer: netip.MustParseAddrPort("192.0.2.1:1")},
			{Peer: netip.MustParseAddrPort("192.0.2.1:1"), Mode: 200},
		},
	}
	c := New(nil)
	s := Snapshot{Answers: survey.Answers{Hosts: []control.Status{host(1, 10)}}, Kernel: k}
	c.collect(&s)
	s.Kernel = &Kernel{}
	text := string(Append(nil, c.collect(&s), Prometheus))
	for series, want := range map[string]string{
		smcdServer: "5",
		`smc_connections_total{mode="SMC-R",role="client",source="kernel"}`:        "3",
		`smc_connections_total{mode="SMC-R",role="server",source="kernel"}`:        "4",
		`smc_connections_total{mode="SMC-D",role="server",source="kernel"}`:        "0",
		`smc_connections_total{mode="TCP",role="server",source="kernel"}`:          "9",
		`smc_connection_bytes_total{mode="SMC-R",direction="out",source="kernel"}`: "6",
		`smc_fallbacks_total{code="0x03010000",side="client",source="kernel"}`:     "2",
		`smc_fallbacks_total{code="other",side="server",source="kernel"}`:          "7",
		`smc_handshakes_total{result="ok",source="kernel"}`:                        "7",
		`smc_handshakes_total{result="failed",source="kernel"}`:                    "3",
		`smc_buffer_full_total{source="kernel"}`:                                   "7",
		`smc_buffer_full_total`:                                                    "0",
		`smc_connections_open{mode="SMC-R",role="other",source="kernel"}`:          "0", // of the last snapshot
	} {
		if got := value(text, series); got != want {
			t.Errorf("%s is %q, want %s", series, got, want)
		}
	}
	s.Kernel = k
	text = string(Append(nil, c.collect(&s), Prometheus))
	if got := value(text, `smc_connections_open{mode="SMC-R",role="other",source="kernel"}`); got != "1" {
		t.Errorf("%s connections are open, want 1", got)
	}
	s.Kernel = nil
	if text := string(Append(nil, New(nil).collect(&s), Prometheus)); strings.Contains(text, "kernel") {
		t.Errorf("a kernel without SMC has series:\n%s", text)
	}
}

// TestText compares both formats with files that were read.
func TestText(t *testing.T) {
	for name, format := range map[string]Format{"openmetrics.txt": OpenMetrics, "prometheus.prom": Prometheus} {
		s := testSnapshot()
		got := string(Append(nil, New(nil).collect(&s), format))
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != got {
			t.Errorf("%s: got\n%s", name, got)
		}
	}
}

// TestLabels checks labels of codes, and that each limit that a host has is known by its name.
func TestLabels(t *testing.T) {
	for code, want := range map[control.ReasonCode]string{
		0: "0x00000000", control.ReasonCode(clc.DiagDisabled): "0x7e010011", 0x12345678: other,
	} {
		if got := codeLabel(code); got != want {
			t.Errorf("codeLabel(%#x) = %q, want %q", uint32(code), got, want)
		}
	}
	for _, name := range []string{"memory", "memory of peers", "memory of SMC-R", "peers", "memory mappings", "open files"} {
		if got := known(name, limitLabels); got != name {
			t.Errorf("the limit %q has the label %q", name, got)
		}
	}
}
