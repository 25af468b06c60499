package plain

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/gosmc/smc/wire/clc"
)

func newTestHost(t *testing.T) *Host {
	t.Helper()
	h, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return h
}

// pair returns the two ends of a connection of h.
func pair(t *testing.T, h *Host) (client, server *Conn) {
	t.Helper()
	l, err := h.Listen(t.Context(), "tcp", "127.0.0.1:0", ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = h.Dial(t.Context(), "tcp", l.Addr().String(), DialOptions{}); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// A connection is one as package net has it, says why it is no more, and counts the bytes that it
// moves.
func TestConn(t *testing.T) {
	h := newTestHost(t)
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		client, server := pair(t, h)
		return client, server, func() { client.Close(); server.Close() }, nil
	})
	client, server := pair(t, h)
	if r := client.Reason(); r.Code != clc.DiagNotSupported || client.Mode() != ModeTCP {
		t.Errorf("a connection has the mode %v and the reason %v; want TCP and %v", client.Mode(), r, clc.DiagNotSupported)
	}
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	client.Close()
	if b, err := io.ReadAll(server); string(b) != "hello" || err != nil {
		t.Errorf("ReadAll = %q, %v; want hello", b, err)
	}
	_, out := client.Totals()
	if in, _ := server.Totals(); out != 5 || in != 5 {
		t.Errorf("Totals: %d bytes out and %d bytes in, want 5", out, in)
	}
}

// A program that requires SMC gets an error that names the missing part, and a listener that
// requires it shows it no connection.
func TestRequire(t *testing.T) {
	const requireSMC = AnyMode + 1
	h := newTestHost(t)
	l, err := h.Listen(t.Context(), "tcp", "127.0.0.1:0", ListenOptions{Require: requireSMC})
	if err != nil {
		t.Fatal(err)
	}
	var fallback *FallbackError
	c, err := h.Dial(t.Context(), "tcp", l.Addr().String(), DialOptions{Require: requireSMC})
	if !errors.As(err, &fallback) || fallback.Reason.Code != clc.DiagNotSupported {
		t.Errorf("Dial = %v, %v; want a FallbackError", c, err)
	}
	if c, err = h.Dial(t.Context(), "tcp", l.Addr().String(), DialOptions{}); err != nil {
		t.Fatal(err)
	}
	l.SetDeadline(time.Now().Add(100 * time.Millisecond))
	if got, err := l.Accept(); err == nil {
		t.Errorf("Accept = %v, want no connection", got)
	}
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read of a connection that does not meet the requirement = %d, %v; want its end", n, err)
	}
}

// Shutdown waits for the program's connections until its context ends, and resets those that are left.
func TestShutdown(t *testing.T) {
	h := newTestHost(t)
	client, server := pair(t, h)
	done := make(chan error, 1)
	go func() { done <- h.Shutdown(context.Background()) }()
	client.Close()
	select {
	case err := <-done:
		t.Fatalf("Shutdown = %v, before the last connection is closed", err)
	case <-time.After(50 * time.Millisecond):
	}
	server.Close()
	if err := <-done; err != nil {
		t.Errorf("Shutdown = %v", err)
	}
	if _, err := h.Listen(t.Context(), "tcp", "127.0.0.1:0", ListenOptions{}); !errors.Is(err, errHostClosed) {
		t.Errorf("Listen after Shutdown = %v, want %v", err, errHostClosed)
	}

	h = newTestHost(t)
	client, _ = pair(t, h)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown with a context that has ended = %v, want %v", err, context.Canceled)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read after that = %v, want %v", err, net.ErrClosed)
	}
}

// A setting that is wrong on Linux is wrong here, too; a call that has no meaning here returns an
// error that says so.
func TestErrors(t *testing.T) {
	for _, cfg := range []Config{{ReadBuffer: 1}, {ReadBuffer: maxBuffer + 1}, {UEIDs: []string{"lower case"}}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("New(%+v) has no error", cfg)
		}
	}
	h := newTestHost(t)
	if _, err := h.Dial(t.Context(), "udp", "127.0.0.1:1", DialOptions{}); !errors.As(err, new(net.UnknownNetworkError)) {
		t.Errorf("Dial of udp = %v, want an UnknownNetworkError", err)
	}
	client, _ := pair(t, h)
	if _, err := client.WriteUrgent([]byte("!")); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("WriteUrgent = %v, want %v", err, errors.ErrUnsupported)
	}
	if err := client.SetNoDelay(false); err != nil || client.Options().NoDelay {
		t.Errorf("SetNoDelay(false) = %v, and the option is %v", err, client.Options().NoDelay)
	}
}

// TestNumbers checks the numbers of connections that there are, and of those that are closed, one of
// them twice.
func TestNumbers(t *testing.T) {
	h := newTestHost(t)
	client, server := pair(t, h)
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	check := func(when string, openClient, openServer int) {
		t.Helper()
		got, reason := h.Numbers()
		want := Numbers{
			Started: got.Started, OpenClient: openClient, OpenServer: openServer, Client: 1, Server: 1, In: 5, Out: 5,
		}
		if got != want || got.Started.IsZero() || reason.Code != clc.DiagNotSupported {
			t.Errorf("%s: %+v, %v, want %+v", when, got, reason, want)
		}
	}
	check("open", 1, 1)
	client.Close()
	client.Close()
	client.Forget()
	check("client closed", 0, 1)
	server.Close()
	check("closed", 0, 0)
}
