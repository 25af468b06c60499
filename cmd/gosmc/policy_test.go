package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/policy"
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
	want := []policy.Entry{
		{Word: "smc", Values: []string{"on"}, Source: path}, {Word: "program", Values: []string{}, Source: ""}, {Word: "listen-port", Values: []string{"8000-8999", "!8080"}, Source: path}, {Word: "listen-address", Values: []string{}, Source: ""},
		{Word: "connect-port", Values: []string{}, Source: ""}, {Word: "connect-address", Values: []string{"10.0.0.0/8", "!10.1.0.0/16"}, Source: "$GOSMC_CONNECT_ADDRESSES"},
		{Word: "users", Values: []string{}, Source: ""},
		{Word: "memory", Values: []string{"67108864"}, Source: path}, {Word: "ring-after", Values: []string{}, Source: ""}, {Word: "short-after", Values: []string{}, Source: ""},
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
	const first, last = "it is the first listen-port without '!': what the list does not name stays TCP", "no listen-port without '!' is left"
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

// TestPolicyUnknownUser has a user that is not there be told of when it is set, checked, and used.
func TestPolicyUnknownUser(t *testing.T) {
	path := ownConfig(t)
	const want = `users "!rooot": no user has the name "rooot": until this is right, no other user is admitted; did you mean !root?`
	for _, args := range []string{"policy add users !rooot", "config set users !rooot", "run --users !rooot --explain 127.0.0.1:1", "run --explain 127.0.0.1:1"} {
		if got := gosmc(t, "", strings.Fields(args)...); strings.Count(got.stderr, want) != 1 {
			t.Errorf("gosmc %s = %d, %q, want %q once", args, got.code, got.stderr, want)
		}
	}
	if got := gosmc(t, "", "config", "check"); got.code != 1 || !strings.Contains(got.stdout, path+":1: "+want+"\n") {
		t.Errorf("config check = %d, %q, %q", got.code, got.stdout, got.stderr)
	}
	if got := gosmc(t, "", "policy", "del", "users", "!rooot"); got.code != exitOK || strings.Contains(got.stderr, want) {
		t.Errorf("policy del = %d, %q", got.code, got.stderr)
	}
	if got := gosmc(t, "", "policy", "add", "users", "!root"); got.code != exitOK || strings.Contains(got.stderr, "no user") {
		t.Errorf("policy add users !root = %d, %q", got.code, got.stderr)
	}
}

// TestRunPort has a port alone mean a server here.
func TestRunPort(t *testing.T) {
	ownConfig(t)
	if got := gosmc(t, "", "run", "--explain", "1"); !strings.Contains(got.stdout, "127.0.0.1:1: a program of") {
		t.Errorf("run --explain 1 = %d, %q, %q", got.code, got.stdout, got.stderr)
	}
}
