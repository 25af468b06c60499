package conn

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/ring"
)

// A Unix is a connection over a pair of Unix sockets, with a program of 'gosmc run': docs/run.md.
// Its TCP connection is over when it begins, and only lends it its addresses. It is a [Conn].
type Unix struct {
	socketConn
	end  *ring.End
	gain gain
}

// NewUnix makes p a connection over a pair, of which end is ours. pid is the process at the other
// end, 0 if it is not known.
func NewUnix(p *Pending, end *ring.End, pid int) *Unix {
	// in good order: a client may not have returned from connect(2) yet, which a reset would fail
	p.tcp.Close()
	c := &Unix{end: end}
	c.init(p, c.end)
	c.gain.begin(p.verdict)
	c.outlives, c.mode, c.agreed = true, ModeUnix, &Agreed{PeerPID: pid}
	c.Trace(Record{Kind: control.TraceEstablished}, nil)
	return c
}

// Read implements [net.Conn].
func (c *Unix) Read(b []byte) (int, error) {
	n, err := c.end.Read(b)
	c.in.Add(uint64(n))
	if c.gain.isOpen() {
		c.gain.read(c.Totals())
	}
	return n, c.failed(err)
}

// Write implements [net.Conn].
func (c *Unix) Write(b []byte) (int, error) {
	n, err := c.end.Write(b)
	c.out.Add(uint64(n))
	return n, c.failed(err)
}

// WriteBuffers implements [Conn].
func (c *Unix) WriteBuffers(bufs *net.Buffers) (int64, error) {
	n, err := c.end.WriteBuffers(bufs)
	c.out.Add(uint64(n))
	return n, c.failed(err)
}

// WriteUrgent implements [Conn]. Urgent data is sent in-band.
func (c *Unix) WriteUrgent(b []byte) (int, error) {
	if err := c.end.LeaveOut(); err != nil {
		return 0, c.failed(err)
	}
	return c.socketConn.WriteUrgent(b)
}

// AtUrgentMark implements [Conn]. Bytes in a ring come before the mark, and tokens for bytes that were read
// do not count.
func (c *Unix) AtUrgentMark() (bool, error) {
	if c.end.Tidy() {
		return false, nil
	}
	return c.socketConn.AtUrgentMark()
}

// ReadFrom implements [io.ReaderFrom].
func (c *Unix) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, r)
}

// WriteTo implements [io.WriterTo].
func (c *Unix) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{c})
}

// Close implements [net.Conn].
func (c *Unix) Close() error {
	in, out := c.Totals()
	c.gain.end(in, out, time.Since(c.since))
	return c.close(c)
}

// Abort implements [Conn]. The peer finds out by its end of the pair.
func (c *Unix) Abort() { c.Close() }

// Forget implements [Conn].
func (c *Unix) Forget() { c.env.Owner.Forget(c) }

// SyscallConn implements [Conn].
func (c *Unix) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return raw, err
	}
	return opaqueConn{raw, &c.ident, func() { c.end.Tidy() }}, nil
}

// File implements [Conn].
func (c *Unix) File() (*os.File, error) { return nil, c.opError("file", errNoFile) }

// Rings reports which directions have gone over to a ring.
func (c *Unix) Rings() (in, out bool) {
	_, _, in, out = c.end.Queues()
	return in, out
}

// Status implements [Conn].
func (c *Unix) Status() control.StatusConn {
	s := c.status()
	in, out, inJoined, outJoined := c.end.Queues()
	if inJoined {
		s.RecvQ = in
	}
	if outJoined {
		s.SendQ = out
	}
	return s
}
