package smcr

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
)

// TestPool takes RMBs and gives them back: one that the peer has promised not to write to serves again, cleared; one without that promise never, though
// it stays for as long as the group; one for which there is no room among the idle is deleted; and all of them go with the group.
func TestPool(t *testing.T) {
	r := newFabricRig(t, nil)
	c, s := r.connect()
	g := s.binding.group
	const size = wire.SizeCode(1)
	used := r.server.memory.rmbs.Load()
	take := func() *ownRMB {
		t.Helper()
		m, err := g.rmbs.take(fabricContext(t), size)
		if err != nil {
			t.Fatal(err)
		}
		if !m.known || len(m.rmb.Bytes()) != size.Bytes() || bytes.ContainsFunc(m.rmb.Bytes(), func(r rune) bool { return r != 0 }) {
			t.Errorf("an RMB of %d bytes, known %t, or not clear", len(m.rmb.Bytes()), m.known)
		}
		return m
	}
	check := func(when string, kept int, bytes int64) {
		t.Helper()
		g.mu.Lock()
		defer g.mu.Unlock()
		if p := &g.rmbs; p.kept != kept*size.Bytes() || p.bytes != bytes || r.server.memory.rmbs.Load() != bytes || p.count != len(p.every) {
			t.Errorf("%s: %d bytes are kept of %d, of %d in %d of the host; want %d of %d", when, p.kept, p.bytes, r.server.memory.rmbs.Load(), p.count, kept*size.Bytes(), bytes)
		}
	}
	one := int64(size.Bytes())
	first := take()
	check("taken", 0, used+one)
	copy(first.rmb.Bytes(), "what was said before")
	g.rmbs.release(first, true)
	check("given back", 1, used+one)
	if again := take(); again != first {
		t.Error("an RMB that was given back is not used again")
	}
	check("taken again", 0, used+one)
	g.rmbs.release(first, false)
	check("in quarantine", 0, used+one)
	second := take()
	if second == first {
		t.Error("an RMB that the peer may write to is used again")
	}
	check("another", 0, used+2*one)
	g.mu.Lock()
	g.rmbs.kept = maxIdleRMBs - size.Bytes() + 1
	g.mu.Unlock()
	g.rmbs.release(second, true)
	smctest.Eventually(t, fabricPatience, "the peer has forgotten it", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.rmbs.every[second.id] == nil
	})
	g.mu.Lock()
	g.rmbs.kept = maxIdleRMBs - size.Bytes()
	g.mu.Unlock()
	third := take()
	g.rmbs.release(third, true) // for which there is room, exactly
	g.mu.Lock()
	if len(g.rmbs.free[size]) != 1 {
		t.Error("an RMB for which there is room was not kept")
	}
	g.rmbs.kept = size.Bytes()
	g.mu.Unlock()
	check("a third", 1, used+2*one)
	late := take()
	for _, x := range []*fabricEnd{c, s} {
		x.close()
	}
	g.links.fail(errStalled)
	<-g.loop.stopped
	if _, err := g.rmbs.take(fabricContext(t), size); !errors.Is(err, errNoGroup) {
		t.Errorf("of a group that has ended: %v", err)
	}
	g.rmbs.release(late, true)
	smctest.Eventually(t, fabricPatience, "all is given back", func() bool { return r.server.memory.rmbs.Load() == 0 })
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := &g.rmbs; p.count != 0 || p.bytes != 0 || len(p.every) > 0 || len(p.all) > 0 {
		t.Errorf("%d RMBs of %d bytes are left, %d, %d", p.count, p.bytes, len(p.every), len(p.all))
	}
}

// TestPoolUnanswered asks a peer that does not answer to take an RMB: a goroutine that waits gives
// up, or hears of the end of the group, and nobody uses an RMB that the peer may know by now.
func TestPoolUnanswered(t *testing.T) {
	var cut atomic.Bool
	r := newFabricRig(t, func(c, _ *rdma.Config) { c.Drop = func([]byte) bool { return cut.Load() } })
	c, s := r.connect()
	g := s.binding.group
	cut.Store(true)
	const size = wire.SizeCode(1)
	hasty, cancel := context.WithCancel(context.Background())
	cancel()
	if m, err := g.rmbs.take(hasty, size); !errors.Is(err, errRMBs) {
		t.Errorf("for somebody in a hurry: %v, %v", m, err)
	}
	g.mu.Lock()
	if p := &g.rmbs; len(p.asked) != 0 || len(p.all) != 1 || len(p.free[size]) != 0 {
		t.Errorf("%d asked, %d kept, %d free", len(p.asked), len(p.all), len(p.free[size]))
	}
	g.mu.Unlock()
	failed := make(chan error, 1)
	go func() {
		_, err := g.rmbs.take(context.Background(), size)
		failed <- err
	}()
	smctest.Eventually(t, fabricPatience, "somebody waits", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.rmbs.asked) == 1
	})
	g.links.fail(errStalled)
	if err := <-failed; !errors.Is(err, errRMBs) {
		t.Errorf("when the group ends: %v", err)
	}
	for _, x := range []*fabricEnd{c, s} {
		x.close()
	}
	smctest.Eventually(t, fabricPatience, "all is given back", func() bool { return r.server.memory.rmbs.Load() == 0 })
}

// TestNearest looks which size of the RMBs that there are is taken where there is no room for more.
func TestNearest(t *testing.T) {
	for _, tt := range []struct {
		free       []wire.SizeCode
		size, want wire.SizeCode
	}{
		{nil, 3, 3},
		{[]wire.SizeCode{3}, 3, 3},
		{[]wire.SizeCode{2, 4, 5}, 3, 4},
		{[]wire.SizeCode{0, 2}, 3, 2},
		{[]wire.SizeCode{0}, 3, 0},
		{[]wire.SizeCode{wire.MaxSizeCode}, 0, wire.MaxSizeCode},
	} {
		p := rmbPool{free: map[wire.SizeCode][]*ownRMB{}}
		for _, size := range tt.free {
			p.free[size] = []*ownRMB{{}}
		}
		if got := p.nearest(tt.size); got != tt.want {
			t.Errorf("of the sizes %v for %v: %v, want %v", tt.free, tt.size, got, tt.want)
		}
	}
}
