package rdma

import (
	"net/netip"
	"time"

	"github.com/gosmc/smc/wire/roce"
)

// A budget says how many packets all queue pairs to one address may have on their way together. The
// network and the socket at the other end are one, however many queue pairs share them. Windows of
// their own add up to any number, and packets that do not fit are lost, from all of them.
//
// It doubles per round trip until the first loss, and then grows by a few packets per round trip.
// When packets had to be sent again it gives way by twice their share: little for a network that
// always loses one in a hundred, much for a queue that has overflowed. If nothing at all comes back
// it starts again from the floor.
//
// It is a value: it is told how packets fared, and size says how many may be on their way.
type budget struct {
	size      int // packets
	threshold int // below it the budget doubles
	credit    int // acknowledged packets, times windowStep, not yet turned into size

	acked, lost int           // packets since it was judged last: about a round trip
	progressAt  time.Duration // when a packet was acknowledged last, or silence noted
}

func newBudget() budget { return budget{size: startWindow, threshold: maxBudget} }

// onProgress takes that at now acked packets were acknowledged, and that lost ones were sent again.
func (b *budget) onProgress(now time.Duration, acked, lost int) {
	if acked > 0 {
		b.progressAt = now
	}
	b.acked += acked
	b.lost += lost
	if b.lost == 0 && b.size < b.threshold {
		b.size = min(b.size+acked, b.threshold)
	}
	all := b.acked + b.lost
	if all < b.size {
		return
	}
	if b.lost > 0 {
		b.size = max(b.size-min(2*b.size*b.lost/all, b.size/2), minBudget)
		b.threshold = b.size
	}
	if b.size >= b.threshold && b.size < maxBudget {
		b.credit += b.acked * windowStep
		b.size, b.credit = min(b.size+b.credit/b.size, maxBudget), b.credit%b.size
		b.threshold = b.size
	}
	b.acked, b.lost = 0, 0
}

// onTimeout takes that the timeout of verbs of a queue pair has passed at now. That says something
// about the path only if nothing came back to anybody in all that time; else it is the peer's queue pair
// that is gone.
func (b *budget) onTimeout(now, timeout time.Duration) {
	if now-b.progressAt < timeout {
		return
	}
	b.threshold, b.credit = max(b.size/2, minBudget), 0
	b.size, b.acked, b.lost = minBudget, 0, 0
	b.progressAt = now // once in a timeout, not once for each queue pair
}

// leastTurn returns for how much room it is worth to begin a turn. Without it room that comes back in
// pieces would go out in pieces, each with an acknowledgement of its own.
func (b *budget) leastTurn() int { return max(1, min(b.size/8, turnPackets/2)) }

// A path is the way to an address. Its fields belong to the lock of the scheduler.
type path struct {
	remote netip.AddrPort
	flow   roce.Flow // of packets to it, of all queue pairs; does not change
	users  int       // queue pairs

	budget  budget
	flight  int        // packets on their way, or promised to the queue pair that has the turn
	waiting shareQueue // those with packets to send, in the order of their turns
	open    bool       // in the scheduler's list of paths with a turn to give
	rich    bool       // in its list of paths with more than their part of the device's budget
	keeps   bool       // a queue pair has found out that the peer keeps packets that come after a gap
}

// room returns how many packets more may be on their way, 0 if too few to begin a turn.
func (p *path) room() int {
	if n := p.budget.size - p.flight; n >= p.budget.leastTurn() {
		return n
	}
	return 0
}
