package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestApplicable samples for a moment, and tells wrong flags and tables.
func TestApplicable(t *testing.T) {
	file := t.TempDir() + "/bench.json"
	if err := os.WriteFile(file, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args           string
		code           int
		stdout, stderr string // parts
	}{
		{"applicable --for 1ms", exitOK, " pairs of programs; gains: shipped values\n", ""},
		{"applicable --for 0s", exitUsage, "", "--for has to be above 0"},
		{"applicable --for x", exitUsage, "", "x"},
		{"applicable 1", exitUsage, "", "1"},
		{"applicable --table /nonexistent", exitFailure, "", "no such file"},
		{"applicable --table " + file, exitFailure, "", "has no row that is of use"},
	} {
		got := gosmc(t, "", strings.Fields(tt.args)...)
		if got.code != tt.code || !strings.Contains(got.stdout, tt.stdout) || !strings.Contains(got.stderr, tt.stderr) {
			t.Errorf("gosmc %s = %+v, want %d, %q, %q", tt.args, got, tt.code, tt.stdout, tt.stderr)
		}
	}
	var r applicableReport
	got := gosmc(t, "", "applicable", "--for", "1ms", "--json")
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || r.Schema != jsonSchema || r.Table.Source == "" || r.Order == nil {
		t.Errorf("gosmc applicable --json = %+v, %v", got, err)
	}
}
