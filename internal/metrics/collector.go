package metrics

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/inventory"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/survey"
)

// A Snapshot is the state of the machine at one time.
type Snapshot struct {
	Answers     survey.Answers
	Connections []inventory.Conn  // that there are
	Programs    []inspect.Process // of 'gosmc run'
	Agent       *AgentStatus      // nil: no agent answers
	Kernel      *Kernel           // nil: the kernel has no SMC
	Version     string            // of this program
	Took        time.Duration     // for asking
}

// AgentStatus is the part of an agent's status that is exported.
type AgentStatus struct {
	Ports   int // UDP ports that are shared
	Sockets int // sockets on them
}

// A Collector makes metrics of snapshots. Counters of hosts that have ended stay in the sums, as
// long as the collector lives. Any goroutine may call its methods.
type Collector struct {
	take func(context.Context) Snapshot
	most int // hosts that are kept: maxHosts, but in tests

	mu       sync.Mutex
	hosts    map[hostKey]*hostCounters
	rest     counters // of hosts that are not in hosts any more
	kernel   counters // of the kernel's SMC
	turn     uint64   // of the last snapshot
	families []Family
	made     time.Time // when families were; zero: never
}

// A hostKey tells hosts apart, also those that had the same process number one after the other.
type hostKey struct {
	dir, name string
	pid       int
	started   int64 // nanoseconds
}

// hostCounters are the counters that a host has reported, and the turn in which it did so last.
type hostCounters struct {
	counters counters
	turn     uint64
}

// New returns a collector that gets its snapshots from take.
func New(take func(context.Context) Snapshot) *Collector {
	return &Collector{
		take: take, most: maxHosts, hosts: make(map[hostKey]*hostCounters), rest: make(counters), kernel: make(counters),
	}
}

// Text returns the metrics in a format. The error is that of the context.
func (c *Collector) Text(ctx context.Context, format Format) ([]byte, error) {
	families, err := c.Families(ctx)
	if err != nil {
		return nil, err
	}
	return Append(nil, families, format), nil
}

// Families returns the metrics, which the caller must not change. It takes a snapshot, unless the
// last one is new enough. If the context ends meanwhile its error is returned: a part of the answers
// would look like a machine without programs.
func (c *Collector) Families(ctx context.Context) ([]Family, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made.IsZero() || time.Since(c.made) >= minInterval { // rule: TestCollectorCaches: time.Since(c.made) >= minInterval -> true
		within, cancel := context.WithTimeout(ctx, gatherTimeout)
		s := c.take(within)
		cancel()
		if ctx.Err() != nil { // rule: TestCollectorInterrupted
			return nil, ctx.Err()
		}
		c.families, c.made = c.collect(&s), time.Now()
	}
	return c.families, nil
}

// collect adds a snapshot to the sums, and returns all metrics. c.mu is held.
func (c *Collector) collect(s *Snapshot) []Family {
	c.turn++
	for i := range s.Answers.Hosts {
		h := &s.Answers.Hosts[i]
		key := hostKey{h.Dir, h.Name, h.PID, h.Started.UnixNano()}
		known := c.hosts[key]
		if known == nil {
			known = &hostCounters{counters: make(counters)}
			c.hosts[key] = known
		}
		known.turn = c.turn
		known.counters.grow(countersOf(&h.Counters))
	}
	c.forget()
	total := maps.Clone(c.rest)
	for _, h := range c.hosts {
		total.add(h.counters)
	}
	if s.Kernel != nil {
		c.kernel.grow(s.Kernel.counters())
	}
	total.add(c.kernel)
	return append(countedFamilies(total), gauges(s)...)
}

// forget moves the counters of the hosts that are away for longest to the rest.
func (c *Collector) forget() {
	if len(c.hosts) <= c.most {
		return
	}
	keys := slices.SortedFunc(maps.Keys(c.hosts), func(a, b hostKey) int {
		return cmp.Compare(c.hosts[a].turn, c.hosts[b].turn)
	})
	for _, k := range keys[:len(keys)-c.most] {
		c.rest.add(c.hosts[k].counters)
		delete(c.hosts, k)
	}
}

// A series is one counter: the index of its family, and the values of its labels in order. The label
// source is for the kernel's SMC, and empty for hosts.
type series struct {
	family int
	labels [2]string
	source string
}

// counters has the values of series. A counter of a host only grows; one that reports less is not
// believed.
type counters map[series]uint64

// grow takes the values of a later report of the same host.
func (k counters) grow(later counters) {
	for s, n := range later {
		k[s] = max(k[s], n) // rule: TestCollectorOnlyGrows: max(k[s], n) -> n
	}
}

// add adds other counters up.
func (k counters) add(other counters) {
	for s, n := range other {
		k[s] = addUp(k[s], n)
	}
}

// addUp is a sum that stays at the largest number where it would be more.
func addUp(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
