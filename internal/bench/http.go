package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
)

// httpGets asks for the same small body in several goroutines, each on its own connection.
var httpGets = &workload{
	clientCounts: true,
	server: func(m *meter, l net.Listener) error {
		body := make([]byte, m.settings.Size)
		for i := range body {
			body[i] = 'a' + byte(i%26)
		}
		handler := func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			w.Write(body)
		}
		return http.Serve(checkedListener{l, m}, http.HandlerFunc(handler))
	},
	client: func(m *meter, dial dialFunc) error {
		t := &http.Transport{
			DialContext:         func(context.Context, string, string) (net.Conn, error) { return dial() },
			MaxIdleConnsPerHost: m.settings.Conns,
			MaxConnsPerHost:     m.settings.Conns,
			DisableCompression:  true,
		}
		defer t.CloseIdleConnections()
		client := http.Client{Transport: t}
		errs := make([]error, m.settings.Conns)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				for !m.stopped() && errs[i] == nil {
					if errs[i] = get(&client, m.settings.Size); errs[i] == nil {
						m.count(1, m.settings.Size)
						m.start()
					}
				}
				if errs[i] != nil {
					m.finish()
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	},
}

func get(client *http.Client, want int) error {
	r, err := client.Get("http://bench.invalid/") // the transport dials the server for any name
	if err != nil {
		return err
	}
	defer r.Body.Close()
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK || n != int64(want) {
		return fmt.Errorf("status %d and %d bytes, want 200 and %d", r.StatusCode, n, want)
	}
	return nil
}

// A checkedListener checks every connection before net/http gets it.
type checkedListener struct {
	net.Listener
	m *meter
}

func (l checkedListener) Accept() (net.Conn, error) { return l.m.accept(l.Listener) }
