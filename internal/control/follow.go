package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"

	"github.com/gosmc/smc/wire/llc"
)

// How a trace ends.
var (
	// ErrHostClosed means that the program has closed the host.
	ErrHostClosed = errors.New("the host was closed")
	// ErrProcessEnded means that the process of the host has ended without closing it.
	ErrProcessEnded = errors.New("the process has ended")
	// ErrTraceCut means that the host has cut the connection.
	ErrTraceCut = fmt.Errorf("the host has ended the trace, as it does when nobody reads it for %v", traceStall)
)

// TraceOptions say which events of a host are wanted.
type TraceOptions struct {
	// History is how many events from before are wanted, at most; a host remembers some 256.
	History int
	// Cursors is how often the cursors of all SMC connections are wanted, 10 ms to 1 h; 0 means never.
	Cursors time.Duration
}

// FollowTrace calls handle with every event of the host with a control socket called name under the
// run directory dir. These are some from before, see TraceOptions, and then those that come, until
// ctx ends or the host does. The error says which: the error of ctx, [ErrHostClosed],
// [ErrProcessEnded], [ErrTraceCut], or a [*Error] if the host could not be asked. Events that come
// while handle does not return wait in the host, and are lost after some thousands, which an event
// says.
//
// An event is the host's own word; its texts are made safe for terminals. The events belong to
// handle.
func FollowTrace(ctx context.Context, dir, name string, opts TraceOptions, handle func(TraceEvent)) error {
	fail := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &Error{Path: filepath.Join(rundir.Path(dir, socketsDir), name), Err: bareError(err)}
	}
	c, err := connect(ctx, dir, name)
	if err != nil {
		return fail(err)
	}
	defer c.Close()
	end := watchProcess(c)
	defer end.close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	r := bufio.NewReaderSize(c, maxTraceLine)
	if err := askTrace(ctx, c, r, opts); err != nil {
		return fail(err)
	}
	for {
		line, err := r.ReadSlice('\n')
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, bufio.ErrBufferFull):
			return fail(fmt.Errorf("line exceeds %d bytes", maxTraceLine))
		case err != nil:
			return end.reason(ctx)
		}
		e, ended, err := ParseTraceLine(line)
		switch {
		case err != nil:
			return fail(err)
		case ended:
			return ErrHostClosed
		}
		handle(e)
	}
}

// connect connects to the control socket of a host.
func connect(ctx context.Context, dir, name string) (*net.UnixConn, error) {
	d, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*ioTimeout)
	defer cancel()
	return dialHost(ctx, d, name)
}

// askTrace sends the request and reads the first line.
func askTrace(ctx context.Context, c *net.UnixConn, r *bufio.Reader, opts TraceOptions) error {
	request, err := json.Marshal(requestLine{
		Version: Version, Request: "trace",
		traceRequest: traceRequest{History: opts.History, CursorsMS: opts.Cursors.Milliseconds()},
	})
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(ioTimeout))
	if _, err := c.Write(append(request, '\n')); err != nil {
		return err
	}
	line, err := r.ReadSlice('\n')
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	}
	var response responseLine
	switch err := json.Unmarshal(line, &response); {
	case err != nil:
		return fmt.Errorf("response is not understood: %w", err)
	case response.Error != "":
		return fmt.Errorf("host answered: %s", response.Error)
	case response.Version != Version:
		return fmt.Errorf("host speaks version %d of the control protocol, this program %d",
			response.Version, Version)
	case response.Trace == nil:
		return errors.New("response holds neither a trace nor an error")
	}
	c.SetDeadline(time.Time{})
	return ctx.Err() // if its end has come before that
}

// ParseTraceLine decodes a line of a trace, after the first. end says that it was the last. Texts
// are made safe for terminals, and cut; the event refers to no memory of line.
func ParseTraceLine(line []byte) (e TraceEvent, end bool, err error) {
	var l traceLine
	if err := json.Unmarshal(line, &l); err != nil {
		return e, false, fmt.Errorf("event is not understood: %w", err)
	}
	if l.Event == nil {
		return e, l.End, nil
	}
	e = *l.Event
	if len(e.Bytes) > llc.MaxLen {
		return e, false, fmt.Errorf("message of %d bytes in an event, want at most %d",
			len(e.Bytes), llc.MaxLen)
	}
	e.Kind = TraceKind(plainText(string(e.Kind)))
	e.Name, e.Text, e.Mode = plainText(e.Name), plainText(e.Text), plainText(e.Mode)
	e.Local, e.Peer = plainAddr(e.Local), plainAddr(e.Peer)
	return e, false, nil
}

// plainText makes text of another program short and safe for a terminal.
func plainText(s string) string {
	s = s[:min(len(s), maxTraceText)]
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// A processEnd tells whether a process has ended.
type processEnd struct{ fd int } // of the process; -1 if it cannot be seen

// watchProcess watches the process at the other end of c.
func watchProcess(c *net.UnixConn) processEnd {
	cred, err := peerCredentials(c)
	if err != nil || cred.Pid <= 0 {
		return processEnd{-1}
	}
	fd, err := unix.PidfdOpen(int(cred.Pid), 0)
	if err != nil {
		fd = -1
		if errors.Is(err, unix.ESRCH) {
			fd = processGone
		}
	}
	return processEnd{fd}
}

const processGone = -2 // in place of a descriptor: it had ended before it could be watched

// reason says why a socket of the process has ended.
func (p processEnd) reason(ctx context.Context) error {
	if p.fd == processGone {
		return ErrProcessEnded
	}
	if p.fd < 0 {
		return fmt.Errorf("%w, or %w", ErrProcessEnded, ErrTraceCut)
	}
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	for until := time.Now().Add(traceDeathWait); ctx.Err() == nil; {
		left := time.Until(until)
		n, err := unix.Poll(fds, int(max(left, 0).Milliseconds()))
		switch {
		case err == nil && n > 0:
			return ErrProcessEnded
		case err != nil && !errors.Is(err, unix.EINTR) || left <= 0:
			return ErrTraceCut
		}
	}
	return ctx.Err()
}

func (p processEnd) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}

// plainAddr is an address as it is in messages: without a zone, which could be any text.
func plainAddr(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().WithZone(""), a.Port())
}
