package metrics

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Path is where metrics are served.
const Path = "/metrics"

// Serve answers HTTP requests on a listener, which it closes, until the context ends.
func (c *Collector) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, r *http.Request) {
		c.serveMetrics(ctx, w, r) // rule: TestServeGone: ctx, -> r.Context(),
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "gosmc: metrics are at "+Path)
	})
	server := &http.Server{
		Handler: whileServed(mux), MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(&boundedListener{Listener: l, most: maxScrapers})
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// serveMetrics answers one request. The snapshot goes on when the client goes: other clients get it,
// too, and one that never waits for its answer would spoil theirs.
func (c *Collector) serveMetrics(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	format := Prometheus
	if strings.Contains(r.Header.Get("Accept"), "application/openmetrics-text") {
		format = OpenMetrics
	}
	text, err := c.Text(ctx, format)
	if err != nil {
		http.Error(w, "gosmc: the exporter ends", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", format.ContentType())
	w.Write(text) // an error says that the client has gone
}

// WriteFile puts the metrics in place of a file, for the textfile collector of node_exporter: readers
// see the old content or the new one. The file's name has to end in ".prom", or node_exporter does
// not read it. An error names the file; the file is then as it was, also if the context has ended.
func (c *Collector) WriteFile(ctx context.Context, name string) (err error) {
	text, err := c.Text(ctx, Prometheus)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = &fs.PathError{Op: "write", Path: name, Err: causeOf(err)}
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(name), ".gosmc-metrics-*")
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(text); err != nil {
		return err
	}
	if err = f.Chmod(fs.FileMode(0o644)); err != nil { // node_exporter has a user of its own
		return err
	}
	return os.Rename(f.Name(), name)
}

// causeOf is an error without the name of the file that is put in place of another: nobody knows that
// name.
func causeOf(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// WriteFiles calls WriteFile again and again until the context ends. An error of the first time ends
// it, too. A later one, such as of a full disk, is given to failed once for as long as it lasts, and
// the next time may be better: with a new start, counters would begin anew.
func (c *Collector) WriteFiles(
	ctx context.Context, name string, every time.Duration, failed func(error),
) error {
	last := ""
	for first := true; ; first = false {
		err := c.WriteFile(ctx, name)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			last = ""
		case first:
			return err
		case err.Error() != last:
			last = err.Error() // rule: TestWriteFilesGoesOn
			failed(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// A boundedListener has at most so many connections at a time. One more takes the place of the oldest
// that has no request in work: clients that are silent or slow keep nobody out.
type boundedListener struct {
	net.Listener
	most int

	mu    sync.Mutex
	conns []*placedConn // the oldest first
}

// Accept implements [net.Listener].
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if placed := l.place(c); placed != nil {
			return placed, nil
		}
		c.Close()
	}
}

// place gives a connection a place, or returns nil if there is none.
func (l *boundedListener) place(c net.Conn) *placedConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= l.most { // rule: TestServeBounded: len(l.conns) >= l.most -> false
		i := slices.IndexFunc(l.conns, func(c *placedConn) bool { return !c.served }) // rule: TestServeBounded: !c.served -> false
		if i < 0 {
			return nil
		}
		l.conns[i].Conn.Close()
		l.conns = slices.Delete(l.conns, i, i+1)
	}
	placed := &placedConn{Conn: c, of: l}
	l.conns = append(l.conns, placed)
	return placed
}

// A placedConn gives its place back when it is closed.
type placedConn struct {
	net.Conn
	of     *boundedListener
	served bool // a request is in work; of.mu is held
}

// Close implements [net.Conn].
func (c *placedConn) Close() error {
	c.of.mu.Lock()
	if i := slices.Index(c.of.conns, c); i >= 0 {
		c.of.conns = slices.Delete(c.of.conns, i, i+1)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// serve notes whether a request is in work.
func (c *placedConn) serve(served bool) {
	c.of.mu.Lock()
	c.served = served
	c.of.mu.Unlock()
}

// A connKey is the key of the connection in the context of its requests.
type connKey struct{}

// whileServed notes at the connection of each request that it is in work.
func whileServed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*placedConn); ok {
			c.serve(true)
			defer c.serve(false)
		}
		next.ServeHTTP(w, r)
	})
}
