package rnic

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) {
	remove := smctest.ClearEnvironment()
	// The runtime opens its poller at first use and keeps it, which must not look like a leak.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { remove(); os.Exit(code) }))
}
