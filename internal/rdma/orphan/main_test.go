package orphan_test

import (
	"testing"

	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) { smctest.MainDescriptors(m) }
