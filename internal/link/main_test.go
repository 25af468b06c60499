package link

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs the tests and looks for goroutines and descriptors that they leave. In the other process of a
// benchmark it does that one's work.
func TestMain(m *testing.M) {
	if os.Getenv(envPeer) != "" {
		if err := benchPeer(); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(1)
		}
		return
	}
	// The runtime opens its poller at first use and keeps it, which must not look like a leak.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before := countDescriptors()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if after := countDescriptors(); code == 0 && after > before {
			fmt.Fprintf(os.Stderr, "%d descriptors are open after the tests, %d before\n", after, before)
			code = 1
		}
		os.Exit(code)
	}))
}

// countDescriptors returns the number of open descriptors, with one for looking.
func countDescriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(list)
}
