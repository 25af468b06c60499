package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/gosmc/smc/internal/dissect"
)

// maxListed bounds the connections that dump --list keeps; later ones are counted.
const maxListed = 1 << 16

// A connList has the connections of a capture, for dump --list.
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
		if len(l.list) == maxListed { // rule: TestDumpListBound
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

// chosen reports whether --conn and --linkgroup leave a connection in.
func (l *connList) chosen(c *dissect.Conn) bool {
	return (len(l.conns) == 0 || slices.Contains(l.conns, c.ID)) && (len(l.groups) == 0 || c.Group != nil && slices.Contains(l.groups, c.Group.ID))
}

// write prints a line for each connection.
func (l *connList) write(w io.Writer) error {
	t := table{columns: []column{
		{title: "Conn"}, {title: "Client"}, {title: "Server"}, {title: "Mode"}, {title: "Group"}, {title: "Link"}, {title: "State"},
		{title: "To server", right: true}, {title: "To client", right: true}, {title: "Problems", right: true}, {title: "Reason"},
	}}
	for _, c := range l.list {
		if !l.chosen(c) {
			continue
		}
		group, link := "", ""
		if c.Group != nil {
			group = "lg" + strconv.Itoa(c.Group.ID)
		}
		if c.Link != nil {
			link = "l" + strconv.Itoa(c.Link.ID)
		}
		state, reason := c.State.String(), ""
		switch {
		case c.SMCClosed:
			state = "closed"
		case !c.Closed.IsZero():
			state += ", TCP ended"
		}
		if c.Reason.Code != 0 {
			reason = c.Reason.Tag
		}
		bytes := func(r *dissect.Ring) string {
			if !r.ProducerKnown {
				return "n/a"
			}
			return formatBytes(int64(min(r.Produced, 1<<62)))
		}
		t.add("c"+strconv.Itoa(c.ID), c.Client.String(), c.Server.String(), c.Mode, group, link, state, bytes(&c.ToServer), bytes(&c.ToClient), strconv.Itoa(l.problems[c]), printable(reason))
	}
	if err := t.write(w); err != nil {
		return err
	}
	if l.omitted > 0 {
		_, err := fmt.Fprintf(w, "%d more connections at least are left out\n", l.omitted)
		return err
	}
	return nil
}
