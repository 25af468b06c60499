package smc

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// patience bounds every wait for something that has to happen. It only passes when a test fails.
const patience = 20 * time.Second

// bigBody is the size of large transfers: several times all buffers.
const bigBody = 24 << 20

// patternReader reads a stream of so many bytes.
func patternReader(size int64) io.Reader { return io.LimitReader(&endlessPattern{}, size) }

type endlessPattern struct{ at uint64 }

func (p *endlessPattern) Read(b []byte) (int, error) {
	smctest.Pattern(b, p.at)
	p.at += uint64(len(b))
	return len(b), nil
}

// patternHash is the hash of the bytes that patternReader reads.
func patternHash(size int64) string {
	h := sha256.New()
	io.Copy(h, patternReader(size))
	return hex.EncodeToString(h.Sum(nil))
}

// netConnKey is where a request's context has the connection.
type netConnKey struct{}

// testHandler answers in the ways that use a connection differently.
func testHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/mode", func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(netConnKey{}).(net.Conn)
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		fmt.Fprint(w, c.(*Conn).State().Mode)
	})
	mux.HandleFunc("/hash", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		io.Copy(h, r.Body)
		fmt.Fprintf(w, "%x %v", h.Sum(nil), r.TransferEncoding)
	})
	mux.HandleFunc("/big", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "chunked" {
			w.Header().Set("Content-Length", fmt.Sprint(bigBody))
		}
		io.Copy(w, patternReader(bigBody))
	})
	mux.HandleFunc("/refuse", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "too much", http.StatusRequestEntityTooLarge) // without a 100 Continue
	})
	mux.HandleFunc("/hijack", func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer c.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		line, _ := rw.ReadString('\n')
		io.WriteString(c, line)
	})
	return mux
}

// httpPair serves testHandler over SMC-D and returns the server and its client.
func httpPair(t *testing.T, start func(*httptest.Server), protocols func(*http.Protocols)) (*httptest.Server, *http.Client) {
	t.Helper()
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	client, server := newHost(t, Config{Dir: dir}), newHost(t, Config{Dir: dir})
	return httpOver(t, Dialer{Host: client, Require: RequireSMCD}, server, "127.0.0.1:0", start, protocols)
}

// httpOver serves testHandler at an address of a host.
func httpOver(t *testing.T, d Dialer, server *Host, address string, start func(*httptest.Server), protocols func(*http.Protocols)) (*httptest.Server, *http.Client) {
	t.Helper()
	lc := ListenConfig{Host: server}
	l, err := lc.Listen(context.Background(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewUnstartedServer(testHandler())
	ts.Listener.Close()
	ts.Listener = l
	ts.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, netConnKey{}, c)
	}
	if protocols != nil {
		ts.Config.Protocols = new(http.Protocols)
		protocols(ts.Config.Protocols)
	}
	start(ts)
	t.Cleanup(ts.Close)
	hc := ts.Client()
	tr := hc.Transport.(*http.Transport)
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return d.DialContext(ctx, network, addr)
	}
	tr.ExpectContinueTimeout = patience
	if protocols != nil {
		tr.Protocols = new(http.Protocols)
		protocols(tr.Protocols)
	}
	hc.Timeout = 3 * patience
	return ts, hc
}

// request makes a request and returns the answer's body.
func request(t *testing.T, hc *http.Client, method, url string, body io.Reader, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := hc.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return res, string(text)
}

// httpKinds are the ways in which HTTP uses a connection.
var httpKinds = []struct {
	name      string
	start     func(*httptest.Server)
	protocols func(*http.Protocols)
	proto     string
}{
	{"HTTP/1.1", (*httptest.Server).Start, nil, "HTTP/1.1"},
	{"HTTP/1.1 over TLS", (*httptest.Server).StartTLS, nil, "HTTP/1.1"},
	{"HTTP/2 over TLS", func(ts *httptest.Server) { ts.EnableHTTP2 = true; ts.StartTLS() }, nil, "HTTP/2.0"},
	{"HTTP/2 without TLS", (*httptest.Server).Start, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }, "HTTP/2.0"},
}

func TestHTTP(t *testing.T) {
	for _, tt := range httpKinds {
		t.Run(tt.name, func(t *testing.T) {
			ts, hc := httpPair(t, tt.start, tt.protocols)
			testHTTP(t, ts, hc, tt.proto, ModeSMCD)
		})
	}
}

// testHTTP makes requests of all kinds.
func testHTTP(t *testing.T, ts *httptest.Server, hc *http.Client, proto string, mode Mode) {
	res, text := request(t, hc, "GET", ts.URL+"/mode", nil)
	if text != mode.String() || res.Proto != proto {
		t.Errorf("GET /mode = %q over %s, want %v over %s", text, res.Proto, mode, proto)
	}
	// The same connection serves the next request.
	reused := false
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
	})
	req, _ := http.NewRequestWithContext(ctx, "GET", ts.URL+"/mode", nil)
	if res, err := hc.Do(req); err != nil {
		t.Error(err)
	} else {
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	if !reused {
		t.Error("the connection was not used again")
	}

	want := patternHash(bigBody)
	for _, query := range []string{"", "?chunked"} {
		_, text := request(t, hc, "GET", ts.URL+"/big"+query, nil)
		if got := sha256.Sum256([]byte(text)); hex.EncodeToString(got[:]) != want {
			t.Errorf("GET /big%s: %d bytes with another hash", query, len(text))
		}
	}
	// The client sends a body in chunks if it does not know the length.
	_, text = request(t, hc, "POST", ts.URL+"/hash", io.MultiReader(patternReader(bigBody)))
	if !strings.HasPrefix(text, want) || proto == "HTTP/1.1" && !strings.HasSuffix(text, "[chunked]") {
		t.Errorf("POST /hash, chunked = %s, want %s", text, want)
	}
	_, text = request(t, hc, "POST", ts.URL+"/hash", patternReader(bigBody), "Expect", "100-continue")
	if !strings.HasPrefix(text, want) {
		t.Errorf("POST /hash with 100-continue = %s, want %s", text, want)
	}
	res, _ = request(t, hc, "POST", ts.URL+"/refuse", strings.NewReader("body"), "Expect", "100-continue")
	if res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("POST /refuse = %v", res.Status)
	}
}

func TestHTTPHijack(t *testing.T) {
	ts, hc := httpPair(t, (*httptest.Server).Start, nil)
	d := hc.Transport.(*http.Transport).DialContext
	c, err := d(context.Background(), "tcp", ts.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	// The bytes behind the request are already there when it is hijacked.
	io.WriteString(c, "GET /hijack HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello\n")
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("ReadResponse = %v, %v", res, err)
	}
	if text, err := io.ReadAll(r); string(text) != "hello\n" || err != nil {
		t.Errorf("after the switch: %q, %v; want %q", text, err, "hello\n")
	}
}

// TestTLS moves much data both ways at once in a TLS connection.
func TestTLS(t *testing.T) {
	smctest.CheckLeaks(t)
	ts := httptest.NewUnstartedServer(nil) // has a certificate
	ts.StartTLS()
	defer ts.Close()
	dir := t.TempDir()
	c, s := connect(t, newHost(t, Config{Dir: dir}), newHost(t, Config{Dir: dir}), ModeSMCD)
	testTLS(t, ts, c, s)
}

// testTLS moves much data over a connection with the certificate of a server.
func testTLS(t *testing.T, ts *httptest.Server, c, s *Conn) {
	client := tls.Client(c, &tls.Config{RootCAs: ts.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"})
	server := tls.Server(s, &tls.Config{Certificates: ts.TLS.Certificates})
	want := patternHash(bigBody)
	ends := make(chan error, 4)
	for _, end := range []*tls.Conn{client, server} {
		end.SetDeadline(time.Now().Add(3 * patience))
		defer end.Close()
		go func() {
			_, err := io.Copy(end, patternReader(bigBody))
			if err == nil {
				err = end.CloseWrite()
			}
			ends <- err
		}()
		go func() {
			h := sha256.New()
			n, err := io.Copy(h, end)
			if got := hex.EncodeToString(h.Sum(nil)); err == nil && got != want {
				err = fmt.Errorf("%d bytes with another hash", n)
			}
			ends <- err
		}()
	}
	for range cap(ends) {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
}
