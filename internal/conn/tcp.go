package conn

import (
	"io"
	"os"
	"syscall"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/wire/clc"
)

// A TCP is a connection that is plain TCP. It is a [Conn].
type TCP struct {
	socketConn
	reason   clc.Reason
	byPeer   bool
	crossing *crossing // the Decline with which the bytes may begin; nil for most
}

// A Fallback says why a connection is plain TCP, and holds the bytes that have been read of it.
type Fallback struct {
	Reason clc.Reason
	ByPeer bool // the peer declined

	// Held are bytes that were read and may be the application's. With Crossing it is not: a
	// Decline may come, of which Held is the beginning. See core.FallBack.
	Held     []byte
	Crossing bool
}

// NewTCP makes p a plain TCP connection.
func NewTCP(p *Pending, f Fallback) *TCP {
	c := &TCP{reason: f.Reason, byPeer: f.ByPeer}
	c.init(p, p.tcp)
	switch {
	case f.Crossing:
		c.crossing = newCrossing(f.Held)
	case len(f.Held) > 0:
		c.crossing = givenBack(f.Held)
	}
	if p.keepAlive {
		c.options.lateKeepAlive = true
		c.env.keepAlives.soon(c)
	}
	reason := f.Reason // a copy: a record is not to hold on to the connection
	c.Trace(Record{Kind: control.TraceFallback, Reason: &reason, ByPeer: f.ByPeer}, nil)
	return c
}

// Reason implements [Conn].
func (c *TCP) Reason() clc.Reason { return c.reason }

// ByPeer implements [Conn].
func (c *TCP) ByPeer() bool { return c.byPeer }

// Read implements [net.Conn].
func (c *TCP) Read(b []byte) (int, error) {
	n, err := c.read(b)
	c.in.Add(uint64(n))
	return n, err
}

func (c *TCP) read(b []byte) (int, error) {
	if !c.crossing.done() && len(b) > 0 {
		if n, err, ok := c.crossing.read(peekable{c.tcp}, b); ok {
			return n, err
		}
	}
	return c.tcp.Read(b)
}

// Write implements [net.Conn].
func (c *TCP) Write(b []byte) (int, error) {
	n, err := c.tcp.Write(b)
	c.out.Add(uint64(n))
	return n, err
}

// ReadFrom implements [io.ReaderFrom].
func (c *TCP) ReadFrom(r io.Reader) (int64, error) {
	n, err := c.tcp.ReadFrom(r)
	c.out.Add(uint64(n))
	return n, err
}

// WriteTo implements [io.WriterTo].
func (c *TCP) WriteTo(w io.Writer) (int64, error) {
	n, err := c.writeTo(w)
	c.in.Add(uint64(n))
	return n, err
}

func (c *TCP) writeTo(w io.Writer) (int64, error) {
	held, err := c.crossing.writeTo(peekable{c.tcp}, w)
	if err != nil {
		return held, err
	}
	n, err := c.tcp.WriteTo(w)
	return held + n, err
}

// Close implements [net.Conn].
func (c *TCP) Close() error { return c.close(c) }

// Abort implements [Conn].
func (c *TCP) Abort() {
	c.tcp.SetLinger(0)
	c.Close()
}

// Forget implements [Conn].
func (c *TCP) Forget() { c.env.Owner.Forget(c) }

// SyscallConn implements [Conn].
func (c *TCP) SyscallConn() (syscall.RawConn, error) {
	c.turnOnKeepAlive() // rule: TestLateKeepAlive
	raw, err := c.tcp.SyscallConn()
	if err == nil && !c.crossing.done() {
		return filteredConn{raw, c}, nil
	}
	return raw, err
}

// File implements [Conn].
func (c *TCP) File() (*os.File, error) {
	c.turnOnKeepAlive() // rule: TestLateKeepAlive
	if !c.crossing.done() {
		raw, err := c.tcp.SyscallConn()
		if err == nil {
			err = c.crossing.ready(raw)
		}
		if err != nil {
			return nil, c.opError("file", err)
		}
	}
	return c.tcp.File()
}

// Status implements [Conn].
func (c *TCP) Status() control.StatusConn {
	s := c.status()
	s.ReasonCode, s.Reason = control.ReasonCode(c.reason.Code), c.reason.Sentence
	return s
}
