package inventory

import (
	"math"
	"math/bits"
	"path/filepath"
	"strconv"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/procs"
)

// A tally has the bytes of an end, by the supervisor of a user.
type tally struct {
	control.StatusTally
	uid uint32
}

// tallies are of all supervisors, by the cookie of the end.
type tallies map[uint64][]tally

// add adds the tallies of a host.
func (all tallies) add(h *control.Status) {
	for _, t := range h.Tallies {
		all[t.Cookie] = append(all[t.Cookie], tally{t, h.UID})
	}
}

// bytes returns the bytes of an end, nil if they are not known. A user's supervisors are heard about
// the ends of this user alone, and root's about all.
func (all tallies) bytes(c *inspect.Connection) (in, out *uint64) {
	list := all[c.Cookie]
	if len(list) == 0 {
		return nil, nil
	}
	owner, known := procs.User(filepath.Join(procs.Dir, strconv.Itoa(c.PID)))
	var sum control.StatusTally
	var lent int64
	heard := false
	for _, t := range list {
		if t.uid != 0 && (!known || t.uid != owner) { // rule: TestTallied: t.uid != 0 && (!known || t.uid != owner) -> !known && owner != 0
			continue
		}
		heard = true
		sum.In, sum.Out = addBytes(sum.In, t.In), addBytes(sum.Out, t.Out)
		lent += int64(t.Lent)
	}
	if !heard || lent != 0 { // rule: TestTallied: lent != 0 -> false
		return nil, nil
	}
	return &sum.In, &sum.Out
}

// addBytes adds, up to the largest number.
func addBytes(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}
