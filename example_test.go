package smc_test

import (
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"

	"github.com/gosmc/smc"
)

// A server that sends everything back, and a client. Only the names of the two functions
// differ from a program that uses package net.
func Example() {
	l, err := smc.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.Copy(c, c)
	}()

	c, err := smc.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprint(c, "hello")
	c.CloseWrite()
	answer, err := io.ReadAll(c)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s over %v\n", answer, c.State().Mode)
	c.Close()

	// The host that Dial and Listen share lives as long as the process. Only a test that looks for
	// leaks, as this one is, has to end it.
	l.Close()
	smc.DefaultHost().Shutdown(context.Background())
	// Output: hello over SMC-D
}

// A client calls off the request that it has sent, before the server has read it.
func ExampleConn_WriteUrgent() {
	h, err := smc.NewHost(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	lc := smc.ListenConfig{Host: h}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	d := smc.Dialer{Host: h}
	client, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	server, err := l.AcceptSMC()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	fmt.Fprint(client, "a long job")
	client.WriteUrgent([]byte{'!'})

	command, err := server.ReadUrgent() // in a goroutine of its own, mostly
	if err != nil {
		log.Fatal(err)
	}
	skipped := 0
	for at := false; !at; at, _ = server.AtUrgentMark() {
		n, err := server.Read(make([]byte, 4))
		if err != nil {
			log.Fatal(err)
		}
		skipped += n
	}
	fmt.Printf("%c, and %d bytes skipped\n", command, skipped)
	// Output: !, and 10 bytes skipped
}

// A Listener serves HTTP, and a Dialer carries it.
func ExampleListen_http() {
	h, err := smc.NewHost(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	lc := smc.ListenConfig{Host: h}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello from %s", r.URL.Path)
	})}
	defer server.Close()
	go server.Serve(l)

	d := smc.Dialer{Host: h, Require: smc.RequireSMCD}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return d.DialContext(ctx, network, addr)
		},
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	r, err := client.Get("http://" + l.Addr().String() + "/shared/memory")
	if err != nil {
		log.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(body))
	// Output: hello from /shared/memory
}

// A server that does not use SMC gets an ordinary TCP connection, and State says why.
func ExampleConn_State() {
	l, err := net.Listen("tcp", "127.0.0.1:0") // package net, not smc
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	h, err := smc.NewHost(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	d := smc.Dialer{Host: h}
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	s := c.State()
	fmt.Println(s.Mode)
	fmt.Println(s.Reason.Text)
	fmt.Println(s.Reason.Advice)
	// Output:
	// TCP
	// No program has announced an SMC listener at this address.
	// Run the server with SMC, with the same run directory (GOSMC_DIR) as the client.
}

// With Require a connection that would be less is an error, and not used.
func ExampleDialer_require() {
	l, err := net.Listen("tcp", "127.0.0.1:0") // package net, not smc
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	h, err := smc.NewHost(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	d := smc.Dialer{Host: h, Require: smc.RequireSMC}
	_, err = d.Dial("tcp", l.Addr().String())
	fmt.Println(errors.Is(err, smc.ErrFallback))
	if fallback, ok := errors.AsType[*smc.FallbackError](err); ok {
		fmt.Println(fallback.Reason.Tag)
	}
	// Output:
	// true
	// NO_LISTENER
}

// systemd hands the sockets of a unit over as files from number 3 on.
func ExampleFileListener() {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return
	}
	l, err := smc.FileListener(os.NewFile(3, "systemd"))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(l, nil))
}

// A program shows the numbers of its host beside its other variables, at /debug/vars. Programs that
// use the default host take smc.DefaultHost(). Collectors for Prometheus and OpenTelemetry are in the
// directory examples of the repository.
func ExampleHost_Stats() {
	host, err := smc.NewHost(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	expvar.Publish("smc", expvar.Func(func() any { return host.Stats() }))

	page := httptest.NewRecorder()
	expvar.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/debug/vars", nil))
	var variables struct {
		SMC struct {
			Modes map[string]struct {
				Client uint64 `json:"client"`
			} `json:"modes"`
		} `json:"smc"`
	}
	if err := json.Unmarshal(page.Body.Bytes(), &variables); err != nil {
		log.Fatal(err)
	}
	fmt.Println(variables.SMC.Modes["SMC-D"].Client, "connections of SMC-D were dialed")
	// Output: 0 connections of SMC-D were dialed
}
