package llc

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

func gid(s string) wire.GID { return wire.GIDFromAddr(netip.MustParseAddr(s)) }

// Headers of every form.
var (
	request1  = Header{Form: V1}
	reply1    = Header{Form: V1, Reply: true}
	request2  = Header{Form: V2}
	reply2    = Header{Form: V2, Reply: true}
	request2l = Header{Form: V2Little}
	reply2l   = Header{Form: V2Little, Reply: true}
)

var (
	testMAC  = wire.MAC{0x98, 0x03, 0x9b, 0xab, 0xcd, 0xef}
	testGID  = gid("fe80::9a03:9bff:feab:cdef")
	testGID4 = gid("192.0.2.1")

	pairs = []RKeyPair{
		{0x41424344, RToken{0x51525354, 0x6162636465666768}},
		{0x71727374, RToken{0x81828384, 0x9192939495969798}},
	}
	tokens = []LinkRToken{
		{2, RToken{0xa1a2a3a4, 0xa5a6a7a8a9aaabac}},
		{3, RToken{0xb1b2b3b4, 0xb5b6b7b8b9babbbc}},
		{4, RToken{0xc1c2c3c4, 0xc5c6c7c8c9cacbcc}},
	}
	here = RToken{0xd1d2d3d4, 0xd5d6d7d8d9dadbdc}
)

const (
	hexMAC   = "98039babcdef"
	hexGID   = "fe800000000000009a039bfffeabcdef"
	hexGID4  = "00000000000000000000ffffc0000201"
	hexPair0 = "41424344 51525354 6162636465666768"
	hexPair1 = "71727374 81828384 9192939495969798"
	hexTok0  = "02 a1a2a3a4 a5a6a7a8a9aaabac"
	hexTok1  = "03 b1b2b3b4 b5b6b7b8b9babbbc"
	hexTok2  = "04 c1c2c3c4 c5c6c7c8c9cacbcc"
	hexHere  = "d1d2d3d4 d5d6d7d8d9dadbdc"
	hexKeys8 = "00000101 00000102 00000103 00000104 00000105 00000106 00000107 00000108"
	hexData  = "000102030405060708090a0b0c0d0e0f"
)

// rkeys returns n different RKeys: 0x101, 0x102 and so on.
func rkeys(n int) []wire.RKey {
	keys := make([]wire.RKey, n)
	for i := range keys {
		keys[i] = wire.RKey(0x101 + i)
	}
	return keys
}

// manyPairs returns n different RKey pairs, and in hexadecimal.
func manyPairs(n int) ([]RKeyPair, string) {
	var list []RKeyPair
	var b []byte
	for i := range n {
		p := RKeyPair{wire.RKey(i), RToken{wire.RKey(i + 0x1000), uint64(i) << 32}}
		list = append(list, p)
		b = append(b, 0, 0, 0, byte(i), 0, 0, 0x10, byte(i), 0, 0, 0, byte(i), 0, 0, 0, 0)
	}
	return list, hex.EncodeToString(b)
}

func (a AddLink) with(change func(*AddLink)) AddLink { change(&a); return a }

var testAddLink = AddLink{
	Header: request1, MAC: testMAC, GID: testGID, QPN: 0x010203, Link: 2, MTU: wire.MTU1024, PSN: 0x0a0b0c,
}

const hexAddLink = hexMAC + "0000" + hexGID + "010203 02 03 0a0b0c" + "0000000000000000"

// Laid out by hand from RFC 7609 pp.107-124; spaces follow the layout tables. ADD LINK has the two
// reserved bytes of Linux net/smc.
var vectorsV1 = []vector{
	{name: "CONFIRM LINK v1 request", hex: "01 2c 00 00" + hexMAC + hexGID + "010203 04 05060708 09 00" + z(8), msg: ConfirmLink{
		Header: request1, MAC: testMAC, GID: testGID, QPN: 0x010203, Link: 4, LinkUserID: 0x05060708, MaxLinks: 9,
	}},
	{name: "CONFIRM LINK v1 reply of Linux", hex: "01 2c 00 83" + hexMAC + hexGID + "ffffff 01 00000101 02 00" + z(8), msg: ConfirmLink{
		Header: reply1, CacheSize: NoEyecatcher, MAC: testMAC, GID: testGID, QPN: wire.MaxQPN, Link: 1, LinkUserID: 0x101, MaxLinks: 2,
	}},
	{name: "ADD LINK v1 request", hex: "02 2c 00 00" + hexAddLink, msg: testAddLink},
	{name: "ADD LINK v1 reply", hex: "02 2c 00 80" + hexAddLink, msg: testAddLink.with(func(a *AddLink) { a.Reply = true })},
	{name: "ADD LINK v1 rejected", hex: "02 2c 01 c0" + hexAddLink, msg: testAddLink.with(func(a *AddLink) {
		a.Reply, a.Rejected, a.Reason = true, true, RejectNoPath
	})},
	{name: "ADD LINK v1 rejected for its MTU", hex: "02 2c 02 c0" + hexMAC + "0000" + hexGID + "010203 02 0f 0a0b0c" + z(8), msg: testAddLink.with(func(a *AddLink) {
		a.Reply, a.Rejected, a.Reason, a.MTU = true, true, RejectMTU, 15
	})},
	{name: "ADD LINK v1 of a client", hex: "02 2c 00 00" + hexMAC + "0000" + hexGID + z(16), msg: AddLink{
		Header: request1, MAC: testMAC, GID: testGID,
	}},
	{name: "ADD LINK v1 of zeros", hex: "02 2c 00 00" + z(40), msg: AddLink{Header: request1}, received: true},
	{name: "ADD LINK CONTINUATION request", hex: "03 2c 00 00 02 ff 0000" + hexPair0 + hexPair1 + z(4), msg: AddLinkCont{
		Header: request1, Link: 2, Remaining: 255, RKeys: pairs,
	}},
	{name: "ADD LINK CONTINUATION reply", hex: "03 2c 00 80 02 02 0000" + hexPair1 + hexPair0 + z(4), msg: AddLinkCont{
		Header: reply1, Link: 2, Remaining: 2, RKeys: []RKeyPair{pairs[1], pairs[0]},
	}},
	{name: "ADD LINK CONTINUATION of one", hex: "03 2c 00 00 02 01 0000" + hexPair0 + z(20), msg: AddLinkCont{
		Header: request1, Link: 2, Remaining: 1, RKeys: pairs[:1],
	}},
	{name: "ADD LINK CONTINUATION of none", hex: "03 2c 00 80 02 00 0000" + z(36), msg: AddLinkCont{Header: reply1, Link: 2}},
	{name: "DELETE LINK v1 request", hex: "04 2c 00 00 02 00010000" + z(35), msg: DeleteLink{Header: request1, Link: 2, Reason: DeleteLostPath}},
	{name: "DELETE LINK v1 all", hex: "04 2c 00 60 00 00030000" + z(35), msg: DeleteLink{
		Header: request1, All: true, Orderly: true, Reason: DeleteProgram,
	}},
	{name: "DELETE LINK v1 reply", hex: "04 2c 00 a0 07 00100000" + z(35), msg: DeleteLink{
		Header: reply1, Orderly: true, Link: 7, Reason: DeleteUnknownLink,
	}},
	{name: "CONFIRM RKEY v1 request", hex: "06 2c 00 00 02" + hexHere + hexTok0 + hexTok1 + "00", msg: ConfirmRKey{
		Header: request1, RToken: here, Remaining: 2, Others: tokens[:2],
	}},
	{name: "CONFIRM RKEY v1 of one", hex: "06 2c 00 80 00" + hexHere + z(27), msg: ConfirmRKey{Header: reply1, RToken: here}},
	{name: "CONFIRM RKEY v1 of all 8 links", hex: "06 2c 00 00 07" + hexHere + hexTok0 + hexTok1 + "00", msg: ConfirmRKey{
		Header: request1, RToken: here, Remaining: 7, Others: tokens[:2],
	}},
	{name: "CONFIRM RKEY v1 negative", hex: "06 2c 00 a0 01" + hexHere + hexTok0 + z(14), msg: ConfirmRKey{
		Header: reply1, Negative: true, RToken: here, Remaining: 1, Others: tokens[:1],
	}},
	{name: "CONFIRM RKEY v1 negative, retry", hex: "06 2c 00 b0 01" + hexHere + hexTok0 + z(14), msg: ConfirmRKey{
		Header: reply1, Negative: true, Retry: true, RToken: here, Remaining: 1, Others: tokens[:1],
	}},
	{name: "TEST LINK v1 request", hex: "07 2c 00 00" + hexData + z(24), msg: TestLink{Header: request1, UserData: [16]byte(unhexData())}},
	{name: "TEST LINK v1 reply", hex: "07 2c 00 80" + hexData + z(24), msg: TestLink{Header: reply1, UserData: [16]byte(unhexData())}},
	{name: "CONFIRM RKEY CONTINUATION request", hex: "08 2c 00 00 05" + hexTok0 + hexTok1 + hexTok2, msg: ConfirmRKeyCont{
		Header: request1, Remaining: 5, RTokens: tokens,
	}},
	{name: "CONFIRM RKEY CONTINUATION reply", hex: "08 2c 00 80 02" + hexTok1 + hexTok2 + z(13), msg: ConfirmRKeyCont{
		Header: reply1, Remaining: 2, RTokens: tokens[1:],
	}},
	{name: "CONFIRM RKEY CONTINUATION negative", hex: "08 2c 00 a0 03" + hexTok0 + hexTok1 + hexTok2, msg: ConfirmRKeyCont{
		Header: reply1, Negative: true, Remaining: 3, RTokens: tokens,
	}},
	{name: "CONFIRM RKEY CONTINUATION of none", hex: "08 2c 00 00 00" + z(39), msg: ConfirmRKeyCont{Header: request1}},
	{name: "DELETE RKEY v1 request", hex: "09 2c 00 00 08 00 0000" + hexKeys8 + z(4), msg: DeleteRKey{Header: request1, RKeys: rkeys(8)}},
	{name: "DELETE RKEY v1 of one", hex: "09 2c 00 00 01 00 0000 00000101" + z(32), msg: DeleteRKey{Header: request1, RKeys: rkeys(1)}},
	{name: "DELETE RKEY v1 reply", hex: "09 2c 00 80 02 00 0000 00000101 00000102" + z(28), msg: DeleteRKey{Header: reply1, RKeys: rkeys(2)}},
	{name: "DELETE RKEY v1 negative", hex: "09 2c 00 a0 08 50 0000" + hexKeys8 + z(4), msg: DeleteRKey{
		Header: reply1, Negative: true, RKeys: rkeys(8), ErrorMask: 0x50,
	}},
	{name: "DELETE RKEY v1 of none", hex: "09 2c 00 00 00 00" + z(38), msg: DeleteRKey{Header: request1}, received: true},
}

func unhexData() []byte { b, _ := hex.DecodeString(hexData); return b }

// Laid out by hand from SMCv2 pp.81-97, in the form specified and in the form of Linux net/smc.
var vectorsV2 = []vector{
	{name: "CONFIRM LINK v2 request", hex: "21 002c 00" + hexMAC + hexGID4 + "010203 04 05060708 02 ff" + z(8), msg: ConfirmLink{
		Header: request2, MAC: testMAC, GID: testGID4, QPN: 0x010203, Link: 4, LinkUserID: 0x05060708, MaxLinks: 2, MaxConns: 255,
	}},
	{name: "CONFIRM LINK v2 reply of Linux", hex: "21 2c00 8f" + hexMAC + hexGID4 + "010203 04 05060708 02 10" + z(8), msg: ConfirmLink{
		Header: reply2l, CacheSize: 15, MAC: testMAC, GID: testGID4, QPN: 0x010203, Link: 4, LinkUserID: 0x05060708, MaxLinks: 2, MaxConns: 16,
	}},
	{name: "ADD LINK v2 request", hex: "22 0068 00" + hexAddLink + "00 00" + hexGID4 + z(8) + "0002" + hexPair0 + hexPair1, msg: testAddLink.with(func(a *AddLink) {
		a.Form, a.TargetGID, a.RKeys = V2, testGID4, pairs
	})},
	{name: "ADD LINK v2 reply of Linux", hex: "22 6800 80" + hexAddLink + "80 00" + hexGID4 + z(8) + "0200" + hexPair0 + hexPair1, msg: testAddLink.with(func(a *AddLink) {
		a.Header, a.Direct, a.TargetGID, a.RKeys = reply2l, true, testGID4, pairs
	})},
	{name: "ADD LINK v2 without RKeys", hex: "22 0048 80" + hexAddLink + "00 00" + z(16) + z(8) + "0000", msg: testAddLink.with(func(a *AddLink) {
		a.Header = reply2
	})},
	{name: "ADD LINK v2 rejected", hex: "22 002c c2" + hexAddLink, msg: testAddLink.with(func(a *AddLink) {
		a.Header, a.Rejected, a.Reason = reply2, true, RejectMTU
	})},
	{name: "ADD LINK v2 rejected by Linux", hex: "22 2c00 c0" + hexAddLink, msg: testAddLink.with(func(a *AddLink) {
		a.Header, a.Rejected = reply2l, true
	})},
	{name: "ADD LINK v2 rejected at length", hex: "22 0048 c1" + hexAddLink + z(28), msg: testAddLink.with(func(a *AddLink) {
		a.Header, a.Rejected, a.Reason = reply2, true, RejectNoPath
	}), received: true},
	{name: "ADD LINK v2, fewer RKeys than announced", hex: "22 5800 00" + hexAddLink + "80 00" + hexGID4 + z(8) + "0300" + hexPair1, msg: testAddLink.with(func(a *AddLink) {
		a.Header, a.Direct, a.TargetGID, a.RKeys, a.Missing = request2l, true, testGID4, pairs[1:], 2
	}), received: true},
	{name: "ADD LINK v2, bytes after the RKeys", hex: "22 0069 00" + hexAddLink + "80 00" + hexGID4 + z(8) + "0001" + hexPair1 + z(17), msg: testAddLink.with(func(a *AddLink) {
		a.Header, a.Direct, a.TargetGID, a.RKeys = request2, true, testGID4, pairs[1:]
	}), received: true},
	{name: "ADD LINK v2, length and count in different orders", hex: "22 5800 00" + hexAddLink + "80 00" + hexGID4 + z(8) + "0001" + hexPair1, msg: testAddLink.with(func(a *AddLink) {
		a.Header, a.Direct, a.TargetGID, a.RKeys = request2l, true, testGID4, pairs[1:]
	}), received: true},
	{name: "DELETE LINK v2 request", hex: "24 002c 20 02 00050000" + z(35), msg: DeleteLink{
		Header: request2, Orderly: true, Link: 2, Reason: DeleteAsymmetric,
	}},
	{name: "DELETE LINK v2 all", hex: "24 2c00 40 00 00040000" + z(35), msg: DeleteLink{Header: request2l, All: true, Reason: DeleteViolation}},
	{name: "DELETE LINK v2 reply", hex: "24 2c00 80 01 00000000" + z(35), msg: DeleteLink{Header: reply2l, Link: 1}},
	{name: "REQUEST ADD LINK of one", hex: "25 002c 00" + z(20) + "01 000000" + hexGID4, msg: RequestAddLink{
		Header: request2, GIDs: []wire.GID{testGID4},
	}},
	{name: "REQUEST ADD LINK of Linux", hex: "25 3c00 00" + z(20) + "02 000000" + hexGID4 + hexGID, msg: RequestAddLink{
		Header: request2l, GIDs: []wire.GID{testGID4, testGID},
	}},
	{name: "REQUEST ADD LINK of eight", hex: "25 009c 00" + z(20) + "08 000000" + strings.Repeat(hexGID4+hexGID, 4), msg: RequestAddLink{
		Header: request2, GIDs: []wire.GID{testGID4, testGID, testGID4, testGID, testGID4, testGID, testGID4, testGID},
	}},
	{name: "REQUEST ADD LINK, bytes after the GIDs", hex: "25 9c00 00" + z(20) + "01 000000" + hexGID + z(112), msg: RequestAddLink{
		Header: request2l, GIDs: []wire.GID{testGID},
	}, received: true},
	{name: "REQUEST ADD LINK reply", hex: "25 2c00 80" + z(40), msg: RequestAddLink{Header: reply2l}},
	{name: "REQUEST ADD LINK rejected", hex: "25 002c c3" + z(40), msg: RequestAddLink{Header: reply2, Rejected: true, Reason: 3}},
	{name: "CONFIRM RKEY v2 request", hex: "26 002c 00 01" + hexHere + hexTok0 + z(14), msg: ConfirmRKey{
		Header: request2, RToken: here, Remaining: 1, Others: tokens[:1],
	}},
	{name: "CONFIRM RKEY v2 negative, retry", hex: "26 2c00 b0 02" + hexHere + hexTok0 + hexTok1 + "00", msg: ConfirmRKey{
		Header: reply2l, Negative: true, Retry: true, RToken: here, Remaining: 2, Others: tokens[:2],
	}},
	{name: "TEST LINK v2 request", hex: "27 002c 00" + hexData + z(24), msg: TestLink{Header: request2, UserData: [16]byte(unhexData())}},
	{name: "TEST LINK v2 reply of Linux", hex: "27 2c00 80" + z(40), msg: TestLink{Header: reply2l}},
	{name: "DELETE RKEY v2 of one", hex: "29 2c00 00 01 00 0000 00000101" + z(32), msg: DeleteRKey{Header: request2l, RKeys: rkeys(1)}},
	{name: "DELETE RKEY v2 of nine", hex: "29 002c 00 09 00 0000" + hexKeys8 + "00000109", msg: DeleteRKey{Header: request2, RKeys: rkeys(9)}},
	{name: "DELETE RKEY v2 of ten", hex: "29 0030 00 0a 00 0000" + hexKeys8 + "00000109 0000010a", msg: DeleteRKey{Header: request2, RKeys: rkeys(10)}},
	{name: "DELETE RKEY v2 reply", hex: "29 2c00 80 0a 00 0000" + z(36), msg: DeleteRKey{Header: reply2l, Count: 10}},
	{name: "DELETE RKEY v2 negative", hex: "29 002c a0 ff 09 0000" + hexKeys8 + z(4), msg: DeleteRKey{
		Header: reply2, Negative: true, RKeys: rkeys(8), Count: 255, Invalid: 9,
	}},
	{name: "DELETE RKEY v2 negative of Linux", hex: "29 2c00 a0 01 01" + z(38), msg: DeleteRKey{
		Header: reply2l, Negative: true, Count: 1, Invalid: 1,
	}},
	{name: "DELETE RKEY v2, RKeys in a positive reply", hex: "29 2c00 80 01 01 0000 00000101" + z(32), msg: DeleteRKey{
		Header: reply2l, Count: 1,
	}, received: true},
	{name: "DELETE RKEY v2 of none", hex: "29 2c00 00" + z(40), msg: DeleteRKey{Header: request2l}, received: true},
}

// largest returns the messages with the largest counts.
func largest() []vector {
	list, text := manyPairs(MaxRKeys)
	tie, tieText := manyPairs(124) // 2056 bytes, 0x0808
	add := testAddLink.with(func(a *AddLink) { a.Header, a.RKeys = request2, list })
	var keys []byte
	for _, k := range rkeys(MaxRKeys) {
		keys = append(keys, 0, 0, byte(k>>8), byte(k))
	}
	return []vector{
		{name: "ADD LINK v2 of 255 RKeys", hex: "22 1038 00" + hexAddLink + z(26) + "00ff" + text, msg: add},
		{name: "ADD LINK v2 of 255 RKeys of Linux", hex: "22 3810 00" + hexAddLink + z(26) + "ff00" + text,
			msg: add.with(func(a *AddLink) { a.Form = V2Little })},
		{name: "ADD LINK v2 of 124 RKeys", hex: "22 0808 00" + hexAddLink + z(26) + "007c" + tieText,
			msg: add.with(func(a *AddLink) { a.RKeys = tie })},
		{name: "ADD LINK v2 of 124 RKeys of Linux", hex: "22 0808 00" + hexAddLink + z(26) + "7c00" + tieText,
			msg: add.with(func(a *AddLink) { a.Form, a.RKeys = V2Little, tie })},
		{name: "DELETE RKEY v2 of 255", hex: "29 0404 00 ff 00 0000" + hex.EncodeToString(keys),
			msg: DeleteRKey{Header: request2, RKeys: rkeys(MaxRKeys)}},
	}
}

// allVectors returns every vector: those above, and the captures.
func allVectors(t testing.TB) []vector {
	t.Helper()
	all := append([]vector{}, vectorsV1...)
	all = append(all, vectorsV2...)
	all = append(all, largest()...)
	return append(all, captured(t)...)
}
