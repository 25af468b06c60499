package render

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
	"github.com/gosmc/smc/wire/roce"
)

// A sample is a message for the tests that walk all of them.
type sample struct {
	name    string
	event   *dissect.Event
	partial bool // has bytes that mean nothing, or ends early
}

// hexBytes returns the bytes of hexadecimal digits with white space between them.
func hexBytes(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatalf("bad hexadecimal digits: %v", err)
	}
	return b
}

func mustEID(s string) wire.EID {
	e, err := wire.ParseEID(s)
	if err != nil {
		panic(err)
	}
	return e
}

var (
	samplePeer = wire.PeerID{0xb1, 0xa0, 0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef}
	sampleMAC  = wire.MAC{0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef}
	sampleGID6 = wire.GIDFromAddr(netip.MustParseAddr("fe80::9a03:9bff:feab:cdef"))
	sampleGID4 = wire.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))
	sampleUUID = wire.ISMGID{Hi: 0xe34ad0f52d1878b5, Lo: 0x15959739727ee7be}

	sampleR = &clc.ParamsR{
		PeerID: samplePeer, GID: sampleGID4, MAC: sampleMAC, QPN: 0x010203, RKey: 0x04050607, RMBEIndex: 1,
		AlertToken: 0x08090a0b, RMBESize: 2, MTU: wire.MTU4096, RMBAddr: 0x1112131415161718, PSN: 0x191a1b,
	}
	sampleD = &clc.ParamsD{
		GID: wire.ISMGID{Hi: 0x2122232425262728}, CHID: 7, Token: 0x3132333435363738, DMBEIndex: 4, DMBESize: 6, LinkID: 0x100,
	}
	sampleE = &clc.ParamsD{GID: sampleUUID, CHID: wire.CHIDLoopback, Token: 0x3132333435363738, DMBESize: 2, LinkID: 0x10000}

	sampleFCE = &clc.FCE{
		Direct: true, OS: clc.OSLinux, Release: clc.Release1, HostName: "host-1", MaxConns: 32, MaxLinks: 2,
		Features: clc.FeatureEmulatedISM | 0x8000, VendorOptions: [4]byte{1, 2, 3, 4},
	}
	sampleFCE0 = &clc.FCE{OS: clc.OSZOS, HostName: "ZOS1"}
)

// sampleMessages are messages of every type, version and form, with all optional parts.
func sampleMessages() []any {
	var m []any
	add := func(messages ...any) { m = append(m, messages...) }

	// Proposals.
	v4 := &clc.IPArea{IPv4: netip.MustParsePrefix("192.0.2.0/24")}
	v6 := &clc.IPArea{IPv6: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("::1/128")}}
	base := clc.Proposal{Version: clc.V1, V1: clc.TypesR, V2: clc.TypesNone, PeerID: samplePeer, GID: sampleGID6, MAC: sampleMAC, IP: v4}
	both := base
	both.V1, both.ISMGID, both.ISMCHID, both.IP = clc.TypesBoth, 0x2122232425262728, 7, v6
	ext := &clc.ProposalV2{
		Release: clc.Release1, UEIDs: []wire.EID{mustEID("EID-ONE"), mustEID("EID.TWO")}, GID: sampleGID4,
		MaxConns: 255, MaxLinks: 2, Features: clc.FeatureEmulatedISM,
	}
	extD := *ext
	extD.D = &clc.ProposalDv2{HasSEID: true, SEID: mustEID("SYSTEM-EID"), Devices: []clc.ISMDevice{
		{GID: wire.ISMGID{Hi: 0x0102030405060708}, CHID: 0x10}, {GID: sampleUUID, CHID: wire.CHIDLoopback},
		{GID: sampleUUID, CHID: wire.CHIDEmulatedFirst},
	}}
	all := both
	all.Version, all.V2, all.Ext = clc.V2, clc.TypesBoth, &extD
	all.VendorOUI, all.VendorOptions = [3]byte{0, 7, 2}, [5]byte{1, 2, 3, 4, 5}
	onlyR := clc.Proposal{Version: clc.V2, V1: clc.TypesNone, V2: clc.TypesR, Ext: ext}
	gid6 := *ext
	gid6.GID, gid6.Release, gid6.UEIDs = sampleGID6, clc.Release0, nil
	old := clc.Proposal{Version: clc.V2, V1: clc.TypesR, V2: clc.TypesR, PeerID: samplePeer, IP: v4, Ext: &gid6}
	onlyV1 := base
	onlyV1.Version = clc.V2
	bothV4 := both
	bothV4.V1, bothV4.IP = clc.TypesD, v4
	add(base, both, bothV4, all, onlyR, old, onlyV1)

	// Accepts and Confirms.
	for _, v := range []clc.Version{clc.V1, clc.V2} {
		for _, first := range []bool{false, true} {
			for _, fce := range []*clc.FCE{nil, sampleFCE0, sampleFCE} {
				for _, p := range []struct {
					r *clc.ParamsR
					d *clc.ParamsD
				}{{r: sampleR}, {d: sampleD}, {d: sampleE}} {
					a := clc.Accept{Version: v, FirstContact: first, R: p.r, D: p.d, FCE: fce}
					if v == clc.V2 {
						a.EID = mustEID("EID-ONE")
					}
					c := clc.Confirm{Version: v, FirstContact: first, R: p.r, D: p.d, EID: a.EID, FCE: fce}
					if c.R != nil && c.FCE != nil {
						c.ClientGIDs = []wire.GID{sampleGID4, sampleGID6, {}}
					}
					if a.Validate() == nil {
						add(a, c)
					}
				}
			}
		}
	}

	// Declines.
	add(clc.Decline{Version: clc.V1, PeerID: samplePeer, Diagnosis: clc.DiagNoDevice},
		clc.Decline{Version: clc.V2, OutOfSync: true, Diagnosis: clc.DiagSync, OS: clc.OSLinux},
		clc.Decline{Version: clc.V2, Diagnosis: 0x12345678, OS: clc.OSZOS, ByType: clc.DiagnosisByType{
			SMCDv2: 1, SMCDv1: 2, SMCRv2: 3, SMCRv1: clc.DiagNoSMCRDevice,
		}})

	// LLC.
	pair := llc.RKeyPair{Reference: 0x41424344, New: llc.RToken{RKey: 0x51525354, VA: 0x6162636465666768}}
	here := llc.RToken{RKey: 0xd1d2d3d4, VA: 0xd5d6d7d8d9dadbdc}
	token := llc.LinkRToken{Link: 2, RToken: here}
	for _, form := range []llc.Form{llc.V1, llc.V2, llc.V2Little} {
		for _, reply := range []bool{false, true} {
			h := llc.Header{Form: form, Reply: reply}
			candidates := []llc.Message{
				llc.ConfirmLink{Header: h, CacheSize: llc.NoEyecatcher, MAC: sampleMAC, GID: sampleGID6, QPN: 0x010203, Link: 1, LinkUserID: 0x101, MaxLinks: 2, MaxConns: 255},
				llc.AddLink{Header: h, MAC: sampleMAC, GID: sampleGID4, QPN: 0x010203, Link: 2, MTU: wire.MTU1024, PSN: 0x0a0b0c},
				llc.AddLink{Header: h, MAC: sampleMAC, GID: sampleGID4, QPN: 0x010203, Link: 2, MTU: 7, PSN: 0x0a0b0c, Direct: true, TargetGID: sampleGID6, RKeys: []llc.RKeyPair{pair, pair, pair, pair, pair, pair}},
				llc.AddLink{Header: h, Rejected: true, Reason: llc.RejectNoPath, MAC: sampleMAC, GID: sampleGID4, Link: 2},
				llc.AddLinkCont{Header: h, Link: 2},
				llc.AddLinkCont{Header: h, Link: 2, Remaining: 3, RKeys: []llc.RKeyPair{pair, pair}},
				llc.DeleteLink{Header: h, Link: 1, Orderly: true, Reason: llc.DeleteOperator},
				llc.DeleteLink{Header: h, All: true, Reason: llc.DeleteViolation},
				llc.RequestAddLink{Header: h, GIDs: []wire.GID{sampleGID4, sampleGID6}},
				llc.RequestAddLink{Header: h, Rejected: true, Reason: llc.RejectNoPath},
				llc.ConfirmRKey{Header: h, RToken: here},
				llc.ConfirmRKey{Header: h, RToken: here, Remaining: 2, Others: []llc.LinkRToken{token, token}},
				llc.ConfirmRKey{Header: h, RToken: here, Remaining: 7, Others: []llc.LinkRToken{token, token}},
				llc.ConfirmRKey{Header: h, RToken: here, Negative: true, Retry: true},
				llc.ConfirmRKeyCont{Header: h, Remaining: 5, RTokens: []llc.LinkRToken{token, token, token}},
				llc.ConfirmRKeyCont{Header: h, Negative: true, Remaining: 1, RTokens: []llc.LinkRToken{token}},
				llc.DeleteRKey{Header: h, RKeys: []wire.RKey{0x501}},
				llc.DeleteRKey{Header: h, RKeys: []wire.RKey{1, 2, 3, 4, 5, 6, 7, 8}, Negative: true, ErrorMask: 0x81, Count: 9, Invalid: 8},
				llc.DeleteRKey{Header: h, RKeys: make([]wire.RKey, 40), Count: 40},
				llc.TestLink{Header: h, UserData: [16]byte{1, 2, 3, 15: 16}},
				llc.TestLink{Header: h},
			}
			for _, c := range candidates {
				if c.Validate() == nil {
					add(c)
				}
			}
		}
	}

	// CDC.
	add(cdc.Message{Seq: 1, AlertToken: 0x1a, Producer: cdc.Cursor{Wrap: 1, Count: 100}, Consumer: cdc.Cursor{Count: 0x10000}},
		&cdc.Message{Seq: 65535, AlertToken: 5, ProducerFlags: 0xf0, ConnFlags: 0xe0},
		cdc.NewFailoverValidation(7, 9),
		cdc.Header{Producer: cdc.Cursor{Wrap: 1, Count: 100}, Consumer: cdc.Cursor{Wrap: 2, Count: 200}, ProducerFlags: cdc.UrgentPresent, ConnFlags: cdc.Closed},
		&cdc.Header{})

	// RoCE.
	for op := range 256 {
		if p := (&roce.Packet{BTH: roce.BTH{Opcode: roce.Opcode(op), AckReq: true, FECN: op&1 != 0, PKey: roce.DefaultPKey, DestQPN: 17, PSN: 0x2b56bd}}); p.Opcode.Known() {
			p.RETH = roce.RETH{VA: 0xff4338b903710000, RKey: 0x34f, Length: 1000}
			p.AETH = roce.AETH{Syndrome: roce.AckUnlimited, MSN: 12}
			p.Imm, p.InvalidateRKey, p.AtomicAck = 0x01020304, 5, 6
			p.Atomic = roce.AtomicETH{VA: 1, RKey: 2, SwapAdd: 3, Compare: 4}
			p.Payload = bytes.Repeat([]byte{0xda}, op%8)
			add(p)
		}
	}
	add(dissect.Option{Present: true}, dissect.Option{SYNACK: true, Present: true}, dissect.Option{SYNACK: true})
	return m
}

// samples returns all messages for the tests: the messages above, messages of real kernels, and
// messages with bytes that lie or mean nothing.
func samples(t testing.TB) []sample {
	t.Helper()
	var list []sample
	for _, m := range sampleMessages() {
		e := dissect.MessageEvent(m, nil)
		list = append(list, sample{Describe(m, nil), e, false})
	}
	for _, file := range []string{"clc", "llc", "cdc"} {
		text, err := os.ReadFile("../../../wire/" + file + "/testdata/captured.txt")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 4 || f[0] == "#" || f[2] == "syn" || f[2] == "syn-ack" {
				continue
			}
			e := dissect.MessageEvent(nil, hexBytes(t, f[len(f)-1]))
			if e.Message == nil {
				t.Errorf("%s: frame %s of %s does not decode: %v", file, f[1], f[0], e.Problems)
			}
			list = append(list, sample{f[0] + " " + f[1], e, false})
		}
	}
	ack := &dissect.Event{Family: dissect.RoCE, Bytes: hexBytes(t, "11000000 00000011 00cbde5f 61000001 01020304")}
	for _, e := range []*dissect.Event{
		ack,
		{Family: dissect.RoCE, Bytes: hexBytes(t, "11000000 00000011 00cbde5f 2a000001 01020304")},
		{Family: dissect.RoCE, Bytes: hexBytes(t, "11000000 00000011 00cbde5f c0000001 01020304")},
		{Family: dissect.RoCE, Bytes: hexBytes(t, "11000000 00000011 00cbde5f 05000001 01020304"), RoCE: &dissect.Transport{ICRC: dissect.ICRCBad}},
	} {
		list = append(list, sample{"acknowledgement", e, false})
	}
	clcHead := "e2d4c3d9 "
	zeros := strings.Repeat("00", 120)
	for _, lie := range []struct {
		family dissect.Family
		hex    string
	}{
		{dissect.CLC, clcHead + "05 0034 10" + zeros}, // no type
		{dissect.CLC, clcHead + "01 0000 23" + zeros}, // length zero
		{dissect.CLC, clcHead + "01 ffff 23" + zeros}, // length beyond the end
		{dissect.CLC, clcHead + "02 0044 23" + zeros}, // no SMC type
		{dissect.CLC, clcHead + "04 001c 10" + zeros}, // more bytes than the message
		{dissect.CLC, clcHead + "01 0080 23" + strings.Repeat("ff", 120)},
		{dissect.CLC, clcHead + "01 0080 13" + strings.Repeat("ff", 120)},
		{dissect.CLC, clcHead + "01 0080 20" + strings.Repeat("00", 30) + "0000" + strings.Repeat("00", 88)},
		{dissect.CLC, "00000000 01 0034 10" + zeros},
		{dissect.LLC, "80ff" + zeros}, {dissect.LLC, "fe" + zeros}, {dissect.LLC, "0f2c" + zeros}, {dissect.LLC, "312c" + zeros}, {dissect.LLC, "05" + zeros},
		{dissect.LLC, "22ffff00" + zeros}, {dissect.LLC, "0200" + zeros}, {dissect.LLC, "22005c00" + zeros[:80] + "00000000" + zeros[:52] + "ffff" + zeros[:40]},
		{dissect.CDC, "012c" + zeros}, {dissect.CDC, "fe00" + zeros}, {dissect.CDC, "fe2c" + zeros},
		{dissect.RoCE, "ff00" + zeros}, {dissect.RoCE, "0a30" + "00000000001100cbde5f" + zeros[:36]}, {dissect.RoCE, "11"},
		{dissect.TCPOption, "fe08e2d4c3d90000"}, {dissect.TCPOption, "fe"},
	} {
		list = append(list, sample{"lie " + lie.hex[:min(24, len(lie.hex))], &dissect.Event{Family: lie.family, Bytes: hexBytes(t, lie.hex)}, true})
	}
	return list
}
