package clc

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
)

// A vector is a message as bytes and as a value.
type vector struct {
	name string
	hex  string // blanks separate fields
	msg  Message
	// received marks a message of a form that is read but never sent.
	received bool
}

// unhex returns the bytes of hexadecimal digits with white space between them.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatalf("bad vector: %v", err)
	}
	return b
}

// z returns n zero bytes in hexadecimal.
func z(n int) string { return strings.Repeat("00", n) }

// text returns s padded with blanks to 32 bytes, in hexadecimal.
func text(s string) string { return hex.EncodeToString([]byte(s + strings.Repeat(" ", 32-len(s)))) }

// eid returns the EID with the text s.
func eid(s string) wire.EID {
	e, err := wire.ParseEID(s)
	if err != nil {
		panic(err)
	}
	return e
}

var (
	testPeer = wire.PeerID{0xb1, 0xa0, 0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef}
	testMAC  = wire.MAC{0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef}
	testGID  = wire.GIDFromAddr(netip.MustParseAddr("fe80::9a03:9bff:feab:cdef"))
	testGID4 = wire.GIDFromAddr(netip.MustParseAddr("192.0.2.1"))

	testParamsR = ParamsR{
		PeerID: testPeer, GID: testGID4, MAC: testMAC, QPN: 0x010203, RKey: 0x04050607, RMBEIndex: 1,
		AlertToken: 0x08090a0b, RMBESize: 2, MTU: wire.MTU4096, RMBAddr: 0x1112131415161718, PSN: 0x191a1b,
	}
	testParamsD = ParamsD{GID: wire.ISMGID{Hi: 0x2122232425262728}, Token: 0x3132333435363738, DMBEIndex: 0, DMBESize: 6, LinkID: 0x100}
)

const (
	hexPeer    = "b1a098039babcdef"
	hexMAC     = "98039babcdef"
	hexGID     = "fe800000000000009a039bfffeabcdef"
	hexGID4    = "00000000000000000000ffffc0000201"
	hexParamsR = hexPeer + hexGID4 + hexMAC + " 010203 04050607 01 08090a0b 25 00 1112131415161718 00 191a1b "
	hexParamsD = " 2122232425262728 3132333435363738 00 60 0000 00000100 "
	smcr       = " e2d4c3d9 "
	smcd       = " e2d4c3c4 "
)

// vectors are laid out by hand from the layout tables, that is from RFC 7609 pp.92-106 and SMCv2
// pp.53-79; lengths as Linux net/smc sends them.
var vectors = []vector{
	{
		name: "Proposal v1 R and D",
		hex: smcr + "01 005c 13" + hexPeer + hexGID + hexMAC + "0028" +
			"2122232425262728 0000 0000" + z(28) + "c0000200 18 0000 00" + smcr,
		msg: Proposal{
			Version: V1, V1: TypesBoth, V2: TypesNone, PeerID: testPeer, GID: testGID, MAC: testMAC,
			ISMGID: 0x2122232425262728, IP: &IPArea{IPv4: netip.MustParsePrefix("192.0.2.0/24")},
		},
	}, {
		name: "Proposal v1 D",
		hex: smcr + "01 005c 11" + z(8) + z(16) + z(6) + "0028" +
			"2122232425262728 8001 0000" + z(28) + "c0000200 18 0000 00" + smcr,
		msg: Proposal{
			Version: V1, V1: TypesD, V2: TypesNone, ISMGID: 0x2122232425262728, ISMCHID: 0x8001,
			IP: &IPArea{IPv4: netip.MustParsePrefix("192.0.2.0/24")},
		},
	}, {
		// RFC 7609 p.96 has the area for future growth anywhere; the ISM CHID does not fit this one.
		name: "Proposal v1 D, small growth area",
		hex: smcr + "01 003c 11" + z(8) + z(16) + z(6) + "0008" + "2122232425262728" +
			"c0000200 18 0000 00" + smcr,
		msg: Proposal{
			Version: V1, V1: TypesD, V2: TypesNone, ISMGID: 0x2122232425262728,
			IP: &IPArea{IPv4: netip.MustParsePrefix("192.0.2.0/24")},
		},
		received: true,
	}, {
		// Linux since 5.10 with version 1 only: header version 2, no extension.
		name: "Proposal v2 header, v1 R",
		hex:  smcr + "01 005c 28" + hexPeer + hexGID + hexMAC + "0028" + z(40) + "c0000200 18 0000 00" + smcr,
		msg: Proposal{
			Version: V2, V1: TypesR, V2: TypesNone, PeerID: testPeer, GID: testGID, MAC: testMAC,
			IP: &IPArea{IPv4: netip.MustParsePrefix("192.0.2.0/24")},
		},
	}, {
		// Linux 5.10 to 6.5: release 0.
		name: "Proposal v2.0 D with SEID",
		hex: smcr + "01 00b6 26" + z(8) + z(16) + z(6) + "0000" + z(10) + "001c" + z(28) +
			"00 01 00 01 0000 0020" + z(16) + z(16) + text("SYSTEM-EID") + z(16) + "2122232425262728 8001" + smcr,
		msg: Proposal{
			Version: V2, V1: TypesNone, V2: TypesD,
			Ext: &ProposalV2{D: &ProposalDv2{
				HasSEID: true, SEID: eid("SYSTEM-EID"),
				Devices: []ISMDevice{{wire.ISMGID{Hi: 0x2122232425262728}, 0x8001}},
			}},
		},
	}, {
		name: "Proposal v2.1, everything at its maximum",
		hex: smcr + "01 028c 2f" + hexPeer + hexGID + hexMAC + "0028" +
			"2122232425262728 8001 00ac 0a0b0c 0102030405" + z(20) +
			z(7) + "08" + strings.Repeat("20010db8000100020000000000000000 40", 7) + "20010db8000000000000000000000001 80" +
			"08 08 00 11 0000 0120" + hexGID4 + "ff 02 0001" + z(12) +
			text("A") + text("B") + text("C") + text("D") + text("E") + text("F") + text("G") + text("H") +
			text("SEID") + z(16) +
			"0000000000000001 0001" + "a1a2a3a4a5a6a7a8 ffff b1b2b3b4b5b6b7b8 ffff" +
			"0000000000000002 feff" + "a1a2a3a4a5a6a7a8 ff00 0000000000000000 ff00" +
			"a1a2a3a4a5a6a7a8 ffff b1b2b3b4b5b6b7b8 ffff" + smcr,
		msg: Proposal{
			Version: V2, V1: TypesBoth, V2: TypesBoth, PeerID: testPeer, GID: testGID, MAC: testMAC,
			ISMGID: 0x2122232425262728, ISMCHID: 0x8001,
			VendorOUI: [3]byte{10, 11, 12}, VendorOptions: [5]byte{1, 2, 3, 4, 5},
			IP: &IPArea{IPv6: append(repeat(netip.MustParsePrefix("2001:db8:1:2::/64"), 7), netip.MustParsePrefix("2001:db8::1/128"))},
			Ext: &ProposalV2{
				Release: Release1, GID: testGID4, MaxConns: 255, MaxLinks: 2, Features: FeatureEmulatedISM,
				UEIDs: []wire.EID{eid("A"), eid("B"), eid("C"), eid("D"), eid("E"), eid("F"), eid("G"), eid("H")},
				D: &ProposalDv2{
					HasSEID: true, SEID: eid("SEID"),
					Devices: []ISMDevice{
						{wire.ISMGID{Hi: 1}, 1},
						{wire.ISMGID{Hi: 0xa1a2a3a4a5a6a7a8, Lo: 0xb1b2b3b4b5b6b7b8}, wire.CHIDLoopback},
						{wire.ISMGID{Hi: 2}, wire.CHIDEmulatedFirst - 1},
						{wire.ISMGID{Hi: 0xa1a2a3a4a5a6a7a8}, wire.CHIDEmulatedFirst},
						{wire.ISMGID{Hi: 0xa1a2a3a4a5a6a7a8, Lo: 0xb1b2b3b4b5b6b7b8}, wire.CHIDLoopback},
					},
				},
			},
		},
	}, {
		// SMCv2 p.60, note 1: the SMC-Dv2 extension may be missing; the ISM device of the base
		// message is then the only one, and SMCv2 p.56 has an IP area that is to be ignored.
		name: "Proposal v2.1 D without SMC-Dv2 extension",
		hex: smcr + "01 00bc 26" + z(8) + z(16) + hexMAC + "0028" + "2122232425262728 8001 0024" + z(28) +
			"c0000200 18 0000 00" + "01 00 00 11 0000 0000" + z(16) + "00 00 0000" + z(12) + text("A") + z(24) + smcr,
		msg: Proposal{
			Version: V2, V1: TypesNone, V2: TypesD, MAC: testMAC, ISMGID: 0x2122232425262728, ISMCHID: 0x8001,
			Ext: &ProposalV2{Release: Release1, UEIDs: []wire.EID{eid("A")}},
		},
		received: true,
	}, {
		name: "Proposal v2 R without v2 extension",
		hex:  smcd + "01 005c 20" + hexPeer + hexGID + hexMAC + "0028" + z(40) + "c0000200 18 0000 00" + smcd,
		msg: Proposal{
			Version: V2, V1: TypesR, V2: TypesR, PeerID: testPeer, GID: testGID, MAC: testMAC,
			IP: &IPArea{IPv4: netip.MustParsePrefix("192.0.2.0/24")},
		},
		received: true,
	}, {
		// Release 0 has no vendor options, maxima and features; the SEID is there only with its flag.
		name: "Proposal v2.0 with values in reserved places",
		hex: smcr + "01 00f4 2e" + z(8) + z(16) + z(6) + "0000" + z(10) + "001c 0a0b0c 0102030405" + z(20) +
			"02 00 ff 0e ffff 0064" + hexGID4 + "ff 02 0001" + strings.Repeat("ff", 12) + text("A") + text("B") + "deadbeef" +
			text("SEID") + strings.Repeat("ff", 16) + "deadbeef" + smcr,
		msg: Proposal{
			Version: V2, V1: TypesNone, V2: TypesBoth,
			Ext: &ProposalV2{GID: testGID4, UEIDs: []wire.EID{eid("A"), eid("B")}, D: &ProposalDv2{}},
		},
		received: true,
	}, {
		name: "Accept v1 D",
		hex:  smcd + "02 0030 19" + hexParamsD + z(12) + smcd,
		msg:  Accept{Version: V1, FirstContact: true, D: &testParamsD},
	}, {
		name: "Accept v2.0 R, first contact",
		hex: smcr + "02 0090 28" + hexParamsR + text("UEID") + z(8) +
			"80 20 0000" + text("server") + smcr,
		msg: Accept{
			Version: V2, FirstContact: true, R: &testParamsR, EID: eid("UEID"),
			FCE: &FCE{Direct: true, OS: OSLinux, HostName: "server"},
		},
	}, {
		// Linux since 6.6 sends the long FCE even in release 0.
		name: "Accept v2.0 R, first contact, long FCE",
		hex: smcr + "02 00a0 28" + hexParamsR + text("UEID") + z(8) +
			"80 20 0000" + text("server") + "ff 02 0001 01020304" + z(8) + smcr,
		msg: Accept{
			Version: V2, FirstContact: true, R: &testParamsR, EID: eid("UEID"),
			FCE: &FCE{Direct: true, OS: OSLinux, HostName: "server"},
		},
		received: true,
	}, {
		name: "Accept v2.1 R, first contact, short FCE",
		hex: smcr + "02 0090 28" + hexParamsR + text("UEID") + z(8) +
			"00 11 0000" + text("zos.example") + smcr,
		msg: Accept{
			Version: V2, FirstContact: true, R: &testParamsR, EID: eid("UEID"),
			FCE: &FCE{OS: OSZOS, Release: Release1, HostName: "zos.example"},
		},
		received: true,
	}, {
		name: "Accept v2.1 R, first contact",
		hex: smcr + "02 00a0 2c" + hexParamsR + text("UEID") + z(8) +
			"00 31 0000" + text("a-name-of-exactly-32-characters-") + "10 01 8001 01020304" + z(8) + smcr,
		msg: Accept{
			Version: V2, FirstContact: true, R: &testParamsR, EID: eid("UEID"),
			FCE: &FCE{
				OS: OSAIX, Release: Release1, HostName: "a-name-of-exactly-32-characters-",
				MaxConns: 16, MaxLinks: 1, Features: 0x8001, VendorOptions: [4]byte{1, 2, 3, 4},
			},
			ReasonKept: true,
		},
	}, {
		// SMCv2 p.61: an FCE without first contact is tolerated and ignored.
		name: "Accept v2.1 R, FCE without first contact",
		hex: smcr + "02 00a0 20" + hexParamsR + text("UEID") + z(8) +
			"80 21 0000" + text("server") + "ff 02 0001 00000000" + z(8) + smcr,
		msg:      Accept{Version: V2, R: &testParamsR, EID: eid("UEID")},
		received: true,
	}, {
		name: "Accept of a later release, longer than known",
		hex: smcr + "02 00a4 98" + hexParamsR + text("UEID") + z(8) +
			"80 2f 0000" + text("server") + "ff 02 0003 00000000" + z(8) + "deadbeef" + smcr,
		msg: Accept{
			Version: V2, FirstContact: true, R: &testParamsR, EID: eid("UEID"),
			FCE: &FCE{Direct: true, OS: OSLinux, Release: 15, HostName: "server", MaxConns: 255, MaxLinks: 2, Features: 3},
		},
		received: true,
	}, {
		name: "Accept v2.0 D, native ISM, first contact",
		hex: smcd + "02 0072 29" + hexParamsD + "8001" + text("UEID") + z(8) +
			"00 20 0000" + text("server") + smcd,
		msg: Accept{
			Version: V2, FirstContact: true, EID: eid("UEID"),
			D:   &ParamsD{GID: testParamsD.GID, CHID: 0x8001, Token: testParamsD.Token, DMBESize: 6, LinkID: 0x100},
			FCE: &FCE{OS: OSLinux, HostName: "server"},
		},
	}, {
		name: "Accept v2.1 D, Emulated-ISM, first contact",
		hex: smcd + "02 0082 29" + hexParamsD + "ff00" + text("UEID") + "b1b2b3b4b5b6b7b8" +
			"00 21 0000" + text("") + "00 00 0001 01020304" + z(8) + smcd,
		msg: Accept{
			Version: V2, FirstContact: true, EID: eid("UEID"),
			D: &ParamsD{
				GID: wire.ISMGID{Hi: 0x2122232425262728, Lo: 0xb1b2b3b4b5b6b7b8}, CHID: wire.CHIDEmulatedFirst,
				Token: testParamsD.Token, DMBESize: 6, LinkID: 0x100,
			},
			FCE: &FCE{OS: OSLinux, Release: Release1, Features: FeatureEmulatedISM, VendorOptions: [4]byte{1, 2, 3, 4}},
		},
	}, {
		// The second part of the GID, the maxima and the direct flag belong to others.
		name: "Accept v2.1 D with values in reserved places",
		hex: smcd + "02 0082 29" + hexParamsD + "8001" + text("UEID") + "b1b2b3b4b5b6b7b8" +
			"80 21 0000" + text("server") + "ff 02 0000 00000000" + z(8) + smcd,
		msg: Accept{
			Version: V2, FirstContact: true, EID: eid("UEID"),
			D:   &ParamsD{GID: testParamsD.GID, CHID: 0x8001, Token: testParamsD.Token, DMBESize: 6, LinkID: 0x100},
			FCE: &FCE{OS: OSLinux, Release: Release1, HostName: "server"},
		},
		received: true,
	}, {
		// The MTU is to be looked at on first contact only: RFC 7609 p.100.
		name: "Accept v2 R, later contact, reserved MTU",
		hex: smcr + "02 006c 20" + hexPeer + hexGID4 + hexMAC +
			"010203 04050607 01 08090a0b 2f 00 1112131415161718 00 191a1b" + text("UEID") + z(8) + smcr,
		msg: Accept{Version: V2, EID: eid("UEID"), R: &ParamsR{
			PeerID: testPeer, GID: testGID4, MAC: testMAC, QPN: 0x010203, RKey: 0x04050607, RMBEIndex: 1,
			AlertToken: 0x08090a0b, RMBESize: 2, MTU: 15, RMBAddr: 0x1112131415161718, PSN: 0x191a1b,
		}},
	}, {
		name: "Confirm v1 D",
		hex:  smcd + "03 0030 11" + hexParamsD + z(12) + smcd,
		msg:  Confirm{Version: V1, D: &testParamsD},
	}, {
		name: "Confirm v1 R with the bit of first contact",
		hex:  smcr + "03 0044 18" + hexParamsR + smcr,
		msg:  Confirm{Version: V1, R: &testParamsR},

		received: true,
	}, {
		// In release 0 the list of GIDs follows the short FCE and 16 reserved bytes.
		name: "Confirm v2.0 R, first contact",
		hex: smcr + "03 00c4 28" + hexParamsR + text("UEID") + z(8) +
			"80 20 0000" + text("client") + z(16) + "02 000000" + hexGID4 + hexGID + smcr,
		msg: Confirm{
			Version: V2, FirstContact: true, R: &testParamsR, EID: eid("UEID"),
			FCE:        &FCE{Direct: true, OS: OSLinux, HostName: "client"},
			ClientGIDs: []wire.GID{testGID4, testGID},
		},
	}, {
		name: "Confirm v2.1 R, first contact, 8 GIDs",
		hex: smcr + "03 0124 28" + hexParamsR + text("UEID") + z(8) +
			"00 11 0000" + text("client") + "20 02 0000 00000000" + z(8) + "08 000000" + strings.Repeat(hexGID, 8) + smcr,
		msg: Confirm{
			Version: V2, FirstContact: true, R: &testParamsR, EID: eid("UEID"),
			FCE:        &FCE{OS: OSZOS, Release: Release1, HostName: "client", MaxConns: 32, MaxLinks: 2},
			ClientGIDs: repeat(testGID, 8),
		},
	}, {
		name: "Confirm v2.1 R, first contact, no GIDs",
		hex: smcr + "03 00a0 28" + hexParamsR + text("UEID") + z(8) +
			"00 11 0000" + text("client") + "20 02 0000 00000000" + z(8) + smcr,
		msg: Confirm{
			Version: V2, FirstContact: true, R: &testParamsR, EID: eid("UEID"),
			FCE: &FCE{OS: OSZOS, Release: Release1, HostName: "client", MaxConns: 32, MaxLinks: 2},
		},
		received: true,
	}, {
		name: "Confirm v2 R",
		hex:  smcr + "03 006c 20" + hexParamsR + text("UEID") + z(8) + smcr,
		msg:  Confirm{Version: V2, R: &testParamsR, EID: eid("UEID")},
	}, {
		name: "Confirm v2 D",
		hex:  smcd + "03 004e 21" + hexParamsD + "8001" + text("UEID") + z(8) + smcd,
		msg: Confirm{
			Version: V2, EID: eid("UEID"),
			D: &ParamsD{GID: testParamsD.GID, CHID: 0x8001, Token: testParamsD.Token, DMBESize: 6, LinkID: 0x100},
		},
	}, {
		name: "Decline v1, out of sync",
		hex:  smcr + "04 001c 18" + hexPeer + "04000000 20 000000" + smcr,
		msg:  Decline{Version: V1, OutOfSync: true, PeerID: testPeer, Diagnosis: DiagSync, OS: OSLinux},
	}, {
		name: "Decline v2",
		hex:  smcr + "04 002c 20" + z(8) + "03030008 20 000000" + z(16) + smcr,
		msg:  Decline{Version: V2, Diagnosis: DiagNoUEID, OS: OSLinux},
	}, {
		name: "Decline v2 of z/OS",
		hex:  smcd + "04 002c 20" + hexPeer + "52060001 10 000000 50010001 50010002 50010003 50010004" + smcd,
		msg: Decline{
			Version: V2, PeerID: testPeer, Diagnosis: 0x52060001, OS: OSZOS,
			ByType: DiagnosisByType{SMCDv2: 0x50010001, SMCDv1: 0x50010002, SMCRv2: 0x50010003, SMCRv1: 0x50010004},
		},
		received: true,
	}, {
		// Linux 5.10 to 5.15.
		name:     "Decline v2, 28 bytes",
		hex:      smcr + "04 001c 20" + z(8) + "03030000 20 000000" + smcr,
		msg:      Decline{Version: V2, Diagnosis: DiagNoDevice, OS: OSLinux},
		received: true,
	}, {
		// SMCv2 p.78 allows version 1 in the long form.
		name: "Decline v1, 44 bytes",
		hex:  smcr + "04 002c 10" + z(8) + "03030000 30 000000" + z(12) + "03030002" + smcr,
		msg: Decline{
			Version: V1, Diagnosis: DiagNoDevice, OS: OSAIX, ByType: DiagnosisByType{SMCRv1: DiagNoSMCRDevice},
		},
		received: true,
	}, {
		name: "Decline v2, longer than known",
		hex:  smcr + "04 0030 20" + z(8) + "03030000 20 000000" + z(12) + "03030002 deadbeef" + smcr,
		msg: Decline{
			Version: V2, Diagnosis: DiagNoDevice, OS: OSLinux, ByType: DiagnosisByType{SMCRv1: DiagNoSMCRDevice},
		},
		received: true,
	},
}

// repeat returns n times v.
func repeat[T any](v T, n int) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = v
	}
	return s
}

// allVectors returns every vector: those above, the dumps of version 1, and the captures.
func allVectors(t testing.TB) []vector {
	t.Helper()
	all := append([]vector{}, vectors...)
	all = append(all, notes...)
	return append(all, captured(t)...)
}
