package rdma

import "time"

// A window says how many packets may be unacknowledged, and how long a round trip takes. Verbs know
// no such thing: links of adapters lose nothing, and the peer's network is theirs to judge. A
// socket and a kernel's queues in between do lose, when too much comes at once, and a packet lost
// costs all that went out after it. So the window follows the capacity of the path: it doubles per
// round trip until the first loss, is halved by a loss, and then grows by a few packets per round
// trip.
type window struct {
	size      int // packets
	threshold int // below it the window doubles
	credit    int // acknowledged packets, times windowStep, not yet turned into size

	smoothed time.Duration // round trip; 0 while unknown
	variance time.Duration
}

func (w *window) reset() {
	*w = window{size: startWindow, threshold: maxWindow}
}

// onAcked takes that n packets were acknowledged.
func (w *window) onAcked(n int) {
	if w.size >= maxWindow {
		return
	}
	if w.size < w.threshold {
		w.size = min(w.size+n, w.threshold)
		return
	}
	w.credit += n * windowStep
	if w.credit >= w.size {
		w.size = min(w.size+w.credit/w.size, maxWindow)
		w.credit = 0
	}
}

// onLoss takes that a packet was lost. If the peer keeps the packets after it, little has to be
// sent again, and the window has to cover the time until the gap is filled.
func (w *window) onLoss(keeps bool) {
	if keeps {
		w.size = max(w.size-w.size/8, min(w.size, minKeptWindow))
	} else {
		w.size = max(w.size/2, minWindow)
	}
	w.threshold, w.credit = w.size, 0
}

// onTimeout takes that nothing came back for long.
func (w *window) onTimeout() {
	w.threshold, w.credit = max(w.size/2, minWindow), 0
	w.size = lossWindow
}

// onRoundTrip takes a measurement, with the smoothing of RFC 6298.
func (w *window) onRoundTrip(d time.Duration) {
	if w.smoothed == 0 {
		w.smoothed, w.variance = d, d/2
		return
	}
	w.variance += ((w.smoothed - d).Abs() - w.variance) / 4
	w.smoothed += (d - w.smoothed) / 8
}

// probeAfter returns how long nothing may come back before the first probe.
func (w *window) probeAfter() time.Duration {
	if w.smoothed == 0 {
		return firstProbe
	}
	return max(2*w.smoothed+4*w.variance, minProbe)
}
