package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/netcat"
	"github.com/gosmc/smc/internal/survey"
)

// testHosts are two hosts with a connection between them, and one in fallback.
func testHosts() survey.Answers {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	noSMC := control.FallbackCount{Code: 0x03010000, Tag: "PEER_NO_SMC", Text: "the peer did not signal SMC"}
	counted := func(n uint64) control.FallbackCount { f := noSMC; f.Count = n; return f }
	return survey.Answers{
		NetNS: 4025,
		Hosts: []control.Status{{
			PID: 100, Command: "server", Dir: "/run/gosmc", Started: at,
			Listeners: []control.StatusListener{{Local: "0.0.0.0:80", Require: "any", UID: 1, Inode: 2, Accepted: 3, Pending: 4, NetNS: 4026}},
			Connections: []control.StatusConn{
				{State: "Active", Local: "127.0.0.1:80", Peer: "127.0.0.1:50000", Role: "server", Mode: "SMC-D", Version: "2.1", EID: "E",
					UID: 1, Inode: 5, RecvQ: 10, SendQ: 20, RcvBuf: 30, SndBuf: 40, BytesIn: 50, BytesOut: 60, PeerPID: 200, PeerCommand: "client", PeerHost: "H", AgeSeconds: 1.5},
				{State: "Active", Local: "[2001:db8::1234:5678:9abc]:80", Peer: "[2001:db8::2]:50001", Role: "server", Mode: "TCP",
					ReasonCode: noSMC.Code, Reason: noSMC.Text, NetNS: 4026},
			},
			ConnectionsOmitted: 7,
			Counters: control.StatusCounters{
				Connections: map[string]uint64{"SMC-D": 1, "TCP": 1}, Bytes: map[string]control.ByteCount{"SMC-D": {In: 50, Out: 60}},
				AsServer: map[string]uint64{"SMC-D": 1}, HandshakeTimes: control.HandshakeTimes{Counts: [len(control.HandshakeBounds) + 1]uint64{1: 1}, Nanoseconds: 180000},
				Failovers: 3, BuffersFull: 6,
				HandshakesOK: 1, DoorbellsRung: 2, Sleeps: 4, Spins: 5, Fallbacks: []control.FallbackCount{counted(1)},
				Ends: []control.EndCount{{What: "handshake", Reason: "timeout waiting for CLC Accept", Count: 2}, {What: "link group", Reason: "idle", Count: 2}},
			},
		}, {
			PID: 200, Command: "cli\x1bent", Dir: "/run/gosmc", Started: at,
			Connections: []control.StatusConn{{State: "Active", Local: "127.0.0.1:50000", Peer: "127.0.0.1:80", Role: "client", Mode: "SMC-D", Version: "2.1"}},
			Counters: control.StatusCounters{
				Connections: map[string]uint64{"SMC-D": 1, "SMC-X": 9}, Bytes: map[string]control.ByteCount{"SMC-D": {In: 60, Out: 5 << 20}},
				HandshakesOK: 1, HandshakesFailed: 1, BuffersFull: 10,
				HandshakeTimes: control.HandshakeTimes{Counts: [len(control.HandshakeBounds) + 1]uint64{1: 1}, Nanoseconds: 200000},
				Fallbacks:      []control.FallbackCount{{Code: 0x03030000, Tag: "NOSMCDEV", Text: "no SMC device", Count: 2}, counted(4)},
				Ends:           []control.EndCount{{What: "link group", Reason: "idle", Count: 1}},
			},
		}},
		Errors: []survey.Error{{Path: "/run/gosmc/ctl/x", Text: "host answered: no"}},
		Denied: 1,
	}
}

func TestSSReport(t *testing.T) {
	g := testHosts()
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	r := newSSReport(&g, true, true)
	r.Time = at
	golden(t, "ss.json", indentJSON(t, r))
	var b strings.Builder
	for _, wide := range []bool{false, true} {
		if err := r.write(&b, &ssFlags{wide: wide}); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	listeners := newSSReport(&g, false, true)
	if err := listeners.write(&b, &ssFlags{}); err != nil {
		t.Fatal(err)
	}
	golden(t, "ss.txt", b.String())
	b.Reset()
	if err := r.write(&b, &ssFlags{columns: []string{"process", "mode", "reason"}, sort: "mode"}); err != nil {
		t.Fatal(err)
	}
	golden(t, "ss-columns.txt", b.String())
	if connections := newSSReport(&g, true, false); len(connections.Listeners) != 0 || len(connections.Connections) != 3 || connections.Omitted != 7 {
		t.Errorf("report without listeners = %+v", connections)
	}
}

func TestStatsReport(t *testing.T) {
	g := testHosts()
	r := newStatsReport(&g)
	r.Time = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for i := range r.Hosts {
		r.Hosts[i].Started = r.Time
	}
	golden(t, "stats.json", indentJSON(t, r))
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "stats.txt", strings.ReplaceAll(b.String(), r.Time.Local().Format(time.DateTime), "2026-03-04 05:06:07"))
}

func TestSumCountersOfNothing(t *testing.T) {
	got := inventory.Sum(nil)
	want := control.StatusCounters{
		Connections: map[string]uint64{"SMC-D": 0, "SMC-R": 0, "TCP": 0}, // each of the three gets a number
		AsServer:    map[string]uint64{},
		Bytes:       map[string]control.ByteCount{"SMC-D": {}, "SMC-R": {}, "TCP": {}},
		Fallbacks:   []control.FallbackCount{},
		Ends:        []control.EndCount{},
		CLC:         []control.MessageCount{},
		LLC:         []control.MessageCount{},
		Groups:      map[string]int{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("inventory.Sum(nothing) (-want +got):\n%s", diff)
	}
}

// A live host is seen by ss, stats and info: connections, listeners, counters, capabilities.
func TestHostIsSeen(t *testing.T) {
	l := start(t, "listen", "--echo", "--json", "-v", "127.0.0.1:0")
	addr := l.addr()
	c := start(t, "connect", "--require", "smc-d", addr)
	const question = "is anybody there?"
	if _, err := io.WriteString(c.stdin, question); err != nil {
		t.Fatal(err)
	}

	var ss ssReport
	deadline := time.Now().Add(testTimeout)
	for len(ss.Connections) < 2 || *ss.Connections[0].BytesIn+*ss.Connections[1].BytesIn != 2*uint64(len(question)) {
		// Both sides have connected when the echo is back.
		if time.Now().After(deadline) {
			t.Fatalf("gosmc ss = %+v, want both ends of the connection and %d bytes through each", ss, len(question))
		}
		got := gosmc(t, "", "ss", "-a", "--json", "--dir", os.Getenv("GOSMC_DIR"))
		ss = ssReport{}
		if err := json.Unmarshal([]byte(got.stdout), &ss); err != nil || got.code != exitOK {
			t.Fatalf("gosmc ss = %d, %v, %q", got.code, err, got.stderr)
		}
	}
	for _, conn := range ss.Connections {
		if conn.Mode != "SMC-D" || conn.PID != os.Getpid() || conn.Local == "" || conn.Peer == "" || conn.Version == "" || conn.EID == "" || *conn.RcvBuf == 0 {
			t.Errorf("gosmc ss has %+v, want SMC-D with addresses, version, EID and buffers", conn)
		}
	}
	if !slices.ContainsFunc(ss.Listeners, func(l inventory.Listener) bool { return l.Local == addr && l.PID == os.Getpid() }) {
		t.Errorf("gosmc ss has listeners %+v, want %s", ss.Listeners, addr)
	}

	var stats statsReport
	got := gosmc(t, "", "stats", "--json", "--dir", os.Getenv("GOSMC_DIR"))
	if err := json.Unmarshal([]byte(got.stdout), &stats); err != nil || stats.Total.Connections["SMC-D"] < 2 || stats.Total.HandshakesOK < 2 {
		t.Errorf("gosmc stats = %+v, %v, want two SMC-D connections", stats.Total, err)
	}
	for _, verb := range []string{"ss", "stats"} {
		if got := gosmc(t, "", verb); got.code != exitOK || !strings.Contains(got.stdout, "SMC-D") {
			t.Errorf("gosmc %s = %d, %q, want the connection", verb, got.code, got.stdout)
		}
	}
	c.stdin.Close()
	if code := c.wait(); code != exitOK || c.stdout.String() != question {
		t.Errorf("connect = %d, %q, want the echo", code, c.stdout.String())
	}
}

func TestInfo(t *testing.T) {
	got := gosmc(t, "", "info", "--json")
	var r infoReport
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.code != exitOK {
		t.Fatalf("gosmc info --json = %d, %v, %q", got.code, err, got.stderr)
	}
	if r.Schema != jsonSchema || !r.Capabilities.SMCDv2.Available || r.GID == "" || r.SEID == "" || r.Dir != os.Getenv("GOSMC_DIR") || len(r.Limits) == 0 || r.BootID == "" {
		t.Errorf("gosmc info --json = %+v, want SMC-D v2, GID, SEID, run directory and limits", r)
	}
	if c := r.Capabilities.SMCRv1; !c.Available && c.Why == "" {
		t.Error("gosmc info does not say why SMC-R v1 is not available")
	}
	got = gosmc(t, "", "info")
	for _, want := range []string{"Run directory", "SMC-D v2", "Kernel", "Open files", "Capability"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("gosmc info = %q, want %q in it", got.stdout, want)
		}
	}
}

// Where no host can work, info says why and fails, and demo and connect get by.
func TestInfoWithoutRunDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOSMC_DIR", filepath.Join(file, "dir")) // under a file
	dir := os.Getenv("GOSMC_DIR")
	got := gosmc(t, "", "info", "--json")
	var r infoReport
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || r.Error == "" || got.code != exitFailure {
		t.Errorf("gosmc info --json = %d, %v, error %q, want 1 and the reason", got.code, err, r.Error)
	}
	if c := r.Capabilities.SMCDv2; c.Available || !strings.Contains(c.Why, dir+": not a directory") || c.Advice == "" || len(r.Limits) == 0 {
		t.Errorf("gosmc info --json has %+v and %d limits, want why not, what to do, and all limits", c, len(r.Limits))
	}
	got = gosmc(t, "", "info")
	if want := "gosmc: shared memory cannot be used here: "; got.code != exitFailure || !strings.HasPrefix(got.stderr, want) || strings.Contains(got.stderr, "?") {
		t.Errorf("gosmc info = %d and says %q, want 1 and %q", got.code, got.stderr, want)
	}
	for _, want := range []string{"Kernel", dir + " (does not exist)", "Capability", dir + ": not a directory", "Set GOSMC_DIR", "SMC-R v2", "Limit", "open files"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("gosmc info shows\n%swant %q in it", got.stdout, want)
		}
	}
	// An SMC listener without a run directory is a TCP listener.
	l := start(t, "listen", "--echo", "--json", "-v", "127.0.0.1:0")
	addr := l.addr()
	var w netcat.WarningEvent
	if l.event(&w); w.Event != "warning" || w.Schema != jsonSchema || !strings.Contains(w.Warning, "clients will use TCP") || !strings.Contains(w.Error, dir) {
		t.Errorf("listen without a run directory says %+v, want a warning with the cause", w)
	}
	if got := gosmc(t, "text", "connect", "-v", addr); got.code != exitOK || got.stdout != "text" || !strings.Contains(got.stderr, "because") {
		t.Errorf("connect without a run directory = %d, %q, %q, want an echo over TCP and a reason", got.code, got.stdout, got.stderr)
	}
	// It says so also when nothing is asked for.
	quiet := start(t, "listen", "--echo", "127.0.0.1:0")
	if !quiet.events.Scan() || !strings.HasPrefix(quiet.events.Text(), "gosmc: ") || !strings.Contains(quiet.events.Text(), dir) {
		t.Errorf("listen without a run directory says %q, want a line with the cause", quiet.events.Text())
	}
}

// A run directory that is named and is not there is no empty one.
func TestMissingRunDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "misspelt")
	for _, verb := range []string{"ss", "stats"} {
		for _, flag := range []string{"--dir", "GOSMC_DIR"} {
			args := []string{verb, "--dir", dir}
			if flag == "GOSMC_DIR" {
				t.Setenv("GOSMC_DIR", dir)
				args = args[:1]
			}
			want := "gosmc: " + dir + ": " + flag + " names a directory that does not exist"
			if got := gosmc(t, "", args...); got.code != exitFailure || !strings.HasPrefix(got.stderr, want) || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("gosmc %q = %d, %q, want 1 and %q", args, got.code, got.stderr, want)
			}
			got := gosmc(t, "", append(args, "--json")...)
			var r struct{ Errors []survey.Error }
			if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.code != exitFailure || len(r.Errors) != 1 || r.Errors[0].Path != dir {
				t.Errorf("gosmc %q --json = %d, %v, %+v, want 1 and the error", args, got.code, err, r)
			}
		}
		t.Setenv("GOSMC_DIR", t.TempDir())
		if got := gosmc(t, "", verb); got.code != exitOK || got.stderr != "" {
			t.Errorf("gosmc %s with an empty run directory = %d, %q, want 0", verb, got.code, got.stderr)
		}
	}
	if got := gosmc(t, "", "dump", "--pid", strconv.Itoa(os.Getpid()), "--dir", dir); got.code != exitFailure || !strings.Contains(got.stderr, "--dir names a directory that does not exist") {
		t.Errorf("gosmc dump --dir = %d, %q, want 1 and the directory", got.code, got.stderr)
	}
}

// A line of another network namespace is marked: its 127.0.0.1 is not ours.
func TestSSOtherNetworkNamespace(t *testing.T) {
	dir := ownRunDir(t)
	hosts := make([]*smc.Host, 2)
	var listeners []net.Listener
	listen := func(i int) {
		h, err := smc.NewHost(&smc.Config{Dir: dir})
		if err != nil {
			t.Error(err)
			return
		}
		hosts[i] = h
		l, err := (&smc.ListenConfig{Host: h}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
			return
		}
		listeners = append(listeners, l) // one that nobody knows any more is closed
	}
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
		for _, h := range hosts {
			if h != nil {
				h.Close()
			}
		}
	}()
	listen(0)
	var there *os.File
	inLoopback(t, func() {
		listen(1)
		var err error
		if there, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			t.Error(err)
		}
	})
	if there == nil {
		return
	}
	defer there.Close()
	got := gosmc(t, "", "ss", "-l", "--json", "--dir", dir)
	var r ssReport
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || len(r.Listeners) != 2 {
		t.Fatalf("gosmc ss --json = %+v, %v, want two listeners", r, err)
	}
	if a, b := r.Listeners[0], r.Listeners[1]; a.OtherNetNS == b.OtherNetNS || a.NetNS == b.NetNS || a.NetNS == 0 || b.NetNS == 0 {
		t.Errorf("gosmc ss --json = %+v and %+v, want one of them in another network namespace", a, b)
	}
	if got := gosmc(t, "", "ss", "-l", "--dir", dir); strings.Count(got.stdout, "in another network namespace\n") != 1 {
		t.Errorf("gosmc ss = %q, want one line marked", got.stdout)
	}
	if os.Geteuid() != 0 {
		return
	}
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	other := slices.IndexFunc(r.Listeners, func(l inventory.Listener) bool { return l.OtherNetNS })
	for name, want := range map[string]uint64{
		fmt.Sprintf("/proc/self/fd/%d", there.Fd()): r.Listeners[other].NetNS, fmt.Sprintf("/proc/self/fd/%d", here.Fd()): r.Listeners[1-other].NetNS,
	} {
		var r ssReport
		got := gosmc(t, "", "ss", "-l", "--json", "-N", name, "--dir", dir)
		if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || len(r.Listeners) != 1 || r.Listeners[0].OtherNetNS || r.Listeners[0].NetNS != want {
			t.Errorf("gosmc ss -N %s = %+v, %v, %q, want the listener there, unmarked", name, r.Listeners, err, got.stderr)
		}
	}
	for name, want := range map[string]string{"nonesuch": "ip netns list", "/dev/null": "invalid argument", "/none/such": "no such file"} {
		if got := gosmc(t, "", "ss", "-N", name); got.code != exitFailure || !strings.Contains(got.stderr, want) {
			t.Errorf("gosmc ss -N %s = %d, %q, want %d and %q", name, got.code, got.stderr, exitFailure, want)
		}
	}
}

// --watch prints again and again, until it is interrupted, which is no failure.
func TestStatsWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"stats", "--watch", "1", "--json"}, strings.NewReader(""), w, io.Discard)
		w.Close()
	}()
	d := json.NewDecoder(r)
	var last time.Time
	for range 2 {
		var s statsReport
		if err := d.Decode(&s); err != nil {
			t.Fatalf("stats --watch: %v", err)
		}
		if !s.Time.After(last) {
			t.Errorf("stats --watch: %v after %v, want later", s.Time, last)
		}
		last = s.Time
	}
	cancel()
	go io.Copy(io.Discard, r)
	if got := <-code; got != exitOK {
		t.Errorf("interrupted stats --watch = %d, want 0", got)
	}
}

func TestComplain(t *testing.T) {
	g := testHosts()
	cmd := newSSCommand()
	var b strings.Builder
	cmd.SetErr(&b)
	complain(cmd, &g)
	if want := "gosmc: /run/gosmc/ctl/x: host answered: no\n"; !strings.HasPrefix(b.String(), want) || !strings.Contains(b.String(), "run as root") {
		t.Errorf("complain = %q", b.String())
	}
	var e error = &control.Error{Path: "p", Err: os.ErrPermission}
	if !errors.Is(e, os.ErrPermission) {
		t.Error("a ControlError hides its cause")
	}
}

// TestStatsPrograms has stats list a program that two supervisors know with its own supervisor. A
// program with a supervisor that cannot be asked is listed with the supervisor that it has
// connected to.
func TestStatsPrograms(t *testing.T) {
	const server, client, stranger = 1, 2, 3
	g := survey.Answers{Hosts: []control.Status{
		{PID: 10, Programs: []control.StatusProgram{{PID: server}, {PID: client, Caller: true}, {PID: stranger, Caller: true}}},
		{PID: 20, Programs: []control.StatusProgram{{PID: client}, {PID: server, Caller: true}}},
	}}
	var got [][]int
	for _, h := range newStatsReport(&g).Hosts {
		var pids []int
		for _, p := range h.Programs {
			pids = append(pids, p.PID)
		}
		got = append(got, pids)
	}
	if diff := cmp.Diff([][]int{{server, stranger}, {client}}, got); diff != "" {
		t.Errorf("programs (-want +got):\n%s", diff)
	}
	if len(g.Hosts[0].Programs) != 3 {
		t.Error("the answers have changed")
	}
}
