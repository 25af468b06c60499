package handshake

import (
	"context"
	"errors"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// messages exchanges CLC messages with the peer over TCP. Events of the link interrupt a read.
type messages struct {
	ctx    context.Context
	conn   *conn.Pending
	owner  Owner
	reader messageReader
	events linkEvents
	buf    [256]byte // memory for messages that are sent

	// foreign has the bytes that were read in place of a Proposal, if the client may be a program
	// that does not speak CLC; nil if there are none.
	foreign []byte
}

// send writes a message. It returns the errors of the TCP connection, or the error of the context.
func (x *messages) send(m clc.Message, deadline time.Time) error {
	err := x.setDeadline(x.conn.TCP().SetWriteDeadline, deadline)
	if err == nil {
		b := m.Append(x.buf[:0])
		x.trace(b, true) // before the answer can be there
		_, err = x.conn.TCP().Write(b)
	}
	return x.cause(err)
}

// read reads one CLC message and not a byte more. It is interrupted by events of the link, and then goes on
// where it was. It returns a *wire.DecodeError, an error of the TCP connection, the error of the
// context, or errEvents.
func (x *messages) read(deadline time.Time, mayBeForeign bool) ([]byte, error) {
	tcp := x.conn.TCP()
	if err := x.setDeadline(tcp.SetReadDeadline, deadline); err != nil {
		return nil, err
	}
	if x.events.any() { // after the deadline was set: an event moves it afterwards
		return nil, errEvents
	}
	if mayBeForeign && x.reader.have == 0 {
		// The bytes are only looked at: those for the application stay where it can get them in any
		// way.
		var start [clc.HeaderLen]byte
		if n, err := conn.Peek(tcp, start[:]); err == nil && !conn.EyecatcherStarts(start[:n]) {
			x.foreign = []byte{}
			return nil, &wire.DecodeError{Message: "clc.Header", Field: "eyecatcher", Err: wire.ErrEyecatcher}
		}
	}
	b, err := x.reader.read(tcp)
	if err == nil {
		x.trace(b, false)
		return b, nil
	}
	decode, ok := errors.AsType[*wire.DecodeError](err)
	if !ok {
		return nil, x.cause(err)
	}
	b = x.reader.take()
	x.trace(b, false)
	// rule: internal/host TestNotCLC
	if decode.Field == "eyecatcher" && mayBeForeign {
		x.foreign = b
	}
	return nil, err
}

// readAtOnce reads a message that is there already, even after the deadline.
func (x *messages) readAtOnce() ([]byte, bool) {
	raw, err := x.conn.TCP().SyscallConn()
	if err != nil {
		return nil, false
	}
	var b []byte
	cerr := raw.Control(func(fd uintptr) { b, err = x.reader.read(conn.Descriptor(fd)) })
	if cerr != nil || err != nil {
		return nil, false
	}
	x.trace(b, false)
	return b, true
}

// setDeadline sets a deadline, or one that has passed if the caller gave up.
func (x *messages) setDeadline(set func(time.Time) error, deadline time.Time) error {
	if err := set(deadline); err != nil {
		return err
	}
	// The order matters: the function that runs when ctx ends sets the deadline too.
	return x.ctx.Err()
}

// cause prefers the reason why the deadline was moved to an error of TCP.
func (x *messages) cause(err error) error {
	if cause := x.ctx.Err(); err != nil && cause != nil {
		return cause
	}
	return err
}

// stop ends the use of the TCP connection's deadlines: they are the application's from now on.
func (x *messages) stop() {
	x.events.stop()
	x.conn.TCP().SetDeadline(time.Time{})
}

// trace counts and traces a message, or the bytes that came in place of one.
func (x *messages) trace(b []byte, sent bool) {
	x.owner.Message(b, sent)
	x.conn.Trace(conn.Record{Kind: control.TraceCLC, Sent: sent}, b)
}
