package run

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gosmc/smc/wire/clc"
)

// testMessage is a message as the library lays it out: preload/src/preload.h.
func testMessage(m message) []byte {
	b := make([]byte, messageLen)
	b[0], b[1] = byte(m.kind), messageVersion
	binary.NativeEndian.PutUint16(b[2:], messageLen)
	if m.ipv6 {
		binary.NativeEndian.PutUint32(b[4:], flagIPv6)
	}
	binary.NativeEndian.PutUint64(b[8:], m.netns)
	for i, a := range []netip.AddrPort{m.local, m.peer} {
		ip := a.Addr().As16()
		copy(b[16+16*i:], ip[:])
		binary.NativeEndian.PutUint16(b[48+2*i:], a.Port())
	}
	binary.NativeEndian.PutUint64(b[56:], m.unique)
	return b
}

func TestParseMessage(t *testing.T) {
	want := message{
		kind: kindOffer, ipv6: true, netns: 7, unique: 1 << 60,
		local: netip.MustParseAddrPort("[2001:db8::1]:40000"), peer: netip.MustParseAddrPort("192.0.2.1:80"),
	}
	b := testMessage(want)
	if got, err := parseMessage(b); err != nil || got != want {
		t.Errorf("parseMessage = %+v, %v; want %+v", got, err, want)
	}
	if got := want.append(nil); !bytes.Equal(got, b) {
		t.Errorf("append = %x\nwant     %x", got, b)
	}
	for n := range b {
		if _, err := parseMessage(b[:n]); err == nil {
			t.Errorf("parseMessage of %d bytes: no error", n)
		}
	}
	for name, change := range map[string]func(b []byte){
		"kind 0":       func(b []byte) { b[0] = 0 },
		"kind 10":      func(b []byte) { b[0] = 10 },
		"version":      func(b []byte) { b[1] = 2 },
		"length field": func(b []byte) { b[2]++ },
	} {
		wrong := bytes.Clone(b)
		change(wrong)
		if _, err := parseMessage(wrong); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := parseMessage(append(b, 0)); err == nil {
		t.Error("a byte too many: no error")
	}
}

func TestReply(t *testing.T) {
	r := reply{kindOffer, statusNo, clc.DiagNotAllowed}
	b := r.append(nil)
	if want := []byte{0x82, 1}; !bytes.Equal(b[:2], want) || len(b) != replyLen || binary.NativeEndian.Uint16(b[2:]) != replyLen ||
		binary.NativeEndian.Uint32(b[4:]) != 1 || binary.NativeEndian.Uint32(b[8:]) != 0x7e010016 {
		t.Errorf("append = %x", b)
	}
	if got, err := parseReply(b, kindOffer); err != nil || got != r {
		t.Errorf("parseReply = %+v, %v; want %+v", got, err, r)
	}
	for n := range b {
		if _, err := parseReply(b[:n], kindOffer); err == nil {
			t.Errorf("parseReply of %d bytes: no error", n)
		}
	}
	for name, i := range map[string]int{"kind": 0, "version": 1, "length field": 2, "status": 5} {
		wrong := bytes.Clone(b)
		wrong[i] ^= 0x40
		if _, err := parseReply(wrong, kindOffer); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestName(t *testing.T) {
	n := name{
		role: roleServer, ipv6: true, unique: 0x123456789abcdef0,
		local: netip.MustParseAddrPort("127.0.0.1:80"), peer: netip.MustParseAddrPort("[::1]:40000"),
	}
	const want = "@gosmc/1/s/6/00000000000000000000ffff7f000001.0050/00000000000000000000000000000001.9c40/123456789abcdef0"
	if got := n.String(); got != want {
		t.Errorf("String = %s\nwant     %s", got, want)
	}
	if got, ok := parseName(want); !ok || got != n {
		t.Errorf("parseName = %+v, %t; want %+v", got, ok, n)
	}
	for i := range len(want) {
		if _, ok := parseName(want[:i]); ok {
			t.Errorf("parseName(%q): true", want[:i])
		}
	}
}

func FuzzName(f *testing.F) {
	f.Add("@gosmc/1/c/4/00000000000000000000ffff7f000001.0050/00000000000000000000ffff7f000001.9c40/123456789abcdef0")
	f.Add("@gosmc/1/x/4///")
	f.Fuzz(func(t *testing.T, s string) {
		n, ok := parseName(s)
		if !ok {
			return
		}
		if again, ok := parseName(n.String()); !ok || again != n {
			t.Errorf("parseName(%q) = %+v, then %+v, %t", s, n, again, ok)
		}
	})
}
