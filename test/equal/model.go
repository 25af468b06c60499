package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The points that TCP leaves open, in which connections of 'gosmc run' may therefore differ. All
// else has to be equal, step by step.
//
//   - How reads cut the stream, and which of several writers comes first: scripts have one reader and one writer of a direction at a time. A single
//     receive is compared all the same: Linux gives it all that is there, and programs rely on that. Loops tell only totals, and
//     so do splice, and receives that waited, which the first part of a send may wake.
//   - How soon bytes are there: a receive may return more than over TCP, where the last segment was
//     late. The following steps of the script depend on that, and are not compared. SIOCOUTQ counts
//     the bytes that TCP has not had acknowledged yet, and may be less.
//   - How much fits: "fill" tells only that it ended.
//   - Which ready descriptor comes first: the events of epoll are sorted.
//   - An instance with EPOLLET or EPOLLEXCLUSIVE, or with such an instance in it, may tell of an
//     event more than TCP does, and of more bits. An event that TCP tells may never be missing.
//   - A signal more than TCP sends may come, but not where nothing has happened but an accept, and none less. Bytes that come while a receive waits
//     send none, over TCP too, and whether one does when loops send to each other is a race.
//
// The differences in events that docs/run.md lists are here, too: scripts would be blind for events
// after an end, and for edges, otherwise. The last two are of modes with rings alone:
//
//   - A peer that has closed is one that hangs up.
//   - An error of a peer that has reset the connection by SO_LINGER is none.
//   - Nor is that of one that has closed with bytes unread in a ring.
//   - Bytes that were read before an instance with edges was asked are no edge for room.

// A freedom is the knowledge, from the steps so far, of the observations that the next one may
// make.
type freedom struct {
	edges  map[string]bool     // "ACTOR EPOLL": there is a registration for edges
	inner  map[string][]string // "ACTOR EPOLL": the instances that are registered with it
	rings  bool                // the mode has rings
	step   int                 // the number of the last one
	asked  map[string]int      // "ACTOR EPOLL": the step that has asked it last
	took   map[string]int      // "ACTOR": the step that has received last
	waited map[string]bool     // "ACTOR": a loop of it has waited in receives since its signals were asked for
	calm   map[string]bool     // "ACTOR": since then nobody has done anything of which a signal tells
	behind bool                // a step may go on in the background
	filled map[string]bool     // "ACTOR": it has sent until there was no room
	ended  bool                // a peer has closed, or ended its sending
	linger bool                // a peer may have reset by SO_LINGER
}

// compare returns where TCP does not allow the observations of a mode; "" if it allows all.
func compare(s *script, bare, moved *play) string {
	f := &freedom{edges: make(map[string]bool), inner: make(map[string][]string), asked: make(map[string]int), took: make(map[string]int), waited: make(map[string]bool), calm: make(map[string]bool), filled: make(map[string]bool), rings: moved.rings}
	if moved.died != bare.died {
		return fmt.Sprintf("%q, over TCP %q", moved.died, bare.died)
	}
	for i, step := range s.steps {
		f.see(step)
		if late(step, bare.lines[i], moved.lines[i]) {
			return ""
		}
		if !f.allows(step, bare.lines[i], moved.lines[i]) {
			return fmt.Sprintf("step %d, %s: %q, over TCP %q", i+1, step, moved.lines[i], bare.lines[i])
		}
		switch actor, op, args := fields(step); op {
		case "ewait":
			f.asked[actor+" "+args[0]] = f.step
		case "signals":
			f.waited[actor] = false
			f.calm[actor] = !f.behind
		}
	}
	return ""
}

// see takes note of a step.
func (f *freedom) see(step string) {
	actor, op, args := fields(step)
	f.step++
	if op != "accept" && op != "signals" {
		clear(f.calm)
	}
	if op == "join" {
		f.behind = false
	} else if step[0] == '~' || step[0] == '&' {
		f.behind = true
	}
	switch op {
	case "recv", "drain", "empty", "echo", "ping":
		f.took[actor] = f.step
		if op != "recv" && op != "empty" && slices.ContainsFunc(args, func(w string) bool { return w == "block" || w == "waitall" || w == "peekblock" }) {
			f.waited[actor] = true
		}
	case "fill":
		f.filled[actor] = true
	case "ctl":
		if len(args) > 3 && args[1] != "del" && (strings.Contains(args[3], "et") || strings.Contains(args[3], "excl")) {
			f.edges[actor+" "+args[0]] = true
		}
		if len(args) > 2 && args[1] == "add" && strings.HasPrefix(args[2], "e") {
			f.inner[actor+" "+args[0]] = append(f.inner[actor+" "+args[0]], actor+" "+args[2])
		}
	case "fork": // the child has the same instances
		for k := range f.edges {
			if who, e, _ := strings.Cut(k, " "); who == actor {
				f.edges[args[0]+" "+e] = true
			}
		}
		for k, in := range f.inner {
			if who, e, _ := strings.Cut(k, " "); who == actor {
				f.inner[args[0]+" "+e] = append(f.inner[args[0]+" "+e], in...) // which are the same
			}
		}
	case "close", "shutdown", "exec":
		f.ended = true
	case "linger", "disconnect":
		f.ended, f.linger = true, true
	}
}

// edged says whether an instance has a registration for edges, or one in it has, or one in that. The
// kernel allows five of them.
func (f *freedom) edged(instance string, depth int) bool {
	if f.edges[instance] {
		return true
	}
	return depth > 0 && slices.ContainsFunc(f.inner[instance], func(in string) bool { return f.edged(in, depth-1) })
}

// spent says whether a process has received since an instance with edges, or each in it, was asked.
func (f *freedom) spent(actor, instance string) bool {
	if !f.rings || f.filled[actor] {
		return false
	}
	last := f.asked[instance]
	for _, in := range f.inner[instance] {
		last = max(last, f.asked[in])
	}
	return f.took[actor] > last
}

// fields takes a step apart; threads of an actor are one.
func fields(step string) (actor, op string, args []string) {
	w := strings.Fields(strings.TrimLeft(step, "~&"))
	actor, _, _ = strings.Cut(w[0], ".")
	return actor, w[1], w[2:]
}

// allows says whether a step may observe something, where over TCP it has observed something else.
func (f *freedom) allows(step, bare, moved string) bool {
	if bare == moved {
		return true
	}
	actor, op, args := fields(step)
	b, m := strings.Fields(bare), strings.Fields(moved)
	if len(b) == 0 || len(m) == 0 {
		return false
	}
	switch op {
	case "poll":
		return b[0] == m[0] && f.ready(b[1:], m[1:], false, false)
	case "ewait":
		edges := f.edged(actor+" "+args[0], 5)
		return (edges || b[0] == m[0]) && f.ready(b[1:], m[1:], edges, edges && f.spent(actor, actor+" "+args[0]))
	case "ask":
		return len(args) > 1 && args[1] == "outq" && len(b) == 2 && len(m) == 2 && b[0] == m[0] && m[1] == "0"
	case "signals":
		if len(b) > 1 && len(m) > 1 && b[0] == "io" && m[0] == "io" && f.waited[actor] {
			b, m = b[2:], m[2:]
		}
		less := func(p [2]string) bool { return p[0] == "1" && p[1] != "1" }
		return !f.calm[actor] && len(b) == len(m) && !slices.ContainsFunc(zip(b, m), less)
	}
	return false
}

// late says whether a step has received all that it did over TCP, and more.
func late(step, bare, moved string) bool {
	_, op, args := fields(step)
	b, m := strings.Fields(bare), strings.Fields(moved)
	if op != "recv" || len(b) != len(m) || len(b) < 2 || slices.Contains(args, "oob") || !slices.Equal(b[1:], m[1:]) {
		return false
	}
	some, err := strconv.Atoi(b[0])
	more, err2 := strconv.Atoi(m[0])
	return err == nil && err2 == nil && some > 0 && more > some
}

func zip(a, b []string) [][2]string {
	var r [][2]string
	for i := range a {
		r = append(r, [2]string{a[i], b[i]})
	}
	return r
}

// ready compares pairs of names and bits. A name comes twice where one descriptor was closed while a
// copy of it lived, and another got its number: then their bits are compared together. spent: an edge
// for room may be missing.
func (f *freedom) ready(bare, moved []string, edges, spent bool) bool {
	if !edges && len(bare) != len(moved) {
		return false
	}
	have := bitsOf(moved)
	for name, want := range bitsOf(bare) {
		bits, ok := have[name]
		if !ok && spent && (want == "out" || strings.HasPrefix(name, "e")) {
			continue
		}
		if !ok || !f.bits(want, bits, edges) {
			return false
		}
	}
	return true
}

// bitsOf returns the bits of each name in pairs of names and bits.
func bitsOf(pairs []string) map[string]string {
	m := make(map[string]string)
	for i := 0; i+1 < len(pairs); i += 2 {
		if had, ok := m[pairs[i]]; ok {
			m[pairs[i]] = had + "|" + pairs[i+1]
		} else {
			m[pairs[i]] = pairs[i+1]
		}
	}
	return m
}

// bits compares the ready bits of a descriptor.
func (f *freedom) bits(bare, moved string, edges bool) bool {
	b, m := strings.Split(bare, "|"), strings.Split(moved, "|")
	for _, bit := range b {
		if !slices.Contains(m, bit) && bit != "-" && !(bit == "err" && (f.linger || f.rings && f.ended)) {
			return false
		}
	}
	for _, bit := range m {
		if !slices.Contains(b, bit) && bit != "-" && !edges && !(bit == "hup" && f.ended) {
			return false
		}
	}
	return true
}
