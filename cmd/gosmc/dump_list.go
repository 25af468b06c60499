package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/dump"
)

// writeConnList prints a line for each connection.
func writeConnList(w io.Writer, l *dump.ConnList) error {
	t := table{Columns: []column{
		{Title: "Conn"}, {Title: "Client"}, {Title: "Server"}, {Title: "Mode"}, {Title: "Group"}, {Title: "Link"}, {Title: "State"},
		{Title: "To server", Right: true}, {Title: "To client", Right: true}, {Title: "Problems", Right: true}, {Title: "Reason"},
	}}
	for _, c := range l.Conns {
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
		t.Add("c"+strconv.Itoa(c.ID), c.Client.String(), c.Server.String(), c.Mode, group, link, state, bytes(&c.ToServer), bytes(&c.ToClient), strconv.Itoa(c.Problems), printable(reason))
	}
	if err := t.Write(w); err != nil {
		return err
	}
	if l.Omitted > 0 {
		_, err := fmt.Fprintf(w, "%d more connections at least are left out\n", l.Omitted)
		return err
	}
	return nil
}
