package smctest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/gosmc/smc/internal/config"
)

// Main is the TestMain of packages whose tests open hosts or devices: it clears the environment,
// runs the tests, looks for goroutines that they leave, and ends the process. Connections that are
// short are moved like others unless a test says otherwise.
func Main(m *testing.M) {
	remove := ClearEnvironment()
	os.Setenv(config.Variables[config.ShortAfter], "off")
	openPoller()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { remove(); os.Exit(code) }))
}

// MainDescriptors is [Main] for packages whose tests close all descriptors that they open: it looks
// for descriptors that are left, too.
func MainDescriptors(m *testing.M) {
	remove := ClearEnvironment()
	openPoller()
	before := CountDescriptors()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if after := CountDescriptors(); code == 0 && after > before {
			fmt.Fprintf(os.Stderr, "%d descriptors are open after the tests, %d before\n", after, before)
			code = 1
		}
		remove()
		os.Exit(code)
	}))
}

// MainChildren is the TestMain of packages whose tests start the test program as a child: a child
// finds the variable set, and its TestMain does not come here. It clears the environment, runs the
// tests and ends the process.
func MainChildren(m *testing.M, variable string) {
	os.Setenv(variable, "1")
	remove := ClearEnvironment()
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or each child takes a second to end
	code := m.Run()
	remove()
	os.Exit(code)
}

// openPoller has the runtime open its poller. It does so at first use and keeps it, which must not
// look like a leak.
func openPoller() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
}

// CountDescriptors returns the number of open descriptors, with one for looking.
func CountDescriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(list)
}
