package metrics

import (
	"context"
	"errors"
	"flag"
	"io"
	"io/fs"
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

// TestServeBounded checks that a connection beyond the places closes the oldest that has no request in
// work, and is closed itself if there is none.
func TestServeBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	bounded := &boundedListener{Listener: l, most: 2}
	accepted := make(chan *placedConn, 8)
	go func() {
		for {
			c, err := bounded.Accept()
			if err != nil {
				return
			}
			accepted <- c.(*placedConn)
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
	ends := func(name string, c net.Conn) {
		t.Helper()
		if n, err := c.Read(make([]byte, 1)); err != io.EOF && !isReset(err) {
			t.Errorf("%s reads %d, %v, want its end", name, n, err)
		}
	}
	dial()
	first := <-accepted
	first.serve(true)
	silent := dial()
	<-accepted
	third := dial()
	other := <-accepted
	ends("the silent connection", silent)
	other.serve(true)
	ends("a connection beyond two that are served", dial())
	first.Close()
	first.Close() // gives the place back once
	fourth := dial()
	(<-accepted).serve(true)
	ends("another one beyond the places", dial())
	other.serve(false)
	dial()
	defer (<-accepted).Close()
	ends("the one whose request was answered", third)
	fourth.Close()
}

func isReset(err error) bool { return err != nil && strings.Contains(err.Error(), "reset") }

// TestServeSilent checks that clients that send nothing, or a part of a request, keep nobody out, as
// do those that have their answer and stay.
func TestServeSilent(t *testing.T) {
	url := serve(t)
	for i := range 3 * maxScrapers {
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		const part = "GET / HTTP/1.1\r\nHost: x\r\n"
		io.WriteString(c, []string{"", part, part + "\r\n"}[i%3]) // it may be closed already
	}
	answer, err := http.Get(url + Path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || !strings.HasPrefix(string(text), "# HELP smc_") {
		t.Errorf("beside silent clients: %q, %v", text, err)
	}
}

// TestServeGone checks that a client which goes before it has its answer does not spoil the answer of
// others.
func TestServeGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked, answer := make(chan context.Context, 1), make(chan struct{})
	c := New(func(ctx context.Context) Snapshot {
		asked <- ctx
		<-answer
		if ctx.Err() != nil {
			return Snapshot{}
		}
		return testSnapshot()
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Serve(ctx, l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	within := <-asked
	conn.Close()
	select {
	case <-within.Done():
		t.Error("the snapshot ends with the client that asked")
	case <-time.After(100 * time.Millisecond): // in which the server sees the end, without the rule
	}
	close(answer)
	text, err := c.Text(t.Context(), Prometheus)
	if err != nil || value(string(text), "smc_hosts") != "1" {
		t.Errorf("the next client gets %v, and %s hosts, want 1", err, value(string(text), "smc_hosts"))
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Serve = %v", err)
	}
}

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
	none := filepath.Join(dir, "none", "x.prom")
	err = c.WriteFile(t.Context(), none)
	if err == nil || err.Error() != "write "+none+": no such file or directory" {
		t.Errorf("a file in a directory that is not there: %v", err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("%d files are left, want 2", len(list))
	}
}

// TestWriteFileLink checks that a symbolic link is replaced, and not followed.
func TestWriteFileLink(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "x.prom")
	if err := os.WriteFile(target, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	c := New(func(context.Context) Snapshot { return testSnapshot() })
	if err := c.WriteFile(t.Context(), link); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(target); string(text) != "mine" {
		t.Errorf("the target of a link has %q", text)
	}
}

// TestWriteFilesGoesOn checks that an error of the first time ends WriteFiles, and that a later one is
// told once and does not.
func TestWriteFilesGoesOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	name := filepath.Join(dir, "x.prom")
	c := New(func(context.Context) Snapshot { return testSnapshot() })
	never := func(err error) { t.Errorf("told: %v", err) }
	if err := c.WriteFiles(t.Context(), name, time.Millisecond, never); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("WriteFiles into no directory = %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	told, done := make(chan error, 100), make(chan error, 1)
	go func() { done <- c.WriteFiles(ctx, name, time.Millisecond, func(err error) { told <- err }) }()
	there := func() {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(name); err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("no file")
			}
		}
	}
	there()
	away := dir + "2"
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	if err := <-told; !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("told: %v", err)
	}
	time.Sleep(50 * time.Millisecond) // in which it would be told again, without the rule
	if len(told) > 0 {
		t.Errorf("told again: %v", <-told)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	there()
	stop()
	if err := <-done; err != nil {
		t.Errorf("WriteFiles = %v after its context has ended", err)
	}
}
