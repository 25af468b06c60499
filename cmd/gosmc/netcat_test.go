package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/gosmc/smc/internal/netcat"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/usage"
)

// testTimeout ends a test that hangs, with its own words.
const testTimeout = 60 * time.Second

// A running is a verb that runs beside the test.
type running struct {
	t      *testing.T
	cancel context.CancelFunc
	stdin  *io.PipeWriter
	events *bufio.Scanner // standard error, by line
	done   chan struct{}
	code   int
	stdout safeBuffer
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs a command line until it ends, or the test does.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	stdin, stdinWriter := io.Pipe()
	stderrReader, stderr := io.Pipe()
	r := &running{t: t, cancel: cancel, stdin: stdinWriter, events: bufio.NewScanner(stderrReader), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.code = run(ctx, args, stdin, &r.stdout, stderr)
		stderr.Close()
	}()
	t.Cleanup(func() {
		cancel()
		stdinWriter.Close()
		stderrReader.Close()
		<-r.done
	})
	return r
}

// event takes the next line of standard error as JSON.
func (r *running) event(v any) {
	r.t.Helper()
	if !r.events.Scan() {
		r.t.Fatalf("standard error ended: %v", r.events.Err())
	}
	if err := json.Unmarshal(r.events.Bytes(), v); err != nil {
		r.t.Fatalf("standard error has %q: %v", r.events.Text(), err)
	}
}

// addr waits for listen -v --json to listen.
func (r *running) addr() string {
	r.t.Helper()
	var e netcat.ListenEvent
	r.event(&e)
	if e.Event != "listening" || e.Schema != jsonSchema || e.Local == "" {
		r.t.Fatalf("first event = %+v, want listening", e)
	}
	return e.Local
}

// wait lets the verb end and returns its exit code.
func (r *running) wait() int {
	r.t.Helper()
	go func() {
		for r.events.Scan() { // its end must not wait for a reader
		}
	}()
	select {
	case <-r.done:
		return r.code
	case <-time.After(testTimeout):
		r.t.Fatal("the verb does not end")
		panic("unreachable")
	}
}

// connEvent is netcat.ClosedEvent as another program reads it.
type connEvent struct {
	Schema     int
	Event      string
	Verb       string
	Mode       string
	Version    string
	EID        string
	ReasonCode string `json:"reason_code"`
	Reason     string
	Local      string
	Peer       string
	BytesIn    int64 `json:"bytes_in"`
	BytesOut   int64 `json:"bytes_out"`
	Error      string
}

const megabyteText = 1 << 20

// Both ends are gosmc: data goes both ways over SMC-D, whichever side ends first.
func TestConnectListenSMC(t *testing.T) {
	up, down := strings.Repeat("up\n", megabyteText/3), strings.Repeat("down\n", megabyteText/5)
	for _, tt := range []struct {
		name        string
		serverFirst bool // the listener's input ends before the client connects
	}{{"client ends first", false}, {"server ends first", true}} {
		t.Run(tt.name, func(t *testing.T) {
			l := start(t, "listen", "--json", "-v", "127.0.0.1:0")
			addr := l.addr()
			serverSent := make(chan struct{})
			clientSent := make(chan struct{})
			go func() {
				defer close(serverSent)
				if !tt.serverFirst {
					<-clientSent
				}
				io.WriteString(l.stdin, down)
				l.stdin.Close()
			}()
			c := start(t, "connect", "--require", "smc-d", "--json", addr)
			if tt.serverFirst {
				<-serverSent
			}
			io.WriteString(c.stdin, up)
			c.stdin.Close()
			close(clientSent)
			var client, server connEvent
			c.event(&client)
			l.event(&server)
			if code := c.wait(); code != exitOK || c.stdout.String() != down {
				t.Errorf("connect = %d and %d bytes, want 0 and %d", code, len(c.stdout.String()), len(down))
			}
			if code := l.wait(); code != exitOK || l.stdout.String() != up {
				t.Errorf("listen = %d and %d bytes, want 0 and %d", code, len(l.stdout.String()), len(up))
			}
			for _, e := range []connEvent{client, server} {
				if e.Schema != 1 || e.Event != "closed" || e.Mode != "SMC-D" || e.Version == "" || e.EID == "" || e.Reason != "" || e.ReasonCode != "" || e.Error != "" {
					t.Errorf("event = %+v, want SMC-D with version and EID, without reason", e)
				}
			}
			if client.BytesIn != int64(len(down)) || client.BytesOut != int64(len(up)) || server.BytesIn != client.BytesOut || server.BytesOut != client.BytesIn {
				t.Errorf("bytes: client %d in, %d out; server %d in, %d out; want %d and %d", client.BytesIn, client.BytesOut, server.BytesIn, server.BytesOut, len(down), len(up))
			}
			if client.Peer != server.Local || client.Local != server.Peer {
				t.Errorf("addresses: client %s -> %s, server %s <- %s", client.Local, client.Peer, server.Local, server.Peer)
			}
		})
	}
}

// plainServer is a TCP server that knows nothing of SMC: it reads to the end, then answers and closes.
func plainServer(t *testing.T, answer string) (addr string, got chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	got = make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c)
		io.WriteString(c, answer)
		got <- string(b)
	}()
	return l.Addr().String(), got
}

func TestConnectFallback(t *testing.T) {
	addr, got := plainServer(t, "answer")
	out := gosmc(t, "question", "connect", "--json", addr)
	if out.code != exitOK || out.stdout != "answer" {
		t.Errorf("connect to plain TCP = %d, %q, want 0 and the answer", out.code, out.stdout)
	}
	if q := <-got; q != "question" {
		t.Errorf("plain TCP server got %q, want the question and nothing else", q)
	}
	var e connEvent
	if err := json.Unmarshal([]byte(out.stderr), &e); err != nil || e.Mode != "TCP" || e.Reason == "" || !strings.HasPrefix(e.ReasonCode, "0x") || e.BytesIn != 6 || e.BytesOut != 8 {
		t.Errorf("event = %+v, %v, want TCP with a reason, 6 bytes in and 8 out", e, err)
	}

	addr, _ = plainServer(t, "answer")
	out = gosmc(t, "question", "connect", "-v", addr)
	if !strings.Contains(out.stderr, " TCP ") || !strings.Contains(out.stderr, "because") {
		t.Errorf("connect -v says %q, want TCP and a reason", out.stderr)
	}
}

func TestConnectRequireUnmet(t *testing.T) {
	for _, mode := range []string{"smc", "smc-d", "smc-r"} {
		addr, _ := plainServer(t, "answer")
		out := gosmc(t, "question", "connect", "--json", "--require", mode, addr)
		if out.code != exitFellBack || out.stdout != "" {
			t.Errorf("connect --require %s to plain TCP = %d, %q, want 3 and nothing", mode, out.code, out.stdout)
		}
		line, rest, _ := strings.Cut(out.stderr, "\n")
		var e connEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Mode != "TCP" || e.Reason == "" || e.Error == "" {
			t.Errorf("connect --require %s: event %+v, %v, want TCP with a reason", mode, e, err)
		}
		if !strings.Contains(rest, "does not meet --require "+mode) {
			t.Errorf("connect --require %s says %q, want what is not met", mode, rest)
		}
	}
}

// TestNetcatSMCR has both commands get SMC-R by their flags alone. They have run directories of their own, as on two machines.
func TestNetcatSMCR(t *testing.T) {
	t.Setenv(port.EnvSocket, filepath.Join(t.TempDir(), "no agent"))
	t.Setenv("GOSMC_CONFIG", "/dev/null")
	random := func() string { return fmt.Sprintf("127.%d.%d.%d", 2+rand.IntN(250), rand.IntN(250), 2+rand.IntN(250)) }
	common := []string{"--require", "smc-r", "--json"}
	for _, tt := range []struct {
		name            string
		listen, connect []string
		version         string
	}{
		{"UEID", []string{"--ueid", "GOSMC.OTHER,GOSMC.TEST", "--peer", "127.0.0.0/8"}, []string{"--ueid", "GOSMC.TEST", "--peer", "::1", "--peer", "127.0.0.0/8"}, "2.1"},
		{"version 1", []string{"--smcr-v1", "--peer", "127.0.0.0/8", "--device", "127.0.0.0/8"}, []string{"--smcr-v1", "--peer", "127.0.0.0/8"}, "1.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("GOSMC_DIR", t.TempDir())
			l := start(t, slices.Concat([]string{"listen", "-v"}, common, tt.listen, []string{random() + ":0"})...)
			addr := l.addr()
			t.Setenv("GOSMC_DIR", t.TempDir())
			l.stdin.Close()
			out := gosmc(t, "question", slices.Concat([]string{"connect", "--source", random()}, common, tt.connect, []string{addr})...)
			var e connEvent
			if err := json.Unmarshal([]byte(out.stderr), &e); err != nil || out.code != exitOK || e.Mode != "SMC-R" || e.Version != tt.version {
				t.Errorf("connect = %d, %q, %v, want SMC-R %s", out.code, out.stderr, err, tt.version)
			}
			l.event(&e)
			if code := l.wait(); code != exitOK || e.Mode != "SMC-R" || l.stdout.String() != "question" {
				t.Errorf("listen = %d, %q, mode %s", code, l.stdout.String(), e.Mode)
			}
		})
	}
}

func TestListenRequireUnmet(t *testing.T) {
	l := start(t, "listen", "--json", "-v", "--require", "smc", "127.0.0.1:0")
	c, err := net.Dial("tcp", l.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var e connEvent
	l.event(&e)
	if e.Mode != "TCP" || e.Reason == "" || e.Error == "" {
		t.Errorf("event = %+v, want TCP with a reason and an error", e)
	}
	c.SetDeadline(time.Now().Add(testTimeout))
	if b, err := io.ReadAll(c); len(b) != 0 {
		t.Errorf("refused connection delivers %q, %v, want nothing", b, err)
	}
	if code := l.wait(); code != exitFellBack {
		t.Errorf("listen --require smc = %d, want 3", code)
	}
}

// --keep: the input that one connection did not take goes to the next, not to nobody.
func TestListenKeep(t *testing.T) {
	l := start(t, "listen", "--json", "-v", "--keep", "127.0.0.1:0")
	addr := l.addr()
	for _, text := range []string{"first", "second"} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(testTimeout))
		if _, err := io.WriteString(l.stdin, text); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, len(text))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != text {
			t.Errorf("connection for %q delivers %q, %v", text, b, err)
		}
		c.(*net.TCPConn).SetLinger(0) // a reset ends both directions
		c.Close()
		var e connEvent
		l.event(&e)
		if e.BytesOut != int64(len(text)) {
			t.Errorf("event = %+v, want %d bytes out", e, len(text))
		}
	}
	l.cancel()
	if code := l.wait(); code != exitOK {
		t.Errorf("interrupted listen --keep = %d, want 0", code)
	}
}

// Echo and discard serve SMC and plain TCP side by side, until interrupted.
func TestListenEchoDiscard(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", megabyteText/16)
	for _, tt := range []struct{ flag, want string }{{"--echo", text}, {"--discard", ""}} {
		t.Run(tt.flag, func(t *testing.T) {
			l := start(t, "listen", tt.flag, "--json", "-v", "127.0.0.1:0")
			addr := l.addr()
			idle, err := net.Dial("tcp", addr) // holds up nobody
			if err != nil {
				t.Fatal(err)
			}
			defer idle.Close()
			if got := gosmc(t, text, "connect", "--require", "smc-d", addr); got.code != exitOK || got.stdout != tt.want {
				t.Errorf("connect over SMC = %d, %d bytes, %q, want %d bytes", got.code, len(got.stdout), got.stderr, len(tt.want))
			}
			var e connEvent
			l.event(&e)
			if e.Mode != "SMC-D" || e.BytesIn != int64(len(text)) || e.BytesOut != int64(len(tt.want)) || e.Error != "" {
				t.Errorf("event = %+v, want SMC-D and all bytes", e)
			}

			plain, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			plain.SetDeadline(time.Now().Add(testTimeout))
			go func() {
				io.WriteString(plain, text)
				plain.(*net.TCPConn).CloseWrite()
			}()
			if got, err := io.ReadAll(plain); err != nil || string(got) != tt.want {
				t.Errorf("plain TCP gets %d bytes, %v, want %d", len(got), err, len(tt.want))
			}
			l.event(&e)
			if e.Mode != "TCP" || e.Reason == "" || e.BytesIn != int64(len(text)) {
				t.Errorf("event = %+v, want TCP with a reason and all bytes", e)
			}
			l.cancel()
			if code := l.wait(); code != exitOK {
				t.Errorf("interrupted listen %s = %d, want 0", tt.flag, code)
			}
		})
	}
}

// TestNetcatHabits has command lines of netcat do what they do there.
func TestNetcatHabits(t *testing.T) {
	for args, want := range map[string]string{
		"-l 7000": "listen -l 7000", "-lk 7000": "listen -lk 7000", "-vnl4k :7000": "listen -vnl4k :7000",
		"connect -l 7000": "listen -l 7000", "connect -v 7000": "connect -v 7000", "connect": "connect",
		"-v": "-v", "-lz 7000": "-lz 7000", "--list": "--list", "ss -l": "ss -l", "-": "-", "": "",
	} {
		if got := strings.Join(usage.Netcat(strings.Fields(args)), " "); got != want {
			t.Errorf("gosmc %s is read as %q, want %q", args, got, want)
		}
	}
	l := start(t, "-lk", "-v", "--json", "--echo", "127.0.0.1:0")
	host, port, err := net.SplitHostPort(l.addr())
	if err != nil {
		t.Fatal(err)
	}
	// The peer sends all back, and would have the connection last as long as the input.
	if got := gosmc(t, "xyz", "connect", "-vzn", "-w", "5", host, port); got.code != exitOK || got.stdout != "" || !strings.Contains(got.stderr, "SMC-D") {
		t.Errorf("connect -z = %+v", got)
	}
	if got := gosmc(t, "", "connect", "-6", "-z", "-w", "5", host, port); got.code != exitFailure {
		t.Errorf("connect -6 to an IPv4 address = %+v", got)
	}
	if got := gosmc(t, "x", "connect", "-4", "localhost", port); got.code != exitOK || got.stdout != "x" {
		t.Errorf("connect -4 = %+v", got)
	}
}

// TestNextSteps checks that errors of the system come with the next step.
func TestNextSteps(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := l.Addr().String()
	if got := gosmc(t, "", "listen", taken); got.code != exitFailure || !strings.Contains(got.stderr, "\nNext: another program has the port: 'ss -tulnp' names it.\n") {
		t.Errorf("gosmc listen on an address that is taken = %+v", got)
	}
	l.Close()
	if got := gosmc(t, "", "connect", taken); got.code != exitFailure || !strings.Contains(got.stderr, "\nNext: nobody listens there") {
		t.Errorf("gosmc connect where nobody listens = %+v", got)
	}
	if got := gosmc(t, "", "connect", "127.0.0.1", "no-such-service"); !strings.Contains(got.stderr, "\nNext: give the number of the port") {
		t.Errorf("gosmc connect to a service without a name = %+v", got)
	}
	if got := gosmc(t, "", "run", "gosmc-no-such-program"); !strings.Contains(got.stderr, "\nNext: give the path of the program") {
		t.Errorf("gosmc run of no program = %+v", got)
	}
	for _, tt := range []struct{ op, network, want string }{
		{"listen", "tcp", "ip_unprivileged_port_start"}, {"dial", "tcp", "a firewall"}, {"dial", "unix", "it takes root"},
	} {
		if got := usage.NextStep(&net.OpError{Op: tt.op, Net: tt.network, Err: syscall.EACCES}); !strings.Contains(got, tt.want) {
			t.Errorf("next step of a refused %s of %s: %q", tt.op, tt.network, got)
		}
	}
	if got := gosmc(t, "", "reason", "nonsense"); strings.Contains(got.stderr, "Next:") {
		t.Errorf("gosmc reason nonsense = %+v", got)
	}
}

// TestHabits checks the errors for flags and words of other tools: each says what does the same here.
func TestHabits(t *testing.T) {
	for args, want := range map[string]string{
		"ss -K":                        "gosmc off --now",
		"ss -f inet":                   "-4 or -6",
		"top -u root":                  "gosmc ss --columns process,user",
		"connect -u localhost 1":       "SMC is for TCP",
		"listen -p 7000":               "gosmc listen PORT",
		"dump -T json":                 "--json",
		"dump -C 1":                    "tcpdump -C SIZE",
		"run --env A=1 true":           "A=1 gosmc run PROGRAM",
		"metrics --port 1":             "--listen 127.0.0.1:9254",
		"applicable --seconds 1":       "--for 60s",
		"service restart redis":        "systemctl restart NAME",
		"service status redis":         "gosmc service list",
		"config get memory":            "gosmc config show --effective",
		"policy list":                  "gosmc policy show",
		"policy add listen-prot 1":     "did you mean listen-port?",
		"agent start":                  "systemctl start gosmc-agent",
		"stats reset":                  "gosmc stats --watch SECONDS",
		"of":                           `did you mean "off"?`,
		"advise":                       `did you mean "applicable"?`,
		"frobnicate":                   "'gosmc --help' lists those that there are",
		"connect http://localhost:1/x": "as in localhost:1",
		"connect http://localhost/":    "as in localhost:http",
		"connect localhost":            "as in localhost:7000",
		"listen 70000":                 "want a port from 0 to 65535",
		"connect localhost 70000":      "want a port from 0 to 65535",
	} {
		if got := gosmc(t, "", strings.Fields(args)...); got.code != exitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("gosmc %s = %d, %q; want %q", args, got.code, got.stderr, want)
		}
	}
}

// TestHabitsExist checks that the tables of habits have verbs that there are, and no flag or command that a verb has.
func TestHabitsExist(t *testing.T) {
	root := newRootCommand()
	find := func(verb string) *cobra.Command {
		cmd, rest, err := root.Find(strings.Fields(verb))
		if err != nil || len(rest) > 0 || cmd == root {
			t.Errorf("%s is no verb", verb)
		}
		return cmd
	}
	for verb, flags := range usage.FlagHabits {
		known := find(verb).Flags()
		for name, advice := range flags {
			long, isLong := strings.CutPrefix(name, "--")
			if isLong && known.Lookup(long) != nil || !isLong && known.ShorthandLookup(name[1:]) != nil || advice == "" {
				t.Errorf("%s has the flag %s, or the advice %q is empty", verb, name, advice)
			}
		}
	}
	for verb, words := range usage.CommandHabits {
		for word, advice := range words {
			if cmd, _, err := find(verb).Find([]string{word}); err == nil && cmd.Name() == word || advice == "" {
				t.Errorf("%s has the command %s, or the advice %q is empty", verb, word, advice)
			}
		}
	}
}
