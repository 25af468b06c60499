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
	"strings"
	"sync"
	"time"
)

// Path is where metrics are served.
const Path = "/metrics"

// Serve answers HTTP requests on a listener, which it closes, until the context ends.
func (c *Collector) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, c.serveMetrics)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "gosmc: metrics are at "+Path)
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(&boundedListener{Listener: l, places: make(chan struct{}, maxScrapers)})
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (c *Collector) serveMetrics(w http.ResponseWriter, r *http.Request) {
	format := Prometheus
	if strings.Contains(r.Header.Get("Accept"), "application/openmetrics-text") {
		format = OpenMetrics
	}
	text := c.Text(r.Context(), format)
	w.Header().Set("Content-Type", format.ContentType())
	w.Write(text) // an error says that the client has gone
}

// WriteFile puts the metrics in place of a file, for the textfile collector of node_exporter: readers
// see the old content or the new one. The file's name has to end in ".prom", or node_exporter does
// not read it.
func (c *Collector) WriteFile(ctx context.Context, name string) (err error) {
	text := c.Text(ctx, Prometheus)
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

// WriteFiles calls WriteFile again and again until the context ends. An error ends it, too.
func (c *Collector) WriteFiles(ctx context.Context, name string, every time.Duration) error {
	for {
		if err := c.WriteFile(ctx, name); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// A boundedListener accepts a connection only while there is a place for it.
type boundedListener struct {
	net.Listener
	places chan struct{}
}

// Accept implements [net.Listener].
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if len(l.places) < cap(l.places) { // rule: TestServeBounded: len(l.places) < cap(l.places) -> true
			l.places <- struct{}{} // at once: nobody else takes places
			return &placedConn{Conn: c, places: l.places}, nil
		}
		c.Close()
	}
}

// A placedConn gives its place back when it is closed.
type placedConn struct {
	net.Conn
	places chan struct{}
	once   sync.Once
}

// Close implements [net.Conn].
func (c *placedConn) Close() error {
	c.once.Do(func() { <-c.places })
	return c.Conn.Close()
}
