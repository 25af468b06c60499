package measure

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Buckets are in order, without gaps, and narrow.
func TestHistogramBuckets(t *testing.T) {
	last := -1
	for _, v := range []uint64{0, 1, 63, 64, 65, 127, 128, 129, 130, 255, 256, 1000, 1 << 20, 1<<20 + 1<<14, math.MaxInt64} {
		b := bucketOf(v)
		if b < last || b >= histogramBuckets {
			t.Errorf("bucketOf(%d) = %d after %d, want the order of the values and less than %d", v, b, last, histogramBuckets)
		}
		last = b
		if got := float64(bucketMiddle(b)); math.Abs(got-float64(v)) > float64(v)/histogramSub {
			t.Errorf("bucketMiddle(bucketOf(%d)) = %v, off by more than 1/%d", v, got, histogramSub)
		}
	}
	for v := range uint64(100_000) {
		if a, b := bucketOf(v), bucketOf(v+1); b != a && b != a+1 {
			t.Fatalf("bucketOf(%d) = %d and bucketOf(%d) = %d, want the same or the next", v, a, v+1, b)
		}
	}
}

func TestHistogramQuantile(t *testing.T) {
	var empty Histogram
	if got := empty.Quantile(0.5); got != 0 {
		t.Errorf("Quantile of nothing = %v, want 0", got)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var h, first Histogram
	var all []float64
	for i := range 10_000 {
		d := time.Duration(math.Exp(random.Float64()*15) * 50)
		all = append(all, float64(d))
		if i < 3000 {
			first.Record(d)
		} else {
			h.Record(d)
		}
	}
	h.Add(&first)
	h.Record(-1) // a clock that went back
	all = append(all, 0)
	slices.Sort(all)
	for _, q := range []float64{0, 0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[min(int(q*float64(len(all))), len(all)-1)]
		if got := float64(h.Quantile(q)); math.Abs(got-want) > want/histogramSub+1 {
			t.Errorf("Quantile(%v) = %v, want %v", q, got, want)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		list []float64
		want float64
	}{{nil, 0}, {[]float64{7}, 7}, {[]float64{3, 1}, 2}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5}} {
		before := slices.Clone(tt.list)
		if got := Median(tt.list); got != tt.want {
			t.Errorf("Median(%v) = %v, want %v", tt.list, got, tt.want)
		}
		if !slices.Equal(tt.list, before) {
			t.Errorf("Median changed its argument to %v", tt.list)
		}
	}
}
