package rdma

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestBudget has budgets meet networks, and looks where they settle.
func TestBudget(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, tt := range []struct {
		name        string
		least, most int
		lost        func(size int) int // of a window
	}{
		{"nothing lost", maxBudget, maxBudget, func(int) int { return 0 }},
		{"one in a hundred, whatever comes", maxBudget / 2, maxBudget, func(size int) (lost int) {
			for range size {
				lost += 1 - min(r.IntN(100), 1)
			}
			return lost
		}},
		{"a queue of 300", 100, 330, func(size int) int { return max(0, size-300) }},
		{"a queue of 10", minBudget, 40, func(size int) int { return max(0, size-10) }},
		{"all lost", minBudget, minBudget + windowStep, func(size int) int { return size }},
	} {
		b, now := newBudget(), time.Second
		for turn := range 300 {
			now += time.Millisecond
			size := b.size
			lost := tt.lost(size)
			b.onProgress(now, size-lost, lost)
			if b.size < minBudget || b.size > maxBudget {
				t.Fatalf("%s: size %d", tt.name, b.size)
			}
			if turn > 50 && (b.size < tt.least || b.size > tt.most) {
				t.Fatalf("%s: size %d after %d round trips, want %d to %d", tt.name, b.size, turn, tt.least, tt.most)
			}
		}
	}
}

// TestBudgetSilence has timeouts of queue pairs say something about the path, or not.
func TestBudgetSilence(t *testing.T) {
	const timeout = 100 * time.Millisecond
	b := newBudget()
	b.size, b.threshold = 400, 400
	b.onProgress(time.Second, 1, 0)
	b.onTimeout(time.Second+timeout/2, timeout)
	if b.size != 400 {
		t.Errorf("size %d after the timeout of a queue pair while others have answers, want 400", b.size)
	}
	b.onTimeout(time.Second+timeout, timeout)
	if b.size != minBudget || b.threshold != 200 {
		t.Errorf("size %d, threshold %d after silence, want %d and 200", b.size, b.threshold, minBudget)
	}
	b.size = 100
	b.onTimeout(time.Second+timeout+1, timeout)
	if b.size != 100 {
		t.Errorf("size %d after the timeout of another queue pair in the same silence, want 100", b.size)
	}
}
