package netcat

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/gosmc/smc"
	"github.com/gosmc/smc/internal/control"
)

// A Client makes a connection for gosmc connect.
type Client struct {
	Dialer  smc.Dialer // with a host, which the client shuts down in the end; its Require is not used
	Require Requirement
	Network string // "tcp4" and "tcp6": addresses of that version of IP; empty: all
	Scan    bool   // close the connection at once, without a byte
	Streams
	Report func(*Report) // is called once, unless there was no connection
}

// Run connects to addr and joins the connection with the streams, until both directions have ended or
// ctx ends, which is ctx's error. A connection that does not meet the requirement is an [*UnmetError].
func (c *Client) Run(ctx context.Context, addr string) error {
	d := c.Dialer
	d.Require = c.Require.Requirement
	conn, err := d.DialContext(ctx, cmp.Or(c.Network, "tcp"), addr)
	if fallback, ok := errors.AsType[*smc.FallbackError](err); ok {
		r := Report{
			Start: time.Now(), Peer: addr,
			ReasonCode: control.ReasonCode(fallback.Reason.Code), Reason: fallback.Reason.Text,
			Advice: fallback.Reason.Advice,
		}
		err := c.Require.unmet(&r)
		r.Error = err.Error()
		c.Report(&r)
		return err
	}
	if err != nil {
		return err
	}
	r := newReport(conn)
	if c.Scan { // rule: cmd/gosmc TestNetcatHabits: c.Scan -> false
		err = conn.Close()
	} else {
		err = transfer(ctx, conn, newInput(c.In, c.Terminal), c.Out, &r)
	}
	c.Report(&r)
	shutdown(d.Host)
	return err
}
