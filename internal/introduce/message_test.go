package introduce

import (
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
)

func gidOf(b byte) wire.ISMGID { return wire.ISMGIDFromUUID([16]byte{15: b}) }

// vectors are laid out by hand from the tables of [Message].
var vectors = []struct {
	name string
	hex  string
	m    Message
}{
	{"hello", "0101 004c 00000000 0000000000000000" +
		"00000000000000000000000000000007 02 000000 0001 0002 0001 0000 000000000000000000000000000000cc" +
		"00000005 00000006 00000007 00000008",
		Message{
			Kind: KindHello, GID: gidOf(7), Users: Users{ModeList, []uint32{5}, []uint32{6, 7}, []uint32{8}},
			Challenge: [16]byte{15: 0xcc},
		}},
	{"welcome", "0201 0068 00000000 0000000000000000 000000000000000000000000000000aa 00000102 02 000000" +
		strings.Repeat("00", 63) + "dd",
		Message{
			Kind: KindWelcome, BootID: [16]byte{15: 0xaa}, PID: 0x102, Overcommit: 2, Signature: [64]byte{63: 0xdd},
		}},
	{"ask", "0301 0018 00000000 0000000000000009 02 01 0000 000000fa",
		Message{Kind: KindAsk, ID: 9, Role: RoleServer, Offer: offerDevice, Wait: 250 * time.Millisecond}},
	{"withdraw", "0401 0010 00000000 0000000000000009", Message{Kind: KindWithdraw, ID: 9}},
	{"introduced", "0501 0050 00000000 0000000000000009 00000000000000000000000000000007" +
		"000000000000000000000000000000bb 00000003 00000004 00000102 01000000" +
		"000000000000000000000000000000cc",
		Message{
			Kind: KindIntroduced, ID: 9, GID: gidOf(7), Secret: [16]byte{15: 0xbb}, UID: 3, Group: 4, PID: 0x102,
			Process: [16]byte{15: 0xcc}, SameUser: true,
		}},
	{"refused", "0601 0018 00000000 0000000000000009 00000002 00000000",
		Message{Kind: KindRefused, ID: 9, Reason: RefusedUsers}},
	{"lent", "0701 0010 00000000 0000000000000009", Message{Kind: KindLent, ID: 9}},
	{"taken", "0801 0010 00000000 0000000000000009", Message{Kind: KindTaken, ID: 9}},
	{"ready", "0a01 0010 00000000 0000000000000009", Message{Kind: KindReady, ID: 9}},
	{"wanted", "0b01 0010 00000000 0000000000000009", Message{Kind: KindWanted, ID: 9}},
	{"returned", "0901 0018 00000000 0000000000000009 00000001 00000000",
		Message{Kind: KindReturned, ID: 9, Reason: RefusedAlone}},
	{"ask for rings", "0301 0018 01000000 0000000000000009 01 02 0000 000000fa",
		Message{
			Kind: KindAsk, ID: 9, Memory: true, Role: RoleClient, Offer: offerPair,
			Wait: 250 * time.Millisecond,
		}},
	{"lent with memory", "0701 0010 01000000 0000000000000009", Message{Kind: KindLent, ID: 9, Memory: true}},
	{"welcome of an agent that knows either", "0201 0068 00000000 0000000000000000" +
		"000000000000000000000000000000aa 00000102 02 01 0000" + strings.Repeat("00", 64),
		Message{Kind: KindWelcome, BootID: [16]byte{15: 0xaa}, PID: 0x102, Overcommit: 2, Either: true}},
	{"ask for either", "0301 0018 00000000 0000000000000009 01 03 0000 000000fa",
		Message{Kind: KindAsk, ID: 9, Role: RoleClient, Offer: offerEither, Wait: 250 * time.Millisecond}},
	{"introduced by a pair", "0501 0050 00000000 0000000000000009 00000000000000000000000000000007" +
		"000000000000000000000000000000bb 00000003 00000004 00000102 02000000" +
		"000000000000000000000000000000cc",
		Message{
			Kind: KindIntroduced, ID: 9, GID: gidOf(7), Secret: [16]byte{15: 0xbb}, UID: 3, Group: 4, PID: 0x102,
			Process: [16]byte{15: 0xcc}, Pair: true,
		}},
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
	for _, tt := range vectors {
		b := unhex(t, tt.hex)
		if got := tt.m.Append(nil); hex.EncodeToString(got) != hex.EncodeToString(b) {
			t.Errorf("%s: Append:\n got %x\nwant %x", tt.name, got, b)
		}
		if got, err := Parse(b); err != nil || !reflect.DeepEqual(got, tt.m) {
			t.Errorf("%s: Parse = %+v, %v; want %+v", tt.name, got, err, tt.m)
		}
		for n := range b {
			if _, err := Parse(b[:n]); !errors.Is(err, wire.ErrTruncated) {
				t.Errorf("%s: Parse of %d bytes: %v, want ErrTruncated", tt.name, n, err)
			}
		}
		if _, err := Parse(append(b, 0)); !errors.Is(err, wire.ErrLength) {
			t.Errorf("%s: Parse of one byte more: %v, want ErrLength", tt.name, err)
		}
		b[5] = 0xff // reserved
		if tt.m.Kind != KindAsk && tt.m.Kind != KindLent && tt.m.Kind != KindIntroduced {
			b[4] = 0xff // no flags
		}
		if got, err := Parse(b); err != nil || !reflect.DeepEqual(got, tt.m) {
			t.Errorf("%s with a reserved bit: %+v, %v", tt.name, got, err)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		vector int
		at     int
		value  byte
		want   error
	}{
		{"version", 2, 1, 2, wire.ErrVersion},
		{"kind", 2, 0, 12, wire.ErrType},
		{"length", 2, 3, 0x19, wire.ErrLength},
		{"role", 2, 16, 0, wire.ErrValue},
		{"mode", 0, 32, 3, wire.ErrValue},
		{"users", 0, 36, 0xff, wire.ErrValue},
		{"GID of Hello", 0, 31, 0, wire.ErrValue},
		{"GID of Introduced", 4, 31, 0, wire.ErrValue},
	} {
		b := unhex(t, vectors[tt.vector].hex)
		b[tt.at] = tt.value
		if _, err := Parse(b); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, tt := range vectors {
		f.Add(unhex(f, tt.hex))
	}
	smctest.Fuzz(f, func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(m.Append(nil))
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Errorf("Parse(Append(%+v)) = %+v, %v", m, again, err)
		}
	})
}
