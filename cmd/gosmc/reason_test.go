package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/reason"
	"github.com/gosmc/smc/internal/roff"
	"github.com/gosmc/smc/wire/clc"
)

// A reason is found by its number and by its tag, and printed with cause and remedy.
func TestReason(t *testing.T) {
	for _, args := range [][]string{{"OTHER_USER"}, {"other_user"}, {"Other-User"}, {"0x7e010004"}, {"7e010004"}, {"2113994756"}} {
		got := gosmc(t, "", append([]string{"reason"}, args...)...)
		r, _ := clc.LookupTag("OTHER_USER")
		if got.code != exitOK {
			t.Errorf("gosmc reason %q = %d, %q", args, got.code, got.stderr)
		}
		for _, want := range []string{r.String(), r.Sentence, r.Cause, r.Advice} {
			if !strings.Contains(got.stdout, want) {
				t.Errorf("gosmc reason %q = %s; want %q in it", args, got.stdout, want)
			}
		}
	}
	for _, tt := range []struct{ arg, stderr string }{
		{"OTHER_USR", "did you mean OTHER_USER?"}, {"frobnicate", "there is no reason"}, {"0x1ffffffff", "there is no reason"}, {"-- -1", "there is no reason"},
	} {
		if got := gosmc(t, "", append([]string{"reason"}, strings.Fields(tt.arg)...)...); got.code != exitUsage || !strings.Contains(got.stderr, tt.stderr) {
			t.Errorf("gosmc reason %s = %d, %q; want %d and %q", tt.arg, got.code, got.stderr, exitUsage, tt.stderr)
		}
	}
	for _, code := range []string{"3010000", "0x03010000", "03010000", "50397184"} {
		if got := gosmc(t, "", "reason", code); got.code != exitOK || !strings.Contains(got.stdout, "PEER_NO_SMC") {
			t.Errorf("gosmc reason %s = %d, %s", code, got.code, got.stdout)
		}
	}
	if got := gosmc(t, "", "reason", "0x12345678"); got.code != exitOK || !strings.Contains(got.stdout, "UNKNOWN (0x12345678)") {
		t.Errorf("gosmc reason of a number in no list = %d, %s", got.code, got.stdout)
	}
}

// The list, its JSON and gosmc-reasons(7) have every reason of the catalogue.
func TestReasonsAreAllThere(t *testing.T) {
	list := gosmc(t, "", "reason")
	var r reasonReport
	if err := json.Unmarshal([]byte(gosmc(t, "", "reason", "--json").stdout), &r); err != nil || r.Schema != jsonSchema {
		t.Fatalf("schema %d, %v", r.Schema, err)
	}
	page := reason.ManPage()
	if n := len(clc.Reasons()); len(r.Reasons) != n || strings.Count(list.stdout, "\n") != n+1 {
		t.Errorf("%d reasons in JSON, %d lines, want %d and a heading", len(r.Reasons), strings.Count(list.stdout, "\n"), n)
	}
	for i, known := range clc.Reasons() {
		if i < len(r.Reasons) && r.Reasons[i] != reason.NewEntry(known) {
			t.Errorf("entry %d is %+v, want %v", i, r.Reasons[i], known)
		}
		if !strings.Contains(page, roff.Escape(known.String())) || !strings.Contains(page, roff.Escape(known.Advice)) {
			t.Errorf("gosmc-reasons(7) does not explain %v", known)
		}
	}
}
