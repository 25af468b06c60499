package control

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// testStatus has a value in every field, so that one lost on the way is seen.
func testStatus() Status {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	return Status{
		Version: Version, Time: at, Started: at.Add(-time.Minute),
		PID: os.Getpid(), Command: "server", UID: uint32(os.Geteuid()), Name: "a", HostName: "HOST1",
		GID: "00000000-0000-4000-8000-000000000001", SEID: "SEID-1", UEIDs: []string{"E1", "E2"},
		Capabilities: StatusCapabilities{
			SMCDv2:          Capability{Available: true},
			SMCDv1:          Capability{Why: "no v1 device"},
			SMCRv2:          Capability{Why: "no RoCE device"},
			SMCRv1:          Capability{Why: "no RoCE device at all"},
			TCPOption:       Capability{Why: "no agent"},
			LocalRendezvous: Capability{Available: true},
		},
		Limits: []StatusLimit{{Name: "memory", Limit: 1 << 30, Used: 4096, Unit: "bytes"}},
		Counters: StatusCounters{
			Connections: map[string]uint64{"TCP": 1, "SMC-D": 2}, Bytes: map[string]ByteCount{"TCP": {In: 3, Out: 4}},
			HandshakesOK: 5, HandshakesFailed: 6, DoorbellsRung: 7, Sleeps: 9, Spins: 10,
			Fallbacks: []FallbackCount{{Code: 0x03010000, Tag: "PEER_NO_SMC", Text: "peer did not signal SMC", Count: 1}},
			Ends:      []EndCount{{What: "link group", Reason: "idle", Count: 28}},
			CLC:       []MessageCount{{Type: "Proposal", Sent: 1, Rcvd: 2}}, LLC: []MessageCount{{Type: "CONFIRM LINK", Rcvd: 3}},
			Groups: map[string]int{"SMC-R": 1}, RMBBytes: 25,
		},
		Groups:    []StatusGroup{{ID: 26, Mode: "SMC-R", Links: []StatusLink{{Number: 1, State: "LINK_ACTIVE", LocalQPN: 27}}}},
		Programs:  []StatusProgram{{PID: 29, Command: "redis-server"}},
		Devices:   []StatusDevice{{NetDev: "eth0", Address: "192.0.2.1", State: "ACTIVE", Links: 28}},
		Listeners: []StatusListener{{Local: "0.0.0.0:80", Require: "any", UID: 11, Inode: 12, Accepted: 13, Pending: 14}},
		Connections: []StatusConn{{
			State: "Active", Local: "127.0.0.1:80", Peer: "127.0.0.1:5000", Role: "server", Mode: "TCP", Version: "2.1", EID: "E1",
			ReasonCode: 0x03010000, Reason: "peer did not signal SMC", UID: 15, Inode: 16, RecvQ: 17, SendQ: 18, RcvBuf: 19, SndBuf: 20,
			BytesIn: 21, BytesOut: 22, PeerPID: 23, PeerCommand: "client", PeerHost: "HOST2", AgeSeconds: 1.5,
		}},
		ConnectionsOmitted: 24,
	}
}

// A testHost is a Host of which each part can be left out.
type testHost struct {
	status func() Status
	trace  Tracer
	sample func([]TraceEvent) ([]TraceEvent, int)
}

func (h testHost) Status() Status                                      { return h.status() }
func (h testHost) Trace() Tracer                                       { return h.trace }
func (h testHost) SampleCursors(list []TraceEvent) ([]TraceEvent, int) { return h.sample(list) }

// serve starts a control socket for the time of the test.
func serve(t *testing.T, dir, name string, status func() Status) *Server {
	t.Helper()
	s, err := Serve(dir, name, testHost{status: status})
	if err != nil {
		t.Fatalf("Serve(%q, %q) = %v", dir, name, err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// dial connects to a control socket as any program might.
func dial(t *testing.T, dir, name string) *net.UnixConn {
	t.Helper()
	d, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c, err := dialHost(t.Context(), d, name)
	if err != nil {
		t.Fatalf("dialHost(%q) = %v", name, err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

func TestControlFiles(t *testing.T) {
	for _, tt := range []struct {
		name    string
		mode    os.FileMode // of the run directory
		ctlMode os.FileMode
	}{
		{"private", 0o700, 0o700},
		{"readable", 0o755, 0o700},
		{"shared by a group", 0o770 | os.ModeSticky, 0o770 | os.ModeSticky},
		{"shared by all", 0o777 | os.ModeSticky, 0o777 | os.ModeSticky},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Chmod(dir, tt.mode); err != nil {
				t.Fatal(err)
			}
			s := serve(t, dir, "x", testStatus)
			if info, err := os.Stat(rundir.Path(dir, "ctl")); err != nil || info.Mode() != tt.ctlMode|os.ModeDir {
				t.Errorf("mode of ctl = %v, %v, want %v", info.Mode(), err, tt.ctlMode|os.ModeDir)
			}
			if info, err := os.Stat(filepath.Join(rundir.Path(dir, "ctl"), "x")); err != nil || info.Mode() != 0o600|os.ModeSocket|os.ModeSticky {
				t.Errorf("mode of the socket = %v, %v, want %v", info.Mode(), err, 0o600|os.ModeSocket)
			}
			if err := s.Close(); err != nil {
				t.Errorf("Close = %v", err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("second Close = %v", err)
			}
			if names, err := os.ReadDir(rundir.Path(dir, "ctl")); err != nil || len(names) != 0 {
				t.Errorf("after Close ctl holds %v, %v, want nothing", names, err)
			}
		})
	}
}

func TestServeRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"", ".", ".a", "a/b", "a\x00", strings.Repeat("a", maxName+1)} {
		if s, err := Serve(dir, name, testHost{status: testStatus}); err == nil {
			s.Close()
			t.Errorf("Serve(name %q) = nil, want an error", name)
		}
	}
	if s, err := Serve(filepath.Join(dir, "absent", "dir"), "a", testHost{status: testStatus}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Serve(no directory) = %v, %v, want ErrNotExist", s, err)
	}

	open := t.TempDir() // a ctl directory in which anybody may replace our socket
	if err := os.MkdirAll(rundir.Path(open, "ctl"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(rundir.Path(open, "ctl"), 0o777); err != nil {
		t.Fatal(err)
	}
	if s, err := Serve(open, "a", testHost{status: testStatus}); err == nil {
		s.Close()
		t.Error("Serve(ctl of mode 0777) = nil, want an error")
	}

	linked := t.TempDir()
	if err := os.MkdirAll(rundir.Own(linked), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), rundir.Path(linked, "ctl")); err != nil {
		t.Fatal(err)
	}
	if s, err := Serve(linked, "a", testHost{status: testStatus}); err == nil {
		s.Close()
		t.Error("Serve(ctl is a symbolic link) = nil, want an error")
	}
	if list, errs := Gather(t.Context(), linked); len(list) != 0 || len(errs) != 1 {
		t.Errorf("Gather(ctl is a symbolic link) = %v, %v, want one error", list, errs)
	}
}

func TestControlLongPath(t *testing.T) {
	dir := t.TempDir()
	for len(dir) < 300 {
		dir = filepath.Join(dir, strings.Repeat("d", 60))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("n", maxName)
	serve(t, dir, name, testStatus)
	list, errs := Gather(t.Context(), dir)
	if len(list) != 1 || errs != nil {
		t.Fatalf("Gather(path of %d bytes) = %v, %v, want one host", len(dir), list, errs)
	}
}

func TestControlReplacesOlderSocket(t *testing.T) {
	dir := t.TempDir()
	first := serve(t, dir, "a", func() Status { return Status{HostName: "FIRST"} })
	serve(t, dir, "a", func() Status { return Status{HostName: "SECOND"} })
	first.Close() // must leave the second one's socket alone
	list, errs := Gather(t.Context(), dir)
	if len(list) != 1 || errs != nil || list[0].HostName != "SECOND" {
		t.Errorf("Gather after replacement = %v, %v, want the second host", list, errs)
	}
}

// leaveSocket makes a Unix socket on which nobody listens any more.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestControlRequests(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, "a", testStatus)
	for _, tt := range []struct {
		name, request string
		wantError     string // part of the answer; empty: a status
	}{
		{"status", `{"version":1,"request":"status"}`, ""},
		{"fields that we do not know", `{"request":"status","version":1,"later":[1]}`, ""},
		{"other version", `{"version":2,"request":"status"}`, "version 2 is not spoken here, only 1"},
		{"no version", `{"request":"status"}`, "version 0"},
		{"other request", `{"version":1,"request":"reset"}`, `unknown request "reset"`},
		{"empty line", ``, "not a JSON object"},
		{"not JSON", `hello`, "not a JSON object"},
		{"wrong type", `{"version":"1"}`, "not a JSON object"},
		{"deep nesting", strings.Repeat("[", 2000), "not a JSON object"},
		{"too long", `{"version":1,"request":"` + strings.Repeat("s", maxRequest), "request exceeds"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := dial(t, dir, "a")
			if _, err := io.WriteString(c, tt.request+"\n"); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(c).ReadBytes('\n')
			if err != nil {
				t.Fatalf("answer to %.40q: %v", tt.request, err)
			}
			var response responseLine
			if err := json.Unmarshal(line, &response); err != nil {
				t.Fatalf("answer to %.40q is not JSON: %v", tt.request, err)
			}
			if response.Version != Version {
				t.Errorf("answer to %.40q has version %d, want %d", tt.request, response.Version, Version)
			}
			if ok := response.Status != nil; ok != (tt.wantError == "") {
				t.Errorf("answer to %.40q has a status = %v", tt.request, ok)
			}
			if !strings.Contains(response.Error, tt.wantError) || tt.wantError == "" && response.Error != "" {
				t.Errorf("answer to %.40q = error %q, want %q", tt.request, response.Error, tt.wantError)
			}
		})
	}
}

func TestControlRequestsOnOneSocket(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, "a", testStatus)
	c := dial(t, dir, "a")
	r := bufio.NewReader(c)
	for i := range maxRequests {
		if _, err := io.WriteString(c, `{"version":1,"request":"status"}`+"\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadBytes('\n'); err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
	}
	if b, err := r.ReadBytes('\n'); !errors.Is(err, io.EOF) {
		t.Errorf("after %d requests = %q, %v, want EOF", maxRequests, b, err)
	}
}

// A client that sends nothing holds up neither the other clients nor Close.
func TestControlSilentClients(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir, "a", testStatus)
	for range maxClients - 1 {
		dial(t, dir, "a")
	}
	if list, errs := Gather(t.Context(), dir); len(list) != 1 || errs != nil {
		t.Errorf("Gather beside silent clients = %v, %v, want one host", list, errs)
	}
	start := time.Now()
	s.Close()
	if d := time.Since(start); d >= ioTimeout {
		t.Errorf("Close beside silent clients took %v, want less than their deadline", d)
	}
}

func TestControlManyConnections(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, "a", func() Status {
		st := testStatus()
		conn := st.Connections[0]
		conn.EID, conn.Reason = strings.Repeat("E", 32), strings.Repeat("r", 100)
		st.Connections = make([]StatusConn, MaxConns+5)
		for i := range st.Connections {
			st.Connections[i] = conn
		}
		return st
	})
	st := statusOf(t, dir, "a")
	if n, omitted := len(st.Connections), st.ConnectionsOmitted; n != MaxConns || omitted != 24+5 {
		t.Errorf("a status of %d connections and %d omitted, want %d and 29", n, omitted, MaxConns)
	}
}

// A supervisor may have more programs than a client takes.
func TestControlManyPrograms(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, "a", func() Status { return Status{Programs: make([]StatusProgram, maxList+1)} })
	if n := len(statusOf(t, dir, "a").Programs); n != maxList {
		t.Errorf("a status of %d programs, want %d", n, maxList)
	}
}

// statusOf asks a host for its status, however long it takes to make, send and read it.
func statusOf(t *testing.T, dir, name string) *Status {
	t.Helper()
	c := dial(t, dir, name)
	c.SetDeadline(time.Time{})
	if _, err := io.WriteString(c, `{"version":1,"request":"status"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	line, err := readLine(c)
	if err != nil {
		t.Fatal(err)
	}
	st, err := parseResponse(line)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// A client can do the same: nobody but the goroutine that serves it waits for that.
func TestServerLingering(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir, "a", testStatus)
	fd := lingeringSocket(t)
	c := dial(t, dir, "a")
	for {
		if _, err := c.Write(bytes.Repeat([]byte("x"), maxRequest)); err != nil { // too long, so that nothing more is read
			t.Fatal(err)
		}
		_, _, err := c.WriteMsgUnix([]byte(" "), unix.UnixRights(fd), nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			t.Fatal(err)
		}
		c = dial(t, dir, "a") // the server has closed already
	}
	unix.Close(fd)
	io.Copy(io.Discard, c) // until the server is in its close
	served := make(chan error, 1)
	go func() {
		s.Clients() // as the host asks when it is idle, with locks held
		other, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(rundir.Path(dir, socketsDir), "a")})
		if err == nil {
			defer other.Close()
			_, err = other.Write([]byte(`{"version":1,"request":"status"}` + "\n"))
		}
		if err == nil {
			_, err = bufio.NewReader(other).ReadSlice('\n')
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			err = nil
		}
		served <- err
	}()
	select {
	case err := <-served:
		if err != nil {
			t.Errorf("another client: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("another client waits for what one has sent to be closed")
	}
}

// lingeringSocket returns a TCP socket. Its last close takes a minute: nobody reads the bytes that
// were written.
func lingeringSocket(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	unix.SetNonblock(fd, true)
	for b := make([]byte, 1<<20); err == nil; {
		_, err = unix.Write(fd, b)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60}); err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestReasonCode(t *testing.T) {
	for _, tt := range []struct {
		code ReasonCode
		text string
	}{{0, ""}, {0x03010000, "0x03010000"}, {0xffffffff, "0xffffffff"}, {1, "0x00000001"}} {
		if got, err := tt.code.MarshalText(); err != nil || string(got) != tt.text {
			t.Errorf("ReasonCode(%d).MarshalText() = %q, %v, want %q", uint32(tt.code), got, err, tt.text)
		}
		var got ReasonCode
		if err := got.UnmarshalText([]byte(tt.text)); err != nil || got != tt.code {
			t.Errorf("UnmarshalText(%q) = %v, %v, want %v", tt.text, got, err, tt.code)
		}
	}
	for _, text := range []string{"0x", "1", "0x1ffffffff", "x1", "0xg", "0x-1"} {
		var got ReasonCode
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("UnmarshalText(%q) = %v, want an error", text, got)
		}
	}
}

func ExampleReasonCode() {
	fmt.Println(ReasonCode(0x03010000))
	// Output: 0x03010000
}
