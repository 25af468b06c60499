package llcflow

import (
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/wire/llc"
)

// TestControlSuspect asks a peer that may be gone: at once, one question at a time, and not before the group is in use.
func TestControlSuspect(t *testing.T) {
	b := newControlBench(t, core.RoleServer, "r")
	if outs := b.lc.Suspect(b.now, 0, nil); len(outs) > 0 {
		t.Errorf("before the first contact: %s", controlWords(b.now, outs))
	}
	b.play(serverActive)
	start := b.now
	if m := sentOf(b.lc.Suspect(b.now, 0, nil)); len(m) != 1 || m[0].Type() != llc.TypeTestLink {
		t.Fatalf("a suspected peer is sent %v", m)
	}
	if m := sentOf(b.lc.Suspect(b.now.Add(time.Second), 0, nil)); len(m) > 0 {
		t.Errorf("a second suspicion sends %v", m)
	}
	if at := b.lc.Deadline(); !at.Equal(start.Add(TestLinkTimeout)) {
		t.Errorf("deadline %v after the suspicion, want %v", at.Sub(start), TestLinkTimeout)
	}
	b.now = start.Add(TestLinkTimeout)
	if b.lc.Advance(b.now, nil); b.lc.Failure().Kind != EndSilent {
		t.Errorf("a silent peer: %v", b.lc.Failure())
	}
	if outs := b.lc.Suspect(b.now, 0, nil); len(outs) > 0 {
		t.Errorf("after the end: %s", controlWords(b.now, outs))
	}
	b = newControlBench(t, core.RoleServer, "r")
	b.play(serverActive)
	b.lc.Suspect(b.now, 0, nil)
	b.play("test-reply")
	b.lc.Advance(b.now.Add(TestLinkTimeout), nil)
	if b.lc.State() != StateActive {
		t.Errorf("a peer that answered: %v", b.lc.Failure())
	}
}
