package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc"
)

// A peerProgram is the program under 'gosmc run' that talks to this test, which uses package smc.
// It obeys lines on its standard input. Their first word is a method of it.
const peerProgram = `
import hashlib, os, random, socket, struct, sys, threading
family = socket.AF_INET6 if "6" in sys.argv[1] else socket.AF_INET
here = "::1" if family == socket.AF_INET6 else "127.0.0.1"
if sys.argv[1].startswith("serve"):
    l = socket.create_server(("0.0.0.0" if "any" in sys.argv[1] else here, 0), family=family)
    print(l.getsockname()[1], flush=True)
for line in sys.stdin:
    word, *args = line.split()
    if word == "accept":
        c, a = l.accept()
        print(a[0], a[1], c.getsockname()[1])
    elif word == "connect":
        c = socket.socket(family)
        try: c.connect((here, int(args[0])))
        except OSError as e:
            print(type(e).__name__, flush=True)
            continue
        print(c.getsockname()[0], c.getsockname()[1], c.getpeername()[1])
    elif word == "both": # sends what SEED gives, SIZE bytes, ends that, and says what it has received
        def send():
            r = random.Random(int(args[0]))
            left = int(args[1])
            while left:
                n = min(left, r.randrange(1, 100000))
                c.sendall(r.randbytes(n))
                left -= n
            c.shutdown(socket.SHUT_WR)
        r = random.Random(int(args[0]))
        left, sent = int(args[1]), hashlib.sha256()
        while left:
            n = min(left, r.randrange(1, 100000))
            sent.update(r.randbytes(n))
            left -= n
        t = threading.Thread(target=send)
        t.start()
        got, size = hashlib.sha256(), 0
        while d := c.recv(200000):
            got.update(d)
            size += len(d)
        t.join()
        print(size, got.hexdigest(), sent.hexdigest())
    elif word == "send":
        c.sendall(args[0].encode())
        print("sent")
    elif word == "receive":
        try: print(c.recv(65536).decode() or "EOF")
        except OSError as e: print(type(e).__name__)
    elif word == "sink": # receives until the end
        size = 0
        while n := len(c.recv(1 << 20)): size += n
        print(size)
    elif word == "source":
        b = bytes(1 << 20)
        for _ in range(int(args[0])): c.sendall(b)
        c.close()
        print("sent")
    elif word == "reset":
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
        print("reset")
    elif word == "close":
        c.close()
        print("closed")
    sys.stdout.flush()
`

// say has the peer do something, and returns its answer.
func (p *talker) say(t *testing.T, line string) string {
	t.Helper()
	io.WriteString(p.in, line+"\n")
	return p.hear(t)
}

func (p *talker) hear(t *testing.T) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the peer has ended: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

// A libraryPeer is a connection of this test, by package smc, with a program under 'gosmc run'.
type libraryPeer struct {
	*talker
	conn *smc.Conn
	port string // of the server
}

// A libraryTest has the environment, host and flags that connections of this test need.
type libraryTest struct {
	environ []string
	host    *smc.Host
	flags   []string // of gosmc run
	served  string   // how the peer serves: "serve", "serve6", "serve-any"
	dials   bool     // this test does, not the program
}

func newLibraryTest(t *testing.T, config smc.Config) *libraryTest {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("needs python3")
	}
	environ := runEnviron(t)
	config.Dir = strings.TrimPrefix(environ[len(environ)-1], "GOSMC_DIR=")
	host, err := smc.NewHost(&config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	return &libraryTest{environ: environ, host: host, served: "serve", dials: true}
}

func (l *libraryTest) peer(t *testing.T, role string) *talker {
	t.Helper()
	return startTalker(t, runCommand(t, l.environ, append(slices.Clone(l.flags), "python3", "-c", peerProgram, role)...))
}

// connect makes a connection with a program.
func (l *libraryTest) connect(t *testing.T) *libraryPeer {
	t.Helper()
	if l.dials {
		p := l.peer(t, l.served)
		return l.dial(t, p, p.hear(t))
	}
	server := l.listen(t)
	return l.accept(t, server, l.peer(t, l.role()))
}

// role is the role of a program that connects to a listener of listen.
func (l *libraryTest) role() string { return strings.Replace(l.served, "serve", "connect", 1) }

// listen makes a listener of this test.
func (l *libraryTest) listen(t *testing.T) *smc.Listener {
	t.Helper()
	lc := smc.ListenConfig{Host: l.host}
	address := map[string]string{"serve": "127.0.0.1:0", "serve6": "[::1]:0", "serve-any": "0.0.0.0:0"}[l.served]
	server, err := lc.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server
}

// accept has a program connect to this test, before that accepts.
func (l *libraryTest) accept(t *testing.T, server *smc.Listener, p *talker) *libraryPeer {
	t.Helper()
	port := strconv.Itoa(server.Addr().(*net.TCPAddr).Port)
	fields := strings.Fields(p.say(t, "connect "+port))
	server.SetDeadline(time.Now().Add(60 * time.Second))
	c, err := server.AcceptSMC()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(60 * time.Second))
	if addr := c.RemoteAddr().(*net.TCPAddr); addr.IP.String() != fields[0] || strconv.Itoa(addr.Port) != fields[1] || fields[2] != port {
		t.Errorf("the client has %q, and RemoteAddr is %v, LocalAddr %v", fields, addr, c.LocalAddr())
	}
	return &libraryPeer{p, c, port}
}

// dial connects to a program that serves.
func (l *libraryTest) dial(t *testing.T, p *talker, port string) *libraryPeer {
	t.Helper()
	here := "127.0.0.1"
	if strings.Contains(l.served, "6") {
		here = "::1"
	}
	d := smc.Dialer{Host: l.host, Timeout: 20 * time.Second}
	c, err := d.Dial("tcp", net.JoinHostPort(here, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(60 * time.Second))
	want := strings.Join([]string{here, port}, " ")
	addr := c.LocalAddr().(*net.TCPAddr)
	if got := p.say(t, "accept"); got != addr.IP.String()+" "+strconv.Itoa(addr.Port)+" "+port {
		t.Errorf("the server sees %s, want %v and port %s", got, addr, port)
	}
	if remote := c.RemoteAddr().(*net.TCPAddr); remote.IP.String()+" "+strconv.Itoa(remote.Port) != want {
		t.Errorf("RemoteAddr = %v, want %s", remote, want)
	}
	return &libraryPeer{p, c, port}
}

// directions runs a test for both directions: a program connects, or this test.
func directions(t *testing.T, run func(t *testing.T, l *libraryTest)) {
	t.Run("dial", func(t *testing.T) {
		t.Parallel()
		run(t, newLibraryTest(t, smc.Config{}))
	})
	t.Run("listen", func(t *testing.T) {
		t.Parallel()
		l := newLibraryTest(t, smc.Config{})
		l.dials = false
		run(t, l)
	})
}

// isMoved checks that both ends of a connection are shown as ends of a pair, once each.
func (l *libraryTest) isMoved(t *testing.T, p *libraryPeer) {
	t.Helper()
	if s := p.conn.State(); s.Mode != smc.ModeUnix || s.Reason.Tag != "" {
		t.Errorf("State = %+v, want %v", s, smc.ModeUnix)
	}
	var pids []int
	for _, c := range shown(t, l.environ, p.port) {
		if c.Mode != modeUnix || c.PID == 0 || c.Command == "" || c.Reason != "" {
			t.Errorf("ss shows %+v", c)
		}
		pids = append(pids, c.PID)
	}
	slices.Sort(pids)
	want := []int{os.Getpid(), p.cmd.Process.Pid}
	slices.Sort(want)
	if !slices.Equal(pids, want) {
		t.Errorf("ss shows ends of processes %v, want %v", pids, want)
	}
}
