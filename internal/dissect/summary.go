package dissect

import (
	"slices"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/frame"
	"github.com/gosmc/smc/wire/clc"
)

// A Summary holds the counts of the tracker. It is a copy, and the caller's.
type Summary struct {
	Packets, Bytes uint64 // all packets of the capture, of any protocol; bytes as captured
	First, Last    time.Time
	TCPSegments    uint64
	RoCEPackets    uint64
	// views of a packet that another input, or interface, has too: counted in Packets only
	AlsoSeen       uint64
	Truncated      uint64 // packets of SMC that the capture does not have whole
	Fragments      uint64 // IP fragments, which are not put together
	Undecodable    uint64 // packets with headers that end early or contradict themselves
	OtherLinkTypes uint64 // packets of link types that are not understood
	// OtherLinks are those link types, in the order in which they were met; the first maxOtherLinks of them.
	OtherLinks []frame.LinkType

	Conns    uint64 // connections with an SMC handshake, or the option on the SYN
	Modes    []Count
	Reasons  []ReasonCount // of Declines
	Messages []MessageCount
	Problems []ProblemCount

	RDMABytes       uint64 // payload of RDMA WRITEs, without retransmissions
	Retransmissions uint64 // RoCEv2 packets
	Gaps            uint64 // PSNs missing
	LinkGroups      uint64
	Links           uint64
	Failovers       uint64 // connections that changed the link because one failed
	Moves           uint64 // connections that changed the link otherwise, as to spread load
	LinksLost       uint64 // deleted because the path was lost

	// Evicted counts the entries that were forgotten because a table was full: connections, queue
	// pairs, link groups.
	Evicted struct{ Conns, Flows, Groups uint64 }
}

// A Count is how often a name was met.
type Count struct {
	Name  string
	Count uint64
}

// A MessageCount is how many events of a family had a name.
type MessageCount struct {
	Family Family
	Name   string
	Count  uint64
}

// A ReasonCount is how many Declines had a reason.
type ReasonCount struct {
	Reason clc.Reason
	Count  uint64
}

// A ProblemCount is how many problems of a kind were met.
type ProblemCount struct {
	Kind  ProblemKind
	Count uint64
}

// messageKey names a counter of messages.
type messageKey struct {
	family Family
	name   string
}

// counters are the counts of which the Summary is made. Names are few: they are constants of this
// package, and the modes and reasons of known catalogues.
type counters struct {
	Summary
	messages map[messageKey]uint64
	reasons  map[clc.Diagnosis]*ReasonCount
	problems [Reset + 1]uint64
	modes    map[string]uint64
}

func (c *counters) init() {
	c.messages = make(map[messageKey]uint64)
	c.reasons = make(map[clc.Diagnosis]*ReasonCount)
	c.modes = make(map[string]uint64)
}

// message counts an event.
func (c *counters) message(f Family, name string) {
	c.messages[messageKey{f, name}]++
}

// otherLink counts a packet of a link type that is not understood.
func (c *counters) otherLink(l frame.LinkType) {
	c.OtherLinkTypes++
	if len(c.OtherLinks) < maxOtherLinks && !slices.Contains(c.OtherLinks, l) {
		c.OtherLinks = append(c.OtherLinks, l)
	}
}

// Summary returns the counts so far.
func (t *Tracker) Summary() *Summary {
	s := t.count.Summary
	s.OtherLinks = slices.Clone(s.OtherLinks)
	for key, n := range t.count.messages {
		s.Messages = append(s.Messages, MessageCount{key.family, key.name, n})
	}
	slices.SortFunc(s.Messages, func(a, b MessageCount) int {
		if a.Family != b.Family {
			return int(a.Family) - int(b.Family)
		}
		return strings.Compare(a.Name, b.Name)
	})
	for name, n := range t.count.modes {
		if n > 0 {
			s.Modes = append(s.Modes, Count{name, n})
		}
	}
	slices.SortFunc(s.Modes, func(a, b Count) int { return strings.Compare(a.Name, b.Name) })
	for _, r := range t.count.reasons {
		s.Reasons = append(s.Reasons, *r)
	}
	slices.SortFunc(s.Reasons, func(a, b ReasonCount) int {
		return int(int64(a.Reason.Code) - int64(b.Reason.Code))
	})
	for kind, n := range t.count.problems {
		if n > 0 {
			s.Problems = append(s.Problems, ProblemCount{ProblemKind(kind), n})
		}
	}
	return &s
}
