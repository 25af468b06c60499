package host

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	os.Setenv("GOSMC_CONFIG", os.DevNull) // the configuration of this machine is none of the tests'
	// The runtime opens its poller at first use and keeps it, which must not look like a leak.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	goleak.VerifyTestMain(m)
}
