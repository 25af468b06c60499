package metrics

import (
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// serve starts a server, which ends with the test.
func serve(t *testing.T) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New(func(context.Context) Snapshot { return testSnapshot() }).Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	return "http://" + l.Addr().String()
}

// TestServe checks the formats, the paths and the methods.
func TestServe(t *testing.T) {
	url := serve(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, tt := range []struct {
		method, path, accept string
		code                 int
		typ, end             string
	}{
		{"GET", "/metrics", "", 200, Prometheus.ContentType(), "smc_snapshot_seconds 0.005\n"},
		{"GET", "/metrics", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5", 200, OpenMetrics.ContentType(), "# EOF\n"},
		{"GET", "/", "", 200, "text/plain; charset=utf-8", "/metrics\n"},
		{"GET", "/other", "", 404, "", ""},
		{"POST", "/metrics", "", 405, "", ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tt.method, url+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", tt.accept)
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != tt.code || !strings.HasSuffix(string(body), tt.end) || tt.typ != "" && answer.Header.Get("Content-Type") != tt.typ {
			t.Errorf("%s %s = %d, %v, %s, %q", tt.method, tt.path, answer.StatusCode, err, answer.Header.Get("Content-Type"), body)
		}
	}
}

// TestServeBounded checks that a connection beyond the places is closed, and that one which ends makes place.
func TestServeBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bounded := &boundedListener{Listener: l, places: make(chan struct{}, 2)}
	accepted := make(chan net.Conn, 4)
	go func() {
		for {
			c, err := bounded.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetReadDeadline(time.Now().Add(20 * time.Second)) // for a failure only
		return c
	}
	dial()
	dial()
	first, second := <-accepted, <-accepted
	defer second.Close()
	if n, err := dial().Read(make([]byte, 1)); err != io.EOF && !isReset(err) {
		t.Errorf("the third connection reads %d, %v, want its end", n, err)
	}
	first.Close()
	first.Close() // gives the place back once
	dial()
	defer (<-accepted).Close()
	if n, err := dial().Read(make([]byte, 1)); err != io.EOF && !isReset(err) {
		t.Errorf("another one beyond the places reads %d, %v, want its end", n, err)
	}
}

func isReset(err error) bool { return err != nil && strings.Contains(err.Error(), "reset") }

// TestWriteFile checks that a file is replaced as a whole, that others may read it, and that nothing
// is left of a write that fails.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "gosmc.prom")
	c := New(func(context.Context) Snapshot { return testSnapshot() })
	for range 2 {
		if err := c.WriteFile(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the file: %v, %v, want mode 0644", info, err)
	}
	if text, _ := os.ReadFile(name); !strings.HasPrefix(string(text), "# HELP smc_") || strings.Contains(string(text), "EOF") {
		t.Errorf("the file has %q", text)
	}
	if err := os.Mkdir(filepath.Join(dir, "in.prom"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteFile(t.Context(), filepath.Join(dir, "in.prom")); err == nil {
		t.Error("a directory was replaced")
	}
	if err := c.WriteFile(t.Context(), filepath.Join(dir, "none", "x.prom")); err == nil {
		t.Error("a file was written into a directory that is not there")
	}
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("%d files are left, want 2", len(list))
	}
}
