package host

import (
	"slices"

	"github.com/gosmc/smc/internal/control"
)

// What has ended, and why, is counted, so that an operator who finds connections reset learns what peers did. The
// reasons are words of ours: what a peer says is in them only where it can say a few things.

// An endKey is what is counted together.
type endKey struct{ what, reason string }

// What ends.
const (
	endOfHandshake  = "handshake"
	endOfConnection = "connection"
)

// ended counts an end.
func (c *counters) ended(what, reason string) {
	k := endKey{what, reason}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ends == nil {
		c.ends = make(map[endKey]uint64)
	}
	if _, ok := c.ends[k]; !ok && len(c.ends) >= maxEndReasons {
		k.reason = "other"
	}
	c.ends[k]++
}

// endStatus lists the ends, the most frequent first. c.mu is held.
func (c *counters) endStatus() []control.EndCount {
	list := make([]control.EndCount, 0, len(c.ends))
	for k, n := range c.ends {
		list = append(list, control.EndCount{What: k.what, Reason: k.reason, Count: n})
	}
	slices.SortFunc(list, control.CompareEnds)
	return list
}
