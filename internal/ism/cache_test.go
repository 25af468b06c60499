package ism

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
)

// While an owner hands out tokens that come from its cache, the peer's windows are in every
// possible state. No Attach may hang, none may get the wrong memory.
func TestReuseRaces(t *testing.T) {
	x := newPair(t)
	rounds := 400
	if testing.Short() {
		rounds = 50
	}
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 7))
			for range rounds {
				size := 16 << 10 << rnd.IntN(2)
				d, err := x.pa.NewDMB(size, func() {})
				if err != nil {
					t.Errorf("NewDMB = %v", err)
					return
				}
				w, err := x.pb.Attach(testContext(t), d.Token(), size)
				if err != nil {
					// A window that another connection has dropped after the owner had released
					// its DMB in order.
					if !errors.Is(err, ErrToken) {
						t.Errorf("Attach = %v", err)
					}
					d.Release(false)
					continue
				}
				mark := byte(rnd.Uint32()) | 1
				w.Mem()[HeaderLen] = mark
				if got := d.Mem()[HeaderLen]; got != mark {
					t.Errorf("Mem()[%d] = %d, want %d", HeaderLen, got, mark)
				}
				w.Ring()
				cleanD, cleanW := rnd.IntN(4) > 0, rnd.IntN(4) > 0
				if rnd.IntN(2) == 0 {
					d.Release(cleanD)
					runtime.Gosched()
					w.Release(cleanW)
				} else {
					w.Release(cleanW)
					runtime.Gosched()
					d.Release(cleanD)
				}
			}
		})
	}
	wg.Wait()
	if x.pa.Err() != nil || x.pb.Err() != nil {
		t.Errorf("Err() = %v, %v; want nil", x.pa.Err(), x.pb.Err())
	}
	s := x.a.Stats()
	if s.DMBs != 0 || s.DMBsReused == 0 || x.b.Stats().Windows != 0 {
		t.Errorf("Stats() = %+v, %+v; want nothing in use, some reused", s, x.b.Stats())
	}
}

// The cache of a peer is bounded by count and by bytes, and the oldest go.
func TestCacheBounds(t *testing.T) {
	x := newPair(t)
	x.a.lim.idleDMBs = 5
	x.a.lim.idleBytes = 512 << 10
	release := func(size, n int) (tokens []wire.Token) {
		var dmbs []*DMB
		for range n {
			d := mustDMB(t, x.pa, size, nil)
			mustAttach(t, x.pb, d).Release(true)
			dmbs = append(dmbs, d)
		}
		for _, d := range dmbs {
			tokens = append(tokens, d.Token())
			d.Release(true)
		}
		return tokens
	}
	tokens := release(16<<10, 8)
	if s := x.a.Stats(); s.CachedDMBs != 5 || s.DMBsEvicted != 3 || s.Bytes != 5*16<<10 {
		t.Errorf("Stats() = %+v, want 5 cached, 3 evicted", s)
	}
	d := mustDMB(t, x.pa, 16<<10, nil)
	if d.Token() != tokens[7] {
		t.Errorf("reused %v, want the newest, %v", d.Token(), tokens[7])
	}
	d.Release(true)
	release(256<<10, 2) // 512 KiB: all others go
	if s := x.a.Stats(); s.CachedDMBs != 2 || s.Bytes != 512<<10 {
		t.Errorf("Stats() = %+v, want 2 cached", s)
	}
	release(1<<20, 1) // more than the cache will have
	if s := x.a.Stats(); s.CachedDMBs != 2 || s.Bytes != 512<<10 {
		t.Errorf("Stats() = %+v, want 2 cached", s)
	}
	eventually(t, "unmapping by the peer", func() bool {
		x.pb.mu.Lock()
		defer x.pb.mu.Unlock()
		return len(x.pb.remotes) == 2
	})
}

// A segment that lies idle too long goes, and then no timer runs.
func TestCacheTimeout(t *testing.T) {
	x := newPair(t)
	x.a.lim.idleTime = 2 * time.Millisecond
	for range 3 {
		d := mustDMB(t, x.pa, 16<<10, nil)
		w := mustAttach(t, x.pb, d)
		w.Release(true)
		d.Release(true)
		eventually(t, "empty caches", func() bool {
			x.pa.mu.Lock()
			defer x.pa.mu.Unlock()
			x.pb.mu.Lock()
			defer x.pb.mu.Unlock()
			return x.pa.idle.count == 0 && len(x.pb.remotes) == 0 && !x.pa.evicting
		})
	}
	eventually(t, "unmapping", func() bool { return x.a.Stats().Bytes == 0 })
	if s := x.a.Stats(); s.DMBsEvicted != 3 {
		t.Errorf("Stats() = %+v, want 3 evicted", s)
	}
}
