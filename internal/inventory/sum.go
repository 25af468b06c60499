package inventory

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gosmc/smc/internal/control"
)

// usualModes are those that connections can have; a host of another version may have more.
var usualModes = []string{"SMC-D", "SMC-R", "TCP"}

// Sum adds up the counters of several hosts; fallbacks are ordered by their number. The
// usual modes are there also if there is no host. Bytes has no entry for a mode of which no host
// counts the bytes.
func Sum(list []control.StatusCounters) control.StatusCounters {
	sum := control.StatusCounters{
		Connections: map[string]uint64{}, AsServer: map[string]uint64{}, Bytes: map[string]control.ByteCount{}, Fallbacks: []control.FallbackCount{},
		Ends: []control.EndCount{}, CLC: []control.MessageCount{}, LLC: []control.MessageCount{}, Groups: map[string]int{},
	}
	for _, mode := range usualModes {
		sum.Connections[mode], sum.Bytes[mode] = 0, control.ByteCount{}
	}
	uncounted := make(map[string]bool)
	for _, c := range list {
		for mode, n := range c.Connections {
			sum.Connections[mode] += n
			if _, counted := c.Bytes[mode]; n > 0 && !counted {
				uncounted[mode] = true
			}
		}
		for mode, n := range c.Bytes {
			s := sum.Bytes[mode]
			s.In += n.In
			s.Out += n.Out
			sum.Bytes[mode] = s
		}
		sum.HandshakesOK += c.HandshakesOK
		sum.HandshakesFailed += c.HandshakesFailed
		sum.DoorbellsRung += c.DoorbellsRung
		sum.Sleeps += c.Sleeps
		sum.Failovers += c.Failovers
		sum.BuffersFull += c.BuffersFull
		for i, n := range c.HandshakeTimes.Counts {
			sum.HandshakeTimes.Counts[i] += n
		}
		sum.HandshakeTimes.Nanoseconds += c.HandshakeTimes.Nanoseconds
		for mode, n := range c.AsServer {
			sum.AsServer[mode] += n
		}
		sum.Spins += c.Spins
		sum.CLC, sum.LLC = sumMessages(sum.CLC, c.CLC), sumMessages(sum.LLC, c.LLC)
		for mode, n := range c.Groups {
			sum.Groups[mode] += n
		}
		sum.RMBBytes += c.RMBBytes
		for _, e := range c.Ends {
			same := func(x control.EndCount) bool { return x.What == e.What && x.Reason == e.Reason }
			if i := slices.IndexFunc(sum.Ends, same); i >= 0 {
				sum.Ends[i].Count += e.Count
			} else {
				sum.Ends = append(sum.Ends, e)
			}
		}
		for _, f := range c.Fallbacks {
			same := func(g control.FallbackCount) bool { return g.Code == f.Code && g.Text == f.Text }
			if i := slices.IndexFunc(sum.Fallbacks, same); i >= 0 {
				sum.Fallbacks[i].Count += f.Count
				sum.Fallbacks[i].AsServer += f.AsServer
			} else {
				sum.Fallbacks = append(sum.Fallbacks, f)
			}
		}
	}
	for mode := range uncounted {
		if sum.Bytes[mode] == (control.ByteCount{}) { // which would not be true
			delete(sum.Bytes, mode)
		}
	}
	slices.SortStableFunc(sum.Fallbacks, func(a, b control.FallbackCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Code, b.Code))
	})
	slices.SortFunc(sum.Ends, control.CompareEnds)
	return sum
}

// sumMessages adds messages to a sum, in which types stay in the order in which they came.
func sumMessages(sum, list []control.MessageCount) []control.MessageCount {
	for _, m := range list {
		if i := slices.IndexFunc(sum, func(x control.MessageCount) bool { return x.Type == m.Type }); i >= 0 {
			sum[i].Sent += m.Sent
			sum[i].Rcvd += m.Rcvd
		} else {
			sum = append(sum, m)
		}
	}
	return sum
}

// Modes lists the modes that counters know, the usual ones first.
func Modes(c *control.StatusCounters) []string {
	list := slices.Clone(usualModes)
	for _, m := range slices.Sorted(maps.Keys(c.Connections)) {
		if !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}
