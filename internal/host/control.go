package host

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The control socket: how the tools see a host from outside.
//
// Every host listens on the Unix stream socket <rundir>/ctl/<name>. A client writes one JSON
// object on a line, and gets one JSON object on a line back; it may ask again on the same socket.
//
//	-> {"version":1,"request":"status"}
//	<- {"version":1,"status":{...}}      see [Status]
//	<- {"version":1,"error":"..."}       when the request cannot be answered
//
// The request "trace" makes the socket a stream of events: see trace_server.go.
//
// The file has mode 0600, and the server also looks at the caller's user (SO_PEERCRED): only
// the same user and root are answered. A name in ctl that begins with a dot is a socket in the making.

// ControlVersion is the version of the control protocol and of [Status] in it. Fields may be
// added within a version; their meaning does not change.
const ControlVersion = 1

// Bounds of the control socket. All are ours: nothing else speaks this protocol.
const (
	maxControlName        = 64               // bytes; with /proc/self/fd/N/ it stays within sun_path (108)
	maxControlRequest     = 4 << 10          // bytes in a request line
	maxControlResponse    = 8 << 20          // bytes in a response line: maxControlConns of some 600 bytes, with room
	maxControlConns       = 8192             // connections in one Status; the rest is counted in ConnectionsOmitted
	maxControlList        = 4096             // entries in any other list of a Status
	maxControlClients     = 8                // clients served at a time; more wait in the accept queue
	maxControlRequests    = 64               // requests answered on one socket
	controlTimeout        = 5 * time.Second  // for each read and each write, on both sides
	controlStaleTemporary = 10 * time.Second // a socket in the making that is older and refuses is left over
)

// controlRequest is what a client sends.
type controlRequest struct {
	Version int    `json:"version"`
	Request string `json:"request"`
	traceRequest
}

// controlResponse is what a host answers: Status, Trace or Error.
type controlResponse struct {
	Version int            `json:"version"`
	Status  *Status        `json:"status,omitempty"`
	Trace   *traceResponse `json:"trace,omitempty"`
	Error   string         `json:"error,omitempty"`
}

// A Status is a snapshot of one host, as its control socket reports it. Sizes are bytes.
type Status struct {
	Version  int       `json:"version"` // ControlVersion
	Time     time.Time `json:"time"`    // when the snapshot was taken
	Started  time.Time `json:"started"` // when the host was made
	PID      int       `json:"pid"`
	Command  string    `json:"command"` // base name of the program
	UID      uint32    `json:"uid"`
	Name     string    `json:"name"`      // of the control socket
	HostName string    `json:"host_name"` // as sent to peers: SMCv2 first contact extension
	GID      string    `json:"gid"`       // extended GID of the shared-memory device
	SEID     string    `json:"seid"`      // empty: not used
	UEIDs    []string  `json:"ueids"`
	Dir      string    `json:"dir"` // run directory

	Capabilities StatusCapabilities `json:"capabilities"`
	Limits       []StatusLimit      `json:"limits"`
	Counters     StatusCounters     `json:"counters"`
	Listeners    []StatusListener   `json:"listeners"`
	Connections  []StatusConn       `json:"connections"`

	// ConnectionsOmitted counts live connections that did not fit into Connections.
	ConnectionsOmitted int `json:"connections_omitted"`
}

// StatusCapabilities says what a host can do, and for the rest why not.
type StatusCapabilities struct {
	SMCDv2          Capability `json:"smc_d_v2"`
	SMCDv1          Capability `json:"smc_d_v1"`
	SMCRv2          Capability `json:"smc_r_v2"`
	SMCRv1          Capability `json:"smc_r_v1"`
	TCPOption       Capability `json:"tcp_option"`       // TCP option 254 on this host's SYNs
	LocalRendezvous Capability `json:"local_rendezvous"` // announcements in the run directory
}

// A Capability is one thing that a host can or cannot do.
type Capability struct {
	Available bool   `json:"available"`
	Why       string `json:"why,omitempty"` // why not, in words; empty when available
}

// A StatusLimit is a named bound and how much of it is in use.
type StatusLimit struct {
	Name  string `json:"name"`  // such as "memory", "connections", "peers", "open files"
	Limit int64  `json:"limit"` // -1: none
	Used  int64  `json:"used"`  // -1: not counted
	Unit  string `json:"unit"`  // "bytes", "seconds", or empty for a count
}

// StatusCounters count from the start of the host. Keys of the maps are modes: "TCP", "SMC-D", "SMC-R".
type StatusCounters struct {
	Connections      map[string]uint64    `json:"connections"` // by the mode they ended up in
	Bytes            map[string]ByteCount `json:"bytes"`       // payload
	HandshakesOK     uint64               `json:"handshakes_ok"`
	HandshakesFailed uint64               `json:"handshakes_failed"` // ended the connection; a fallback is not a failure
	Fallbacks        []FallbackCount      `json:"fallbacks"`
	DoorbellsRung    uint64               `json:"doorbells_rung"`
	Sleeps           uint64               `json:"sleeps"` // waits that ended asleep
	Spins            uint64               `json:"spins"`  // waits that ended while spinning
}

// A ByteCount is payload in both directions, in bytes.
type ByteCount struct {
	In  uint64 `json:"in"`
	Out uint64 `json:"out"`
}

// A FallbackCount says how many connections went on over TCP for one reason.
type FallbackCount struct {
	Code  ReasonCode `json:"reason_code"`
	Tag   string     `json:"tag"`    // short name, such as PEER_NO_SMC
	Text  string     `json:"reason"` // in words
	Count uint64     `json:"count"`
}

// A StatusListener is one listening socket of a host.
type StatusListener struct {
	Local    string `json:"local"`    // address and port
	Require  string `json:"require"`  // "any", "smc", "smc-d", "smc-r"
	UID      uint32 `json:"uid"`      // owner of the socket
	Inode    uint64 `json:"inode"`    // of the TCP socket
	Accepted uint64 `json:"accepted"` // connections since it was opened
	Pending  int    `json:"pending"`  // in a handshake, or not yet accepted by the application
}

// A StatusConn is one connection of a host, in whatever mode.
type StatusConn struct {
	State       string     `json:"state"` // the specification's name: Active, PeerCloseWait1, ...
	Local       string     `json:"local"`
	Peer        string     `json:"peer"`
	Role        string     `json:"role"`        // "client" or "server"
	Mode        string     `json:"mode"`        // "TCP", "SMC-D", "SMC-R"
	Version     string     `json:"version"`     // "2.1"; empty for TCP
	EID         string     `json:"eid"`         // the one agreed on
	ReasonCode  ReasonCode `json:"reason_code"` // 0 unless Mode is TCP
	Reason      string     `json:"reason"`      // in words
	UID         uint32     `json:"uid"`
	Inode       uint64     `json:"inode"`  // of the TCP socket
	RecvQ       uint64     `json:"recv_q"` // received, not yet read by the application
	SendQ       uint64     `json:"send_q"` // written, not yet consumed by the peer
	RcvBuf      uint64     `json:"rcvbuf"`
	SndBuf      uint64     `json:"sndbuf"`
	BytesIn     uint64     `json:"bytes_in"`
	BytesOut    uint64     `json:"bytes_out"`
	PeerPID     int        `json:"peer_pid"` // 0: on another host, or unknown
	PeerCommand string     `json:"peer_command"`
	PeerHost    string     `json:"peer_host"`
	AgeSeconds  float64    `json:"age_seconds"`
}

// A ReasonCode is the peer diagnosis of a Decline: RFC 7609 p.105. Its text form is the one of
// the Linux tools, 0x03010000, and empty for 0, which is no reason.
type ReasonCode uint32

func (c ReasonCode) String() string {
	if c == 0 {
		return ""
	}
	return fmt.Sprintf("0x%08x", uint32(c))
}

// MarshalText returns the text form.
func (c ReasonCode) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText takes the text form and nothing else.
func (c *ReasonCode) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*c = 0
		return nil
	}
	digits, ok := strings.CutPrefix(string(b), "0x")
	v, err := strconv.ParseUint(digits, 16, 32)
	if !ok || err != nil {
		return fmt.Errorf("reason code %q: want 0x and 8 hexadecimal digits", b)
	}
	*c = ReasonCode(v)
	return nil
}

// controlServer answers on one control socket.
type controlServer struct {
	dir      *os.File // <rundir>/ctl
	name     string
	inode    uint64 // of our socket, so that Close removes no other
	listener *net.UnixListener
	host     controlHost

	wg      sync.WaitGroup
	clients chan struct{} // one token for each client being served
	done    chan struct{} // closed by Close

	mu     sync.Mutex
	conns  map[*net.UnixConn]bool // whether they follow the trace
	closed bool
}

// A controlHost is what a control socket needs of its host.
type controlHost struct {
	status func() Status
	trace  *tracer // nil: there is none
	// sample appends the cursors of all connections, and returns how many it left out.
	sample func([]TraceEvent) ([]TraceEvent, int)
}

// serveControl opens the control socket called name under the run directory dir and answers
// requests until it is closed. name is 1..64 bytes without a slash, does not begin with a dot,
// and belongs to one live host only: an older socket of that name is replaced.
//
// The functions of host are called from several goroutines at a time, and must not wait for Close of the
// result: Close waits for the calls under way. A Status may lack Version, Time, PID, UID, Name and
// Dir; these are filled in.
func serveControl(dir, name string, host controlHost) (io.Closer, error) {
	if name == "" || len(name) > maxControlName || strings.ContainsAny(name, "/\x00") || name[0] == '.' {
		return nil, fmt.Errorf("control socket name %q: want 1..%d bytes, no slash, no leading dot", name, maxControlName)
	}
	ctl, err := openControlDir(dir, true)
	if err != nil {
		return nil, err
	}
	s := &controlServer{
		dir:     ctl,
		name:    name,
		host:    host,
		clients: make(chan struct{}, maxControlClients),
		done:    make(chan struct{}),
		conns:   make(map[*net.UnixConn]bool),
	}
	s.host.status = func() Status {
		st := host.status()
		st.Version, st.Name, st.Dir = ControlVersion, name, dir
		st.PID, st.UID = os.Getpid(), uint32(os.Geteuid())
		if st.Time.IsZero() {
			st.Time = time.Now()
		}
		return st
	}
	if err := s.listen(); err != nil {
		ctl.Close()
		return nil, fmt.Errorf("control socket %s/%s/%s: %w", dir, dirControl, name, err)
	}
	s.wg.Go(s.acceptLoop)
	return s, nil
}

// listen makes the socket under a temporary name and moves it into place when it is
// listening and has its mode: a client that is refused may then take the socket for dead.
func (s *controlServer) listen() error {
	temporary := "." + s.name
	fd := int(s.dir.Fd())
	if err := unix.Unlinkat(fd, temporary, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	l, err := net.ListenUnix("unix", controlAddr(s.dir, temporary))
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false) // the name changes, and Close removes it
	var st unix.Stat_t
	err = unix.Fchmodat(fd, temporary, 0o600, 0)
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

func (s *controlServer) acceptLoop() {
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

// serve answers the requests of one client, and returns what is left to do for one that follows the trace.
func (s *controlServer) serve(c *net.UnixConn) (follow func()) {
	cred, err := peerCredentials(c)
	if err != nil || cred.Uid != uint32(os.Geteuid()) && cred.Uid != 0 {
		return nil
	}
	r := bufio.NewReaderSize(c, maxControlRequest)
	for range maxControlRequests {
		c.SetReadDeadline(time.Now().Add(controlTimeout))
		line, err := r.ReadSlice('\n')
		tooLong := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !tooLong {
			return nil
		}
		var response controlResponse
		var l *traceListener
		if tooLong {
			response.Error = fmt.Sprintf("request exceeds %d bytes", maxControlRequest)
		} else {
			var request controlRequest
			if request, err = parseControlRequest(line); err != nil {
				response.Error = err.Error()
			} else {
				response, l = s.answer(request)
			}
			if l != nil {
				return func() { s.follow(c, r, l, request.traceRequest) }
			}
		}
		response.Version = ControlVersion
		b, err := json.Marshal(response)
		if err != nil || len(b) >= maxControlResponse {
			b, _ = json.Marshal(controlResponse{Version: ControlVersion, Error: "status does not fit into a response"})
		}
		c.SetWriteDeadline(time.Now().Add(controlTimeout))
		if _, err := c.Write(append(b, '\n')); err != nil || tooLong {
			return nil
		}
	}
	return nil
}

// parseControlRequest decodes a request line.
func parseControlRequest(line []byte) (request controlRequest, err error) {
	if err := json.Unmarshal(line, &request); err != nil {
		return request, fmt.Errorf("request is not a JSON object: %w", err)
	}
	if request.Version != ControlVersion {
		return request, fmt.Errorf("version %d is not spoken here, only %d", request.Version, ControlVersion)
	}
	return request, nil
}

// answer makes the response to one request, or adds a listener to the trace, whose response comes later.
func (s *controlServer) answer(request controlRequest) (controlResponse, *traceListener) {
	switch {
	case request.Request == "status":
		return s.statusResponse(), nil
	case request.Request == "trace" && s.host.trace != nil:
		l, err := s.listenTrace(request.traceRequest)
		if err != nil {
			return controlResponse{Error: err.Error()}, nil
		}
		return controlResponse{}, l
	}
	return controlResponse{Error: fmt.Sprintf("unknown request %q, want \"status\" or \"trace\"", request.Request)}, nil
}

func (s *controlServer) statusResponse() controlResponse {
	st := s.host.status()
	if n := len(st.Connections) - maxControlConns; n > 0 {
		st.Connections = st.Connections[:maxControlConns]
		st.ConnectionsOmitted += n
	}
	st.Listeners = st.Listeners[:min(len(st.Listeners), maxControlList)]
	// An empty list is [] to a reader in another language, not null.
	st.UEIDs = emptyNotNil(st.UEIDs)
	st.Limits = emptyNotNil(st.Limits)
	st.Listeners = emptyNotNil(st.Listeners)
	st.Connections = emptyNotNil(st.Connections)
	st.Counters.Fallbacks = emptyNotNil(st.Counters.Fallbacks)
	return controlResponse{Status: &st}
}

func emptyNotNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func (s *controlServer) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// track remembers c for Close; it reports false when Close came first.
func (s *controlServer) track(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns[c] = false
	}
	return !s.closed
}

func (s *controlServer) untrack(c *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	c.Close()
}

// Close removes the socket, ends its clients and waits for them. A second call does nothing.
func (s *controlServer) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.done)
	for c, follows := range s.conns {
		if follows {
			c.SetWriteDeadline(time.Now().Add(traceFarewell))
		} else {
			c.Close()
		}
	}
	s.mu.Unlock()
	err := s.listener.Close()
	s.wg.Wait()
	var st unix.Stat_t
	fd := int(s.dir.Fd())
	if unix.Fstatat(fd, s.name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Ino == s.inode {
		unix.Unlinkat(fd, s.name, 0)
	}
	s.dir.Close()
	return err
}

// openControlDir opens <dir>/ctl, without following a symbolic link in its place. With
// create it is made if need be: private in a run directory that is private, and otherwise
// writable for the same people with the sticky bit, so that they cannot remove each other's sockets.
func openControlDir(dir string, create bool) (*os.File, error) {
	parent, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(parent)
	fail := func(op string, err error) (*os.File, error) {
		return nil, &os.PathError{Op: op, Path: dir + "/" + dirControl, Err: err}
	}
	const othersWrite = 0o022
	var st unix.Stat_t
	if err := unix.Fstat(parent, &st); err != nil {
		return fail("stat", err)
	}
	shared := st.Mode&othersWrite != 0
	mode := uint32(0o700)
	if shared {
		mode = unix.S_ISVTX | st.Mode&0o777
	}
	made := false
	if create {
		err := unix.Mkdirat(parent, dirControl, 0o700)
		made = err == nil
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fail("mkdir", err)
		}
	}
	fd, err := unix.Openat(parent, dirControl, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open", err)
	}
	ctl := os.NewFile(uintptr(fd), dir+"/"+dirControl)
	if made && mode != 0o700 {
		if err := unix.Fchmod(fd, mode); err != nil { // Mkdirat obeys the umask
			ctl.Close()
			return fail("chmod", err)
		}
	}
	if err := unix.Fstat(fd, &st); err != nil {
		ctl.Close()
		return fail("stat", err)
	}
	euid := uint32(os.Geteuid())
	switch {
	case !create: // a client looks at each socket instead
	case st.Mode&othersWrite != 0 && st.Mode&unix.S_ISVTX == 0:
		ctl.Close()
		return fail("use", fmt.Errorf("others may replace files in it (mode %#o): set the sticky bit or make it private", st.Mode&0o7777))
	case !shared && st.Uid != euid && st.Uid != 0:
		ctl.Close()
		return fail("use", fmt.Errorf("belongs to user %d, not to %d", st.Uid, euid))
	}
	return ctl, nil
}

// controlAddr names a socket in dir in few bytes, however long the path of dir is.
// dir must stay open while the address is in use.
func controlAddr(dir *os.File, name string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)}
}

// peerCredentials asks the kernel who is at the other end of c.
func peerCredentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) {
		cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = optErr
	}
	if err != nil {
		return nil, err
	}
	return cred, nil
}
