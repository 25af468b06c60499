package dissect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gosmc/smc/wire/llc"
)

// A Filter chooses events. All of its conditions have to hold; of several values of one condition, any.
// The zero Filter chooses all.
type Filter struct {
	// Addrs are prefixes for the addresses of the packet, of the connection's ends or of the
	// link's.
	Addrs []netip.Prefix
	// Ports are ports of the packet or of the connection.
	Ports []uint16
	Types []TypeFilter
	// Conns and LinkGroups are numbers of [Conn] and [LinkGroup]. A connection belongs to a link
	// group from its Confirm on: earlier messages are not known to belong to it.
	Conns, LinkGroups []int
	// ConnGroups has the number of the link group by the number of the connection, for callers that
	// know it beforehand; nil is fine.
	ConnGroups map[int]int
	// Problems means: only events with a problem.
	Problems bool
}

// Match reports whether the filter chooses the event.
func (f *Filter) Match(e *Event) bool {
	switch {
	case f.Problems && len(e.Problems) == 0:
		return false
	case len(f.Types) > 0 && !slices.ContainsFunc(f.Types, func(t TypeFilter) bool { return t.match(e) }):
		return false
	case len(f.Conns) > 0 && (e.Conn == nil || !slices.Contains(f.Conns, e.Conn.ID)):
		return false
	case len(f.LinkGroups) > 0 && !slices.Contains(f.LinkGroups, f.linkGroup(e)):
		return false
	case len(f.Addrs) > 0 && !f.matchAddrs(e):
		return false
	case len(f.Ports) > 0 && !f.matchPorts(e):
		return false
	}
	return true
}

// linkGroup returns the number of the event's link group, 0 if there is none.
func (f *Filter) linkGroup(e *Event) int {
	switch {
	case e.Link != nil && e.Link.Group != nil:
		return e.Link.Group.ID
	case e.Conn != nil && e.Conn.Group != nil:
		return e.Conn.Group.ID
	case e.Conn != nil:
		return f.ConnGroups[e.Conn.ID]
	}
	return 0
}

// MatchPacket reports whether the packet that the tracker took last is a TCP segment of a
// connection that the filter chooses, whether or not it completed a message: for callers that keep
// packets. It is not, if the filter asks for types or problems.
func (f *Filter) MatchPacket(t *Tracker) bool {
	l := &t.layers
	if len(f.Types) > 0 || f.Problems || l.outcome != outcomeTCP {
		return false
	}
	s, ok := l.tcp()
	if !ok {
		return false
	}
	c := t.conns.byKey[makeConnKey(l.src, s.src, l.dst, s.dst)]
	return c != nil && f.Match(&Event{Family: TCP, Src: netip.AddrPortFrom(l.src, s.src),
		Dst: netip.AddrPortFrom(l.dst, s.dst), Conn: c})
}

func (f *Filter) matchAddrs(e *Event) bool {
	for _, p := range f.Addrs {
		if p.Contains(e.Src.Addr()) || p.Contains(e.Dst.Addr()) ||
			e.Conn != nil && (p.Contains(e.Conn.Client.Addr()) || p.Contains(e.Conn.Server.Addr())) ||
			e.Link != nil && (p.Contains(e.Link.Client.Addr) || p.Contains(e.Link.Server.Addr)) {
			return true
		}
	}
	return false
}

func (f *Filter) matchPorts(e *Event) bool {
	for _, p := range f.Ports {
		if e.Src.Port() == p || e.Dst.Port() == p ||
			e.Conn != nil && (e.Conn.Client.Port() == p || e.Conn.Server.Port() == p) {
			return true
		}
	}
	return false
}

// A TypeFilter chooses the messages of a type. Make it with [ParseType].
type TypeFilter struct {
	word   string
	family Family
	names  []string // of events, whole; nil means all of the family
	prefix []string // or beginnings of their names
}

// String returns the word that [ParseType] takes.
func (t TypeFilter) String() string { return t.word }

func (t *TypeFilter) match(e *Event) bool {
	if t.family != e.Family {
		return false
	}
	return t.names == nil && t.prefix == nil || slices.Contains(t.names, e.Name) ||
		slices.ContainsFunc(t.prefix, func(p string) bool { return strings.HasPrefix(e.Name, p) })
}

// typeFilters has all words. Messages of LLC have their name with hyphens.
var typeFilters = func() []TypeFilter {
	list := []TypeFilter{
		{word: "option", family: TCPOption},
		{word: "syn", family: TCPOption, names: []string{"SYN"}},
		{word: "syn-ack", family: TCPOption, names: []string{"SYN-ACK"}},
		{word: "clc", family: CLC},
		{word: "proposal", family: CLC, names: []string{"Proposal"}},
		{word: "accept", family: CLC, names: []string{"Accept"}},
		{word: "confirm", family: CLC, names: []string{"Confirm"}},
		{word: "decline", family: CLC, names: []string{"Decline"}},
		{word: "llc", family: LLC},
	}
	for t := llc.Type(1); t <= 9; t++ {
		name := t.String()
		list = append(list, TypeFilter{word: strings.ReplaceAll(strings.ToLower(name), " ", "-"), family: LLC,
			names: []string{name}})
	}
	return append(list,
		TypeFilter{word: "cdc", family: CDC},
		TypeFilter{word: "roce", family: RoCE},
		TypeFilter{word: "write", family: RoCE, prefix: []string{"RDMA WRITE"}},
		TypeFilter{word: "read", family: RoCE, prefix: []string{"RDMA READ"}},
		TypeFilter{word: "send", family: RoCE, prefix: []string{"SEND"}},
		TypeFilter{word: "ack", family: RoCE, names: []string{"ACK", "ATOMIC ACK"}},
		TypeFilter{word: "nak", family: RoCE, prefix: []string{"NAK", "RNR NAK"}},
		TypeFilter{word: "cnp", family: RoCE, names: []string{"CNP"}},
		TypeFilter{word: "tcp", family: TCP},
		TypeFilter{word: "fin", family: TCP, names: []string{"FIN"}},
		TypeFilter{word: "rst", family: TCP, names: []string{"RST"}},
		TypeFilter{word: "note", family: Note},
	)
}()

// TypeWords returns all words that [ParseType] takes, families before their messages.
func TypeWords() []string {
	words := make([]string, len(typeFilters))
	for i, t := range typeFilters {
		words[i] = t.word
	}
	return words
}

// ParseType returns the filter for a word of [TypeWords], which may be in capitals, and have blanks or
// underscores for hyphens.
func ParseType(word string) (TypeFilter, error) {
	plain := strings.NewReplacer(" ", "-", "_", "-").Replace(strings.ToLower(word))
	for _, t := range typeFilters {
		if t.word == plain {
			return t, nil
		}
	}
	return TypeFilter{}, fmt.Errorf("message type %q: want one of %s", word, strings.Join(TypeWords(), ", "))
}
