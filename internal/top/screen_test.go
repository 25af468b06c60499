package top

import (
	"os"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/inventory"
)

// TestFits checks that a view has no more lines than the terminal, and does not move it up.
func TestFits(t *testing.T) {
	null, err := os.Open(os.DevNull) // a terminal of unknown size, which is 80 by 24
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r := Report{Activity: make([]inventory.Activity, 50)}
	var out strings.Builder
	if err := (&screen{out: &out, in: null}).show(&r, &View{}); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 23 {
		t.Errorf("a view of 24 lines goes to the next line %d times, want 23: %q", n, out.String())
	}
}
