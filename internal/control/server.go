package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// A requestLine is the request of a client.
type requestLine struct {
	Version int    `json:"version"`
	Request string `json:"request"`
	traceRequest
	deleteRequest
}

// requestDeleteLink is the request of [DeleteLink].
const requestDeleteLink = "delete-link"

// A responseLine is the answer of a host: Status, Trace, Done or Error.
type responseLine struct {
	Version int            `json:"version"`
	Status  *Status        `json:"status,omitempty"`
	Trace   *traceResponse `json:"trace,omitempty"`
	Done    *doneResponse  `json:"done,omitempty"`
	Error   string         `json:"error,omitempty"`
}

// A Host provides the data that a control socket shows. Its methods are called from several
// goroutines at a time, and must not wait for [Server.Close], which waits for the calls under way.
type Host interface {
	// Status returns a snapshot. It may lack Version, Time, PID, UID, Name and Dir: the server fills
	// these in.
	Status() Status

	// Trace returns the host's trace of events. nil means that there is no trace to follow.
	Trace() Tracer

	// SampleCursors appends to list the cursors of all connections, as events of the kind TraceCursors,
	// and returns how many connections it has left out.
	SampleCursors(list []TraceEvent) (_ []TraceEvent, omitted int)
}

// A Server answers on one control socket.
type Server struct {
	dir      *os.File // <rundir>/ctl
	path     string   // of the run directory
	name     string
	inode    uint64 // of our socket, so that Close removes no other
	listener *net.UnixListener
	host     Host

	wg      sync.WaitGroup
	clients chan struct{} // one token for each client being served
	done    chan struct{} // closed by Close

	mu     sync.Mutex
	conns  map[*net.UnixConn]bool // whether they follow the trace
	closed bool
}

// Serve opens the control socket called name under the run directory dir and answers
// requests until it is closed. name is 1..64 bytes without a slash, does not begin with a dot,
// and belongs to one live host only: an older socket of that name is replaced.
func Serve(dir, name string, host Host) (*Server, error) {
	if name == "" || len(name) > maxName || strings.ContainsAny(name, "/\x00") || name[0] == '.' {
		return nil, fmt.Errorf("control socket name %q: want 1..%d bytes, no slash, no leading dot",
			name, maxName)
	}
	ctl, err := openDir(dir, true)
	if err != nil {
		return nil, err
	}
	s := &Server{
		dir:     ctl,
		path:    dir,
		name:    name,
		host:    host,
		clients: make(chan struct{}, maxClients),
		done:    make(chan struct{}),
		conns:   make(map[*net.UnixConn]bool),
	}
	if err := s.listen(); err != nil {
		ctl.Close()
		return nil, fmt.Errorf("control socket %s/%s/%s: %w", dir, socketsDir, name, err)
	}
	s.wg.Go(s.acceptLoop)
	return s, nil
}

// Clients returns how many clients are connected.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Name returns the name of the socket.
func (s *Server) Name() string { return s.name }

// listen makes the socket under a temporary name and moves it into place when it is
// listening and has its mode: a client that is refused may then take the socket for dead.
func (s *Server) listen() error {
	temporary := "." + s.name
	fd := int(s.dir.Fd())
	if err := unix.Unlinkat(fd, temporary, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	l, err := net.ListenUnix("unix", socketAddr(s.dir, temporary))
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false) // the name changes, and Close removes it
	var st unix.Stat_t
	err = rundir.Chmod(fd, temporary, unix.S_IFSOCK, unix.S_ISVTX|0o600) // sticky: cleaners pass it by
	if err == nil {
		err = unix.Fstatat(fd, temporary, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		err = unix.Renameat(fd, temporary, fd, s.name)
	}
	if err != nil {
		l.Close()
		unix.Unlinkat(fd, temporary, 0)
		return err
	}
	s.listener, s.inode = l, st.Ino
	return nil
}

func (s *Server) acceptLoop() {
	const retry = 50 * time.Millisecond // after a passing shortage, such as of file descriptors
	for {
		c, err := s.listener.AcceptUnix()
		if err != nil {
			if s.isClosed() {
				return
			}
			time.Sleep(retry)
			continue
		}
		s.clients <- struct{}{} // bounded: each client is served under deadlines
		if !s.track(c) {
			c.Close()
			return
		}
		s.wg.Go(func() {
			follow := s.serve(c)
			<-s.clients
			if follow != nil { // for as long as it likes, and nobody has to wait for that
				follow()
			}
			s.untrack(c)
		})
	}
}

// serve answers the requests of one client. For one that follows the trace it returns a function
// that does the rest.
func (s *Server) serve(c *net.UnixConn) (follow func()) {
	cred, err := peerCredentials(c)
	if err != nil || cred.Uid != uint32(os.Geteuid()) && cred.Uid != 0 { // rule: TestElsewhereStrangers: cred.Uid != 0 -> cred.Uid == 0
		return nil
	}
	r := bufio.NewReaderSize(c, maxRequest)
	for range maxRequests {
		c.SetReadDeadline(time.Now().Add(ioTimeout))
		line, err := r.ReadSlice('\n')
		tooLong := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !tooLong {
			return nil
		}
		var response responseLine
		var l TraceListener
		if tooLong {
			response.Error = fmt.Sprintf("request exceeds %d bytes", maxRequest)
		} else {
			var request requestLine
			if request, err = parseRequest(line); err != nil {
				response.Error = err.Error()
			} else {
				response, l = s.answer(request)
			}
			if l != nil {
				return func() { s.follow(c, r, l, request.traceRequest) }
			}
		}
		response.Version = Version
		b, err := json.Marshal(response)
		if err != nil || len(b) >= maxResponse {
			b, _ = json.Marshal(responseLine{Version: Version, Error: "status does not fit into a response"})
		}
		c.SetWriteDeadline(time.Now().Add(ioTimeout))
		if _, err := c.Write(append(b, '\n')); err != nil || tooLong {
			return nil
		}
	}
	return nil
}

// parseRequest decodes a request line.
func parseRequest(line []byte) (request requestLine, err error) {
	if err := json.Unmarshal(line, &request); err != nil {
		return request, fmt.Errorf("request is not a JSON object: %w", err)
	}
	if request.Version != Version {
		return request, fmt.Errorf("version %d is not spoken here, only %d", request.Version, Version)
	}
	return request, nil
}

// answer makes the response to one request, or adds a listener to the trace; its response comes
// later.
func (s *Server) answer(request requestLine) (responseLine, TraceListener) {
	switch {
	case request.Request == "status":
		return s.statusResponse(), nil
	case request.Request == "trace":
		trace := s.host.Trace()
		if trace == nil {
			break
		}
		l, err := listenTrace(trace, request.traceRequest)
		if err != nil {
			return responseLine{Error: err.Error()}, nil
		}
		return responseLine{}, l
	case request.Request == requestDeleteLink:
		if d, ok := s.host.(LinkDeleter); ok {
			return s.deleteLink(d, request.deleteRequest), nil
		}
	}
	return responseLine{Error: fmt.Sprintf("unknown request %q, want \"status\" or \"trace\"", request.Request)}, nil
}

func (s *Server) statusResponse() responseLine {
	st := s.host.Status()
	st.Version, st.Name, st.Dir = Version, s.name, s.path
	st.PID, st.UID = os.Getpid(), uint32(os.Geteuid())
	if st.Time.IsZero() {
		st.Time = time.Now()
	}
	if n := len(st.Connections) - MaxConns; n > 0 {
		st.Connections = st.Connections[:MaxConns]
		st.ConnectionsOmitted += n
	}
	st.Listeners = st.Listeners[:min(len(st.Listeners), maxList)]
	st.Programs = st.Programs[:min(len(st.Programs), maxList)] // rule: TestControlManyPrograms
	// An empty list is [] to a reader in another language, not null.
	st.UEIDs = emptyNotNil(st.UEIDs)
	st.Limits = emptyNotNil(st.Limits)
	st.Listeners = emptyNotNil(st.Listeners)
	st.Connections = emptyNotNil(st.Connections)
	st.Groups = emptyNotNil(st.Groups[:min(len(st.Groups), MaxGroups)])
	st.Devices = emptyNotNil(st.Devices[:min(len(st.Devices), maxList)])
	st.Counters.CLC = emptyNotNil(st.Counters.CLC)
	st.Counters.LLC = emptyNotNil(st.Counters.LLC)
	st.Counters.Fallbacks = emptyNotNil(st.Counters.Fallbacks)
	st.Counters.Ends = emptyNotNil(st.Counters.Ends)
	return responseLine{Status: &st}
}

func emptyNotNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// track remembers c for Close; it reports false when Close came first.
func (s *Server) track(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns[c] = false
	}
	return !s.closed
}

// untrack closes c, which Close may have done. A client may have sent descriptors, and their close
// takes as long as it likes: nobody else waits for that.
func (s *Server) untrack(c *net.UnixConn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// Close removes the socket, ends its clients and waits for them. A second call does nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.done)
	var ends []*net.UnixConn
	for c, follows := range s.conns {
		if follows {
			c.SetWriteDeadline(time.Now().Add(traceFarewell))
		} else {
			ends = append(ends, c)
		}
	}
	s.mu.Unlock()
	err := s.listener.Close() // first: a client that is hung up on looks whether anybody listens
	for _, c := range ends {
		c.Close() // see untrack
	}
	s.wg.Wait()
	var st unix.Stat_t
	fd := int(s.dir.Fd())
	if unix.Fstatat(fd, s.name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Ino == s.inode {
		unix.Unlinkat(fd, s.name, 0)
	}
	s.dir.Close()
	return err
}
