package ism

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
)

var (
	testGID   = wire.ISMGID{Hi: 0x0001020304054607, Lo: 0x88090a0b0c0d0e0f}
	otherGID  = wire.ISMGID{Hi: 0x1011121314154617, Lo: 0x98191a1b1c1d1e1f}
	testNonce = [16]byte{0xa0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
)

// Laid out by hand from docs/shared-memory.md; spaces follow the layout table.
var messageVectors = []struct {
	name string
	hex  string
	msg  message
	fds  int
}{
	{"hello", "01 01 0048 00000000 676f736d6349534d 000102030405460788090a0b0c0d0e0f 101112131415461798191a1b1c1d1e1f a00102030405060708090a0b0c0d0e0f 00008000 00000000",
		message{kind: kindHello, gid: testGID, peerGID: otherGID, nonce: testNonce, slots: 32768}, 2},
	{"refuse user", "02 01 0010 00000000 00000002 00000000", message{kind: kindRefuse, reason: refuseUser}, 0},
	{"refuse unknown reason", "02 01 0010 00000000 ffffffff 00000000", message{kind: kindRefuse, reason: 0xffffffff}, 0},
	{"attach", "03 01 0018 00000000 0123456789abcdef 00010000 00000000", message{kind: kindAttach, token: 0x0123456789abcdef, size: 64 << 10}, 0},
	{"attached", "04 01 0020 00000000 0123456789abcdef 00010000 00000007 00000000 00000000",
		message{kind: kindAttachReply, token: 0x0123456789abcdef, size: 64 << 10, slot: 7}, 1},
	{"not attached", "04 01 0020 00000000 0123456789abcdef 00000000 00000000 00000002 00000000",
		message{kind: kindAttachReply, token: 0x0123456789abcdef, status: attachTaken}, 0},
	{"revoke", "05 01 0010 00000000 0123456789abcdef", message{kind: kindRevoke, token: 0x0123456789abcdef}, 0},
	{"drop", "06 01 0010 00000000 0123456789abcdef", message{kind: kindDrop, token: 0x0123456789abcdef}, 0},
	{"signal", "07 01 000b 00000000 616263", message{kind: kindSignal, payload: []byte("abc")}, 0},
	{"empty signal", "07 01 0008 00000000", message{kind: kindSignal, payload: []byte{}}, 0},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMessage(t *testing.T) {
	for _, tt := range messageVectors {
		t.Run(tt.name, func(t *testing.T) {
			encoded := unhex(t, tt.hex)
			if got := tt.msg.append(nil); !bytes.Equal(got, encoded) {
				t.Errorf("append:\n got %x\nwant %x", got, encoded)
			}
			if got := tt.msg.fdCount(); got != tt.fds {
				t.Errorf("fdCount = %d, want %d", got, tt.fds)
			}
			if got, err := parse(encoded); err != nil || !reflect.DeepEqual(got, tt.msg) {
				t.Errorf("parse = %+v, %v; want %+v", got, err, tt.msg)
			}
			for n := range encoded {
				if got, err := parse(encoded[:n]); !errors.Is(err, wire.ErrTruncated) {
					t.Errorf("parse of %d bytes = %+v, %v; want ErrTruncated", n, got, err)
				}
			}
			if _, err := parse(append(bytes.Clone(encoded), 0)); !errors.Is(err, wire.ErrLength) {
				t.Errorf("parse with a byte too many = %v, want ErrLength", err)
			}
			encoded[7] = 0xff // reserved
			if got, err := parse(encoded); err != nil || !reflect.DeepEqual(got, tt.msg) {
				t.Errorf("parse with reserved bits = %+v, %v; want %+v", got, err, tt.msg)
			}
		})
	}
}

func TestMessageRefused(t *testing.T) {
	hello, reply, signal := messageVectors[0].hex, messageVectors[4].hex, messageVectors[8].hex
	for _, tt := range []struct {
		name   string
		hex    string
		offset int    // of the bytes to be replaced
		with   string // in hexadecimal
		want   error
	}{
		{"kind 0", hello, 0, "00", wire.ErrType},
		{"kind 8", hello, 0, "08", wire.ErrType},
		{"kind 255", hello, 0, "ff", wire.ErrType},
		{"version 0", hello, 1, "00", wire.ErrVersion},
		{"version 2", hello, 1, "02", wire.ErrVersion},
		{"length too small", hello, 2, "0047", wire.ErrLength},
		{"length too large", hello, 2, "0049", wire.ErrLength},
		{"length 0", signal, 2, "0000", wire.ErrLength},
		{"signal shorter than its header", signal, 2, "0007", wire.ErrLength},
		{"signal of 65535 bytes", signal, 2, "ffff", wire.ErrLength},
		{"signal of 265 bytes", signal, 2, "0109", wire.ErrLength},
		{"magic", hello, 15, "00", wire.ErrEyecatcher},
		{"GID zero", hello, 16, "00000000000000000000000000000000", wire.ErrValue},
		{"slots", hello, 64, "00008001", wire.ErrValue},
		{"slot 32768", reply, 20, "00008000", wire.ErrValue},
		{"slot 2^32-1", reply, 20, "ffffffff", wire.ErrValue},
		{"status 5", reply, 24, "00000005", wire.ErrValue},
	} {
		b := unhex(t, tt.hex)
		copy(b[tt.offset:], unhex(t, tt.with))
		var de *wire.DecodeError
		if got, err := parse(b); !errors.Is(err, tt.want) || !errors.As(err, &de) || !reflect.DeepEqual(got, message{}) {
			t.Errorf("%s: parse(%x) = %+v, %v; want %v", tt.name, b, got, err, tt.want)
		}
	}
}

func FuzzMessage(f *testing.F) {
	for _, tt := range messageVectors {
		f.Add(unhex(f, tt.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			if !reflect.DeepEqual(m, message{}) {
				t.Errorf("parse(%x) = %+v with error %v, want nothing", b, m, err)
			}
			return
		}
		got, err := parse(m.append(nil))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("parse(append(%+v)) = %+v, %v", m, got, err)
		}
		if m.slot >= SlotCount || len(m.payload) > MaxSignal || m.fdCount() > 2 {
			t.Errorf("parse(%x) = %+v, out of range", b, m)
		}
	})
}
