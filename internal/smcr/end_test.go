package smcr

import (
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
)

// TestLastWord has links stay for the last message of soft-RoCE, unless the group was idle.
func TestLastWord(t *testing.T) {
	for _, tt := range []struct {
		cut  bool
		peer wire.QPN
		want time.Duration
	}{
		{true, 0x11, lastWordTime}, {true, softRoCEQPNs - 1, lastWordTime}, {true, softRoCEQPNs, lastAckTime},
		{false, 0x11, lastAckTime}, {true, 0, lastAckTime},
	} {
		if got := (&groupEnd{cut: tt.cut}).patience(tt.peer); got != tt.want {
			t.Errorf("cut %v, queue pair %#x: %v, want %v", tt.cut, tt.peer, got, tt.want)
		}
	}
}
