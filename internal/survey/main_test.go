package survey

import (
	"os"
	"testing"

	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) {
	remove := smctest.ClearEnvironment()
	code := m.Run()
	remove()
	os.Exit(code)
}
