// Package traceview shows the events of running hosts as package dissect shows the events of a
// capture.
package traceview

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/dissect"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
	"github.com/gosmc/smc/wire/llc"
)

// modeTCP is how a host calls plain TCP.
const modeTCP = "TCP"

// maxViewConns bounds the connections that a View remembers. Those that came first are forgotten.
const maxViewConns = 4096

// A View makes of the events of any number of hosts those that package dissect renders, in the
// words in which a capture is shown. It numbers the connections of all of them, and both ends of one have
// the same number. The zero value is ready for use, by one goroutine.
type View struct {
	byHost map[viewKey]*viewConn
	byAddr map[viewAddrs]*viewConn
	order  []*viewConn // by age; a ring once it is full
	oldest int
	conns  int
}

// viewKey names a connection of a host.
type viewKey struct {
	host string
	conn uint64
}

// viewAddrs names a connection for as long as it lives.
type viewAddrs struct{ client, server netip.AddrPort }

type viewConn struct {
	dissect.Conn
	addrs   viewAddrs
	ends    [2]viewKey            // server and client; zero until something is known of that end
	samples map[viewSample]uint64 // bytes that had moved by the last sample; at most four entries
}

// viewSample names the end that took a sample, and the direction of the bytes.
type viewSample struct{ byClient, toServer bool }

// Event returns an event of a host in the form in which it is shown. The result does not keep e,
// but refers to its bytes, and to a Conn that changes as events come. Packet.Number is left to the
// caller.
//
// Messages are of the families of a capture: CLC, LLC, and CDC with the header of SMC-D or the
// message of SMC-R. Everything else is a Note, named by its kind, or a rendezvous message by its
// name.
func (v *View) Event(host string, e *control.TraceEvent) *dissect.Event {
	out := v.content(e)
	out.Packet.Time = e.Time
	out.Src, out.Dst = e.Local, e.Peer
	isMessage := e.Kind == control.TraceCLC || e.Kind == control.TraceLLC || e.Kind == control.TraceCDC ||
		e.Kind == control.TraceCursors || e.Kind == control.TraceRendezvous
	if isMessage && !e.Sent {
		out.Src, out.Dst = out.Dst, out.Src
	}
	if isMessage {
		out.Dir = dissect.ServerToClient
		if e.Sent == e.Client {
			out.Dir = dissect.ClientToServer
		}
	}
	if c := v.conn(host, e); c != nil {
		out.Conn = &c.Conn
		c.learn(out, e)
	}
	return out
}

// content makes the event without its addresses, direction and connection.
func (v *View) content(e *control.TraceEvent) *dissect.Event {
	switch e.Kind {
	case control.TraceCLC:
		return clcEvent(e.Bytes)
	case control.TraceLLC:
		return llcEvent(e)
	case control.TraceCDC, control.TraceCursors:
		if len(e.Bytes) == cdc.MessageLen {
			m, err := cdc.ParseMessage(e.Bytes)
			if err != nil {
				return malformed(dissect.CDC, e.Bytes, err)
			}
			return dissect.MessageEvent(&m, e.Bytes)
		}
		h, err := cdc.ParseHeader(e.Bytes)
		if err != nil {
			return malformed(dissect.CDC, e.Bytes, err)
		}
		return dissect.MessageEvent(&h, e.Bytes)
	case control.TraceLost:
		return &dissect.Event{Family: dissect.Note, Name: "gap",
			Text: fmt.Sprintf("%d events lost: they were not read in time", e.Count)}
	case control.TraceOmitted:
		return &dissect.Event{Family: dissect.Note, Name: "omitted",
			Text: fmt.Sprintf("%d connections more than fit into a sample", e.Count)}
	case control.TraceRendezvous:
		return &dissect.Event{Family: dissect.Note, Name: e.Name, Text: e.Text}
	}
	return &dissect.Event{Family: dissect.Note, Name: string(e.Kind), Text: e.Text}
}

// clcEvent makes the event of a CLC message, as it is made of one in a capture.
func clcEvent(b []byte) *dissect.Event {
	m, err := clc.Parse(b)
	if err != nil {
		return malformed(dissect.CLC, b, err)
	}
	e := dissect.MessageEvent(m, b)
	if d, ok := m.(clc.Decline); ok {
		reason := d.Reason()
		text := reason.String()
		if reason.Sentence != "" {
			text += ": " + reason.Sentence
		}
		e.Problems = []dissect.Problem{{Kind: dissect.Declined, Text: text}}
	}
	return e
}

// llcEvent makes the event of an LLC message.
func llcEvent(e *control.TraceEvent) *dissect.Event {
	m, err := llc.Parse(e.Bytes)
	var out *dissect.Event
	switch {
	case errors.Is(err, llc.ErrOptional):
		out = &dissect.Event{Family: dissect.LLC, Name: "optional message", Bytes: e.Bytes}
	case err != nil:
		out = malformed(dissect.LLC, e.Bytes, err)
	default:
		out = dissect.MessageEvent(m, e.Bytes)
	}
	out.Text = fmt.Sprintf("lg=%08x", e.Group) // its group in its host, as gosmc linkgroup has it
	return out
}

func malformed(family dissect.Family, b []byte, err error) *dissect.Event {
	return &dissect.Event{
		Family: family, Name: "message", Bytes: b,
		Problems: []dissect.Problem{{Kind: dissect.Malformed, Text: err.Error()}},
	}
}

// conn returns the connection of an event, nil if it is of none.
func (v *View) conn(host string, e *control.TraceEvent) *viewConn {
	if e.Conn == 0 {
		return nil
	}
	key := viewKey{host, e.Conn}
	if c := v.byHost[key]; c != nil {
		return c
	}
	addrs, end := viewAddrs{client: e.Peer, server: e.Local}, 0
	if e.Client {
		addrs, end = viewAddrs{client: e.Local, server: e.Peer}, 1
	}
	c := v.byAddr[addrs]
	if c == nil || c.ends[end] != (viewKey{}) {
		// the other end is not known, or was one of an older connection
		c = v.add(addrs)
	}
	c.ends[end] = key
	v.byHost[key] = c
	return c
}

// add makes a connection, and room for it.
func (v *View) add(addrs viewAddrs) *viewConn {
	if v.byHost == nil {
		v.byHost = make(map[viewKey]*viewConn)
		v.byAddr = make(map[viewAddrs]*viewConn)
	}
	v.conns++
	c := &viewConn{addrs: addrs}
	c.ID, c.Client, c.Server, c.Mode = v.conns, addrs.client, addrs.server, "unknown"
	v.byAddr[addrs] = c
	if len(v.order) < maxViewConns {
		v.order = append(v.order, c)
		return c
	}
	old := v.order[v.oldest]
	v.order[v.oldest] = c
	v.oldest = (v.oldest + 1) % maxViewConns
	for _, key := range old.ends {
		delete(v.byHost, key)
	}
	if v.byAddr[old.addrs] == old {
		delete(v.byAddr, old.addrs)
	}
	return c
}

// learn takes the facts about the connection from an event, and completes the event.
func (c *viewConn) learn(out *dissect.Event, e *control.TraceEvent) {
	if c.Opened.IsZero() {
		c.Opened = e.Time
	}
	switch m := out.Message.(type) {
	case clc.Proposal:
		c.Proposal, c.State = &m, dissect.ConnProposed
	case clc.Accept:
		c.Accept, c.State = &m, dissect.ConnAccepted
	case clc.Confirm:
		c.Confirm, c.State = &m, dissect.ConnEstablished
	case clc.Decline:
		c.Decline, c.State, c.DeclinedBy, c.Reason = &m, dissect.ConnDeclined, out.Dir, m.Reason()
	}
	if e.Mode != "" { // its handshake is over
		c.Mode = e.Mode
		switch {
		case e.Mode != modeTCP:
			c.State = dissect.ConnEstablished
		case c.State != dissect.ConnDeclined:
			c.State = dissect.ConnTCP
		}
	}
	switch e.Kind {
	case control.TraceFailed:
		c.State = dissect.ConnFailed
	case control.TraceClosed:
		c.Closed = e.Time
	case control.TraceCursors:
		c.sampled(out, e)
	case control.TraceRendezvous, control.TraceCLC, control.TraceLLC, control.TraceCDC, control.TraceEstablished, control.TraceFallback, control.TraceState, control.TracePeerGone, control.TraceOmitted, control.TraceLost:
	}
}

// sampled says how far the bytes have come.
func (c *viewConn) sampled(out *dissect.Event, e *control.TraceEvent) {
	key := viewSample{e.Client, out.Dir == dissect.ClientToServer}
	p := &dissect.Progress{Produced: -1, Consumed: -1, Window: e.Window, PeerRoom: -1}
	if last, ok := c.samples[key]; ok && e.Moved >= last {
		p.Produced = int(min(e.Moved-last, math.MaxInt))
	}
	if c.samples == nil {
		c.samples = make(map[viewSample]uint64)
	}
	c.samples[key] = e.Moved
	out.Progress = p
	var text strings.Builder
	fmt.Fprintf(&text, "moved=%d", e.Moved)
	if _, ok := out.Message.(*cdc.Message); ok {
		out.Text = text.String() // the rest is said of every CDC message
		return
	}
	if p.Produced > 0 {
		fmt.Fprintf(&text, " produced=%d", p.Produced)
	}
	if p.Window >= 0 {
		fmt.Fprintf(&text, " window=%d", p.Window)
	}
	out.Text = text.String()
}
