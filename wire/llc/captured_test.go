package llc

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
)

//go:embed testdata/captured.txt
var capturedText string

const (
	capOne = "linux-6.12-smcrv2-one-link.pcap"
	capTwo = "linux-6.12-smcrv2-two-links.pcap"
)

// labMAC returns the MAC of a host (1 the server, 2 the client) and one of its adapters (0 or 1).
func labMAC(host, adapter byte) wire.MAC { return wire.MAC{0x52, 0x54, 0, 0, adapter, host} }

// labGID returns the address of the same adapter.
func labGID(host, adapter byte) wire.GID { return gid(fmt.Sprintf("192.168.76.%d", 10*adapter+host)) }

// capturedMessages returns the messages in testdata/captured.txt, by capture and frame. All of them
// are as the Linux of a little-endian machine sends them.
func capturedMessages() map[string]Message {
	m := map[string]Message{}
	put := func(capture string, msg Message, frames ...int) {
		for _, frame := range frames {
			m[fmt.Sprint(capture, " ", frame)] = msg
		}
	}
	confirmLink := func(h Header, host, adapter byte, qpn wire.QPN, link byte) ConfirmLink {
		return ConfirmLink{
			Header: h, CacheSize: NoEyecatcher, MAC: labMAC(host, adapter), GID: labGID(host, adapter), QPN: qpn,
			Link: LinkNum(link), LinkUserID: wire.LinkID(0x0100 + int(link)), MaxLinks: 2, MaxConns: 255,
		}
	}
	addLink := func(h Header, host, adapter byte, qpn wire.QPN, link LinkNum, psn wire.PSN, pair RKeyPair) AddLink {
		return AddLink{
			Header: h, MAC: labMAC(host, adapter), GID: labGID(host, adapter), QPN: qpn, Link: link, MTU: wire.MTU1024, PSN: psn,
			Direct: true, TargetGID: labGID(host, adapter), RKeys: []RKeyPair{pair},
		}
	}
	for _, capture := range []string{capOne, capTwo} {
		put(capture, confirmLink(request2l, 1, 0, 0x11, 1), 10)
		put(capture, confirmLink(reply2l, 2, 0, 0x11, 1), 12)
	}

	asymmetric := addLink(request2l, 1, 0, 0x12, 2, 0x4ec373, RKeyPair{0x304, RToken{0x5d2, 0xff33410403340000}})
	put(capOne, asymmetric, 14)
	rejected := asymmetric
	rejected.Header, rejected.Rejected = reply2l, true
	rejected.Direct, rejected.TargetGID, rejected.RKeys = false, wire.GID{}, nil
	put(capOne, rejected, 16)

	// The first RMBs of the server and of the client, on links 1 and 2, then their second ones.
	server, server2 := RToken{0x372, 0xff2265d883500000}, RToken{0x33f, 0xff2265d883500000}
	client, client2 := RToken{0x34f, 0xff4338b903710000}, RToken{0x3cb, 0xff4338b903710000}
	serverB2, serverB := RToken{0x484, 0xff2265d883d20000}, RToken{0x4f5, 0xff2265d883d20000}
	clientB2, clientB := RToken{0x41f, 0xff4338b903f70000}, RToken{0x490, 0xff4338b903f70000}
	put(capTwo, addLink(request2l, 1, 1, 0x11, 2, 0x5ddafc, RKeyPair{server.RKey, server2}), 14)
	put(capTwo, addLink(reply2l, 2, 1, 0x11, 2, 0x8cca82, RKeyPair{client.RKey, client2}), 16)
	put(capTwo, confirmLink(request2l, 1, 1, 0x11, 2), 18)
	put(capTwo, confirmLink(reply2l, 2, 1, 0x11, 2), 20)
	confirm := func(rtoken RToken, link LinkNum, other RToken, requests, replies []int) {
		c := ConfirmRKey{Header: request2l, RToken: rtoken, Remaining: 1, Others: []LinkRToken{{link, other}}}
		put(capTwo, c, requests...)
		c.Reply = true
		put(capTwo, c, replies...)
	}
	confirm(server, 2, server2, []int{202, 264, 326, 371}, []int{204, 266, 328, 373})
	confirm(client, 2, client2, []int{208, 270, 332, 377}, []int{210, 272, 334, 379})
	confirm(serverB2, 1, serverB, []int{398, 442}, []int{400, 444})
	confirm(clientB2, 1, clientB, []int{404, 448}, []int{406, 450})
	remove := func(rtoken RToken, requests ...int) {
		put(capTwo, DeleteRKey{Header: request2l, RKeys: []wire.RKey{rtoken.RKey}}, requests...)
	}
	remove(server, 191, 313, 356)
	remove(client, 189, 312, 357)
	remove(serverB, 429, 598)
	remove(clientB, 431, 600)
	put(capTwo, DeleteRKey{Header: reply2l, Count: 1}, 192, 195, 316, 319, 360, 361, 432, 435, 602, 603)

	// Link 1 is lost, and link 3 takes its place.
	put(capTwo, DeleteLink{Header: request2l, Orderly: true, Link: 1, Reason: DeleteLostPath}, 606, 608)
	put(capTwo, DeleteLink{Header: reply2l, Orderly: true, Link: 1, Reason: DeleteUnknownLink}, 610)
	put(capTwo, addLink(request2l, 1, 0, 0x12, 3, 0x93b0e8, RKeyPair{server2.RKey, RToken{0x6a1, server.VA}}), 612)
	put(capTwo, addLink(reply2l, 2, 1, 0x12, 3, 0x2ab257, RKeyPair{client2.RKey, RToken{0x689, client.VA}}), 614)
	put(capTwo, confirmLink(request2l, 1, 0, 0x12, 3), 616)
	put(capTwo, confirmLink(reply2l, 2, 1, 0x12, 3), 618)
	put(capTwo, DeleteLink{Header: request2l, All: true, Reason: DeleteOperator}, 623)
	put(capTwo, DeleteLink{Header: request2l, All: true, Orderly: true, Reason: DeleteOperator}, 625)
	put(capTwo, TestLink{Header: request2l}, 722)
	return m
}

// captured returns the messages in testdata/captured.txt as vectors.
func captured(t testing.TB) []vector {
	t.Helper()
	messages := capturedMessages()
	var all []vector
	for line := range strings.Lines(capturedText) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		if len(f) != 5 {
			t.Fatalf("bad line in captured.txt: %q", line)
		}
		key := f[0] + " " + f[1]
		msg, ok := messages[key]
		if !ok {
			t.Fatalf("captured.txt has %s, capturedMessages has not", key)
		}
		delete(messages, key)
		all = append(all, vector{name: key, hex: f[4], msg: msg})
	}
	for key := range messages {
		t.Fatalf("capturedMessages has %s, captured.txt has not", key)
	}
	return all
}
