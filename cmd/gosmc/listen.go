package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc"
)

// listenEvent is the line of listen -v --json before the first connection, by which a program
// learns the port.
type listenEvent struct {
	Schema int       `json:"schema"`
	Event  string    `json:"event"` // "listening"
	Time   time.Time `json:"time"`
	Verb   string    `json:"verb"`
	Local  string    `json:"local"`
}

// warningEvent is the line of listen --json when something is not as it should be, such as a run
// directory that cannot be used.
type warningEvent struct {
	Schema  int       `json:"schema"`
	Event   string    `json:"event"` // "warning"
	Time    time.Time `json:"time"`
	Verb    string    `json:"verb"`
	Warning string    `json:"warning"`
	Error   string    `json:"error"` // its cause
}

func newListenCommand() *cobra.Command {
	var flags netcatFlags
	var echo, discard, keep bool
	cmd := &cobra.Command{
		Use:   "listen [flags] HOST:PORT | HOST PORT | PORT",
		Short: "Accept connections, and copy standard input and output, echo, or discard",
		Long: `Listen on a TCP address and accept connections over SMC and over plain TCP. A PORT alone, as with netcat, is that of all
addresses of this machine.

Without --echo and --discard the first connection is joined with standard input and output, and
its end ends the command; --keep goes on with the next one. With --echo everything is sent back, with
--discard it is dropped; both serve any number of connections at a time until interrupted.

Where SMC cannot be used every connection is plain TCP, and a line on standard error says why; with --json it
is an object whose event is "warning".

` + aboutSMCR,
		Example: `  gosmc listen 127.0.0.1:7000 < /dev/null > file
  gosmc listen --echo -v :7000
  gosmc listen --discard --require smc-d --json :7000
  gosmc listen --echo -v --ueid ACCOUNTING --peer 192.0.2.0/24:7000 192.0.2.7:7000`,
		Args: oneAddress,
		RunE: func(cmd *cobra.Command, args []string) error {
			if echo && discard {
				return usagef("--echo and --discard exclude each other")
			}
			s := &netcatServer{flags: &flags, errOut: cmd.ErrOrStderr(), keep: keep}
			switch {
			case echo:
				s.serve = func(c *smc.Conn) (in, out int64, err error) {
					n, err := io.Copy(c, struct{ io.Reader }{c}) // through a buffer: one connection is not spliced to itself
					return n, n, err
				}
			case discard:
				s.serve = func(c *smc.Conn) (in, out int64, err error) {
					n, err := io.Copy(io.Discard, c)
					return n, 0, err
				}
			}
			return s.run(cmd, joinAddress(args))
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags.register(cmd)
	cmd.Flags().BoolVar(&echo, "echo", false, "send everything back")
	cmd.Flags().BoolVar(&discard, "discard", false, "read everything and drop it")
	cmd.Flags().BoolVarP(&keep, "keep", "k", false, "after a connection wait for the next one")
	return cmd
}

// A netcatServer accepts connections for listen.
type netcatServer struct {
	flags *netcatFlags
	keep  bool
	serve func(*smc.Conn) (in, out int64, err error) // nil: standard input and output

	mu     sync.Mutex // one report at a time
	errOut io.Writer
}

func (s *netcatServer) run(cmd *cobra.Command, addr string) error {
	ctx := cmd.Context()
	warned := &warnings{show: s.warn}
	h, err := s.flags.smcr.host(smc.Config{Logger: slog.New(warned)})
	if err != nil {
		return err
	}
	defer h.Close()
	// The requirement is checked here, after the accept, so that a connection that does not
	// meet it is reported and not only refused.
	l, err := (&smc.ListenConfig{Host: h}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer l.Close()
	unhook := context.AfterFunc(ctx, func() { l.Close() })
	defer unhook()
	s.sayListening(addrString(l.Addr()))
	warned.release()
	if s.serve != nil {
		err = s.serveMany(ctx, l)
	} else {
		err = s.serveStdio(ctx, l, newInput(cmd.InOrStdin()), cmd.OutOrStdout())
	}
	shutdown(h)
	if ctx.Err() != nil && (s.serve != nil || s.keep) {
		return nil // the way in which such a server ends
	}
	return err
}

func (s *netcatServer) sayListening(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.flags.json && s.flags.verbose:
		writeJSONLine(s.errOut, listenEvent{jsonSchema, "listening", time.Now(), "listen", addr})
	case s.flags.verbose:
		fmt.Fprintf(s.errOut, "listening on %s\n", addr)
	}
}

// warn prints on standard error why connections do not use SMC, and the like. It does so also
// without --verbose, since nothing else would.
func (s *netcatServer) warn(w warning) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flags.json {
		writeJSONLine(s.errOut, warningEvent{jsonSchema, "warning", time.Now(), "listen", w.what, w.why})
		return
	}
	fmt.Fprintf(s.errOut, "gosmc: %s; see 'gosmc info'\n", printable(w.String()))
}

// serveStdio joins one connection after the other with standard input and output.
func (s *netcatServer) serveStdio(ctx context.Context, l *smc.Listener, in *input, out io.Writer) error {
	for {
		c, err := accept(ctx, l)
		if err != nil {
			return err
		}
		if !s.keep {
			l.Close()
		}
		r := newConnReport("listen", c)
		err = s.refuse(c, &r)
		if err == nil {
			err = transfer(ctx, c, in, out, &r)
		}
		s.report(&r)
		if !s.keep {
			return err
		}
	}
}

// serveMany serves connections side by side until the context ends.
func (s *netcatServer) serveMany(ctx context.Context, l *smc.Listener) error {
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
			r := newConnReport("listen", c)
			err := s.refuse(c, &r)
			if err == nil {
				r.BytesIn, r.BytesOut, err = s.serve(c)
				if err == nil {
					err = c.CloseWrite()
				}
			}
			if err != nil {
				r.Error = err.Error()
			}
			r.Seconds = time.Since(start).Seconds()
			c.Close() // the peer does not wait for the reader of our standard error
			s.report(&r)
		})
	}
}

// refuse closes a connection that does not meet the requirement.
func (s *netcatServer) refuse(c *smc.Conn, r *connReport) error {
	if s.flags.require.met(r.Mode) {
		return nil
	}
	c.Close()
	err := s.flags.require.unmet(*r)
	r.Error = err.Error()
	return err
}

func (s *netcatServer) report(r *connReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.print(s.errOut, s.flags)
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
		if errors.Is(err, net.ErrClosed) || !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) && !errors.Is(err, unix.ECONNABORTED) {
			return nil, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(shortage):
		}
	}
}
