package smcr

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire/clc"
)

// The reason of a device that could not be opened says why.
func TestReason(t *testing.T) {
	r := newFabricRig(t, nil)
	n, err := r.client.rnics.Acquire(r.addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	_, taken := r.server.rnics.Acquire(r.addrs[0])
	_, foreign := r.client.rnics.Acquire(netip.MustParseAddr("192.0.2.1"))
	n.HandleEvent(&verbs.Event{Kind: verbs.EventInterfaceDown})
	_, down := r.client.rnics.Acquire(r.addrs[0])
	n.Release()
	r.client.Close(true)
	_, closed := r.client.rnics.Acquire(r.addrs[0])
	for _, tt := range []struct {
		err  error
		want clc.Diagnosis
	}{
		{taken, clc.DiagPortInUse}, {foreign, clc.DiagNoSMCRDevice}, {down, clc.DiagRNICDown}, {closed, clc.DiagClosing},
		{&port.RefusedError{}, clc.DiagPortInUse},
		{fmt.Errorf("%w: rxe0: %w", verbs.ErrUnusable, unix.EACCES), clc.DiagNoSMCRDevice},
		{fmt.Errorf("%w: rxe0: %w", verbs.ErrUnusable, unix.EMFILE), clc.DiagNoFile},
		{verbs.ErrRemoved, clc.DiagRNICDown},
	} {
		if tt.err == nil || Reason(tt.err) != tt.want {
			t.Errorf("Reason(%v) = %v, want %v", tt.err, Reason(tt.err), tt.want)
		}
	}
}
