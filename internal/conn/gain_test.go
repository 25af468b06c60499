package conn

import (
	"testing"
	"time"
)

type verdicts struct{ grown, short int }

func (v *verdicts) Grown() { v.grown++ }
func (v *verdicts) Short() { v.short++ }

// TestGain tells connections that have gained from those that are too short.
func TestGain(t *testing.T) {
	const kib = 1 << 10
	turns := func(n int, in, out uint64) func(g *gain) (uint64, uint64) {
		return func(g *gain) (sumIn, sumOut uint64) {
			for range n {
				sumOut += out
				sumIn += in
				if g.isOpen() {
					g.read(sumIn, sumOut)
				}
			}
			return sumIn, sumOut
		}
	}
	for name, tt := range map[string]struct {
		carry        func(g *gain) (in, out uint64)
		copied       bool
		age          time.Duration
		grown, short int
	}{
		"nothing":                   {carry: turns(0, 0, 0), short: 1},
		"a request":                 {carry: turns(1, 2*kib, 200), short: 1},
		"seven":                     {carry: turns(7, 2*kib, 200), age: time.Hour, short: 1},
		"eight":                     {carry: turns(8, 2*kib, 200), grown: 1},
		"many":                      {carry: turns(1000, 2*kib, 200), grown: 1},
		"reads":                     {carry: turns(63, 10, 0), short: 1},
		"many reads":                {carry: turns(64, 10, 0), grown: 1},
		"a large answer":            {carry: turns(1, 256*kib, 0), grown: 1},
		"a large request":           {carry: func(*gain) (uint64, uint64) { return 0, 256 * kib }, grown: 1},
		"copied, at once":           {carry: func(*gain) (uint64, uint64) { return 2 * kib, 200 }, copied: true, short: 1},
		"copied, later":             {carry: func(*gain) (uint64, uint64) { return 2 * kib, 200 }, copied: true, age: time.Second},
		"copied, more":              {carry: func(*gain) (uint64, uint64) { return 20 * kib, 200 }, copied: true},
		"copied, much":              {carry: func(*gain) (uint64, uint64) { return 0, 256 * kib }, copied: true, age: time.Second, grown: 1},
		"more than a turn, reading": {carry: turns(1, 255*kib, 0), short: 1},
	} {
		var v verdicts
		var g gain
		g.begin(&v)
		in, out := tt.carry(&g)
		if early := tt.grown == 1 && out < 256*kib; early != (v.grown == 1) { // as soon as it is read
			t.Errorf("%s: before the end: %+v", name, v)
		}
		g.copied.Store(tt.copied)
		g.end(in, out, tt.age)
		g.end(in, out, tt.age)
		if v != (verdicts{tt.grown, tt.short}) || g.isOpen() {
			t.Errorf("%s: %+v, open %t", name, v, g.isOpen())
		}
	}
	var g gain
	g.begin(nil)
	if g.isOpen() {
		t.Error("open, though nobody wants to know")
	}
	g.end(1, 1, 0)
}
