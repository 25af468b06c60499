package proto

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gosmc/smc/wire/clc"
)

// layout is a message as the library lays it out: preload/src/preload.h.
func layout(m Message) []byte {
	b := make([]byte, MessageLen)
	b[0], b[1] = byte(m.Kind), messageVersion
	binary.NativeEndian.PutUint16(b[2:], MessageLen)
	if m.IPv6 {
		binary.NativeEndian.PutUint32(b[4:], flagIPv6)
	}
	binary.NativeEndian.PutUint64(b[8:], m.NetNS)
	for i, a := range []netip.AddrPort{m.Local, m.Peer} {
		ip := a.Addr().As16()
		copy(b[16+16*i:], ip[:])
		binary.NativeEndian.PutUint16(b[48+2*i:], a.Port())
	}
	binary.NativeEndian.PutUint64(b[56:], m.Unique)
	return b
}

func TestParseMessage(t *testing.T) {
	want := Message{
		Kind: KindOffer, IPv6: true, NetNS: 7, Unique: 1 << 60,
		Local: netip.MustParseAddrPort("[2001:db8::1]:40000"), Peer: netip.MustParseAddrPort("192.0.2.1:80"),
	}
	b := layout(want)
	if got, err := ParseMessage(b); err != nil || got != want {
		t.Errorf("parseMessage = %+v, %v; want %+v", got, err, want)
	}
	if got := want.Append(nil); !bytes.Equal(got, b) {
		t.Errorf("append = %x\nwant     %x", got, b)
	}
	for n := range b {
		if _, err := ParseMessage(b[:n]); err == nil {
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
		if _, err := ParseMessage(wrong); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := ParseMessage(append(b, 0)); err == nil {
		t.Error("a byte too many: no error")
	}
}

func TestReply(t *testing.T) {
	r := Reply{KindOffer, StatusNo, clc.DiagNotAllowed}
	b := r.Append(nil)
	if want := []byte{0x82, 1}; !bytes.Equal(b[:2], want) || len(b) != ReplyLen || binary.NativeEndian.Uint16(b[2:]) != ReplyLen ||
		binary.NativeEndian.Uint32(b[4:]) != 1 || binary.NativeEndian.Uint32(b[8:]) != 0x7e010016 {
		t.Errorf("append = %x", b)
	}
	if got, err := ParseReply(b, KindOffer); err != nil || got != r {
		t.Errorf("parseReply = %+v, %v; want %+v", got, err, r)
	}
	for n := range b {
		if _, err := ParseReply(b[:n], KindOffer); err == nil {
			t.Errorf("parseReply of %d bytes: no error", n)
		}
	}
	for name, i := range map[string]int{"kind": 0, "version": 1, "length field": 2, "status": 5} {
		wrong := bytes.Clone(b)
		wrong[i] ^= 0x40
		if _, err := ParseReply(wrong, KindOffer); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestName(t *testing.T) {
	n := Name{
		Role: RoleServer, IPv6: true, Unique: 0x123456789abcdef0,
		Local: netip.MustParseAddrPort("127.0.0.1:80"), Peer: netip.MustParseAddrPort("[::1]:40000"),
	}
	const want = "@gosmc/1/s/6/00000000000000000000ffff7f000001.0050/00000000000000000000000000000001.9c40/123456789abcdef0"
	if got := n.String(); got != want {
		t.Errorf("String = %s\nwant     %s", got, want)
	}
	if got, ok := ParseName(want); !ok || got != n {
		t.Errorf("parseName = %+v, %t; want %+v", got, ok, n)
	}
	for i := range len(want) {
		if _, ok := ParseName(want[:i]); ok {
			t.Errorf("parseName(%q): true", want[:i])
		}
	}
}

func FuzzName(f *testing.F) {
	f.Add("@gosmc/1/c/4/00000000000000000000ffff7f000001.0050/00000000000000000000ffff7f000001.9c40/123456789abcdef0")
	f.Add("@gosmc/1/x/4///")
	f.Fuzz(func(t *testing.T, s string) {
		n, ok := ParseName(s)
		if !ok {
			return
		}
		if again, ok := ParseName(n.String()); !ok || again != n {
			t.Errorf("parseName(%q) = %+v, then %+v, %t", s, n, again, ok)
		}
	})
}
