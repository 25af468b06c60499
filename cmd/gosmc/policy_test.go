package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gosmc/smc/internal/config"
)

// TestPolicyVerb changes the policy in a file and shows it, with where it is from.
func TestPolicyVerb(t *testing.T) {
	path := ownConfig(t)
	t.Setenv(config.EnvDisabled, "")
	if err := os.WriteFile(path, []byte("# ours\nueid A.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
	}{
		{[]string{"add", "listen-port", "8000-8999"}, exitOK},
		{[]string{"add", "listen-port", "!8080"}, exitOK},
		{[]string{"add", "listen-port", "!8080"}, exitFailure}, // is there
		{[]string{"add", "program", "nginx"}, exitOK},
		{[]string{"del", "program", "nginx"}, exitOK},
		{[]string{"del", "program", "nginx"}, exitFailure},
		{[]string{"add", "smc", "off"}, exitOK},
		{[]string{"add", "smc", "on"}, exitOK}, // in place of the other
		{[]string{"add", "memory", "64MiB"}, exitOK},
		{[]string{"add", "connect-port", "http"}, exitUsage},
		{[]string{"add", "ueid", "B.1"}, exitUsage},
		{[]string{"del", "ueid", "A.1"}, exitUsage},
		{[]string{"add", "smc"}, exitUsage},
	} {
		if got := gosmc(t, "", append([]string{"policy"}, tt.args...)...); got.code != tt.code {
			t.Errorf("gosmc policy %q = %d, %q; want %d", tt.args, got.code, got.stderr, tt.code)
		}
	}
	text, err := os.ReadFile(path)
	if want := "# ours\nueid A.1\nlisten-port 8000-8999\nlisten-port !8080\nsmc on\nmemory 64MiB\n"; string(text) != want || err != nil {
		t.Errorf("the file is %q, %v; want %q", text, err, want)
	}
	t.Setenv(config.Variables[config.ConnectAddress], "10.0.0.0/8,!10.1.0.0/16")
	var r policyReport
	if err := json.Unmarshal([]byte(gosmc(t, "", "policy", "--json").stdout), &r); err != nil {
		t.Fatal(err)
	}
	want := []policyWord{
		{"smc", []string{"on"}, path}, {"program", []string{}, ""}, {"listen-port", []string{"8000-8999", "!8080"}, path}, {"listen-address", []string{}, ""},
		{"connect-port", []string{}, ""}, {"connect-address", []string{"10.0.0.0/8", "!10.1.0.0/16"}, "$GOSMC_CONNECT_ADDRESSES"},
		{"memory", []string{"67108864"}, path}, {"ring-after", []string{}, ""}, {"short-after", []string{}, ""},
	}
	if diff := cmp.Diff(want, r.Entries); diff != "" {
		t.Errorf("policy --json (-want +got):\n%s", diff)
	}
	t.Setenv(config.EnvDisabled, "1")
	if got := gosmc(t, "", "policy").stdout; !strings.Contains(got, "off") || !strings.Contains(got, "$GOSMC_DISABLED") {
		t.Errorf("gosmc policy with GOSMC_DISABLED=1 is\n%s", got)
	}
	if got := gosmc(t, "", "policy", "flush"); got.code != exitOK {
		t.Errorf("flush = %d, %q", got.code, got.stderr)
	}
	if text, _ := os.ReadFile(path); string(text) != "# ours\nueid A.1\n" {
		t.Errorf("after flush the file is %q", text)
	}
}

// TestPolicyNotes has the first entry of a list that is no exception, and the removal of the last one, be told with their consequence.
func TestPolicyNotes(t *testing.T) {
	ownConfig(t)
	const first, last = "it is the first listen-port that is no exception: all others stay TCP now", "no listen-port is left that is no exception"
	for _, tt := range []struct {
		args  string
		first bool
		last  bool
	}{
		{"add listen-port !22", false, false},
		{"add listen-port 8000-8999", true, false},
		{"add listen-port 9000", false, false},
		{"del listen-port 9000", false, false},
		{"del listen-port 8000-8999", false, true},
		{"add listen-port any", false, false},
		{"add listen-port 80", false, false},
		{"flush", false, false},
		{"add listen-port none", true, false},
		{"flush", false, true},
	} {
		got := gosmc(t, "", append([]string{"policy"}, strings.Fields(tt.args)...)...)
		if got.code != exitOK || strings.Contains(got.stderr, first) != tt.first || strings.Contains(got.stderr, last) != tt.last {
			t.Errorf("gosmc policy %s = %d, %q; want the note of a first entry: %t, of a last one: %t", tt.args, got.code, got.stderr, tt.first, tt.last)
		}
	}
}
