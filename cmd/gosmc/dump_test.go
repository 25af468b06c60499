package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gosmc/smc/internal/capture"
	"github.com/gosmc/smc/internal/dump"
)

// The capture of two links is in two files, which dump merges: its RoCEv2 packets, and its TCP segments.
var twoLinks = []string{
	"../../wire/roce/testdata/linux-6.12-smcrv2-two-links.pcap.gz",
	"../../internal/dissect/testdata/linux-6.12-smcrv2-two-links-tcp.pcap.gz",
}

func dumpTwoLinks(t *testing.T, args ...string) outcome {
	t.Helper()
	return gosmc(t, "", slices.Concat([]string{"dump"}, args, twoLinks)...)
}

func unmarshal(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("%v in %.500s", err, text)
	}
}

// oneFile writes the two-link capture as one file.
func oneFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "two.pcapng")
	if got := dumpTwoLinks(t, "--write", name); got.code != exitOK || got.stdout != "" {
		t.Fatalf("gosmc dump --write = %d, %q, %q", got.code, got.stdout, got.stderr)
	}
	return name
}

// TestDemoPcap compares the capture that a reader of docs/dump.md makes with the one that it shows.
func TestDemoPcap(t *testing.T) {
	file := filepath.Join(t.TempDir(), "smc.pcap")
	makeTarget(t, "demo-pcap", "PCAP="+file)
	for _, args := range []string{"--count 120", "--flow --conn 5", "--problems", "-x --type confirm-link -c 1", "--json --conn 5 --type option,clc,tcp"} {
		want := dumpTwoLinks(t, strings.Fields(args)...)
		want.stdout = strings.ReplaceAll(want.stdout, `,"source":1,`, ",") // of the two files, the second
		if got := gosmc(t, "", append(strings.Fields("dump "+args), file)...); got.code != want.code || got.stdout != want.stdout {
			t.Errorf("gosmc dump %s smc.pcap = %d and\n%s\nwant as of the two halves, %d and\n%s", args, got.code, got.stdout, want.code, want.stdout)
		}
	}
}

func TestDumpGolden(t *testing.T) {
	for _, tt := range []struct{ name, args string }{
		{"lines", "--count 120"},
		{"lines-control", "--type option,clc,llc,tcp,note --time absolute"},
		{"verbose", "-v --type accept,add-link -c 3"},
		{"hex", "-x --type confirm-link -c 1"},
		{"json", "--json --conn 5 --type option,clc,tcp"},
		{"problems", "--problems"},
		{"flow", "--flow"},
		{"flow-ascii", "--flow --ascii --conn 5"},
		{"list", "--list"},
		{"stats", "--stats"},
		{"stats-json", "--stats --json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := dumpTwoLinks(t, strings.Fields(tt.args)...)
			want := exitOK
			if tt.name == "problems" {
				want = exitProblems
			}
			if got.code != want {
				t.Fatalf("gosmc dump %s = %d, %s", tt.args, got.code, got.stderr)
			}
			golden(t, "dump-"+tt.name+".txt", got.stdout)
		})
	}
}

// The ladder of the two-link capture shows the events there, in this order.
func TestDumpFlowTells(t *testing.T) {
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"--flow --linkgroup 1", []string{
			"Link group 1", "connection 1 opens on link 1", "LLC CONFIRM LINK", "link 1 is active",
			"LLC ADD LINK v2 request link=2", "link 2 is active",
			"LLC DELETE LINK v2 request link=1", "link 1 is being deleted: lost path",
			"LLC ADD LINK v2 request link=3", "link 3 is active",
			"connection 5 moves from link 1 to link 2", "connection 5 closes",
			"Connection 1:", "first-contact", "20 WRITEs, 2000 B, 20 CDC",
		}},
		{"--flow --conn 5", []string{
			"Connection 5:", "TCP SYN", "CLC Proposal", "CLC Accept", "CLC Confirm", "RDMA WRITE 3000 B",
			"link 1 is being deleted: lost path", "link 3 is active", "failover: the connection moves from link 1 to link 2", "abort", "TCP RST",
		}},
	} {
		got := dumpTwoLinks(t, strings.Fields(tt.args)...)
		rest := got.stdout
		for _, want := range tt.want {
			_, after, ok := strings.Cut(rest, want)
			if !ok {
				t.Errorf("gosmc dump %s: no %q after the earlier ones", tt.args, want)
				break
			}
			rest = after
		}
		for line := range strings.Lines(got.stdout) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 100 && strings.Contains(line, "│") {
				t.Errorf("gosmc dump %s: a line of %d columns, want at most 100: %s", tt.args, n, line)
			}
		}
	}
	ascii := dumpTwoLinks(t, "--flow", "--ascii").stdout
	if i := strings.IndexFunc(ascii, func(r rune) bool { return r > '~' }); i >= 0 {
		t.Errorf("gosmc dump --flow --ascii has %.10q", ascii[i:])
	}
}

// dumpedEvent has the fields of --json that tests look at.
type dumpedEvent struct {
	Packet int
	Name   string
	Family string
	Src    string
	Dst    string
	Conn   int
	Link   int
}

func dumpEvents(t *testing.T, args ...string) []dumpedEvent {
	t.Helper()
	got := dumpTwoLinks(t, append([]string{"--json"}, args...)...)
	if got.code != exitOK && got.code != exitProblems {
		t.Fatalf("gosmc dump --json %s = %d, %s", strings.Join(args, " "), got.code, got.stderr)
	}
	var events []dumpedEvent
	for line := range strings.Lines(got.stdout) {
		var e dumpedEvent
		unmarshal(t, line, &e)
		events = append(events, e)
	}
	return events
}

// Each filter gives the same events as choosing from all by hand.
func TestDumpFilters(t *testing.T) {
	all := dumpEvents(t)
	if len(all) < 600 {
		t.Fatalf("%d events in the two-link capture, want more", len(all))
	}
	contains := func(e *dumpedEvent, s string) bool { return strings.Contains(e.Src+" "+e.Dst+" ", s) }
	for _, tt := range []struct {
		args string
		want func(e *dumpedEvent) bool
	}{
		{"--conn 3", func(e *dumpedEvent) bool { return e.Conn == 3 }},
		{"--conn 3,5 --conn 1", func(e *dumpedEvent) bool { return e.Conn == 3 || e.Conn == 5 || e.Conn == 1 }},
		{"--type cdc", func(e *dumpedEvent) bool { return e.Family == "CDC" }},
		{"--type clc", func(e *dumpedEvent) bool { return e.Family == "CLC" }},
		{"--type accept --type CONFIRM_LINK", func(e *dumpedEvent) bool { return e.Name == "Accept" || e.Name == "CONFIRM LINK" }},
		{"--type write", func(e *dumpedEvent) bool { return strings.HasPrefix(e.Name, "RDMA WRITE") }},
		{"--type ack --conn 1", func(e *dumpedEvent) bool { return e.Name == "ACK" && e.Conn == 1 }},
		{"--type rst,fin", func(e *dumpedEvent) bool { return e.Name == "RST" || e.Name == "FIN" }},
		{"--port 59196", func(e *dumpedEvent) bool { return e.Conn == 3 }},
		{"--linkgroup 1", func(*dumpedEvent) bool { return true }},
		{"--addr 192.168.76.11 --type ack", func(e *dumpedEvent) bool { return e.Name == "ACK" && e.Link == 2 }},
		{"--host 192.168.76.0/24", func(*dumpedEvent) bool { return true }},
		{"--addr 10.0.0.0/8,2001:db8::1", func(*dumpedEvent) bool { return false }},
		{"--addr 192.168.76.12 --type confirm-link", func(e *dumpedEvent) bool { return e.Name == "CONFIRM LINK" && contains(e, "192.168.76.12:") }},
	} {
		t.Run(tt.args, func(t *testing.T) {
			var want []dumpedEvent
			for _, e := range all {
				if tt.want(&e) {
					want = append(want, e)
				}
			}
			if got := dumpEvents(t, strings.Fields(tt.args)...); !slices.Equal(got, want) {
				t.Errorf("gosmc dump --json %s: %d events, want %d\ngot  %+v\nwant %+v", tt.args, len(got), len(want), got[:min(len(got), 3)], want[:min(len(want), 3)])
			}
		})
	}
	if got := dumpEvents(t, "--count", "7", "--conn", "2"); len(got) != 7 {
		t.Errorf("gosmc dump --count 7 gave %d messages", len(got))
	}
}

func TestDumpTimes(t *testing.T) {
	for _, tt := range []struct{ format, want string }{
		{"relative", "     2     0.005546  192.168.76.1:5000"},
		{"absolute", "     2  2026-11-20 22:34:01.011688  192.168.76.1:5000"},
		{"delta", "     4     0.008737  192.168.76.2:"},
		{"none", "     2  192.168.76.1:5000"},
	} {
		got := dumpTwoLinks(t, "--time", tt.format, "-c", "3")
		if !strings.Contains(got.stdout, tt.want) {
			t.Errorf("gosmc dump --time %s = %q, want %q in it", tt.format, got.stdout, tt.want)
		}
	}
}

func readPackets(t *testing.T, name string) []capture.Packet {
	t.Helper()
	in, err := capture.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var packets []capture.Packet
	for {
		p, err := in.Next()
		if err == io.EOF {
			return packets
		}
		if err != nil {
			t.Fatal(err)
		}
		own := *p
		own.Data = bytes.Clone(p.Data)
		packets = append(packets, own)
	}
}

// A file of --write is read back as it was, and dump says the same of it.
func TestDumpWrite(t *testing.T) {
	name := oneFile(t)
	var all []capture.Packet
	for _, in := range twoLinks {
		all = append(all, readPackets(t, in)...)
	}
	slices.SortStableFunc(all, func(a, b capture.Packet) int { return a.Time.Compare(b.Time) })
	got := readPackets(t, name)
	if len(got) != len(all) {
		t.Fatalf("--write wrote %d packets of %d", len(got), len(all))
	}
	for i := range got {
		if !got[i].Time.Equal(all[i].Time) || !bytes.Equal(got[i].Data, all[i].Data) || got[i].Link != all[i].Link || got[i].OrigLen != all[i].OrigLen {
			t.Fatalf("packet %d of --write is %v %x, want %v %x", i+1, got[i].Time, got[i].Data, all[i].Time, all[i].Data)
		}
	}
	one, two := gosmc(t, "", "dump", name), dumpTwoLinks(t)
	if one != two {
		t.Errorf("gosmc dump of the file written gives %d bytes, of the files read %d", len(one.stdout), len(two.stdout))
	}

	// One connection, with the segments that completed no message.
	part := filepath.Join(t.TempDir(), "part.pcapng")
	if got := gosmc(t, "", "dump", "-w", part, "--conn", "3", "-c", "1000", name); got.code != exitOK {
		t.Fatalf("gosmc dump -w = %d, %s", got.code, got.stderr)
	}
	segments := 0
	for _, p := range readPackets(t, part) {
		if p.Data[14+9] == 6 {
			segments++
		}
	}
	if segments < 8 {
		t.Errorf("gosmc dump --conn 3 -w wrote %d TCP segments, want also those without a message", segments)
	}
	none := filepath.Join(t.TempDir(), "none.pcapng")
	if got := gosmc(t, "", "dump", "-w", none, "--conn", "99", name); got.code != exitFailure || !strings.Contains(got.stderr, "no connection 99") {
		t.Errorf("gosmc dump -w of nothing = %d, %s", got.code, got.stderr)
	}
	if got := readPackets(t, none); len(got) != 0 {
		t.Errorf("%d packets of no connection were written", len(got))
	}
}

// The file of one connection is understood without the others: it has the messages of the link
// group, and the first contact that made it. This one moves to another link, and only those
// messages tell its buffers.
func TestDumpWriteConnection(t *testing.T) {
	// Numbers of packets and connections, and values that are not known behind the gaps of packets
	// that were left out.
	numbers := regexp.MustCompile(`(?m)^ *\d+|\bc\d+\b| (gap|produced|consumed)=\d+`)
	messages := func(args ...string) string {
		t.Helper()
		got := gosmc(t, "", append([]string{"dump", "--time", "none"}, args...)...)
		if got.code != exitOK {
			t.Fatalf("gosmc dump %q = %d, %s", args, got.code, got.stderr)
		}
		return numbers.ReplaceAllString(got.stdout, "")
	}
	name, part := oneFile(t), filepath.Join(t.TempDir(), "part.pcapng")
	messages("--conn", "5", "-w", part, name)
	for _, choose := range [][2][]string{
		{{"--conn", "5"}, {"--conn", "2"}}, // after the first contact
		{{"--type", "llc"}, {"--type", "llc"}},
		{{"--conn", "1", "--type", "clc,option"}, {"--conn", "1", "--type", "clc,option"}},
	} {
		got, want := messages(append(choose[1], part)...), messages(append(choose[0], name)...)
		if got != want || got == "" {
			t.Errorf("what was written has of %q:\n%s\nwant:\n%s", choose[1], got, want)
		}
	}
	problems := func(name, conn string) string {
		got := gosmc(t, "", "dump", "--problems", "--time", "none", "--conn", conn, name)
		if got.code != exitProblems {
			t.Errorf("gosmc dump --problems %s = %d, %s", name, got.code, got.stderr)
		}
		return numbers.ReplaceAllString(got.stdout, "")
	}
	if got, want := problems(part, "2"), problems(name, "5"); got != want {
		t.Errorf("what was written has the problems\n%s\nwant\n%s", got, want)
	}
	if got := messages("--type", "write,cdc", "--conn", "1", part); got != "" {
		t.Errorf("what was written has data of the first contact's connection:\n%s", got)
	}

	// From standard input, packets before the chosen ones are not known, but later packets are.
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	old := os.Stdin
	os.Stdin = f
	piped := gosmc(t, "", "dump", "--conn", "5", "-w", part, "-")
	os.Stdin = old
	if piped.code != exitOK {
		t.Fatalf("gosmc dump -w FILE - = %d, %s", piped.code, piped.stderr)
	}
	if got := gosmc(t, "", "dump", "--type", "llc", "--time", "none", part); !strings.Contains(got.stdout, "DELETE LINK v2 request all") {
		t.Errorf("from standard input, the messages of the link group:\n%s", got.stdout)
	}

	// Chosen messages are written alone.
	messages("--conn", "5", "--type", "cdc", "-w", part, name)
	if got := gosmc(t, "", "dump", "--type", "llc", part); got.stdout != "" {
		t.Errorf("--type cdc wrote LLC messages:\n%s", got.stdout)
	}
}

// Merged captures of both hosts are written whole, and the packets that are chosen of one are
// chosen of the other.
func TestDumpWriteBoth(t *testing.T) {
	name := oneFile(t)
	for _, choose := range [][]string{nil, {"--conn", "5"}, {"--type", "cdc"}} {
		one, both := filepath.Join(t.TempDir(), "one.pcapng"), filepath.Join(t.TempDir(), "both.pcapng")
		for _, args := range [][]string{{"-w", one, name}, {"-w", both, name, name}} {
			if got := gosmc(t, "", slices.Concat([]string{"dump"}, choose, args)...); got.code != exitOK {
				t.Fatalf("gosmc dump %q = %d, %s", args, got.code, got.stderr)
			}
		}
		if got, want := len(readPackets(t, both)), 2*len(readPackets(t, one)); got != want || want == 0 {
			t.Errorf("of two captures, %q: %d packets, want %d", choose, got, want)
		}
		got, want := gosmc(t, "", "dump", "--time", "none", both), gosmc(t, "", "dump", "--time", "none", one)
		number := regexp.MustCompile(`(?m)^ *\d+|\(packet \d+\)`)
		if number.ReplaceAllString(got.stdout, "") != number.ReplaceAllString(want.stdout, "") {
			t.Errorf("of two captures, %q: other messages than of one", choose)
		}
	}
}

func TestDumpKeepsItsInput(t *testing.T) {
	name := oneFile(t)
	before, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--write", "--html"} {
		if got := gosmc(t, "", "dump", flag, link, name); got.code != exitUsage || !strings.Contains(got.stderr, "cannot be written") {
			t.Errorf("gosmc dump %s onto the input = %d, %q, want 2", flag, got.code, got.stderr)
		}
	}
	if after, err := os.ReadFile(name); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the input has changed, %v", err)
	}
}

func TestDumpHTML(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.html")
	if got := dumpTwoLinks(t, "--html", page); got.code != exitOK || got.stdout != "" || got.stderr != "" {
		t.Fatalf("gosmc dump --html = %d, %.200q, %q, want nothing printed", got.code, got.stdout, got.stderr)
	}
	written, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if got := dumpTwoLinks(t, "--html", "-"); got.stdout != string(written) {
		t.Errorf("gosmc dump --html - printed %d bytes, and wrote %d to a file", len(got.stdout), len(written))
	}
	for _, want := range []string{"<!doctype html>", "failover: the connection moves from link 1 to link 2", "link 3 is active", `"smc.accept.eid"`} {
		if !bytes.Contains(written, []byte(want)) {
			t.Errorf("the page does not have %q", want)
		}
	}
	if got := dumpTwoLinks(t, "--html", filepath.Join(page, "below")); got.code != exitFailure {
		t.Errorf("gosmc dump --html into a file that is no directory = %d, %s, want 1", got.code, got.stderr)
	}
}

// Faults of a file are reported, and the packets behind them are shown.
func TestDumpBadFiles(t *testing.T) {
	f, err := os.Open(twoLinks[1])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	good, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	all := strings.Count(gosmc(t, "", "dump", write("good.pcap", good)).stdout, "\n")

	// A link type that is not known is told, and not taken for a capture without SMC.
	foreign := bytes.Clone(good)
	foreign[20] = 147
	got := gosmc(t, "", "dump", write("foreign.pcap", foreign))
	if got.code != exitFailure || got.stdout != "" || !strings.Contains(got.stderr, "79 of 79 packets were passed over") || !strings.Contains(got.stderr, "link type 147") {
		t.Errorf("dump of link type 147 = %d, %q, %q", got.code, got.stdout, got.stderr)
	}

	short := write("short.pcap", good[:len(good)-10])
	got = gosmc(t, "", "dump", short)
	if got.code != exitFailure || !strings.Contains(got.stderr, short+": packet 79, offset ") || !strings.Contains(got.stderr, "the input has 1 fault, ") || strings.Count(got.stdout, "\n") < all-1 {
		t.Errorf("dump of a file that ends early = %d, %d lines of %d, %q", got.code, strings.Count(got.stdout, "\n"), all, got.stderr)
	}

	lie := bytes.Clone(good)
	copy(lie[24+8:], []byte{0xff, 0xff, 0xff, 0x7f}) // length of the first packet
	bad := write("lie.pcap", lie)
	got = gosmc(t, "", "dump", bad)
	if got.code != exitFailure || !strings.Contains(got.stderr, bad+": packet 1, offset 24: ") || strings.Count(got.stdout, "\n") < all*3/4 {
		t.Errorf("dump of a file with a lie = %d, %d lines of %d, %q", got.code, strings.Count(got.stdout, "\n"), all, got.stderr)
	}

	// Many faults are not all shown.
	noise := bytes.Clone(good)
	for i := 24; i < len(noise); i += 97 {
		noise[i] ^= 0xff
	}
	got = gosmc(t, "", "dump", "--stats", write("noise.pcap", noise))
	if got.code != exitFailure || strings.Count(got.stderr, "\n") > dump.MaxShownFaults+2 {
		t.Errorf("dump of noise = %d, %q", got.code, got.stderr)
	}

	for _, tt := range []struct {
		name string
		b    []byte
		want string
	}{
		{"empty", nil, "it is empty"},
		{"text", []byte("hello, this is no capture\n"), "not a capture file"},
		{"header", good[:20], "ends too early"},
	} {
		path := write(tt.name, tt.b)
		if got := gosmc(t, "", "dump", path); got.code != exitFailure || !strings.Contains(got.stderr, tt.want) || !strings.Contains(got.stderr, path) {
			t.Errorf("dump of %s = %d, %q, want %q", tt.name, got.code, got.stderr, tt.want)
		}
	}

	// A capture without packets is no fault.
	for _, flag := range []string{"-v", "--flow", "--stats", "--json", "--html=-"} {
		if got := gosmc(t, "", "dump", flag, write("none.pcap", good[:24])); got.code != exitOK || got.stderr != "" {
			t.Errorf("dump %s of no packet = %d, %q", flag, got.code, got.stderr)
		}
	}
}

// Standard input is the program's, not the command's: the readers want a file.
func TestDumpStandardInput(t *testing.T) {
	f, err := os.Open(twoLinks[1])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	old := os.Stdin
	os.Stdin = f
	defer func() { os.Stdin = old }()
	got := gosmc(t, "", "dump", "-")
	if want := gosmc(t, "", "dump", twoLinks[1]); got != want || got.code != exitOK || got.stdout == "" {
		t.Errorf("gosmc dump - = %d and %d bytes, %q, want %d bytes", got.code, len(got.stdout), got.stderr, len(want.stdout))
	}
}

// A brokenWriter takes some bytes, and then nobody reads any more.
type brokenWriter struct{ left int }

func (w *brokenWriter) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		return 0, fmt.Errorf("write: %w", syscall.EPIPE)
	}
	return len(b), nil
}

func TestDumpBrokenPipe(t *testing.T) {
	name, _, _ := writeTraffic(t, 4<<20)
	for _, args := range [][]string{{"dump", name}, {"dump", "--flow", name}, {"dump", "-w", "-", name}} {
		var stderr bytes.Buffer
		code := run(t.Context(), args, strings.NewReader(""), &brokenWriter{1000}, &stderr)
		if code != exitOK || stderr.String() != "" {
			t.Errorf("gosmc %s into a broken pipe = %d, %q, want 0 and silence", strings.Join(args, " "), code, stderr.String())
		}
	}
}

// A fullWriter is a full disk.
type fullWriter struct{}

func (fullWriter) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestDumpFullDisk(t *testing.T) {
	var stderr bytes.Buffer
	code := run(t.Context(), append([]string{"dump"}, twoLinks...), strings.NewReader(""), fullWriter{}, &stderr)
	if code != exitFailure || !strings.Contains(stderr.String(), syscall.ENOSPC.Error()) {
		t.Errorf("gosmc dump to a full disk = %d, %q, want 1", code, stderr.String())
	}
}
