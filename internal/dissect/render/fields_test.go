package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/dissect"
)

// eventBytes returns the bytes that the fields of an event refer to.
func eventBytes(e *dissect.Event) []byte {
	if e.Bytes != nil {
		return e.Bytes
	}
	return encode(e.Message)
}

// checkFields reports the first bit of a message that belongs to no field, or to two, and fields that
// cannot be.
func checkFields(b []byte, fields []Field) error {
	owner := make([]string, 8*len(b))
	last := 0
	for _, f := range fields {
		switch {
		case f.Name == "" || f.Key == "" || f.Len < 1 || f.Offset < last || f.Offset+f.Len > len(b):
			return fmt.Errorf("impossible field %+v", f)
		case f.Mask != 0 && (f.Len != 1 || f.Mask > 0xff):
			return fmt.Errorf("impossible mask %+v", f)
		case strings.ContainsAny(f.Text, "\n\r\t\x1b"):
			return fmt.Errorf("text with control characters: %+v", f)
		}
		last = f.Offset
		switch f.Value.(type) {
		case bool, uint64, string:
		case nil:
			if f.Key != "infiniband.payload" {
				return fmt.Errorf("no value in %+v", f)
			}
		default:
			return fmt.Errorf("value of type %T in %+v", f.Value, f)
		}
		if f.Parent {
			continue
		}
		for bit := range 8 * f.Len {
			if mask := uint64(0x80) >> bit; f.Mask != 0 && f.Mask&mask == 0 {
				continue
			}
			o := &owner[8*f.Offset+bit]
			if *o != "" {
				return fmt.Errorf("bit %d of byte %d belongs to %q and %q", bit%8, f.Offset+bit/8, *o, f.Name)
			}
			*o = f.Name
		}
	}
	for bit, o := range owner {
		if o == "" {
			return fmt.Errorf("bit %d of byte %d of %d belongs to no field", bit%8, bit/8, len(b))
		}
	}
	return nil
}

func TestFieldsCoverAllMessages(t *testing.T) {
	for _, s := range samples(t) {
		b := eventBytes(s.event)
		fields := Fields(s.event)
		if err := checkFields(b, fields); err != nil {
			t.Errorf("Fields of %s (%x): %v", s.name, b, err)
		}
		for _, f := range fields {
			doubtful := f.Key == "smc.unknown" || f.Key == "smc.trailing" || strings.Contains(f.Name, "cut off")
			if doubtful && !s.partial {
				t.Errorf("Fields of %s (%x): %s at %d, want all bytes known", s.name, b, f.Name, f.Offset)
			}
		}
	}
}

// Every beginning of every message is taken apart as far as it goes, and so are messages with one byte
// wrong.
func TestFieldsOfDamagedMessages(t *testing.T) {
	for _, s := range samples(t) {
		b := bytes.Clone(eventBytes(s.event))
		check := func(b []byte, what string, i int) {
			e := &dissect.Event{Family: s.event.Family, Bytes: b, Message: s.event.Message}
			if err := checkFields(b, Fields(e)); err != nil {
				t.Fatalf("Fields of %s, %s %d (%x): %v", s.name, what, i, b, err)
			}
		}
		for n := range b {
			check(b[:n:n], "cut at", n)
		}
		for i := range b {
			if i > 120 {
				break // long arrays are all the same
			}
			old := b[i]
			for _, wrong := range []byte{0, 0x7f, 0xff, old ^ 1, old ^ 0x10} {
				b[i] = wrong
				check(b, "wrong byte at", i)
			}
			b[i] = old
		}
	}
}

// A key has the same meaning everywhere: values of one type, and always or never a list.
func TestKeysAreStable(t *testing.T) {
	type shape struct {
		kind  string
		list  bool
		where string
	}
	seen := make(map[string]shape)
	for _, s := range samples(t) {
		if s.partial {
			continue
		}
		for _, f := range Fields(s.event) {
			got := shape{fmt.Sprintf("%T", f.Value), f.List, s.name}
			if f.Value == nil {
				continue
			}
			want, ok := seen[f.Key]
			if !ok {
				seen[f.Key] = got
				continue
			}
			if got.kind != want.kind {
				t.Errorf("%s is %s in %s and %s in %s", f.Key, got.kind, got.where, want.kind, want.where)
			}
			if got.list != want.list {
				t.Errorf("%s: list is %v in %s and %v in %s", f.Key, got.list, got.where, want.list, want.where)
			}
		}
	}
	for _, s := range samples(t) {
		count := make(map[string]int)
		for _, f := range Fields(s.event) {
			if count[f.Key]++; count[f.Key] > 1 && !f.List {
				t.Errorf("%s: %s is there more than once, and no list", s.name, f.Key)
			}
		}
	}
}

// fieldNamed returns the only field, or the first of a list, with a key.
func fieldNamed(t *testing.T, e *dissect.Event, key string) Field {
	t.Helper()
	for _, f := range Fields(e) {
		if f.Key == key && !(f.Reserved && key != "smc.reserved") {
			return f
		}
	}
	t.Fatalf("%s has no field %s", AppendLine(nil, e), key)
	return Field{}
}

// FuzzRender renders bytes as messages of every family.
func FuzzRender(f *testing.F) {
	for _, s := range samples(f) {
		f.Add(uint8(s.event.Family), eventBytes(s.event), len(eventBytes(s.event)))
	}
	f.Fuzz(func(t *testing.T, family uint8, b []byte, wireLen int) {
		e := &dissect.Event{Family: dissect.Family(family%7 + 1), Bytes: b, Name: "message"}
		if e.Family == dissect.RoCE {
			e.RoCE = &dissect.Transport{PayloadLen: wireLen}
		}
		for _, e := range []*dissect.Event{e, dissect.MessageEvent(nil, b)} {
			if e.Family != dissect.TCP && e.Family != dissect.Note {
				if err := checkFields(b, Fields(e)); err != nil {
					t.Errorf("Fields of %v %x: %v", e.Family, b, err)
				}
			}
			line := new(Lines).Append(nil, e)
			if bytes.ContainsAny(line, "\n\x1b") {
				t.Errorf("the line of %x has control characters: %q", b, line)
			}
			if j := AppendJSON(nil, e); !json.Valid(j) {
				t.Errorf("AppendJSON of %x = %s, which is no JSON", b, j)
			}
			AppendVerbose(nil, e)
			hex := string(AppendHex(nil, e))
			if len(b) > 0 && !strings.HasPrefix(hex, fmt.Sprintf("0x0000  %02x", b[0])) {
				t.Errorf("AppendHex of %x = %q", b, hex)
			}
		}
	})
}
