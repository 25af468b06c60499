package jsonschema_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/jsonschema"
)

type inner struct {
	Deep  int     `json:"deep"`
	Ratio float64 `json:"ratio,omitempty"`
}

type Embedded struct {
	Shared string `json:"shared"`
	Hidden int    `json:"hidden"` // by that of outer
}

// outer has a field of each kind that output has.
type outer struct {
	Embedded
	Hidden  string            `json:"hidden"`
	Plain   bool              // its name is the field's
	Count   uint8             `json:"count"`
	Addr    netip.AddrPort    `json:"addr"`
	At      time.Time         `json:"at"`
	Since   *time.Time        `json:"since"`
	Peer    *netip.Addr       `json:"peer"`
	Raw     []byte            `json:"raw"`
	List    []inner           `json:"list"`
	Pair    [2]int            `json:"pair"`
	ByName  map[string]inner  `json:"by_name"`
	Maybe   *inner            `json:"maybe"`
	Any     any               `json:"any"`
	Message json.RawMessage   `json:"message,omitempty"`
	Zero    time.Duration     `json:"zero,omitzero"`
	Tags    map[string]string `json:"tags,omitempty"`
	Skipped int               `json:"-"`
	private int
}

// TestOf holds that JSON of values with and without content is as the schema of their type says.
func TestOf(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	addr := netip.MustParseAddr("192.0.2.1")
	full := outer{
		Embedded: Embedded{"s", 1}, Hidden: "h", Plain: true, Count: 3, Addr: netip.AddrPortFrom(addr, 5), At: at, Since: &at, Peer: &addr,
		Raw: []byte("raw"), List: []inner{{1, 2.5}, {}}, Pair: [2]int{1, 2}, ByName: map[string]inner{"a": {}}, Maybe: &inner{1, 1}, Any: "x",
		Message: json.RawMessage(`[1]`), Zero: time.Second, Tags: map[string]string{"k": "v"}, Skipped: 1, private: 1,
	}
	schema := jsonschema.Of(reflect.TypeFor[outer]())
	for name, v := range map[string]outer{"full": full, "zero": {}} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.Unmarshal(text, &value); err != nil {
			t.Fatal(err)
		}
		if err := check(schema, value, name); err != nil {
			t.Errorf("%v\nJSON %s", err, text)
		}
	}
	required := []string{"shared", "hidden", "Plain", "count", "addr", "at", "since", "peer", "raw", "list", "pair", "by_name", "maybe", "any"}
	slices.Sort(required)
	if got := slices.Sorted(slices.Values(schema.Required)); !slices.Equal(got, required) {
		t.Errorf("required are %v, want %v", got, required)
	}
	if got := schema.Properties["at"]; got.Format != "date-time" {
		t.Errorf("a time is %+v", got)
	}
}

// check is a validator of the words that Of uses.
func check(s *jsonschema.Type, value any, at string) error {
	if s.Type == nil {
		return nil // anything
	}
	kind := "null"
	switch v := value.(type) {
	case bool:
		kind = "boolean"
	case string:
		kind = "string"
	case float64:
		if kind = "number"; v == float64(int64(v)) && s.Type != "number" {
			kind = "integer"
		}
	case []any:
		kind = "array"
		for i, e := range v {
			if s.Items == nil {
				return fmt.Errorf("%s: no items in %+v", at, s)
			}
			if err := check(s.Items, e, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case map[string]any:
		kind = "object"
		for name, e := range v {
			field := s.Properties[name]
			if field == nil {
				field = s.Additional
			}
			if field == nil {
				return fmt.Errorf("%s: no property %q", at, name)
			}
			if err := check(field, e, at+"."+name); err != nil {
				return err
			}
		}
		for _, name := range s.Required {
			if _, there := v[name]; !there {
				return fmt.Errorf("%s: %q is required", at, name)
			}
		}
	}
	switch t := s.Type.(type) {
	case string:
		if t == kind {
			return nil
		}
	case []string:
		if slices.Contains(t, kind) {
			return nil
		}
	}
	return fmt.Errorf("%s: %s, want %v", at, kind, s.Type)
}

// TestDocument names what the schema is of.
func TestDocument(t *testing.T) {
	s := jsonschema.Document(reflect.TypeFor[inner](), "gosmc x --json", "a promise")
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"$schema":"https://json-schema.org/draft/2020-12/schema","title":"gosmc x --json","description":"a promise","type":"object",` +
		`"properties":{"deep":{"type":"integer"},"ratio":{"type":"number"}},"required":["deep"]}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}
