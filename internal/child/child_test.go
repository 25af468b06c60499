package child

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// verbOfTest tells the test program that it is a child: it runs itself again.
const verbOfTest = "GOSMC_CHILD_OF_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(verbOfTest) != "" {
		os.Exit(childMain(os.Args[1]))
	}
	os.Setenv(verbOfTest, "1")
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or each child takes a second to end
	os.Exit(m.Run())
}

// childMain is what the children of these tests do.
func childMain(verb string) int {
	p := NewParent(os.Stdin, os.Stdout)
	switch verb {
	case "echo":
		for {
			var s string
			if p.Receive(&s) != nil {
				return 0
			}
			if p.Send(s) != nil {
				return 1
			}
		}
	case "dumb": // says nothing, and ends when its input does
		io.Copy(io.Discard, os.Stdin)
		return 0
	}
	fmt.Fprintf(os.Stderr, "gosmc: there is no verb %s\n", verb)
	return 2
}

const testTimeout = 60 * time.Second

func TestProcess(t *testing.T) {
	c, err := Start(t.Context(), "test", "echo")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"a", strings.Repeat("long ", 10000)} {
		if err := c.Send(s); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := c.Receive(t.Context(), testTimeout, &got); err != nil || got != s {
			t.Errorf("Receive = %.20q, %v, want what was sent", got, err)
		}
	}
	if c.PID() <= 0 || c.Name() != "test" {
		t.Errorf("child is %q, process %d", c.Name(), c.PID())
	}
	c.Stop()
	select {
	case <-c.Exited():
	default:
		t.Error("a stopped child has not ended")
	}
}

// A child that dies says so to its parent, with what it wrote to standard error.
func TestFailure(t *testing.T) {
	c, err := Start(t.Context(), "test", "frobnicate")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	var m struct{}
	err = c.Receive(t.Context(), testTimeout, &m)
	if err == nil || !strings.Contains(err.Error(), "the test process ended early") || !strings.HasSuffix(err.Error(), ": there is no verb frobnicate") {
		t.Errorf("Receive from a dead child = %v, want its end and its words", err)
	}
}

func TestReceiveTimeout(t *testing.T) {
	c, err := Start(t.Context(), "test", "dumb")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	var m struct{}
	if err := c.Receive(t.Context(), time.Millisecond, &m); err == nil || !strings.Contains(err.Error(), "does not answer within 1ms") {
		t.Errorf("Receive from a child that says nothing = %v, want a timeout", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Receive(ctx, testTimeout, &m); err != context.Canceled {
		t.Errorf("Receive, interrupted = %v, want %v", err, context.Canceled)
	}
}
