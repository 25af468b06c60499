package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/survey"
)

// testGroups are a host with a link group of each kind and two devices, one of which could not be opened.
func testGroups() survey.Answers {
	return survey.Answers{Hosts: []control.Status{{
		PID: 100, Command: "server", Dir: "/run/gosmc",
		Groups: []control.StatusGroup{
			{ID: 1, Mode: "SMC-D", Version: "2.1", State: "Active", Role: "client", Peer: "1:2", PeerHost: "H", PeerOS: "Linux", EID: "E", Conns: 3, MaxConns: 255},
			{
				ID: 0x1a, Mode: "SMC-R", Version: "2.1", State: "Active", Role: "server", Type: "SINGLE", Peer: "192.0.2.2", PeerID: "7@02:00:00:00:00:01",
				PeerHost: "h\x1b", PeerOS: "Linux", EID: "UEID", Direct: true, PNETID: "NET1", Conns: 2, MaxConns: 255, RMBBytes: 1 << 20, RMBs: 4, IdleRMBs: 1, Quarantined: 1,
				Links: []control.StatusLink{{
					Number: 1, State: "LINK_ACTIVE", NetDev: "eth0", Device: "192.0.2.1", Port: 1, UID: 0x1a01, LocalGID: "192.0.2.1", PeerGID: "192.0.2.2",
					LocalQPN: 0x11, PeerQPN: 0x12, MTU: 1024, Conns: 2, SentBytes: 3 << 20, SentPackets: 9, Retransmitted: 5, RoundTrip: 12345,
				}},
			},
			{ID: 0x1b, Mode: "SMC-R", State: "Pending", Role: "client", Type: "NONE", Peer: "192.0.2.3", Conns: 1, Links: []control.StatusLink{{State: "LINK_INACTIVE", NetDev: "eth0", Why: "it has failed"}}},
		},
		Devices: []control.StatusDevice{
			{NetDev: "eth0", Address: "192.0.2.1", Port: 1, State: "ACTIVE", Type: "RoCEv2", Critical: true, GID: "192.0.2.1", MAC: "02:00:00:00:00:02", MTU: 1024, Links: 2, PNETID: "NET1", RcvdPackets: 100, BadICRC: 1, UnknownQP: 2, SendErrors: 3},
			{Address: "192.0.2.9", Port: 1, State: "FAILED", Type: "RoCEv2", Why: "the port is in use"},
		},
	}}}
}

// testKernel are an RDMA device of the kernel that is used, one that has two ports and no file, and a name without a device.
func testKernel() []inventory.KernelDevice {
	gids := []inventory.KernelGID{
		{Index: 0, GID: "fe80::1", Type: "RoCE v1", NetDev: "eth0"}, {Index: 1, GID: "fe80::1", Type: "RoCE v2", NetDev: "eth0"},
		{Index: 2, GID: "192.0.2.1", Type: "RoCE v2", NetDev: "eth0.5"},
	}
	return []inventory.KernelDevice{
		{
			Name: "rxe0", Driver: "rxe", File: "/dev/infiniband/uverbs0", Named: true, Usable: true,
			Ports:  []inventory.KernelPort{{Port: 1, State: "ACTIVE", Active: true, LinkLayer: "Ethernet", GIDs: gids}},
			Limits: &inventory.KernelLimit{QPs: 1 << 20, CQs: 1 << 20, MRs: 1 << 19, MRBytes: 1 << 63},
		}, {
			Name: "mlx5_0", Driver: "mlx5_core", Firmware: "16.35.2000", Why: "it has no file",
			Ports: []inventory.KernelPort{{Port: 1, State: "DOWN", LinkLayer: "Ethernet"}, {Port: 2, State: "ACTIVE", Active: true, LinkLayer: "InfiniBand"}},
		},
		{Name: "gone\x1b", Named: true, Why: "the kernel has no RDMA device of this name"},
	}
}

func TestGroupReports(t *testing.T) {
	a := testGroups()
	r, d := newGroupsReport(&a, nil), newDevicesReport(&a, testKernel())
	var b strings.Builder
	for _, write := range []func(io.Writer) error{
		r.Write, r.WriteDetails,
		func(w io.Writer) error { return r.WriteLinks(w, false) },
		func(w io.Writer) error { return r.WriteLinks(w, true) },
		func(w io.Writer) error { return d.write(w, false) },
		func(w io.Writer) error { return d.write(w, true) },
	} {
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	golden(t, "groups.txt", b.String())
	if one := newGroupsReport(&a, new(uint32(0x1b))); len(one.Groups) != 1 || one.Groups[0].ID != 0x1b {
		t.Errorf("report of one group has %+v", one.Groups)
	}
}

func TestGroupsUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"linkgroup", "g"}, exitUsage, `"g" is no LG-ID`},
		{[]string{"linkgroup", "show", "1", "2"}, exitUsage, `linkgroup does not know what to do with "2"`},
		{[]string{"linkgroup", "show", "fffffffe"}, exitFailure, "no host has a link group fffffffe"},
		{[]string{"link", "0xfffffffe"}, exitFailure, "no host has a link group fffffffe"},
		{[]string{"device", "eth0"}, exitUsage, `device does not know what to do with "eth0"`},
		{[]string{"device", "--dir", "/nowhere"}, exitFailure, "/nowhere: --dir names a directory that does not exist"},
	} {
		if got := gosmc(t, "", tt.args...); got.code != tt.code || !strings.Contains(got.stderr, tt.says) {
			t.Errorf("gosmc %v = %d, %q, want %d, %q", tt.args, got.code, got.stderr, tt.code, tt.says)
		}
	}
}

// An smcrEnd is one of two hosts in run directories of their own, so that they have SMC-R between them.
type smcrEnd struct {
	host *smc.Host
	dir  string
	addr string
	conn *smc.Conn
}

// smcrEnds connects two hosts at addresses that hardly anybody else uses: a client and a server.
func smcrEnds(t *testing.T) (client, server smcrEnd) {
	t.Helper()
	t.Setenv(port.EnvSocket, filepath.Join(t.TempDir(), "no agent"))
	var ends [2]smcrEnd
	for i := range ends {
		e := &ends[i]
		e.dir, e.addr = t.TempDir(), fmt.Sprintf("127.%d.%d.%d", 2+rand.IntN(250), rand.IntN(250), 2+rand.IntN(250))
		var err error
		if e.host, err = smc.NewHost(&smc.Config{Dir: e.dir, UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{"127.0.0.0/8"}}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.host.Close() })
	}
	l, err := (&smc.ListenConfig{Host: ends[1].host}).Listen(t.Context(), "tcp", ends[1].addr+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	d := smc.Dialer{Host: ends[0].host, LocalAddr: &net.TCPAddr{IP: net.ParseIP(ends[0].addr)}, Require: smc.RequireSMCR}
	if ends[0].conn, err = d.DialContext(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if ends[1].conn, err = l.AcceptSMC(); err != nil {
		t.Fatal(err)
	}
	return ends[0], ends[1]
}

// asked returns the JSON output of a verb.
func asked[R any](t *testing.T, args ...string) (r R) {
	t.Helper()
	got := gosmc(t, "", append(args, "--json")...)
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || got.code != exitOK {
		t.Fatalf("gosmc %v = %d, %v, %q", args, got.code, err, got.stderr)
	}
	return r
}

// A connection of SMC-R is seen by all verbs: its group, its link, its device, its messages.
func TestSMCRIsSeen(t *testing.T) {
	client, server := smcrEnds(t)
	if _, err := client.conn.Write([]byte("a byte or two")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server.conn, make([]byte, 13)); err != nil {
		t.Fatal(err)
	}
	for _, e := range []struct {
		smcrEnd
		peer smcrEnd
		role string
	}{{client, server, "client"}, {server, client, "server"}} {
		groups := asked[groupsReport](t, "linkgroup", "--dir", e.dir).Groups
		if len(groups) != 1 || len(groups[0].Links) != 1 {
			t.Fatalf("%s: groups %+v, want one with a link", e.role, groups)
		}
		g, l := groups[0], groups[0].Links[0]
		if g.Mode != "SMC-R" || g.State != "Active" || g.Role != e.role || g.Type != "SINGLE" || g.Peer != e.peer.addr || g.EID != "GOSMC.TEST" || g.Conns != 1 ||
			g.RMBs != 1 || g.RMBBytes == 0 || g.PeerHost == "" || g.Version != "2.1" {
			t.Errorf("%s: group %+v", e.role, g)
		}
		if l.Number != 1 || l.State != "LINK_ACTIVE" || l.NetDev != "lo" || l.Device != e.addr || l.PeerGID != e.peer.addr || l.PeerQPN == 0 || l.MTU == 0 ||
			l.SentLLC == 0 || l.RcvdLLC == 0 || l.UID&0xff != 1 {
			t.Errorf("%s: link %+v", e.role, l)
		}
		devices := asked[devicesReport](t, "device", "--dir", e.dir).Devices
		if len(devices) != 1 || devices[0].State != "ACTIVE" || devices[0].Address != e.addr || devices[0].Links != 1 || !devices[0].Critical {
			t.Errorf("%s: devices %+v", e.role, devices)
		}
		conns := asked[ssReport](t, "ss", "--dir", e.dir).Connections
		if len(conns) != 1 || conns[0].Mode != "SMC-R" || conns[0].Group != g.ID || conns[0].Link != 1 {
			t.Errorf("%s: connections %+v, want one of group %d and link 1", e.role, conns, g.ID)
		}
		total := asked[statsReport](t, "stats", "--dir", e.dir).Total
		if total.Groups["SMC-R"] != 1 || total.RMBBytes != g.RMBBytes {
			t.Errorf("%s: %d groups, %d bytes of RMBs", e.role, total.Groups["SMC-R"], total.RMBBytes)
		}
		messages := fmt.Sprint(total.CLC, total.LLC)
		want := "[{Proposal 1 0} {Accept 0 1} {Confirm 1 0}] [{CONFIRM LINK 1 1} {ADD LINK 1 1}]"
		if e.role == "server" {
			want = "[{Proposal 0 1} {Accept 1 0} {Confirm 0 1}] [{CONFIRM LINK 1 1} {ADD LINK 1 1}]"
		}
		if messages != want {
			t.Errorf("%s: messages %s, want %s", e.role, messages, want)
		}
		// The events are still there, in words.
		got := gosmc(t, "", "dump", "--pid", strconv.Itoa(os.Getpid()), "--dir", e.dir, "--type", "llc", "-c", "4")
		for _, word := range []string{"CONFIRM LINK", "ADD LINK", fmt.Sprintf("lg=%08x", g.ID), "sent", "recv", e.addr + " > " + e.peer.addr} {
			if got.code != exitOK || !strings.Contains(got.stdout, word) {
				t.Errorf("%s: gosmc dump = %d, %s%s, want %q", e.role, got.code, got.stdout, got.stderr, word)
			}
		}
	}
	// The end: flags of both sides.
	client.conn.Close()
	server.conn.Close()
	got := gosmc(t, "", "dump", "--pid", strconv.Itoa(os.Getpid()), "--dir", server.dir, "--type", "cdc", "-c", "2")
	if got.code != exitOK || !strings.Contains(got.stdout, "sent") || !strings.Contains(got.stdout, "recv") || !regexp.MustCompile(`CDC seq=[1-9]\d* token=0x[0-9a-f]+ prod=`).MatchString(got.stdout) || !strings.Contains(got.stdout, " closed") {
		t.Errorf("gosmc dump of CDC = %d, %s%s, want the Closed of both", got.code, got.stdout, got.stderr)
	}
}

// --watch of the verbs that show a state repeats it until it is interrupted, also while it is an
// error: the operator waits for the change.
func TestWatchVerbs(t *testing.T) {
	dir := ownRunDir(t)
	t.Setenv("GOSMC_DIR", dir)
	for _, args := range [][]string{
		{"info"}, {"linkgroup"}, {"linkgroup", "fedcba98"}, {"link"}, {"device"}, {"ss"}, {"stats"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		code := make(chan int, 1)
		go func() {
			code <- run(ctx, append(args, "--watch", "1", "--json"), strings.NewReader(""), w, io.Discard)
			w.Close()
		}()
		lines := bufio.NewReader(r)
		for range 2 {
			line, err := lines.ReadBytes('\n')
			var report struct{ Time time.Time }
			if err != nil || json.Unmarshal(line, &report) != nil || report.Time.IsZero() {
				t.Errorf("gosmc %s --watch 1 --json printed %q, %v, want an object with a time", strings.Join(args, " "), line, err)
			}
		}
		cancel()
		io.Copy(io.Discard, r)
		if got := <-code; got != exitOK {
			t.Errorf("gosmc %s --watch, interrupted = %d, want %d", strings.Join(args, " "), got, exitOK)
		}
	}
	if got := gosmc(t, "", "info", "--watch", "1", "/bin/true"); got.code != exitUsage || !strings.Contains(got.stderr, "a file does not change") {
		t.Errorf("gosmc info --watch FILE = %+v, want a usage error", got)
	}
}
