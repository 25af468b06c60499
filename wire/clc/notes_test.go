package clc

import (
	"net/netip"

	"github.com/gosmc/smc/wire"
)

// notes are version 1 messages of Linux on the loopback device; see testdata/README.md.
var notes = []vector{
	{
		name: "notes: Proposal IPv4",
		hex: `e2 d4 c3 d9 01 00 34 10  b1 a0 98 03 9b ab cd ef
			fe 80 00 00 00 00 00 00  9a 03 9b ff fe ab cd ef
			98 03 9b ab cd ef 00 00  7f 00 00 00 08 00 00 00
			e2 d4 c3 d9`,
		msg: Proposal{
			Version: V1, V1: TypesR, V2: TypesNone, PeerID: testPeer, GID: testGID, MAC: testMAC,
			IP: &IPArea{IPv4: netip.MustParsePrefix("127.0.0.0/8")},
		},
	}, {
		name: "notes: Proposal IPv6",
		hex: `e2 d4 c3 d9 01 00 45 10  39 44 98 03 9b ab cd ef
			fe 80 00 00 00 00 00 00  9a 03 9b ff fe ab cd ef
			98 03 9b ab cd ef 00 00  00 00 00 00 00 00 00 01
			00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 01
			80 e2 d4 c3 d9`,
		msg: Proposal{
			Version: V1, V1: TypesR, V2: TypesNone, GID: testGID, MAC: testMAC,
			PeerID: wire.PeerID{0x39, 0x44, 0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef},
			IP:     &IPArea{IPv6: []netip.Prefix{netip.MustParsePrefix("::1/128")}},
		},
	}, {
		name: "notes: Accept",
		hex: `e2 d4 c3 d9 02 00 44 18  b1 a0 98 03 9b ab cd ef
			fe 80 00 00 00 00 00 00  9a 03 9b ff fe ab cd ef
			98 03 9b ab cd ef 00 00  e4 00 00 15 7d 01 00 00
			00 05 23 00 00 00 00 00  f0 a6 00 00 00 72 f5 fe
			e2 d4 c3 d9`,
		msg: Accept{Version: V1, FirstContact: true, R: &ParamsR{
			PeerID: testPeer, GID: testGID, MAC: testMAC, QPN: 228, RKey: 5501, RMBEIndex: 1,
			AlertToken: 5, RMBESize: 2, MTU: wire.MTU1024, RMBAddr: 0xf0a60000, PSN: 7534078,
		}},
	}, {
		name: "notes: Confirm",
		hex: `e2 d4 c3 d9 03 00 44 10  b1 a0 98 03 9b ab cd ef
			fe 80 00 00 00 00 00 00  9a 03 9b ff fe ab cd ef
			98 03 9b ab cd ef 00 00  e5 00 00 18 7f 01 00 00
			00 06 23 00 00 00 00 00  f0 a4 00 00 00 0d 89 a4
			e2 d4 c3 d9`,
		msg: Confirm{Version: V1, R: &ParamsR{
			PeerID: testPeer, GID: testGID, MAC: testMAC, QPN: 229, RKey: 6271, RMBEIndex: 1,
			AlertToken: 6, RMBESize: 2, MTU: wire.MTU1024, RMBAddr: 0xf0a40000, PSN: 887204,
		}},
	}, {
		name: "notes: Decline",
		hex: `e2 d4 c3 d9 04 00 1c 10  25 25 25 25 25 25 25 00
			03 03 00 00 00 00 00 00  e2 d4 c3 d9`,
		msg: Decline{
			Version: V1, Diagnosis: DiagNoDevice,
			PeerID: wire.PeerID{0x25, 0x25, 0x25, 0x25, 0x25, 0x25, 0x25, 0x00},
		},
	},
}
