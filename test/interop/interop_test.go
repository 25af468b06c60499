package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/wire"
)

// From a capture of two ibv_rc_pingpong of rdma-core 44, the client's.
func TestGreeting(t *testing.T) {
	const text = "0000:000011:ae69dc:00000000000000000000ffffc0a84c02\x00"
	want := greeting{gid: wire.GIDFromAddr(netip.MustParseAddr("192.168.76.2")), qpn: 0x11, psn: 0xae69dc}
	if got, err := parseGreeting(text); err != nil || got != want {
		t.Errorf("parseGreeting(%q) = %+v, %v, want %+v", text, got, err, want)
	}
	if got := want.String(); got != text {
		t.Errorf("String() = %q, want %q", got, text)
	}
	for n := range text {
		if g, err := parseGreeting(text[:n]); err == nil {
			t.Errorf("parseGreeting(%q) = %+v, want an error", text[:n], g)
		}
	}
	for _, bad := range []string{
		"0000:00001g:ae69dc:00000000000000000000ffffc0a84c02\x00",
		"0000:1000011:e69dc:00000000000000000000ffffc0a84c02\x00",
		"0000:000011:ae69dc:00000000000000000000ffffc0a84c0:\x00",
		"0000:000011:ae69dc0:0000000000000000000ffffc0a84c02\x00",
	} {
		if g, err := parseGreeting(bad); err == nil {
			t.Errorf("parseGreeting(%q) = %+v, want an error", bad, g)
		}
	}
}

// The first numbers of splitmix64 with seed 1234567, as its author's program prints them.
func TestFill(t *testing.T) {
	var want []byte
	for _, n := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423} {
		for shift := 0; shift < 64; shift += 8 {
			want = append(want, byte(n>>shift))
		}
	}
	for n := range want {
		got := make([]byte, n)
		if fill(got, 1234567); !bytes.Equal(got, want[:n]) {
			t.Errorf("fill of %d bytes: %x, want %x", n, got, want[:n])
		}
	}
}

// Test vectors of FNV-1a, 64 bits, from the authors' list.
func TestSum(t *testing.T) {
	for _, tt := range []struct {
		text string
		want uint64
	}{{"", 0xcbf29ce484222325}, {"a", 0xaf63dc4c8601ec8c}, {"foobar", 0x85944171f73967e8}} {
		if got := sum([]byte(tt.text)); got != tt.want {
			t.Errorf("sum(%q) = %#x, want %#x", tt.text, got, tt.want)
		}
	}
}

// TestTransfers checks that WRITEs stay in the data part and are as README.md says.
func TestTransfers(t *testing.T) {
	for _, c := range []conditions{{}, {jumbo: true}, {loss: true}} {
		l := &lab{conditions: c}
		all := l.transfers(rand.New(rand.NewPCG(transferSeed, 0)))
		var two int
		from, to, most := make(map[int]bool), make(map[int]bool), 0
		for _, tr := range all {
			if tr.to < 0 || tr.to+tr.length() > dataSize {
				t.Errorf("%+v: WRITE of %d bytes to offset %d, want it below %d", c, tr.length(), tr.to, dataSize)
			}
			for _, s := range tr.from {
				if s.offset < 0 || s.length <= 0 || s.offset+s.length > dataSize {
					t.Errorf("%+v: WRITE from %+v", c, s)
				}
			}
			if len(tr.from) == 2 {
				two++
			}
			from[tr.from[0].offset%alignments], to[tr.to%alignments] = true, true
			most = max(most, tr.length())
		}
		if two == 0 || two == len(all) {
			t.Errorf("%+v: %d of %d WRITEs have two SGEs", c, two, len(all))
		}
		if !c.loss && (len(from) != alignments || len(to) != alignments) {
			t.Errorf("%+v: %d source and %d destination alignments, want %d", c, len(from), len(to), alignments)
		}
		if most != maxWrite {
			t.Errorf("%+v: the longest WRITE has %d bytes, want %d", c, most, maxWrite)
		}
		var joined []transfer
		for _, batch := range batches(all) {
			if len(batch) == 0 || len(batch) > batchLen {
				t.Errorf("%+v: a batch of %d", c, len(batch))
			}
			joined = append(joined, batch...)
		}
		if fmt.Sprint(joined) != fmt.Sprint(all) {
			t.Errorf("%+v: batches(all) has other WRITEs than all", c)
		}
	}
}

// TestCheckCounters shows that counters that nobody provoked are found, and those that are missing.
func TestCheckCounters(t *testing.T) {
	for _, tt := range []struct {
		name    string
		counted map[string]uint64
		c       testCase
		x       excuse
		ok      bool
	}{
		{"traffic", map[string]uint64{"our sent_pkts": 5, "guest rcvd_pkts": 5, "our rcvd_seq_err": 0}, testCase{}, excuse{}, true},
		{"sequence error", map[string]uint64{"our rcvd_seq_err": 1}, testCase{}, excuse{}, false},
		{"sequence error with losses", map[string]uint64{"our rcvd_seq_err": 1}, testCase{conditions: conditions{loss: true}}, excuse{}, true},
		{"ICRC error with losses", map[string]uint64{"our device rcvd_icrc_err": 1}, testCase{conditions: conditions{loss: true}}, excuse{}, false},
		{"sequence error with few losses", map[string]uint64{"our rcvd_seq_err": 1}, testCase{conditions: lossy}, excuse{}, true},
		{"sequence error where the guard is tried", map[string]uint64{"our rcvd_seq_err": 1}, testCase{conditions: caught}, excuse{}, false},
		{"sequence error where a kernel has dropped", map[string]uint64{"our rcvd_seq_err": 1}, testCase{}, excuse{lost: true}, true},
		{"sequence error where timers were late", map[string]uint64{"our rcvd_seq_err": 1}, testCase{}, excuse{late: true}, false},
		{"timeout", map[string]uint64{"our timeouts": 1}, testCase{}, excuse{}, false},
		{"timeout where timers were late", map[string]uint64{"our timeouts": 1, "our rewinds": 1}, testCase{}, excuse{late: true}, true},
		{"timeout where a kernel has dropped", map[string]uint64{"our timeouts": 1}, testCase{}, excuse{lost: true}, true},
		{"some repeated", map[string]uint64{"our retransmitted": 20}, testCase{}, excuse{}, true},
		{"many repeated", map[string]uint64{"our retransmitted": 26, "guest sent_pkts": 50, "guest rcvd_pkts": 50}, testCase{}, excuse{}, false},
		{"more packets, as many repeated", map[string]uint64{"our retransmitted": 26, "guest sent_pkts": 60, "guest rcvd_pkts": 60}, testCase{}, excuse{}, true},
		{"solved", map[string]uint64{"our device icrc_solved": 1}, testCase{}, excuse{}, true},
		{"solved though shown", map[string]uint64{"our device icrc_solved": 1}, testCase{conditions: packet}, excuse{}, false},
		{"provoked", map[string]uint64{"our rcvd_rnr_err": 1}, testCase{provokes: []string{"our rcvd_rnr_err"}}, excuse{}, true},
		{"provoked in vain", map[string]uint64{"our rcvd_rnr_err": 0}, testCase{provokes: []string{"our rcvd_rnr_err"}}, excuse{}, false},
		{"provoked and unheard of", nil, testCase{provokes: []string{"our rcvd_rnr_err"}}, excuse{}, false},
		{"not provoked", map[string]uint64{"our rcvd_rnr_err": 1}, testCase{conditions: conditions{loss: true}}, excuse{}, false},
		{"tolerated", map[string]uint64{"our dropped": 1}, testCase{tolerates: []string{"our dropped"}}, excuse{}, true},
		{"unheard of", map[string]uint64{"our moods": 0}, testCase{}, excuse{}, false},
	} {
		if err := checkCounters(tt.counted, tt.c, tt.x); (err == nil) != tt.ok {
			t.Errorf("%s: checkCounters(%v) = %v, want ok %t", tt.name, tt.counted, err, tt.ok)
		}
	}
}

// TestFaultOfLinux shows which failures have a case tried again.
func TestFaultOfLinux(t *testing.T) {
	found := fmt.Errorf("gosmc dump has 1 %w:\nCLC Decline v2 REGERR (0x09990003) os=Linux peer=43265@52:54:00:00:00:02", errFindings)
	others := fmt.Errorf("gosmc dump has 1 %w:\nCLC Decline v2 REGERR (0x09990003) os=z/OS", errFindings)
	const abort = ":59185 CDC seq=4 token=0x68d02b0b prod=0000:000186b8 cons=0000:00000000 window=4094305 abort  ! violation: a CDC message after both sides were done (RFC 7609 p.129)"
	aborted := func(src string) error { return fmt.Errorf("gosmc dump has 1 %w:\n%s%s", errFindings, src, abort) }
	theirs, ours := fmt.Errorf("%w: %w", errTheirTurn, errStalled), fmt.Errorf("round 3: %w", errStalled)
	still, more, again := map[string]uint64{"sent_pkts": 7}, map[string]uint64{"sent_pkts": 8}, map[string]uint64{"sent_pkts": 7, "completer_retry_err": 1}
	for _, tt := range []struct {
		name string
		c    testCase
		err  error
		want bool
	}{
		{"Linux declined", testCase{conditions: lossy}, errors.Join(errors.New("fell back to TCP"), found), true},
		{"Linux declined where the guard is tried", testCase{conditions: caught}, found, true},
		{"nothing failed", testCase{conditions: lossy}, nil, false},
		{"something else failed", testCase{conditions: lossy}, errors.New("gosmc dump has 1 findings: NAK"), false},
		{"another has declined", testCase{conditions: lossy}, others, false},
		{"declined without losses", testCase{}, found, false},
		{"Linux aborted twice", testCase{}, aborted("192.168.76.2"), true},
		{"we aborted twice", testCase{}, aborted("192.168.76.1"), false},
		{"the guest sends nothing, with nothing on its way", testCase{}, stalled(theirs, still, still, ""), true},
		{"our send has not completed", testCase{}, stalled(ours, still, still, ""), false},
		{"the guest sends, and we do not see it", testCase{}, stalled(theirs, still, more, ""), false},
		{"the guest repeats", testCase{}, stalled(theirs, still, again, ""), false},
	} {
		if got := faultOfLinux(tt.c, tt.err); (got != "") != tt.want {
			t.Errorf("%s: faultOfLinux = %q, want one %t", tt.name, got, tt.want)
		}
	}
}

// TestOurCountersAreKnown has every counter of ours be in the table: a case with one that is not fails.
func TestOurCountersAreKnown(t *testing.T) {
	l := &lab{ours: make(map[string]uint64)}
	for prefix, stats := range map[string]any{"our ": rdma.QPStats{}, "our device ": rdma.DeviceStats{}} {
		if err := l.addStats(prefix, stats); err != nil {
			t.Fatal(err)
		}
	}
	for name := range l.ours {
		if _, known := counterClasses[name]; !known {
			t.Errorf("counter %q is not in counterClasses", name)
		}
	}
}

// TestCases checks the table: names differ, and counters exist.
func TestCases(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range allCases() {
		if c.name == "" || c.what == "" || c.run == nil || seen[c.name] {
			t.Errorf("case %q: no name, nothing to do, or twice", c.name)
		}
		seen[c.name] = true
		for _, counter := range append(c.provokes, c.tolerates...) {
			if counterClasses[counter] == 0 {
				t.Errorf("case %q: no counter %q", c.name, counter)
			}
		}
	}
}

// TestReadme holds README.md against the code: which cases there are, and how much they do.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## The cases\n")
	section, _, _ = strings.Cut(section, "\n## ")
	readme := strings.Join(strings.Fields(section), " ")
	says := func(what string) {
		t.Helper()
		if !strings.Contains(readme, what) {
			t.Errorf("README.md, The cases: nowhere %q", what)
		}
	}
	says(fmt.Sprintf("There are %d.", len(allCases())))
	for before, runs := range map[string][]pingPong{
		"Rounds of each size in bytes: ": allSizes, "with losses ": withLoss, "in the other variants ": someSizes,
	} {
		var list []string
		for _, r := range runs {
			list = append(list, fmt.Sprintf("%d (%d)", r.size, r.rounds))
		}
		says(before + strings.Join(list, ", "))
	}
	writes := func(c conditions) int {
		l := &lab{conditions: c}
		return len(l.transfers(rand.New(rand.NewPCG(transferSeed, 0))))
	}
	thousands := func(n int) string {
		if n < 1000 {
			return fmt.Sprint(n)
		}
		return fmt.Sprintf("%d,%03d", n/1000, n%1000)
	}
	says(fmt.Sprintf("These are %s WRITEs, %s with jumbo frames, %s with losses.",
		thousands(writes(conditions{})), thousands(writes(jumbo)), thousands(writes(losing))))
	text = bytes.ReplaceAll(text, []byte("\n"), []byte(" "))
	if want := fmt.Sprintf("allowed, %d and %d in twenty", lateLimit(0), lateLimit(20)-lateLimit(0)); !bytes.Contains(text, []byte(want)) {
		t.Errorf("README.md: nowhere %q", want)
	}
	says(fmt.Sprintf("all %d alignments", alignments))
	for _, netem := range []string{netemFromGuest, netemToGuest} {
		_, loss, _ := strings.Cut(netem, " loss ")
		loss, _, _ = strings.Cut(loss, "%")
		says(loss + " % of the packets are lost")
	}
	// A name in the text is the name of a case, with "..." for any beginning or end.
	named := func(name string) bool {
		for _, word := range strings.Split(section, "`") {
			begin, end, dots := strings.Cut(word, "...")
			if word == name || dots && word != "..." && strings.HasPrefix(name, begin) && strings.HasSuffix(name, end) {
				return true
			}
		}
		return false
	}
	for _, c := range allCases() {
		if !named(c.name) {
			t.Errorf("README.md, The cases: nothing of %s", c.name)
		}
	}
}

// TestArchive has cpio unpack the archive that write makes.
func TestArchive(t *testing.T) {
	cpio, err := exec.LookPath("cpio")
	if err != nil {
		t.Skip("needs cpio")
	}
	a := make(archive)
	a.add("init", modeProg, []byte("#!/bin/sh\n"))
	a.add("/lib/modules/odd", modeFile, []byte("12345"))
	a.add("bin/sh", modeLink, []byte("busybox"))
	a.add("tmp", modeDir, nil)
	var image bytes.Buffer
	if err := a.write(&image); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command(cpio, "-id", "--quiet")
	cmd.Dir, cmd.Stdin = dir, &image
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v\n%s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "lib/modules/odd")); err != nil || string(got) != "12345" {
		t.Errorf("lib/modules/odd: %q, %v, want %q", got, err, "12345")
	}
	if got, err := os.Readlink(filepath.Join(dir, "bin/sh")); err != nil || got != "busybox" {
		t.Errorf("bin/sh leads to %q, %v, want busybox", got, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "init")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("init: %v, %v, want mode 755", info, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "tmp")); err != nil || !info.IsDir() {
		t.Errorf("tmp: %v, %v, want a directory", info, err)
	}
}

// TestVerbspeerLines checks the lines against the usage in guest/verbspeer.c: one word for each.
func TestVerbspeerLines(t *testing.T) {
	_, usage, _ := strings.Cut(string(verbspeerSource), " *   open ")
	for _, line := range []string{
		recvLine(1, span{2, 3}), sendLine(1, flagSignaled, 2, span{3, 4}, span{5, 6}),
		writeLine(1, flagImm, 2, 3, 4, span{5, 6}),
	} {
		words := strings.Fields(line)
		_, rest, found := strings.Cut(usage, " *   "+words[0]+" ")
		rest, _, _ = strings.Cut(rest, "ok")
		if want := len(strings.Fields(rest)) + 1; !found || len(words) != want {
			t.Errorf("%q has %d words, want %d", line, len(words), want)
		}
	}
}

func TestHexGID(t *testing.T) {
	g := wire.GIDFromAddr(guestAddr6)
	got := hexGID(g)
	if want := "fd000076000000000000000000000002"; got != want {
		t.Errorf("hexGID(%v) = %q, want %q", g, got, want)
	}
	if b, err := hex.DecodeString(got); err != nil || wire.GID(b) != g {
		t.Errorf("hexGID(%v) = %q does not lead back", g, got)
	}
}

func TestMayPassAgain(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{fmt.Errorf("gosmc dump has 1 %w:\nviolation", errFindings), true},
		{fmt.Errorf("round 3: %w", context.DeadlineExceeded), true},
		{fmt.Errorf("our region: %s", difference([]byte{1}, []byte{2})), false},
		{errors.Join(errFindings, errors.New("byte 7 of 9 is 0x1, want 0x2")), false},
		{errors.New("the guest's region has a wrong byte at offset 3"), false},
		{errors.New("byte 3 of our region without permission has changed"), false},
	} {
		if got := mayPassAgain(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}
