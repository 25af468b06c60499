package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/demo"
)

// runTestDemo runs the demo with little data and time.
func runTestDemo(t *testing.T, size int64, asJSON bool) (stdout string, err error) {
	t.Helper()
	cmd := newDemoCommand()
	var out, errOut bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	cmd.SetContext(t.Context())
	err = runDemo(cmd, demo.Options{Size: size, HTTPTime: 100 * time.Millisecond}, asJSON)
	return out.String(), err
}

func TestDemo(t *testing.T) {
	const size = 1<<20 + 123
	got, err := runTestDemo(t, size, true)
	var r demo.Report
	if err := errors.Join(err, json.Unmarshal([]byte(got), &r)); err != nil {
		t.Fatalf("demo --json = %q, %v", got, err)
	}
	if r.Schema != jsonSchema || !r.OK || r.Size != size || len(r.Runs) != 2 {
		t.Errorf("demo --json = %+v, want two runs", r)
	}
}

// Without SMC the demo says why, shows its measurements, and fails.
func TestDemoWithoutSMC(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOSMC_DIR", filepath.Join(file, "dir"))
	got, err := runTestDemo(t, 1<<20, false)
	if err == nil || !strings.Contains(err.Error(), "not SMC-D") && !strings.Contains(err.Error(), "SMC cannot be used") {
		t.Errorf("demo without a run directory = %v, want the reason", err)
	}
	if strings.Contains(got, "WRONG") {
		t.Errorf("demo over TCP shows %q", got)
	}
}

func TestWriteDemo(t *testing.T) {
	var b strings.Builder
	if err := readReport[demo.Report](t, "../../internal/demo/testdata/demo.json").Write(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "demo.txt", b.String())
	r := readReport[demo.Report](t, "../../internal/demo/testdata/demo.json")
	r.Network, r.Runs[0].Mode = "a veth pair", "SMC-R"
	if err := r.Write(&b); err != nil || !strings.Contains(b.String(), "slower than TCP") {
		t.Errorf("with two hosts the demo does not say the purpose of SMC-R: %v\n%s", err, b.String())
	}
}
