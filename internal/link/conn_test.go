package link

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire/cdc"
)

// A netConn is an end as package net has connections, with as much of their life as nettest asks for.
type netConn struct{ *end }

// asNet gives errors the shape that they have in package net.
func asNet(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: "test", Net: "smc", Err: err}
}

func (c netConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, asNet(err)
}

func (c netConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	return n, asNet(err)
}

func (c netConn) Close() error {
	flags := cdc.Closed
	if c.Conn.Close() > 0 {
		flags = cdc.Abort
	}
	c.SendLast(flags)
	return nil
}

func (c netConn) LocalAddr() net.Addr  { return &net.UnixAddr{Name: "here", Net: "smc"} }
func (c netConn) RemoteAddr() net.Addr { return &net.UnixAddr{Name: "there", Net: "smc"} }

func (c netConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func TestNettest(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  rdma.Config
		set  settings
	}{
		{name: "usual"},
		{name: "spinning", set: settings{spin: stream.DefaultSpin}},
		{name: "eyecatchers", set: settings{eyecatcher: [2]bool{true, true}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSides(t, &tt.cfg)
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				a, b := s.connect(t, tt.set)
				return netConn{a}, netConn{b}, func() { finish(t, a, b) }, nil
			})
		})
	}
}

// finish closes both ends unless that is done, and gives their memory back once neither writes any more.
func finish(t testing.TB, ends ...*end) {
	t.Helper()
	for _, e := range ends {
		if e.SetReadDeadline(time.Time{}) != net.ErrClosed {
			netConn{e}.Close()
		}
		e.carrier.Detach()
	}
	for _, e := range ends {
		e.awaitDrained(t)
	}
	for _, e := range ends {
		e.side.link.qp.Drain(10 * time.Second) // some messages may not have been looked at
		e.carrier.Release()
		e.rmb.Free()
	}
}

// TestErrors has the errors of an end whose peer has ended it.
func TestErrors(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	for _, tt := range []struct {
		flags       cdc.ConnFlags
		read, write error
	}{
		{cdc.DoneWriting, io.EOF, nil},
		{cdc.Closed, io.EOF, syscall.EPIPE},
		{cdc.Abort, syscall.ECONNRESET, syscall.ECONNRESET},
	} {
		a, b := s.connect(t, settings{})
		a.SendFlags(tt.flags)
		if _, err := b.Read(make([]byte, 1)); err != tt.read {
			t.Errorf("%v: Read: %v, want %v", tt.flags, err, tt.read)
		}
		if tt.flags == cdc.Closed { // one write is taken, and goes nowhere
			sent := b.side.link.Stats().SentBytes
			if n, err := b.Write(make([]byte, 1)); n != 1 || err != nil || b.side.link.Stats().SentBytes != sent {
				t.Errorf("the first Write to who has closed: %d, %v", n, err)
			}
		}
		if _, err := b.Write(make([]byte, 1)); err != tt.write {
			t.Errorf("%v: Write: %v, want %v", tt.flags, err, tt.write)
		}
		b.SetReadDeadline(time.Unix(1, 0))
		if _, err := b.Read(make([]byte, 1)); tt.read != io.EOF && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v: %v", tt.flags, err)
		}
	}
}
