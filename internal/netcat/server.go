package netcat

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc"
)

// Echo sends everything back that c receives, until its peer has ended. It returns the bytes of
// payload in both directions, and is a Serve of [Server].
func Echo(c *smc.Conn) (in, out int64, err error) {
	n, err := io.Copy(c, struct{ io.Reader }{c}) // through a buffer: one connection is not spliced to itself
	return n, n, err
}

// Discard reads everything and drops it, as [Echo] sends it back.
func Discard(c *smc.Conn) (in, out int64, err error) {
	n, err := io.Copy(io.Discard, c)
	return n, 0, err
}

// A Server accepts connections for gosmc listen.
type Server struct {
	Host    *smc.Host // which the server shuts down in the end
	Require Requirement
	Network string // as in Client
	// Serve carries out a connection, side by side with others. If it is nil, one connection after
	// the other is joined with the streams.
	Serve func(*smc.Conn) (in, out int64, err error)
	Streams
	Keep bool // without Serve: go on after the first connection

	Listening func(addr string) // is called once, before the first connection
	Report    func(*Report)     // is called for each connection that has ended, by several goroutines
}

// Run listens on addr and serves connections: until ctx ends, or without Serve and Keep until the first
// connection has ended. The end of ctx is an error in the second case only.
// A connection that does not meet the requirement is closed; the first one, if it is the only one, is
// an [*UnmetError].
func (s *Server) Run(ctx context.Context, addr string) error {
	// The requirement is checked here, after the accept, so that a connection that does not
	// meet it is reported and not only refused.
	l, err := (&smc.ListenConfig{Host: s.Host}).Listen(ctx, cmp.Or(s.Network, "tcp"), addr)
	if err != nil {
		return err
	}
	defer l.Close()
	unhook := context.AfterFunc(ctx, func() { l.Close() })
	defer unhook()
	s.Listening(address(l.Addr()))
	if s.Serve != nil {
		err = s.serveMany(ctx, l)
	} else {
		err = s.serveStdio(ctx, l, newInput(s.In, s.Terminal))
	}
	shutdown(s.Host)
	if ctx.Err() != nil && (s.Serve != nil || s.Keep) {
		return nil // the way in which such a server ends
	}
	return err
}

// serveStdio joins one connection after the other with standard input and output.
func (s *Server) serveStdio(ctx context.Context, l *smc.Listener, in *input) error {
	for {
		c, err := accept(ctx, l)
		if err != nil {
			return err
		}
		if !s.Keep {
			l.Close()
		}
		r := newReport(c)
		err = s.refuse(c, &r)
		if err == nil {
			err = transfer(ctx, c, in, s.Out, &r)
		}
		s.Report(&r)
		if !s.Keep {
			return err
		}
	}
}

// serveMany serves connections side by side until the context ends.
func (s *Server) serveMany(ctx context.Context, l *smc.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := accept(ctx, l)
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer c.Close()
			unhook := context.AfterFunc(ctx, func() { c.Close() })
			defer unhook()
			start := time.Now()
			r := newReport(c)
			err := s.refuse(c, &r)
			if err == nil {
				r.BytesIn, r.BytesOut, err = s.Serve(c)
				if err == nil {
					err = c.CloseWrite()
				}
			}
			if err != nil {
				r.Error = err.Error()
			}
			r.Seconds = time.Since(start).Seconds()
			c.Close() // the peer does not wait for the reader of our standard error
			s.Report(&r)
		})
	}
}

// refuse closes a connection that does not meet the requirement.
func (s *Server) refuse(c *smc.Conn, r *Report) error {
	if s.Require.Met(r.Mode) {
		return nil
	}
	c.Close()
	err := s.Require.unmet(r)
	r.Error = err.Error()
	return err
}

// accept waits for the next connection, also through a shortage of file descriptors.
func accept(ctx context.Context, l *smc.Listener) (*smc.Conn, error) {
	const shortage = 100 * time.Millisecond // until some connection may have ended
	for {
		c, err := l.AcceptSMC()
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		is := func(target error) bool { return errors.Is(err, target) }
		passes := is(unix.EMFILE) || is(unix.ENFILE) || is(unix.ECONNABORTED)
		if errors.Is(err, net.ErrClosed) || !passes {
			return nil, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(shortage):
		}
	}
}
