package smc

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// childEcho echoes on every connection until the test has nothing more to say.
// Arguments: run directory.
func childEcho(p *smctest.Parent) {
	h := childHost(p, p.Args[0])
	l, err := listenOn(h)
	p.Check(err)
	go serveEach(l, func(c net.Conn) { echo(c) })
	p.Say("listening %v", l.Addr())
	for {
		p.Hear()
	}
}

// isStopped reports whether all of a process is stopped.
func isStopped(t *testing.T, pid int) bool {
	t.Helper()
	state, err := smctest.StateOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	return state == 'T'
}

// TestStop stops a process in mid transfer and lets it go on: meanwhile only calls with a deadline
// fail, and afterwards every byte arrives.
func TestStop(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	h := newHost(t, Config{Dir: dir})
	child := smctest.Start(t, "echo", dir)
	addr := child.Hear("listening")
	dial := func(ctx context.Context) (*Conn, error) {
		d := Dialer{Host: h, Require: RequireSMCD}
		return d.DialContext(ctx, "tcp", addr)
	}
	c, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other, err := dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()

	var sent, got uint64
	out, in := make([]byte, 100_003), make([]byte, 100_003)
	write := func() error {
		smctest.Pattern(out, sent)
		n, err := c.Write(out)
		sent += uint64(n)
		return err
	}
	read := func() error {
		n, err := c.Read(in)
		if perr := smctest.CheckPattern(in[:n], got); perr != nil {
			t.Fatal(perr)
		}
		got += uint64(n)
		return err
	}
	for round := range 3 {
		for range 20 {
			if err := write(); err != nil {
				t.Fatal(err)
			}
			if err := read(); err != nil {
				t.Fatal(err)
			}
		}
		child.Signal(syscall.SIGSTOP)
		smctest.Eventually(t, slow, "the child is stopped", func() bool { return isStopped(t, child.PID()) })

		const wait = 300 * time.Millisecond
		for what, op := range map[string]func() error{"Write": write, "Read": read} {
			start := time.Now()
			c.SetDeadline(start.Add(wait))
			var err error
			for err == nil { // until the buffer is full, or empty
				err = op()
			}
			took := time.Since(start)
			if !errors.Is(err, os.ErrDeadlineExceeded) || took < wait || took > slow/2 {
				t.Errorf("%s while the peer is stopped: %v after %v, want a timeout after %v", what, err, took, wait)
			}
		}
		if got >= sent {
			t.Errorf("round %d: a stopped process has sent back all %d bytes", round, sent)
		}

		// A new connection cannot be made, and says so in time.
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		start := time.Now()
		if c, err := dial(ctx); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Dial of a stopped process = %v, %v; want a timeout", c, err)
		}
		if took := time.Since(start); took > slow/2 {
			t.Errorf("Dial of a stopped process with %v to go took %v", wait, took)
		}
		cancel()

		child.Signal(syscall.SIGCONT)
		c.SetDeadline(time.Now().Add(slow))
		if err := write(); err != nil {
			t.Fatalf("Write after the peer went on: %v", err)
		}
		for got < sent {
			if err := read(); err != nil {
				t.Fatalf("Read after the peer went on: %v, %d of %d bytes", err, got, sent)
			}
		}
	}

	// Close does not wait for a process that is stopped, and written bytes are not lost.
	child.Signal(syscall.SIGSTOP)
	smctest.Eventually(t, slow, "the child is stopped", func() bool { return isStopped(t, child.PID()) })
	start := time.Now()
	if err := other.Close(); err != nil {
		t.Errorf("Close while the peer is stopped: %v", err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("Close while the peer is stopped took %v", took)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	child.Signal(syscall.SIGCONT)
	for err = nil; err == nil; {
		err = read()
	}
	if err != io.EOF || got != sent {
		t.Errorf("at the end: %v after %d bytes; want EOF after %d", err, got, sent)
	}
	ctx, cancel := context.WithTimeout(t.Context(), slow)
	defer cancel()
	again, err := dial(ctx)
	if err != nil {
		t.Fatalf("Dial after the peer went on: %v", err)
	}
	again.Close()
}

// TestKillStopped kills a process that is stopped: nothing of it will be heard, and still the other side
// learns of its death.
func TestKillStopped(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	h := newHost(t, Config{Dir: dir})
	child := smctest.Start(t, "echo", dir)
	d := Dialer{Host: h, Require: RequireSMCD, Timeout: slow}
	c, err := d.Dial("tcp", child.Hear("listening"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(slow))
	hello := []byte("hello") // so that it has accepted, and read these bytes
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, hello); err != nil {
		t.Fatal(err)
	}
	child.Signal(syscall.SIGSTOP)
	smctest.Eventually(t, slow, "the child is stopped", func() bool { return isStopped(t, child.PID()) })
	readErr := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		readErr <- err
	}()
	child.Kill()
	select {
	case err := <-readErr:
		if err != io.EOF { // nothing had been sent to it
			t.Errorf("Read after the peer was killed: %v, want EOF", err)
		}
	case <-time.After(slow):
		t.Fatal("Read hangs after the peer was killed")
	}
	for _, want := range []error{nil, syscall.EPIPE} { // as with TCP
		if _, err := c.Write([]byte("x")); !errors.Is(err, want) {
			t.Errorf("Write after the peer was killed: %v, want %v", err, want)
		}
	}
}
