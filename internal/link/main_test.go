package link

import (
	"fmt"
	"os"
	"testing"

	"github.com/gosmc/smc/internal/smctest"
)

// TestMain runs the tests. In the other process of a benchmark it does that one's work.
func TestMain(m *testing.M) {
	if os.Getenv(envPeer) != "" {
		if err := benchPeer(); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(1)
		}
		return
	}
	smctest.MainDescriptors(m)
}
