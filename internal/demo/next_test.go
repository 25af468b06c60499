package demo

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestWriteWithNext has the next step after two containers that have succeeded, and nowhere else.
func TestWriteWithNext(t *testing.T) {
	text, err := os.ReadFile("testdata/demo.json")
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		setting Setting
		ok      bool
	}{{Containers, true}, {Containers, false}, {OneHost, true}} {
		var b strings.Builder
		r.OK = tt.ok
		err := r.WriteWithNext(&b, tt.setting)
		if want := tt.ok && tt.setting == Containers; err != nil || strings.HasSuffix(b.String(), containersNext) != want {
			t.Errorf("%v, with success %v: %v, next step wanted %v\n%s", tt.setting, tt.ok, err, want, b.String())
		}
	}
}
