package dump

import (
	"slices"

	"github.com/gosmc/smc/internal/dissect"
)

// maxListed bounds the connections that a list keeps; later ones are counted.
const maxListed = 1 << 16

// A ConnList has the connections of a capture in the order of their first messages.
type ConnList struct {
	Conns []ListedConn
	// Omitted is how many connections at least are left out, as a list has a bound. It also counts
	// connections that the filter would not choose.
	Omitted int
}

// A ListedConn is a connection and the number of the problems of its messages.
type ListedConn struct {
	*dissect.Conn // as it is at the end of the capture
	Problems      int
}

// A connList gathers the connections of a capture.
type connList struct {
	conns, groups []int // that are shown; empty: all
	list          []*dissect.Conn
	problems      map[*dissect.Conn]int
	omitted       int
	newest        *dissect.Conn // that was omitted
}

func newConnList(conns, groups []int) *connList {
	return &connList{conns: conns, groups: groups, problems: make(map[*dissect.Conn]int)}
}

// add notes the connection of a message.
func (l *connList) add(e *dissect.Event) {
	c := e.Conn
	if c == nil {
		return
	}
	if _, seen := l.problems[c]; !seen {
		if len(l.list) == maxListed { // rule: TestConnListBound
			if c != l.newest {
				l.newest = c
				l.omitted++
			}
			return
		}
		l.list = append(l.list, c)
		l.problems[c] = 0
	}
	l.problems[c] += len(e.Problems)
}

// chosen reports whether the filter leaves a connection in.
func (l *connList) chosen(c *dissect.Conn) bool {
	return (len(l.conns) == 0 || slices.Contains(l.conns, c.ID)) &&
		(len(l.groups) == 0 || c.Group != nil && slices.Contains(l.groups, c.Group.ID))
}

// result returns the chosen connections.
func (l *connList) result() *ConnList {
	r := &ConnList{Omitted: l.omitted}
	for _, c := range l.list {
		if l.chosen(c) {
			r.Conns = append(r.Conns, ListedConn{c, l.problems[c]})
		}
	}
	return r
}
