package dump

import (
	"fmt"
	"io"
	"strconv"

	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/internal/text"
)

// Write prints a line for each connection.
func (l *ConnList) Write(w io.Writer) error {
	t := text.Table{Columns: []text.Column{
		{Title: "Conn"}, {Title: "Client"}, {Title: "Server"}, {Title: "Mode"}, {Title: "Group"},
		{Title: "Link"}, {Title: "State"}, {Title: "To server", Right: true},
		{Title: "To client", Right: true}, {Title: "Problems", Right: true}, {Title: "Reason"},
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
		t.Add("c"+strconv.Itoa(c.ID), c.Client.String(), c.Server.String(), c.Mode, group, link, state,
			produced(&c.ToServer), produced(&c.ToClient), strconv.Itoa(c.Problems), text.Printable(reason))
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

// produced is the number of bytes that were written into a ring, if it is known.
func produced(r *dissect.Ring) string {
	if !r.ProducerKnown {
		return "n/a"
	}
	return text.Bytes(int64(min(r.Produced, 1<<62)))
}
