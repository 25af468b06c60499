package render

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dissect/dissecttest"
	"github.com/gosmc/smc/internal/frame"
	"github.com/gosmc/smc/wire/roce"
)

// Wherever tshark names a field, we have the same value under the same name, but for the fields
// that are listed here. The list was made with tshark 4.0.17.

// tsharkMerges has names under which tshark 4.0 files the values of other fields too.
var tsharkMerges = map[string][]string{
	// The consumer cursor is registered under the producer's names; fixed in later versions.
	"smc.rmbe.ctrl.prod.wrap.seq":  {"smc.rmbe.ctrl.cons.wrap.seq"},
	"smc.rmbe.ctrl.peer.prod.curs": {"smc.rmbe.ctrl.peer.cons.curs"},
	// The diagnoses by SMC type of version 2 have the name of the one that is for the connection.
	"smc.peer.diag.info": {"smc.decline.diag.smcdv2", "smc.decline.diag.smcdv1", "smc.decline.diag.smcrv2", "smc.decline.diag.smcrv1"},
	// SMCv2.1 is not known: the second half of an Extended GID is taken for a GID of its own.
	"smc.proposal.ism.gid": {keyProposalPart2},
}

// tsharkIgnored has names that tell nothing.
var tsharkIgnored = map[string]string{
	"smc.reserved":        "is what tshark does not know, where we do",
	"infiniband.reserved": "likewise",
	"infiniband.bth":      "is all bytes of the header once more",
	"infiniband.reth":     "likewise",
	"infiniband.aeth":     "likewise",
	"infiniband.payload":  "is the data, which we do not repeat",
}

// tsharkErrors are values of tshark that are wrong.
var tsharkErrors = []struct {
	key    string // its beginning
	reason string
	in     func(b []byte) bool // the messages
}{
	{
		"smc.add.link.cont.rmb.", "read two bytes too early: RFC 7609 p.112 has two reserved bytes before the RTokens",
		func(b []byte) bool { return b[0] == 3 },
	}, {
		"smc.confirm.rkey.retry.rkey.set", "no such flag in CONFIRM RKEY CONTINUATION: RFC 7609 p.121",
		func(b []byte) bool { return b[0] == 8 },
	}, {
		"smc.proposal.rocev2.gid.ipv4", "the last four bytes of an IPv6 address",
		func(b []byte) bool { return bytes.Contains(b, sampleGID6[:]) },
	},
}

// isTsharkError reports whether a value is in the list above.
func isTsharkError(key string, b []byte) bool {
	for _, e := range tsharkErrors {
		if strings.HasPrefix(key, e.key) && e.in(b) {
			return true
		}
	}
	return false
}

// requireTshark skips the test if there is no tshark, and returns its first line about itself.
func requireTshark(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("needs tshark")
	}
	out, err := exec.Command("tshark", "--version").Output()
	if err != nil {
		t.Skipf("needs a tshark that works: %v", err)
	}
	version, _, _ := strings.Cut(string(out), "\n")
	return version
}

// tsharkFields returns the fields of the SMC and InfiniBand layers of each packet of a pcap file, by
// the packet's number.
func tsharkFields(t *testing.T, file string) map[int]map[string][]string {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command("tshark", "-n", "-r", file, "-T", "json", "--no-duplicate-keys", "-Y", "smc or infiniband", "-J", "frame smc infiniband")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, stderr.Bytes())
	}
	var packets []struct {
		Source struct{ Layers map[string]any } `json:"_source"`
	}
	if err := json.Unmarshal(out, &packets); err != nil {
		t.Fatal(err)
	}
	fields := make(map[int]map[string][]string)
	for _, p := range packets {
		frame := make(map[string][]string)
		flatten(frame, p.Source.Layers["frame"])
		n, err := strconv.Atoi(frame["frame.number"][0])
		if err != nil {
			t.Fatal(err)
		}
		fields[n] = make(map[string][]string)
		flatten(fields[n], p.Source.Layers["smc"])
		flatten(fields[n], p.Source.Layers["infiniband"])
	}
	return fields
}

// flatten adds the fields of a layer, and of the trees in it.
func flatten(fields map[string][]string, v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			flatten(fields, e)
		}
	case map[string]any:
		for key, e := range v {
			switch e := e.(type) {
			case string:
				fields[key] = append(fields[key], e)
			case []any:
				for _, x := range e {
					if s, ok := x.(string); ok {
						fields[key] = append(fields[key], s)
					} else {
						flatten(fields, x)
					}
				}
			default:
				flatten(fields, e)
			}
		}
	}
}

// normal writes a value of tshark or of ours in one way.
func normal(v any) string {
	s := strings.TrimSpace(fmt.Sprint(v))
	switch v {
	case true:
		return "1"
	case false:
		return "0"
	}
	if n, err := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 64); err == nil && strings.HasPrefix(s, "0x") {
		return strconv.FormatUint(n, 10)
	}
	if a, err := netip.ParseAddr(s); err == nil {
		b := a.As16()
		return netip.AddrFrom16(b).String()
	}
	return s
}

// A comparison counts the fields that were compared.
type comparison struct {
	fields, differ int
}

// compare reports fields of tshark that ours differ from.
func (c *comparison) compare(t *testing.T, what string, theirs map[string][]string, e *dissect.Event) {
	t.Helper()
	ours := Fields(e)
	for key, values := range theirs {
		if tsharkIgnored[key] != "" || strings.Contains(key, "_ws.") || isTsharkError(key, e.Bytes) {
			continue
		}
		keys := []string{key}
		if extra := tsharkMerges[key]; extra != nil && theirs[extra[0]] == nil {
			keys = append(keys, extra...)
		}
		var got, want []string
		for _, f := range ours {
			if slices.Contains(keys, f.Key) {
				got = append(got, normal(f.Value))
			}
		}
		for _, v := range values {
			want = append(want, normal(v))
		}
		c.fields++
		switch {
		case got == nil:
			c.differ++
			t.Errorf("%s: no field %s, which tshark has as %v", what, key, values)
		case !slices.Equal(got, want):
			c.differ++
			t.Errorf("%s: %s = %v, want %v as tshark has it", what, key, got, want)
		}
	}
}

// unzip writes a compressed file's contents to a directory, and returns the new file's name.
func unzip(t *testing.T, name, dir string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, strings.TrimSuffix(filepath.Base(name), ".gz"))
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestTsharkCaptures compares our fields of the captures of real kernels with tshark's.
func TestTsharkCaptures(t *testing.T) {
	version := requireTshark(t)
	dir := t.TempDir()
	for _, files := range dissecttest.Captures {
		for _, name := range files {
			t.Run(filepath.Base(name), func(t *testing.T) {
				theirs := tsharkFields(t, unzip(t, dissecttest.File(t, name), dir))
				c := comparison{}
				compared := make(map[int]bool)
				tr := dissect.New(dissect.Options{})
				packets := dissecttest.ReadPcap(t, name)
				for i := range packets {
					packets[i].Number = i + 1
					tr.Packet(packets[i], func(e *dissect.Event) {
						fields := theirs[e.Packet.Number]
						if fields == nil || e.Bytes == nil || compared[e.Packet.Number] {
							return
						}
						compared[e.Packet.Number] = true
						c.compareEvent(t, fields, e)
					})
				}
				for n := range theirs {
					if !compared[n] {
						t.Errorf("packet %d: tshark names fields of SMC or InfiniBand, and we have no event", n)
					}
				}
				t.Logf("%s: %d fields of %d packets are the same", version, c.fields-c.differ, len(compared))
			})
		}
	}
}

// compareEvent compares an event of a packet, which may be a message in a RoCEv2 packet. tshark 4.0
// takes messages of LLC in version 2 for malformed ones or for others: its output for them is left
// out.
func (c *comparison) compareEvent(t *testing.T, theirs map[string][]string, e *dissect.Event) {
	what := fmt.Sprintf("packet %d, %s", e.Packet.Number, AppendLine(nil, e))
	if e.Family == dissect.CLC {
		c.compare(t, what, theirs, e)
		return
	}
	smc, transport := make(map[string][]string), make(map[string][]string)
	for key, v := range theirs {
		if strings.HasPrefix(key, "smc.") {
			smc[key] = v
		} else {
			transport[key] = v
		}
	}
	if e.Family == dissect.CDC || e.Family == dissect.LLC && e.Bytes[0]&0xf0 == 0 {
		c.compare(t, what, smc, e)
	}
	if p := e.Packet.Data; e.RoCE != nil && e.Packet.Link == frame.Ethernet {
		datagram := p[14+20+8:] // Ethernet, IPv4 and UDP, as in all captures
		c.compare(t, what, transport, &dissect.Event{Family: dissect.RoCE, Bytes: datagram})
	}
}

// TestTsharkMessages compares our fields of messages that were laid out by hand, of which the
// captures have none, with tshark's.
func TestTsharkMessages(t *testing.T) {
	version := requireTshark(t)
	var events []*dissect.Event
	file := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	for _, word := range []uint32{2 | 4<<16, 0, 0, 1 << 16, uint32(frame.Ethernet)} {
		file = binary.LittleEndian.AppendUint32(file, word)
	}
	for _, s := range samples(t) {
		b := eventBytes(s.event)
		isV1 := s.event.Family == dissect.CLC || s.event.Family == dissect.CDC && !isSMCD(s.event.Message) || s.event.Family == dissect.LLC && b[0]&0xf0 == 0
		if s.partial || !isV1 {
			continue
		}
		events = append(events, &dissect.Event{Family: s.event.Family, Bytes: b, Message: s.event.Message})
		frame := ethernetFrame(s.event.Family, len(events), b)
		for _, word := range []uint32{1, 0, uint32(len(frame)), uint32(len(frame))} {
			file = binary.LittleEndian.AppendUint32(file, word)
		}
		file = append(file, frame...)
	}
	name := filepath.Join(t.TempDir(), "messages.pcap")
	if err := os.WriteFile(name, file, 0o600); err != nil {
		t.Fatal(err)
	}
	theirs := tsharkFields(t, name)
	c := comparison{}
	for i, e := range events {
		smc := make(map[string][]string)
		for key, v := range theirs[i+1] {
			if strings.HasPrefix(key, "smc.") {
				smc[key] = v
			}
		}
		if len(smc) == 0 {
			t.Errorf("tshark has no fields of %s", AppendLine(nil, e))
		}
		c.compare(t, fmt.Sprintf("%x, %s", e.Bytes, AppendLine(nil, dissect.MessageEvent(nil, e.Bytes))), smc, e)
	}
	t.Logf("%s: %d fields of %d messages are the same", version, c.fields-c.differ, len(events))
}

// ethernetFrame returns a frame with message number i: in TCP on a connection of its own, or in an RC
// SEND ONLY.
func ethernetFrame(family dissect.Family, i int, message []byte) []byte {
	var body []byte
	protocol := byte(dissecttest.TCP)
	if family == dissect.CLC {
		body = binary.BigEndian.AppendUint16(body, uint16(10000+i))
		body = binary.BigEndian.AppendUint16(body, 5000)
		body = append(body, 0, 0, 0, 1, 0, 0, 0, 1, 5<<4, dissecttest.ACK, 0xff, 0xff, 0, 0, 0, 0)
		body = append(body, message...)
	} else {
		protocol = dissecttest.UDP
		p := roce.Packet{BTH: roce.BTH{Opcode: roce.SendOnly, DestQPN: 17, PSN: 1, PKey: roce.DefaultPKey}, Payload: message}
		datagram := append(p.Append(nil), 0, 0, 0, 0) // the ICRC is not looked at
		body = binary.BigEndian.AppendUint16(body, 49152)
		body = binary.BigEndian.AppendUint16(body, roce.Port)
		body = binary.BigEndian.AppendUint16(body, uint16(8+len(datagram)))
		body = append(body, 0, 0)
		body = append(body, datagram...)
	}
	frame := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0}
	frame = binary.BigEndian.AppendUint16(frame, uint16(20+len(body)))
	frame = append(frame, 0, 0, 0x40, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2)
	return append(frame, body...)
}
