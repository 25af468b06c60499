package bench

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/gosmc/smc/internal/pod"
)

// A round between two containers is measured as any other, over TCP and over shared memory.
func TestMeasurePods(t *testing.T) {
	pods, err := newPodSite(t.Context())
	if errors.Is(err, errNotRoot) || errors.Is(err, exec.ErrNotFound) || errors.Is(err, pod.ErrNoPairing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Close()
	rows, err := Choose([]string{"pod"})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range rows {
		for _, transport := range b.Transports {
			var r roundResult
			for range 5 { // a machine that is busy may be late with an introduction, and TCP is right then
				s, err2 := pods.site(t.Context())
				if err2 != nil {
					t.Fatal(err2)
				}
				r, err = measureRound(t.Context(), s, b, transport, tinyPlan, ringDefault)
				s.close()
				if err == nil {
					break
				}
				t.Log(err)
			}
			if err != nil || b.value(r) <= 0 || (r.mode == "SMC-D") != (transport == transportSMCD) {
				t.Errorf("%s over %s: %+v, %v; want a value", b.Name, transport, r, err)
			}
		}
	}
}
