package top

import (
	"testing"

	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) { smctest.Main(m) }
