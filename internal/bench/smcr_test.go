package bench

import (
	"errors"
	"strings"
	"testing"
)

// Where there are no network namespaces the two workers are on one machine, and it is SMC-R all the same.
func TestSMCROverLoopback(t *testing.T) {
	st := stage{noNetns: errors.New("not permitted here")}
	for _, name := range []string{"smcr-bulk-9000", "smcr-connect"} {
		r, err := st.measureRound(t.Context(), findRow(name), transportSMCR, tinyPlan, ringDefault)
		if err != nil {
			t.Fatalf("%s: measureRound = %v", name, err)
		}
		if !strings.HasPrefix(r.mode, "SMC-R") || r.rate <= 0 {
			t.Errorf("%s: measureRound = %+v, want SMC-R and a rate", name, r)
		}
	}
}
