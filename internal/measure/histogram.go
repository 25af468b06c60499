// Package measure has what measurements are made of: durations and their quantiles, medians, processor
// time, and the machine that a number belongs to. It knows nothing of what is measured.
package measure

import (
	"math/bits"
	"slices"
	"time"
)

// A Histogram counts durations in buckets whose width is 1/64 of their value or less, so
// that a quantile is off by less than 1 %. The zero value is empty.
type Histogram struct {
	counts [histogramBuckets]uint64
	total  uint64
}

const (
	histogramShift   = 6 // 64 buckets for each power of two
	histogramSub     = 1 << histogramShift
	histogramBuckets = (64 - histogramShift) * histogramSub
)

// Record counts d; what is negative counts as zero.
func (h *Histogram) Record(d time.Duration) {
	h.counts[bucketOf(uint64(max(d, 0)))]++
	h.total++
}

// bucketOf gives each value below 64 its own bucket, and above that 64 buckets to each power of two.
func bucketOf(v uint64) int {
	if v < histogramSub {
		return int(v)
	}
	shift := bits.Len64(v) - 1 - histogramShift
	return shift*histogramSub + int(v>>shift)
}

// bucketMiddle is the middle of the values in a bucket.
func bucketMiddle(i int) uint64 {
	if i < 2*histogramSub {
		return uint64(i)
	}
	shift := i/histogramSub - 1
	low := uint64(i-shift*histogramSub) << shift
	return low + uint64(1)<<shift/2
}

// Quantile returns the value that the share q (0 to 1) of all durations do not exceed; 0 for an
// empty Histogram.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.total == 0 {
		return 0
	}
	rank := min(uint64(q*float64(h.total)), h.total-1)
	var seen uint64
	for i, n := range h.counts {
		seen += n
		if seen > rank {
			return time.Duration(bucketMiddle(i))
		}
	}
	panic("measure: impossible total")
}

// Median returns the middle of list, or the mean of the two in the middle; 0 for none.
func Median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(list))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// Add counts everything that other has counted.
func (h *Histogram) Add(other *Histogram) {
	for i, n := range other.counts {
		h.counts[i] += n
	}
	h.total += other.total
}

// Count returns how many durations were recorded.
func (h *Histogram) Count() uint64 { return h.total }
