package llcflow

import (
	"testing"

	"github.com/gosmc/smc/wire/llc"
)

// TestControlSpare fills the tables of RMBs of both sides: there is one for another connection while one of ours is free, and one
// of the peer's is in nobody's use.
func TestControlSpare(t *testing.T) {
	lc := &LinkControl{own: make(map[RMBID]*ownRMB)}
	for i := range llc.MaxRKeys {
		if !lc.Spare(false) || !lc.Spare(true) {
			t.Fatalf("none with %d RMBs", i)
		}
		lc.own[RMBID(i)] = nil
		lc.peer.rmbs = append(lc.peer.rmbs, &peerRMB{users: map[uint8]Owner{1: Owner(i + 1)}})
	}
	if lc.Spare(true) {
		t.Error("one though all of the peer's are in use")
	}
	clear(lc.peer.rmbs[7].users)
	if !lc.Spare(true) || lc.Spare(false) {
		t.Errorf("with one of the peer's unused: %v with a free one of ours, %v without", lc.Spare(true), lc.Spare(false))
	}
}
