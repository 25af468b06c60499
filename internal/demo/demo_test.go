package demo

import (
	"bytes"
	"encoding/json"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gosmc/smc/internal/measure"
	"github.com/gosmc/smc/internal/pod"
	"github.com/gosmc/smc/internal/smctest"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// childOfTest tells the test program that it is a process of the demo.
const childOfTest = "GOSMC_CHILD_OF_TEST"

func TestMain(m *testing.M) {
	smctest.Apart()
	if os.Getenv(childOfTest) != "" {
		work := Work
		if os.Args[1] == pod.AgentVerb {
			work = pod.ServeAgent
		}
		if err := work(os.Stdin, os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	smctest.MainChildren(m, childOfTest)
}

// A demo with little data and time.
func TestDemo(t *testing.T) {
	const size = 5<<20 + 123
	r, err := Run(t.Context(), Options{Size: size, HTTPTime: 100 * time.Millisecond})
	if err != nil {
		t.Fatalf("Run = %v", err)
	}
	if !r.OK || r.Size != size || len(r.Runs) != 2 || r.FileRatio <= 0 || r.HTTPRatio <= 0 {
		t.Fatalf("Run = %+v, want two runs and ratios", r)
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

// Without SMC the demo says why, and everything else is right.
func TestDemoWithoutSMC(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOSMC_DIR", filepath.Join(file, "dir"))
	r, err := Run(t.Context(), Options{Size: 1 << 20, HTTPTime: 100 * time.Millisecond})
	if err != nil {
		if !strings.Contains(err.Error(), "SMC cannot be used") {
			t.Errorf("Run without a run directory = %v, want the reason", err)
		}
		return
	}
	if r.OK || len(r.Problems) != 1 || !strings.Contains(r.Problems[0], "not SMC-D") {
		t.Errorf("Run without a run directory = %+v, want the reason", r)
	}
}

var testMachine = measure.Machine{
	Kernel: "Linux 6.1 x86_64", CPU: "A CPU", CPUs: 2, Caches: []measure.Cache{{Level: 1, Type: "Data", Size: "32K"}, {Level: 1, Type: "Instruction", Size: "32K"}, {Level: 2, Type: "Unified", Size: "1024K"}},
	Governor: "performance", CPUQuota: "1.5", LoadAvg1: 0.25, GOMAXPROCS: 2, Go: "go1.26", Commit: "abc",
}

func testReport() *Report {
	r := &Report{
		Schema: 1, Time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Machine: testMachine, Size: 1 << 30, SHA256: "ab", Problems: []string{},
		Runs: []Outcome{
			{Transport: "smc-d", Mode: "SMC-D", Version: "2.1", EID: "E", Peer: "127.0.0.1:5000", PeerHost: "H", PeerOS: "Linux", PeerPID: 77,
				File: File{Bytes: 1 << 30, Seconds: 0.2, Rate: 5e9, CPUSeconds: 0.4, SHA256: "ab"},
				HTTP: HTTP{Requests: 123456, Seconds: 3, Rate: 41152, P50: 100, P99: 400}},
			{Transport: "tcp", Mode: "TCP", Peer: "127.0.0.1:5001", PeerPID: 78,
				File: File{Bytes: 1 << 30, Seconds: 0.5, Rate: 2e9, CPUSeconds: 1, SHA256: "ab"},
				HTTP: HTTP{Requests: 90000, Seconds: 3, Rate: 30000, P50: 150, P99: 900}},
		},
	}
	r.judge()
	return r
}

func TestReport(t *testing.T) {
	r := testReport()
	if !r.OK || r.FileRatio != 2.5 {
		t.Errorf("judge = %v and ratio %v, want true and 2.5", r.OK, r.FileRatio)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "demo.json")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("%s (-want +got; go test -update rewrites it):\n%s", path, diff)
	}
}

func TestJudge(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(*Report)
		want  string
	}{
		{"not SMC-D", func(r *Report) {
			r.Runs[0].Mode, r.Runs[0].Reason, r.Runs[0].ReasonCode, r.Runs[0].Advice = "TCP", "no device", 0x03030000, "Make one."
		}, "the connection uses TCP, not SMC-D: no device (0x03030000). Make one."},
		{"other bytes", func(r *Report) { r.Runs[0].File.SHA256 = "cd" }, "over smc-d the file arrived with 1073741824 bytes and SHA-256 cd"},
		{"too few bytes", func(r *Report) { r.Runs[1].File.Bytes-- }, "over tcp the file arrived with 1073741823 bytes"},
		{"wrong page", func(r *Report) { r.Runs[1].HTTP.Wrong = 1 }, "over tcp 1 of 90000 HTTP answers were wrong"},
		{"no page", func(r *Report) { r.Runs[0].HTTP.Requests = 0 }, "over smc-d 0 of 0 HTTP"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := testReport()
			tt.spoil(r)
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
