package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
)

// TestJSONSchema checks the output of verbs against their schemas, with connections there.
func TestJSONSchema(t *testing.T) {
	l := start(t, "listen", "--echo", "--json", "-v", "127.0.0.1:0")
	start(t, "connect", "--require", "smc-d", l.addr())
	for _, args := range [][]string{{"ss", "-a"}, {"ss", "--summary"}, {"stats"}, {"doctor"}, {"info"}} {
		var schema, value map[string]any
		got := gosmc(t, "", append(slices.Clone(args), "--json-schema")...)
		if err := json.Unmarshal([]byte(got.stdout), &schema); err != nil || got.code != exitOK {
			t.Fatalf("gosmc %q --json-schema = %+v, %v", args, got, err)
		}
		got = gosmc(t, "", append(slices.Clone(args), "--json")...)
		if err := json.Unmarshal([]byte(got.stdout), &value); err != nil {
			t.Fatalf("gosmc %q --json = %+v, %v", args, got, err)
		}
		for _, e := range misfits(schema, value, "") {
			t.Errorf("gosmc %q --json: %s", args, e)
		}
		value["unheard-of"] = value["schema"]
		delete(value, "schema")
		if len(misfits(schema, value, "")) != 2 {
			t.Errorf("gosmc %q: the schema takes any object", args)
		}
	}
}

// misfits says where a value of JSON does not fit a schema. Fields that the schema does not have
// are misfits, too.
func misfits(schema map[string]any, value any, at string) (list []string) {
	words, ok := schema["type"].([]any)
	if word, one := schema["type"].(string); one {
		words, ok = []any{word}, true
	}
	if ok && !slices.ContainsFunc(words, func(w any) bool { return isA(value, w.(string)) }) {
		return []string{fmt.Sprintf("%s is %v, want %v", at, value, words)}
	}
	switch v := value.(type) {
	case []any:
		for i, x := range v {
			list = append(list, misfits(schema["items"].(map[string]any), x, fmt.Sprintf("%s[%d]", at, i))...)
		}
	case map[string]any:
		properties, _ := schema["properties"].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(v)) {
			s, ok := properties[name].(map[string]any)
			if !ok {
				s, ok = schema["additionalProperties"].(map[string]any)
			}
			if !ok {
				list = append(list, at+"."+name+" is in no schema")
				continue
			}
			list = append(list, misfits(s, v[name], at+"."+name)...)
		}
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if _, ok := v[name.(string)]; !ok {
				list = append(list, fmt.Sprintf("%s.%s is missing", at, name))
			}
		}
	}
	return list
}

// isA reports whether a value of JSON has a type of JSON Schema.
func isA(value any, word string) bool {
	switch v := value.(type) {
	case nil:
		return word == "null"
	case bool:
		return word == "boolean"
	case string:
		return word == "string"
	case float64:
		return word == "number" || word == "integer" && v == math.Trunc(v)
	case []any:
		return word == "array"
	}
	return word == "object"
}
