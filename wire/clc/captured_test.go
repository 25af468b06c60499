package clc

import (
	_ "embed"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
)

//go:embed testdata/captured.txt
var capturedText string

// A frame is one line of testdata/captured.txt.
type frameLine struct {
	capture, number, kind, hex string
}

func capturedLines(t testing.TB) []frameLine {
	t.Helper()
	var lines []frameLine
	for line := range strings.Lines(capturedText) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		if len(f) != 4 {
			t.Fatalf("bad line in captured.txt: %q", line)
		}
		lines = append(lines, frameLine{f[0], f[1], f[2], f[3]})
	}
	return lines
}

const (
	capD    = "linux-6.12-smcdv21-loopback-ism.pcap"
	capOne  = "linux-6.12-smcrv2-one-link.pcap"
	capTwo  = "linux-6.12-smcrv2-two-links.pcap"
	capNone = "linux-6.12-rxe-verbs.pcap"
)

var (
	labEID    = eid("SMCV2-LAB-UEID")
	labDevice = ISMDevice{wire.ISMGID{Hi: 0xe34ad0f52d1878b5, Lo: 0x15959739727ee7be}, wire.CHIDLoopback}
	labFCED   = &FCE{OS: OSLinux, Release: Release1, HostName: "(none)", Features: FeatureEmulatedISM}
	labFCER   = &FCE{
		Direct: true, OS: OSLinux, Release: Release1, HostName: "(none)",
		MaxConns: 255, MaxLinks: 2, Features: FeatureEmulatedISM,
	}
)

func gid4(s string) wire.GID { return wire.GIDFromAddr(netip.MustParseAddr(s)) }

func labProposalD() Proposal {
	return Proposal{
		Version: V2, V1: TypesNone, V2: TypesD,
		Ext: &ProposalV2{
			Release: Release1, Features: FeatureEmulatedISM, UEIDs: []wire.EID{labEID},
			D: &ProposalDv2{Devices: []ISMDevice{labDevice}},
		},
	}
}

func labProposalR() Proposal {
	return Proposal{
		Version: V2, V1: TypesNone, V2: TypesR,
		Ext: &ProposalV2{
			Release: Release1, GID: gid4("192.168.76.2"), MaxConns: 255, MaxLinks: 2,
			Features: FeatureEmulatedISM, UEIDs: []wire.EID{labEID},
		},
	}
}

func labParamsD(token wire.Token, link wire.LinkID) *ParamsD {
	return &ParamsD{GID: labDevice.GID, CHID: labDevice.CHID, Token: token, DMBESize: 2, LinkID: link}
}

// labHost has the values that stay the same in all messages of one host of a capture.
type labHost struct {
	peer uint64
	gid  string
	mac  wire.MAC
	qpn  wire.QPN
	rkey wire.RKey
	addr uint64
	psn  wire.PSN
}

var (
	oneServer  = labHost{0xf619525400000001, "192.168.76.1", wire.MAC{0x52, 0x54, 0, 0, 0, 1}, 0x11, 0x304, 0xff33410403340000, 0xd109b7}
	oneClient  = labHost{0x9a2c525400000002, "192.168.76.2", wire.MAC{0x52, 0x54, 0, 0, 0, 2}, 0x11, 0x3ec, 0xff432b9ec3460000, 0x62e745}
	twoServer  = labHost{0x2d97525400000001, "192.168.76.1", wire.MAC{0x52, 0x54, 0, 0, 0, 1}, 0x11, 0x372, 0xff2265d883500000, 0xcbde5f}
	twoServerB = labHost{0x2d97525400000001, "192.168.76.11", wire.MAC{0x52, 0x54, 0, 0, 1, 1}, 0x11, 0x484, 0xff2265d883d20000, 0x5ddafc}
	twoClient  = labHost{0xf43f525400000002, "192.168.76.2", wire.MAC{0x52, 0x54, 0, 0, 0, 2}, 0x11, 0x34f, 0xff4338b903710000, 0x2b56bd}
	twoClientB = labHost{0xf43f525400000002, "192.168.76.12", wire.MAC{0x52, 0x54, 0, 0, 1, 2}, 0x11, 0x41f, 0xff4338b903f70000, 0x8cca82}
)

func (h labHost) params(token wire.AlertToken) *ParamsR {
	p := &ParamsR{
		GID: gid4(h.gid), MAC: h.mac, QPN: h.qpn, RKey: h.rkey, RMBEIndex: 1, AlertToken: token,
		RMBESize: 2, MTU: wire.MTU1024, RMBAddr: h.addr, PSN: h.psn,
	}
	for i := range p.PeerID {
		p.PeerID[i] = byte(h.peer >> (56 - 8*i))
	}
	return p
}

// capturedMessages has the meaning of every CLC message in testdata/captured.txt.
func capturedMessages() map[string]Message {
	m := map[string]Message{}
	proposals := func(capture string, p Proposal, frames ...int) {
		for _, n := range frames {
			m[fmt.Sprint(capture, " ", n)] = p
		}
	}
	proposals(capD, labProposalD(), 4, 16, 28)
	proposals(capOne, labProposalR(), 4)
	proposals(capTwo, labProposalR(), 4, 200, 262, 324, 369, 396, 440)

	const tokenA, tokenB, tokenC = 0xdc9a19f66d32c61c, 0xaee1d80d3310e7c0, 0xcc272b8333cc25fb
	m[capD+" 6"] = Accept{Version: V2, FirstContact: true, D: labParamsD(tokenA, 0x00010000), EID: labEID, FCE: labFCED}
	m[capD+" 8"] = Confirm{Version: V2, FirstContact: true, D: labParamsD(tokenB, 0x00020000), EID: labEID, FCE: labFCED}
	m[capD+" 18"] = Accept{Version: V2, D: labParamsD(tokenA, 0x00010000), EID: labEID}
	m[capD+" 20"] = Confirm{Version: V2, D: labParamsD(tokenC, 0x00010000), EID: labEID}
	m[capD+" 30"] = Accept{Version: V2, D: labParamsD(tokenC, 0x00010000), EID: labEID}
	m[capD+" 32"] = Confirm{Version: V2, D: labParamsD(tokenA, 0x00010000), EID: labEID}

	m[capOne+" 6"] = Accept{Version: V2, FirstContact: true, R: oneServer.params(1), EID: labEID, FCE: labFCER}
	m[capOne+" 8"] = Confirm{
		Version: V2, FirstContact: true, R: oneClient.params(1), EID: labEID, FCE: labFCER,
		ClientGIDs: []wire.GID{gid4("192.168.76.2")},
	}
	m[capTwo+" 6"] = Accept{Version: V2, FirstContact: true, R: twoServer.params(1), EID: labEID, FCE: labFCER}
	m[capTwo+" 8"] = Confirm{
		Version: V2, FirstContact: true, R: twoClient.params(1), EID: labEID, FCE: labFCER,
		ClientGIDs: []wire.GID{gid4("192.168.76.2"), gid4("192.168.76.12")},
	}
	for i, later := range []struct {
		accept, confirm int
		server, client  labHost
	}{
		{206, 212, twoServer, twoClient},
		{268, 274, twoServer, twoClient},
		{330, 336, twoServer, twoClient},
		{375, 381, twoServer, twoClient},
		{402, 408, twoServerB, twoClientB},
		{446, 452, twoServerB, twoClientB},
	} {
		token := wire.AlertToken(i + 2)
		m[fmt.Sprint(capTwo, " ", later.accept)] = Accept{Version: V2, R: later.server.params(token), EID: labEID}
		m[fmt.Sprint(capTwo, " ", later.confirm)] = Confirm{Version: V2, R: later.client.params(token), EID: labEID}
	}
	return m
}

// captured returns the CLC messages in testdata/captured.txt as vectors.
func captured(t testing.TB) []vector {
	t.Helper()
	messages := capturedMessages()
	var all []vector
	for _, line := range capturedLines(t) {
		if strings.HasPrefix(line.kind, "syn") {
			continue
		}
		key := line.capture + " " + line.number
		msg, ok := messages[key]
		if !ok {
			t.Fatalf("captured.txt has %s, capturedMessages has not", key)
		}
		delete(messages, key)
		all = append(all, vector{name: key, hex: line.hex, msg: msg})
	}
	for key := range messages {
		t.Fatalf("capturedMessages has %s, captured.txt has not", key)
	}
	return all
}

// TestCapturedOptions looks for the SMC option in the TCP options of every captured SYN and
// SYN-ACK.
func TestCapturedOptions(t *testing.T) {
	for _, line := range capturedLines(t) {
		if !strings.HasPrefix(line.kind, "syn") {
			continue
		}
		options := unhex(t, line.hex)
		want := line.capture != capNone
		if got := HasOption(options); got != want {
			t.Errorf("%s %s: HasOption(%x) = %v, want %v", line.capture, line.number, options, got, want)
		}
		if tail := string(AppendOptionPadded(nil)); want && !strings.HasSuffix(string(options), tail) {
			t.Errorf("%s %s: options %x do not end with %x", line.capture, line.number, options, tail)
		}
	}
}
