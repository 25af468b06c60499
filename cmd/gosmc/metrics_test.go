package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestMetrics checks that a connection is in the metrics that are printed, served, and written to a file.
func TestMetrics(t *testing.T) {
	l := start(t, "listen", "--echo", "--json", "-v", "127.0.0.1:0")
	c := start(t, "connect", "--require", "smc-d", l.addr())
	if _, err := io.WriteString(c.stdin, "x"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testTimeout); c.stdout.String() == ""; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no echo")
		}
	}
	dir := os.Getenv("GOSMC_DIR")
	counted := regexp.MustCompile(`(?m)^smc_connections_total\{mode="SMC-D",role="server"\} [1-9]`)
	open := regexp.MustCompile(`(?m)^smc_connections_open\{mode="SMC-D",role="(client|server)"\} [1-9]`)
	check := func(where, text string) {
		t.Helper()
		if !counted.MatchString(text) || len(open.FindAllString(text, -1)) != 2 {
			t.Errorf("%s has no connection:\n%s", where, text)
		}
	}
	check("gosmc metrics", gosmc(t, "", "metrics", "--dir", dir).stdout)
	if got := gosmc(t, "", "metrics", "--openmetrics", "--dir", dir); !strings.HasSuffix(got.stdout, "\n# EOF\n") {
		t.Errorf("gosmc metrics --openmetrics = %q", got.stdout)
	}
	var report metricsReport
	if got := gosmc(t, "", "metrics", "--json", "--dir", dir); json.Unmarshal([]byte(got.stdout), &report) != nil || len(report.Metrics) < 20 || len(report.Metrics[0].Series) < 8 {
		t.Errorf("gosmc metrics --json = %q", got.stdout)
	}
	file := filepath.Join(t.TempDir(), "gosmc.prom")
	if got := gosmc(t, "", "metrics", "--dir", dir, "--textfile", file, "--every", "0"); got.code != exitOK || got.stdout != "" {
		t.Errorf("gosmc metrics --textfile = %+v", got)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	check("the file", string(text))

	ctx, stop := context.WithCancel(t.Context())
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"metrics", "--dir", dir, "--listen", "127.0.0.1:0"}, strings.NewReader(""), io.Discard, w)
		w.Close()
	}()
	said := make([]byte, 200)
	n, err := r.Read(said)
	url := regexp.MustCompile(`http://\S+/metrics`).FindString(string(said[:n]))
	if err != nil || url == "" {
		t.Fatalf("gosmc metrics --listen says %q, %v", said[:n], err)
	}
	go io.Copy(io.Discard, r)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	text, _ = io.ReadAll(answer.Body)
	answer.Body.Close()
	check(url, string(text))
	stop()
	if got := <-code; got != exitOK {
		t.Errorf("gosmc metrics --listen ends with %d when it is interrupted", got)
	}
}

// TestMetricsFlags checks command lines that are not understood.
func TestMetricsFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--listen :0 --textfile x.prom":    "exclude each other",
		"--textfile x.txt":                 "end in .prom",
		"--textfile x.prom --every 10ms":   "want 0, or a time",
		"--json --openmetrics":             "a format of its own",
		"--listen 9254":                    "want HOST:PORT or :PORT",
		"--textfile x.prom --every 24h1ms": "want 0, or a time",
		"--listen=":                        "want HOST:PORT or :PORT",
		"--listen :99999":                  "want a port",
		"--listen ::1:9254":                "want HOST:PORT or :PORT",
		"--textfile=":                      "want the name of a file",
		"--every 5s":                       "how often --textfile writes",
		"--listen :0 --every 5s":           "how often --textfile writes",
		"--listen :0 --openmetrics":        "the format that they ask for",
		"--textfile x.prom --openmetrics":  "reads that of Prometheus",
	} {
		if got := gosmc(t, "", append([]string{"metrics"}, strings.Fields(args)...)...); got.code != exitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("gosmc metrics %s = %d, %q; want %q", args, got.code, got.stderr, want)
		}
	}
}

// TestMetricsMissing checks that a run directory that is not there is no machine without connections, and
// that an error of a file names the file and the remedy.
func TestMetricsMissing(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	file := filepath.Join(t.TempDir(), "x.prom")
	for _, args := range [][]string{{}, {"--json"}, {"--openmetrics"}, {"--textfile", file, "--every", "0"}} {
		got := gosmc(t, "", append([]string{"metrics", "--dir", none}, args...)...)
		if got.code != exitFailure || !strings.Contains(got.stderr, "that does not exist") {
			t.Errorf("gosmc metrics %v = %d, %q", args, got.code, got.stderr)
		}
	}
	for _, every := range []string{"0", "15s"} {
		got := gosmc(t, "", "metrics", "--textfile", filepath.Join(none, "x.prom"), "--every", every)
		want := "--textfile: write " + filepath.Join(none, "x.prom") +
			": no such file or directory: make the directory first"
		if got.code != exitFailure || !strings.Contains(got.stderr, want) {
			t.Errorf("--textfile, --every %s = %d, %q, want %q", every, got.code, got.stderr, want)
		}
	}
}
