package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// demo runs the demo with little data and time.
func demo(t *testing.T, size int64, asJSON bool) (outcome, error) {
	t.Helper()
	cmd := newDemoCommand()
	var stdout, stderr bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetContext(t.Context())
	err := runDemo(cmd, size, 100*time.Millisecond, asJSON)
	return outcome{stdout: stdout.String(), stderr: stderr.String()}, err
}

func TestDemo(t *testing.T) {
	const size = 5<<20 + 123
	got, err := demo(t, size, true)
	if err != nil {
		t.Fatalf("demo = %v", err)
	}
	var r demoReport
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatalf("demo --json = %q, %v", got.stdout, err)
	}
	if r.Schema != jsonSchema || !r.OK || r.Size != size || len(r.Runs) != 2 || r.FileRatio <= 0 || r.HTTPRatio <= 0 {
		t.Fatalf("demo --json = %+v, want two runs and ratios", r)
	}
	for i, mode := range []string{"SMC-D", "TCP"} {
		run := r.Runs[i]
		if run.Mode != mode || !run.File.Right || run.File.SHA256 != r.SHA256 || run.File.Rate <= 0 || run.HTTP.Requests == 0 || run.HTTP.Wrong != 0 || run.Peer == "" || run.PeerPID == 0 {
			t.Errorf("run %d = %+v, want %s with everything right", i, run, mode)
		}
	}
	if run := r.Runs[0]; run.Version == "" || run.EID == "" || run.Reason != "" {
		t.Errorf("run over SMC-D = %+v, want version and EID and no reason", run)
	}
}

// Without SMC the demo says why, shows what it measured, and fails.
func TestDemoWithoutSMC(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOSMC_DIR", filepath.Join(file, "dir"))
	got, err := demo(t, 1<<20, false)
	if err == nil || !strings.Contains(err.Error(), "not SMC-D") && !strings.Contains(err.Error(), "SMC cannot be used") {
		t.Errorf("demo without a run directory = %v, want the reason", err)
	}
	if strings.Contains(got.stdout, "WRONG") {
		t.Errorf("demo over TCP shows %q", got.stdout)
	}
}

func testDemoReport() demoReport {
	r := demoReport{
		Schema: jsonSchema, Time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Machine: testMachine, Size: 1 << 30, SHA256: "ab", Problems: []string{},
		Runs: []demoRun{
			{Transport: "smc-d", Mode: "SMC-D", Version: "2.1", EID: "E", Peer: "127.0.0.1:5000", PeerHost: "H", PeerOS: "Linux", PeerPID: 77,
				File: demoFile{Bytes: 1 << 30, Seconds: 0.2, Rate: 5e9, CPUSeconds: 0.4, SHA256: "ab"},
				HTTP: demoHTTP{Requests: 123456, Seconds: 3, Rate: 41152, P50: 100, P99: 400}},
			{Transport: "tcp", Mode: "TCP", Peer: "127.0.0.1:5001", PeerPID: 78,
				File: demoFile{Bytes: 1 << 30, Seconds: 0.5, Rate: 2e9, CPUSeconds: 1, SHA256: "ab"},
				HTTP: demoHTTP{Requests: 90000, Seconds: 3, Rate: 30000, P50: 150, P99: 900}},
		},
	}
	r.judge()
	return r
}

func TestDemoReport(t *testing.T) {
	r := testDemoReport()
	if !r.OK || r.FileRatio != 2.5 {
		t.Errorf("judge = %v and ratio %v, want true and 2.5", r.OK, r.FileRatio)
	}
	golden(t, "demo.json", indentJSON(t, r))
	var b strings.Builder
	if err := r.write(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "demo.txt", b.String())
}

func TestDemoJudge(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*demoReport)
		want  string
	}{
		{"not SMC-D", func(r *demoReport) {
			r.Runs[0].Mode, r.Runs[0].Reason, r.Runs[0].ReasonCode, r.Runs[0].Advice = "TCP", "no device", 0x03030000, "Make one."
		}, "the connection uses TCP, not SMC-D: no device (0x03030000). Make one."},
		{"other bytes", func(r *demoReport) { r.Runs[0].File.SHA256 = "cd" }, "over smc-d the file arrived with 1073741824 bytes and SHA-256 cd"},
		{"too few bytes", func(r *demoReport) { r.Runs[1].File.Bytes-- }, "over tcp the file arrived with 1073741823 bytes"},
		{"wrong page", func(r *demoReport) { r.Runs[1].HTTP.Wrong = 1 }, "over tcp 1 of 90000 HTTP answers were wrong"},
		{"no page", func(r *demoReport) { r.Runs[0].HTTP.Requests = 0 }, "over smc-d 0 of 0 HTTP"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := testDemoReport()
			tt.spoil(&r)
			r.Problems = nil
			r.judge()
			if r.OK || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], tt.want) {
				t.Errorf("judge = %v, %q, want %q", r.OK, r.Problems, tt.want)
			}
		})
	}
}

// The receiver notices a file that is too short, and one that is too long.
func TestReceiveFile(t *testing.T) {
	for _, tt := range []struct {
		name  string
		sent  int
		bytes int64 // 0: an error
	}{{"right", 100, 100}, {"short", 99, 0}, {"long", 101, 101}} {
		t.Run(tt.name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				c, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					return
				}
				defer c.Close()
				c.Write(make([]byte, tt.sent))
				c.(*net.TCPConn).CloseWrite()
				c.Read(make([]byte, 1))
			}()
			f, err := receiveFile(l, make([]byte, 100))
			if (err == nil) != (tt.bytes != 0) || f.Bytes != tt.bytes {
				t.Errorf("receiveFile(%d of 100 bytes) = %+v, %v", tt.sent, f, err)
			}
		})
	}
}

func TestPageBody(t *testing.T) {
	seen := map[string]bool{}
	for n := range int64(1000) {
		body := string(pageBody(n))
		if len(body) < 500 || seen[body] {
			t.Fatalf("page %d has %d bytes, or those of another page", n, len(body))
		}
		seen[body] = true
	}
}

// A child that dies says so to its parent, with what it wrote to standard error.
func TestChildFailure(t *testing.T) {
	c, err := startChild(t.Context(), "test", "frobnicate")
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	var m workerMessage
	err = c.receive(t.Context(), testTimeout, &m)
	if err == nil || !strings.Contains(err.Error(), "the test process ended early") || !strings.Contains(err.Error(), "unknown verb") {
		t.Errorf("receive from a dead child = %v, want its end and its words", err)
	}
}
