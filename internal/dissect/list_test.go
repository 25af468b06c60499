package dissect

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestList does the same to a list and to a slice.
func TestList(t *testing.T) {
	type value struct {
		n int
		e entry[value]
	}
	var l list[value]
	var want []*value // oldest first
	var values [8]value
	r := rand.New(rand.NewPCG(1, 2))
	for i := range values {
		values[i].n = i
	}
	drop := func(v *value) { want = slices.DeleteFunc(want, func(o *value) bool { return o == v }) }
	for step := range 10_000 {
		v := &values[r.IntN(len(values))]
		switch r.IntN(3) {
		case 0:
			l.add(&v.e, v)
			drop(v)
			want = append(want, v)
		case 1:
			l.touch(&v.e)
			if slices.Contains(want, v) {
				drop(v)
				want = append(want, v)
			}
		case 2:
			l.remove(&v.e)
			drop(v)
		}
		var got, back []*value
		for e := l.oldest; e != nil; e = e.newer {
			got = append(got, e.of)
		}
		for e := l.newest; e != nil; e = e.older {
			back = append(back, e.of)
		}
		slices.Reverse(back)
		if !slices.Equal(got, want) || !slices.Equal(back, want) || l.len != len(want) {
			t.Fatalf("step %d: %d values %v, backwards %v, want %v", step, l.len, got, back, want)
		}
		if first := l.first(); len(want) == 0 && first != nil || len(want) > 0 && first != want[0] {
			t.Fatalf("step %d: first = %v", step, first)
		}
	}
}
