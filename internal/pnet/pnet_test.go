package pnet

import (
	"errors"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
)

func TestParseUEID(t *testing.T) {
	for _, tt := range []struct {
		text   string
		want   string // 32 bytes; empty if refused
		reason string // part of the error
	}{
		{"A", "A                               ", ""},
		{"9", "9                               ", ""},
		{"SMCV2-LAB-UEID", "SMCV2-LAB-UEID                  ", ""},
		{"SMCV2-LAB-UEID    ", "SMCV2-LAB-UEID                  ", ""},
		{"A.B.C-.-", "A.B.C-.-                        ", ""},
		{"A--B", "A--B                            ", ""},
		{strings.Repeat("Z", 32), strings.Repeat("Z", 32), ""},
		{strings.Repeat("Z", 32) + "  ", strings.Repeat("Z", 32), ""},
		{"", "", "is empty"},
		{"   ", "", "is empty"},
		{strings.Repeat("Z", 33), "", "33 characters"},
		{".A", "", "starts with '.'"},
		{"-A", "", "starts with '-'"},
		{"A..B", "", "two dots"},
		{"A..", "", "two dots"},
		{"Northcampus", "", `lower-case letter 'o'; only capital letters are allowed, as in "NORTHCAMPUS"`},
		{" A", "", `character ' '`},
		{"A B", "", `character ' '`},
		{"A_B", "", `character '_'`},
		{"Ä", "", `character 'Ä'`},
		{"A\x00", "", `character '\x00'`},
		{"A\xff", "", "character"},
	} {
		got, err := ParseUEID(tt.text)
		if tt.want == "" {
			var name *NameError
			if !errors.As(err, &name) || !errors.Is(err, ErrName) || name.Text != tt.text || !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("ParseUEID(%q) = %q, %v; want a *NameError with %q", tt.text, got, err, tt.reason)
			}
			if got != (wire.EID{}) {
				t.Errorf("ParseUEID(%q) = %q with an error", tt.text, got)
			}
			continue
		}
		if err != nil || string(got[:]) != tt.want {
			t.Errorf("ParseUEID(%q) = %q, %v; want %q", tt.text, got[:], err, tt.want)
		}
	}
}

func TestParseUEIDs(t *testing.T) {
	got, err := ParseUEIDs([]string{"B", "A", "C"})
	if err != nil || len(got) != 3 || got[0].String() != "B" || got[1].String() != "A" || got[2].String() != "C" {
		t.Errorf("ParseUEIDs(B, A, C) = %v, %v", got, err)
	}
	for _, tt := range []struct {
		texts  []string
		reason string
	}{
		{[]string{"A", "B", "A "}, "comes twice"},
		{[]string{"A", "b"}, "lower-case"},
		{strings.Split("1 2 3 4 5 6 7 8 9", " "), "one too many"},
	} {
		if got, err := ParseUEIDs(tt.texts); err == nil || !strings.Contains(err.Error(), tt.reason) || got != nil {
			t.Errorf("ParseUEIDs(%q) = %v, %v; want an error with %q", tt.texts, got, err, tt.reason)
		}
	}
	if got, err := ParseUEIDs(strings.Split("1 2 3 4 5 6 7 8", " ")); err != nil || len(got) != MaxUEIDs {
		t.Errorf("ParseUEIDs of %d names = %v, %v", MaxUEIDs, got, err)
	}
	if got, err := ParseUEIDs(nil); err != nil || got != nil {
		t.Errorf("ParseUEIDs(nil) = %v, %v", got, err)
	}
}

func TestParseBootID(t *testing.T) {
	want := BootID{0x0a, 0x1b, 0x2c, 0x3d, 0x4e, 0x5f, 0x60, 0x71, 0x82, 0x93, 0xa4, 0xb5, 0xc6, 0xd7, 0xe8, 0xf9}
	for _, text := range []string{
		"0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9\n",
		"0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
		"0A1B2C3D4E5F60718293A4B5C6D7E8F9",
	} {
		if got, err := ParseBootID(text); err != nil || got != want {
			t.Errorf("ParseBootID(%q) = %x, %v; want %x", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "\n", "0a1b2c3d", "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f", "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f90",
		"0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8fg", "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f\x19",
		"00000000-0000-0000-0000-000000000000",
	} {
		if got, err := ParseBootID(text); !errors.Is(err, ErrName) || got != (BootID{}) {
			t.Errorf("ParseBootID(%q) = %x, %v; want an error", text, got, err)
		}
	}
}

func TestSEID(t *testing.T) {
	boot, err := ParseBootID("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9")
	if err != nil {
		t.Fatal(err)
	}
	// Computed outside Go, with Python's hashlib and base64, from the table at SEID. Processes
	// of different versions of this project meet on it: it may never change.
	const want = "GOSMC-I26SXE6C6XXUVQEFDDDQGDJJCA"
	got := SEID(boot)
	if string(got[:]) != want {
		t.Errorf("SEID(%x) = %q, want %q", boot, got[:], want)
	}
	if !got.Valid() {
		t.Errorf("SEID(%x) = %q, which is no valid EID", boot, got[:])
	}
	if strings.HasPrefix(got.String(), "IBM-") {
		t.Errorf("SEID(%x) = %q looks like the SEID of a mainframe", boot, got)
	}
	seen := map[wire.EID]bool{}
	for bit := range 128 { // every bit of the boot id counts
		other := boot
		other[bit/8] ^= 1 << (bit % 8)
		eid := SEID(other)
		if !eid.Valid() || eid == got || seen[eid] {
			t.Errorf("SEID with bit %d flipped = %q", bit, eid)
		}
		seen[eid] = true
	}
}

func TestPNETID(t *testing.T) {
	parse := func(text string) PNETID {
		t.Helper()
		id, err := ParsePNETID(text)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	net1, net2 := parse("NET1"), parse("NET2")
	if string(net1[:]) != "NET1            " || net1.String() != "NET1" || net1.IsZero() {
		t.Errorf("ParsePNETID(NET1) = %q, String %q, IsZero %t", net1[:], net1, net1.IsZero())
	}
	if parse("0123456789ABCDEF").String() != "0123456789ABCDEF" || parse("NET1  ") != net1 {
		t.Errorf("a full or a padded PNETID is not taken as it is")
	}
	for _, tt := range []struct{ text, reason string }{
		{"", "is empty"}, {"  ", "is empty"}, {"0123456789ABCDEFG", "17 characters"},
		{"net1", `as in "NET1"`}, {"NET-1", "'-'"}, {" NET1", "' '"}, {"NET.1", "'.'"}, {"NÉT", "'É'"}, {"A\x00", `'\x00'`},
	} {
		if got, err := ParsePNETID(tt.text); !errors.Is(err, ErrName) || !strings.Contains(err.Error(), tt.reason) || !got.IsZero() {
			t.Errorf("ParsePNETID(%q) = %q, %v; want an error with %q", tt.text, got, err, tt.reason)
		}
	}
	for _, tt := range []struct {
		p, q PNETID
		want bool
	}{
		{net1, net1, true}, {net1, net2, false}, {net1, PNETID{}, false}, {PNETID{}, net1, false}, {PNETID{}, PNETID{}, false},
	} {
		if got := tt.p.Matches(tt.q); got != tt.want {
			t.Errorf("%q.Matches(%q) = %t, want %t", tt.p, tt.q, got, tt.want)
		}
	}
}

func FuzzParseUEID(f *testing.F) {
	for _, s := range []string{"A", "SMCV2-LAB-UEID", "A..B", "lower", "", strings.Repeat("Z", 33)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		eid, err := ParseUEID(text)
		if err != nil {
			if eid != (wire.EID{}) {
				t.Fatalf("ParseUEID(%q) = %q with an error", text, eid)
			}
			return
		}
		if !eid.Valid() || eid.String() != strings.TrimRight(text, " ") {
			t.Fatalf("ParseUEID(%q) = %q", text, eid)
		}
	})
}
