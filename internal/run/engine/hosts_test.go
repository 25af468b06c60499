package engine

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) {
	smctest.Apart()
	smctest.Main(m)
}

// waitMost bounds each wait of a test.
const waitMost = 30 * time.Second

const testPort = 7000

// built are the gosmc command and the program of the tests.
var built = sync.OnceValues(func() (dir string, err error) {
	dir, err = os.MkdirTemp("", "hosts")
	if err != nil {
		return "", err
	}
	for _, words := range [][]string{
		{"go", "build", "-o", filepath.Join(dir, "gosmc"), "github.com/gosmc/smc/cmd/gosmc"},
		{"gcc", "-O1", "-Wall", "-Werror", "-pthread", "-o", filepath.Join(dir, "hosts"), "testdata/hosts.c"},
	} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return dir, fmt.Errorf("%v: %w: %s", words, err, out)
		}
	}
	return dir, nil
})

// A lab is two hosts, which are network namespaces.
type lab struct {
	t      *testing.T
	cables *smctest.Cables
	dirs   [2]string
	env    [2][]string // besides what all have
	files  [2]string   // that may be open; empty: as many as here
	peers  string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skipf("needs gcc: %v", err)
	}
	if _, err := built(); err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, cables: smctest.NewCables(t, 1), peers: "10.99.0.0/24"}
	for i := range l.dirs {
		dir, err := os.MkdirTemp("", "h") // a short name: sockets
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		l.dirs[i] = dir
	}
	return l
}

func (l *lab) addr(end int) netip.AddrPort {
	return netip.AddrPortFrom(l.cables.Addr[0][end], testPort)
}

// start starts gosmc at an end.
func (l *lab) start(end int, words ...string) *program {
	l.t.Helper()
	dir, _ := built()
	words = append([]string{filepath.Join(dir, "gosmc")}, words...)
	if l.files[end] != "" {
		words = append([]string{"sh", "-c", `ulimit -n "$0"; exec "$@"`, l.files[end]}, words...)
	}
	p := &program{t: l.t, cmd: exec.Command(words[0], words[1:]...)}
	p.cmd.Env = append(os.Environ(), "GOSMC_DIR="+l.dirs[end], "GOSMC_CONFIG=/dev/null", "GOSMC_UEIDS=GOSMC.TEST",
		"GOSMC_SMCR_PEERS="+l.peers, "GOSMC_BETWEEN_HOSTS=1", "GOSMC_RUN_TOKENS=0") // both ends are on one kernel
	p.cmd.Env = append(p.cmd.Env, l.env[end]...)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	l.cables.Visit(end, func() { err = p.cmd.Start() })
	if err != nil {
		l.t.Fatal(err)
	}
	p.lines = make(chan string, 100)
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	l.t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	return p
}

// run starts the program of the tests under gosmc run.
func (l *lab) run(end int, what string, to netip.AddrPort, words ...string) *program {
	l.t.Helper()
	dir, _ := built()
	port := strconv.Itoa(int(to.Port()))
	return l.start(end, append([]string{"run", filepath.Join(dir, "hosts"), what, to.Addr().String(), port}, words...)...)
}

// serve starts a server at end 0.
func (l *lab) serve(words ...string) *program {
	l.t.Helper()
	p := l.run(0, "serve", l.addr(0), words...)
	p.hear("listening")
	return p
}

// A program is one that runs.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
}

// hear returns the words behind the first one of the next line, which has to be want.
func (p *program) hear(want string) []string {
	p.t.Helper()
	select {
	case line := <-p.lines:
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != want {
			p.t.Fatalf("the program says %q, want %s", line, want)
		}
		return words[1:]
	case <-time.After(waitMost):
		p.t.Fatalf("the program says nothing, want %s", want)
	}
	return nil
}

// connections returns how many connections the programs at an end have had, by mode.
func (l *lab) connections(end int) map[string]uint64 {
	l.t.Helper()
	p := l.start(end, "stats", "--json", "--dir", l.dirs[end])
	var text strings.Builder
	for line := range p.lines {
		text.WriteString(line)
	}
	var s struct {
		Total struct{ Connections map[string]uint64 }
	}
	if err := json.Unmarshal([]byte(text.String()), &s); err != nil {
		l.t.Fatalf("stats: %v in %s", err, text.String())
	}
	sum := make(map[string]uint64)
	for mode, n := range s.Total.Connections {
		if n > 0 {
			sum[mode] += n
		}
	}
	return sum
}

// want checks the modes at an end.
func (l *lab) want(end int, mode string, n uint64) {
	l.t.Helper()
	if got := l.connections(end); len(got) != 1 || got[mode] != n {
		l.t.Errorf("end %d has had connections %v, want %d of %s", end, got, n, mode)
	}
}

// TestHosts has two programs that know TCP alone talk over SMC-R, in each of the ways in which programs
// connect.
func TestHosts(t *testing.T) {
	l := newLab(t)
	s := l.serve()
	ways := []string{"waits", "poll", "again", "epoll"}
	for _, how := range ways {
		l.run(1, "hash", l.addr(0), how, "1000000").hear("done")
	}
	l.want(0, "SMC-R", uint64(len(ways)))
	for range 2 {
		got := l.run(1, "down", l.addr(0), "waits", "0").hear("received")
		if sent := s.hear("sent"); got[0] != "30000001" || got[1] != sent[1] {
			t.Errorf("the client has received %v, and the server has sent %v", got, sent)
		}
	}
	l.run(1, "hash", l.addr(0), "waits", "100000000").hear("done")
}

// withOption has the kernel put TCP option 254 on segments of sockets that ask, in the lab that follows.
func withOption(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to load eBPF programs")
	}
	root, err := bpf.CgroupRoot()
	if err != nil {
		t.Skipf("needs control groups: %v", err)
	}
	group, pins := smctest.EnterCgroup(t, root), filepath.Join(smctest.MountBPF(t), "gosmc")
	if err := bpf.PreparePins(pins); err != nil {
		t.Fatal(err)
	}
	o, err := bpf.AttachOption(group, pins)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		o.Close()
		if err := bpf.DetachOption(pins); err != nil {
			t.Error(err)
		}
	})
}

// TestHostsOption has no peer named: TCP option 254 says who speaks SMC-R, and a program that does not is
// left alone.
func TestHostsOption(t *testing.T) {
	withOption(t)
	l := newLab(t)
	name, value := smctest.LibraryOption()
	asks, plain := []string{"GOSMC_SMCR_PEERS=", name + "=" + value}, []string{"GOSMC_SMCR_PEERS=", "GOSMC_BETWEEN_HOSTS=0"}
	l.env[0], l.env[1] = asks, asks
	s := l.serve()
	ways := []string{"waits", "poll", "again", "epoll"}
	for _, how := range ways {
		l.run(1, "hash", l.addr(0), how, "1000000").hear("done")
	}
	l.want(0, "SMC-R", uint64(len(ways)))
	for _, how := range ways { // nobody takes the connection, whose server waits for CLC
		client := l.run(1, "later", l.addr(0), how, "1000000")
		client.hear("here")
		for _, pid := range processesOf(t, "run-supervise", l.dirs[1]) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		client.hear("done")
	}
	l.env[1] = plain
	l.run(1, "hash", l.addr(0), "waits", "1000").hear("done")
	l.env[1] = asks
	if got := l.connections(0); got["SMC-R"] != uint64(len(ways)) || got["TCP"] != uint64(len(ways)) { // the engine knows nothing of the plain one
		t.Errorf("connections of the server: %v, want %d of SMC-R, and as many of TCP", got, len(ways))
	}
	s.cmd.Process.Kill()
	s.cmd.Wait()

	l.env[0] = plain
	l.serve()
	for _, how := range ways {
		l.run(1, "hash", l.addr(0), how, "1000000").hear("done")
	}
}

// TestHostsWorkers has a server whose workers have given up their privileges, as nginx and apache have them: they hand
// over what they accept. A process of their user that has not accepted a connection cannot.
func TestHostsWorkers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have a worker of another user")
	}
	l := newLab(t)
	s := l.run(0, "workers", l.addr(0))
	s.hear("listening")
	for _, how := range []string{"waits", "epoll"} {
		l.run(1, "hash", l.addr(0), how, "1000000").hear("done")
	}
	l.want(0, "SMC-R", 2)
}

// TestHostsMany has 200 connections at a time. A Proposal that a busy machine brings late finds TCP.
func TestHostsMany(t *testing.T) {
	l := newLab(t)
	l.serve()
	l.run(1, "many", l.addr(0), "waits", "200").hear("done")
	if got := l.connections(0); got["SMC-R"]+got["TCP"] != 200 || got["SMC-R"] < 20 {
		t.Errorf("connections of the server: %v, want 200, of SMC-R most of them", got)
	}
}

// TestHostsFull has an engine that may open few files, in either role: connections for which there is no room are TCP.
func TestHostsFull(t *testing.T) {
	withOption(t)
	name, value := smctest.LibraryOption()
	asks := []string{"GOSMC_SMCR_PEERS=", name + "=" + value} // a client that has said that it speaks CLC is waited for
	for end, name := range []string{"server", "client"} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.files[end], l.env = "128", [2][]string{asks, asks}
			l.serve()
			l.run(1, "many", l.addr(0), "waits", "40").hear("done")
			if got := l.connections(0); got["SMC-R"]+got["TCP"] != 40 || got["SMC-R"] == 0 {
				t.Errorf("connections: %v, want 40, some of SMC-R", got)
			}
		})
	}
}

// TestHostsSlow has an engine that does not run while 200 connections are made: they wait for it.
func TestHostsSlow(t *testing.T) {
	for end, name := range []string{"server", "client"} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.serve()
			l.run(1, "held", l.addr(0), "waits", "0").hear("held")
			for _, pid := range processesOf(t, "run-engine", l.dirs[end]) {
				syscall.Kill(pid, syscall.SIGSTOP)
				time.AfterFunc(time.Second, func() { syscall.Kill(pid, syscall.SIGCONT) })
			}
			l.run(1, "many", l.addr(0), "waits", "200").hear("done")
		})
	}
}

// TestHostsNoSupervisor has a server whose supervisor has ended, or does not answer: the first message of a
// client is no byte of the program, whose connections are TCP.
func TestHostsNoSupervisor(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(signal.String(), func(t *testing.T) {
			l := newLab(t)
			l.serve()
			l.run(1, "hash", l.addr(0), "waits", "1000").hear("done")
			supervisors := processesOf(t, "run-supervise", l.dirs[0])
			if len(supervisors) != 1 {
				t.Fatalf("%d supervisors of the server, want one", len(supervisors))
			}
			syscall.Kill(supervisors[0], signal)
			defer syscall.Kill(supervisors[0], syscall.SIGKILL)
			if signal == syscall.SIGSTOP { // it has copies of sockets that it was asked about, which end with it
				time.AfterFunc(4*time.Second, func() { syscall.Kill(supervisors[0], syscall.SIGCONT) })
			}
			for _, how := range []string{"waits", "poll", "epoll"} {
				l.run(1, "hash", l.addr(0), how, "1000000").hear("done")
			}
			l.run(1, "many", l.addr(0), "waits", "50").hear("done")
			l.env[1] = []string{"GOSMC_BETWEEN_HOSTS=0"}
			l.run(1, "hash", l.addr(0), "waits", "1000").hear("done")
		})
	}
}

// TestHostsNoDevice has another engine that has the address of a host: connections there stay TCP, as the
// client or the server declines.
func TestHostsNoDevice(t *testing.T) {
	for end, name := range []string{"server", "client"} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.serve()
			if end == 1 {
				l.run(1, "held", l.addr(0), "waits", "0").hear("held")
			} else { // the other one is a client of a server at end 1
				l.run(1, "serve", l.addr(1)).hear("listening")
				l.run(0, "held", l.addr(1), "waits", "0").hear("held")
				l.env[1] = []string{"GOSMC_DIR=" + t.TempDir()}
			}
			for _, how := range []string{"waits", "poll", "epoll"} {
				l.run(1, "hash", l.addr(0), how, "1000000").hear("done")
			}
			if got := l.connections(0); got["TCP"] < 3 {
				t.Errorf("connections of the server: %v, want three of TCP", got)
			}
		})
	}
}

// TestHostsOff has a configuration that names the peers, and does not ask for connections between hosts.
func TestHostsOff(t *testing.T) {
	l := newLab(t)
	l.env[0], l.env[1] = []string{"GOSMC_BETWEEN_HOSTS=0"}, []string{"GOSMC_BETWEEN_HOSTS=0"}
	l.serve()
	l.run(1, "hash", l.addr(0), "waits", "1000").hear("done")
	for end := range 2 {
		if got := l.connections(end)["SMC-R"]; got != 0 {
			t.Errorf("end %d has had %d connections over SMC-R", end, got)
		}
	}
}

// TestHostsDecline has hosts with no UEID in common: connections stay TCP, and carry the same bytes.
func TestHostsDecline(t *testing.T) {
	l := newLab(t)
	l.env[0] = []string{"GOSMC_UEIDS=GOSMC.OTHER"}
	s := l.serve()
	for _, how := range []string{"waits", "epoll"} {
		l.run(1, "hash", l.addr(0), how, "3000000").hear("done")
	}
	got := l.run(1, "down", l.addr(0), "waits", "0").hear("received")
	if sent := s.hear("sent"); got[0] != "30000001" || got[1] != sent[1] {
		t.Errorf("the client has received %v, and the server has sent %v", got, sent)
	}
	l.want(0, "TCP", 3)
}

// TestHostsReset has either side reset a connection: the other one hears of it.
func TestHostsReset(t *testing.T) {
	l := newLab(t)
	s := l.serve()
	reset := strconv.Itoa(int(syscall.ECONNRESET))
	if got := l.run(1, "reset", l.addr(0), "waits", "0").hear("ended"); got[0] != reset {
		t.Errorf("after a reset by the server the client has error %s, want %s", got[0], reset)
	}
	for _, msec := range []string{"300", "0"} {
		l.run(1, "resets", l.addr(0), "waits", msec).hear("done")
		// A reset may overtake the byte.
		if got := <-s.lines; !strings.HasPrefix(got, "ended "+reset) && !strings.HasPrefix(got, "nothing "+reset) {
			t.Errorf("after a reset by the client, in %s ms, the server says %q, want error %s", msec, got, reset)
		}
	}
}

// TestHostsPlainClient has a client with plain TCP, of a host that is configured: one that speaks first, and
// one that waits for the server.
func TestHostsPlainClient(t *testing.T) {
	for _, greeting := range []string{"", "hello"} {
		t.Run(greeting, func(t *testing.T) {
			l := newLab(t)
			l.env[1] = []string{"GOSMC_BETWEEN_HOSTS=0"}
			var words []string
			what, arg := "hash", "1000000"
			if greeting != "" {
				words, what, arg = []string{greeting}, "greeted", strconv.Itoa(len(greeting))
			}
			l.serve(words...)
			client := l.run(1, what, l.addr(0), "waits", arg)
			if greeting != "" {
				if got := client.hear("greeted"); got[0] != arg {
					t.Errorf("the client has received %s bytes first, want %s", got[0], arg)
				}
			} else {
				client.hear("done")
			}
			client.cmd.Wait()
			l.want(0, "TCP", 1)
		})
	}
}

// TestHostsCrossed has a client that has said that it begins with CLC, and has not done so when the server speaks: its Decline
// is none of the program's bytes.
func TestHostsCrossed(t *testing.T) {
	withOption(t)
	l := newLab(t)
	name, value := smctest.LibraryOption()
	asks := []string{"GOSMC_SMCR_PEERS=", name + "=" + value}
	l.env = [2][]string{asks, {"GOSMC_DISABLED=1"}}
	l.serve("hello")
	l.run(1, "crossed", l.addr(0), "waits", value).hear("done")
	l.env[1] = asks
	l.want(0, "TCP", 1)
}

// TestHostsStale has a client that looks at its connection long after that was made: it declines, and does not begin with a
// Proposal, as the server may have given up waiting.
func TestHostsStale(t *testing.T) {
	withOption(t)
	l := newLab(t)
	name, value := smctest.LibraryOption()
	asks := []string{"GOSMC_SMCR_PEERS=", name + "=" + value}
	l.env = [2][]string{asks, asks}
	l.serve()
	l.cables.IP(0, "link set cable0 down")
	client := l.run(1, "hash", l.addr(0), "slow", "100000")
	client.hear("connecting")
	l.cables.IP(0, "link set cable0 up") // its SYN comes a second after the first one
	client.hear("done")
	l.want(0, "TCP", 1)
}

// TestHostsPart has a client with plain TCP whose request begins as a message of CLC does, and which waits for its answer.
func TestHostsPart(t *testing.T) {
	l := newLab(t)
	l.env[1] = []string{"GOSMC_BETWEEN_HOSTS=0"}
	s := l.serve()
	client := l.run(1, "part", l.addr(0), "waits", "0")
	s.hear("no") // it knows no such command
	client.hear("ended")
	l.want(0, "TCP", 1)
}

// TestHostsGreeting has a server that speaks first, with a client that speaks SMC-R.
func TestHostsGreeting(t *testing.T) {
	l := newLab(t)
	l.serve("hello")
	for _, how := range []string{"waits", "poll"} {
		if got := l.run(1, "greeted", l.addr(0), how, "5").hear("greeted"); got[0] != "5" {
			t.Errorf("the client has received %s bytes first, want 5", got[0])
		}
	}
	l.want(0, "SMC-R", 2)
}

// processesOf returns the processes of a run directory that have a verb: engines, or supervisors.
func processesOf(t *testing.T, verb, dir string) (pids []int) {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range files {
		text, _ := os.ReadFile(name)
		words := strings.Split(string(text), "\x00")
		if len(words) > 2 && words[1] == verb && strings.HasPrefix(words[2], dir) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestEngineKilled ends an engine: its connections end with a reset at both ends, and those that come later
// are carried by another one.
func TestEngineKilled(t *testing.T) {
	l := newLab(t)
	l.serve()
	reset := strconv.Itoa(int(syscall.ECONNRESET))
	for end := range 2 {
		client := l.run(1, "held", l.addr(0), "waits", "0")
		client.hear("held")
		engines := processesOf(t, "run-engine", l.dirs[end])
		if len(engines) != 1 {
			t.Fatalf("%d engines at end %d, want one", len(engines), end)
		}
		syscall.Kill(engines[0], syscall.SIGKILL)
		if got := client.hear("ended"); got[0] != reset {
			t.Errorf("when the engine at end %d was killed the client has error %s, want %s", end, got[0], reset)
		}
		time.Sleep(2 * time.Second)
		l.run(1, "hash", l.addr(0), "waits", "1000").hear("done")
	}
}

// TestHostsProgramKilled ends a server: its client hears of it.
func TestHostsProgramKilled(t *testing.T) {
	l := newLab(t)
	s := l.serve()
	client := l.run(1, "held", l.addr(0), "waits", "0")
	client.hear("held")
	s.cmd.Process.Kill()
	client.hear("ended")
}

// library returns a host of package smc at end 1.
func (l *lab) library() *host.Host {
	l.t.Helper()
	h, err := host.New(host.Config{
		Dir: l.dirs[1], UEIDs: []string{"GOSMC.TEST"}, SMCRPeers: []string{l.peers}, Namespace: l.cables.Run[1],
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { h.Close() })
	return h
}

// TestHostsLibraryClient has a program of package smc connect to one that knows TCP alone.
func TestHostsLibraryClient(t *testing.T) {
	l := newLab(t)
	h := l.library()
	ctx, cancel := context.WithTimeout(t.Context(), waitMost)
	defer cancel()
	s := l.serve()

	var c conn.Conn
	var err error
	l.cables.Visit(1, func() {
		c, err = h.Dial(ctx, "tcp", l.addr(0).String(), host.DialOptions{Require: conn.RequireSMCR})
	})
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(waitMost))
	c.Write([]byte("d"))
	received := sha256.New()
	if n, err := io.Copy(received, struct{ io.Reader }{c}); n != 30000001 || err != nil {
		t.Errorf("the library has received %d bytes, %v", n, err)
	}
	c.Close()
	s.hear("sent")
}

// TestHostsLibraryServer has a program that knows TCP alone connect to one of package smc.
func TestHostsLibraryServer(t *testing.T) {
	l := newLab(t)
	h := l.library()
	var listener *host.Listener
	var err error
	l.cables.Visit(1, func() {
		listener, err = h.Listen(t.Context(), "tcp", l.addr(1).String(), host.ListenOptions{})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client := l.run(0, "hash", l.addr(1), "poll", "5000000")
	listener.SetDeadline(time.Now().Add(waitMost / 2))
	c, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(waitMost))
	sum := uint64(0xcbf29ce484222325)
	if c.Mode() != conn.ModeSMCR {
		t.Fatalf("the connection is %v: %v", c.Mode(), c.Reason())
	}
	b, err := io.ReadAll(struct{ io.Reader }{c})
	for _, v := range b[1:] {
		sum = (sum ^ uint64(v)) * 0x100000001b3
	}
	if len(b) != 5000001 || err != nil {
		t.Errorf("the library has received %d bytes, %v", len(b), err)
	}
	fmt.Fprintf(c, "%d %016x", len(b)-1, sum)
	c.Close()
	client.hear("done")
}

// TestHostsPush has a program send and end at once, as the first one of its supervisor: nothing is lost.
func TestHostsPush(t *testing.T) {
	l := newLab(t)
	s := l.serve()
	for _, n := range []string{"1", "2000000"} {
		sent := l.run(1, "push", l.addr(0), "waits", n).hear("pushed")
		if got := s.hear("ended"); got[0] != "0" || got[1] != sent[1] {
			t.Errorf("of %s bytes the server has hash %s, error %s; want hash %s", n, got[1], got[0], sent[1])
		}
	}
	l.want(0, "SMC-R", 2)
}

// asks has a socket ask for TCP option 254.
func asks(_, _ string, c syscall.RawConn) (err error) {
	if controlErr := c.Control(func(fd uintptr) { err = option.Ask(fd) }); controlErr != nil {
		return controlErr
	}
	return err
}

// optionLab is a lab in which TCP option 254 says who speaks SMC-R.
func optionLab(t *testing.T) *lab {
	t.Helper()
	withOption(t)
	l := newLab(t)
	name, value := smctest.LibraryOption()
	for end := range l.env {
		l.env[end] = []string{"GOSMC_SMCR_PEERS=", name + "=" + value}
	}
	return l
}

// scripted is a connection of a client with TCP option 254 that does what the test says.
func (l *lab) scripted() *net.TCPConn {
	l.t.Helper()
	var c net.Conn
	var err error
	d := net.Dialer{Control: asks, Timeout: waitMost}
	d.SetMultipathTCP(false)
	l.cables.Visit(1, func() { c, err = d.Dial("tcp", l.addr(0).String()) })
	if err != nil {
		l.t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// TestHostsResetFirst has a client reset the connection before it has sent anything, or when it has sent a
// Proposal to a server that has not accepted yet: the program hears of the reset, and of nothing else.
func TestHostsResetFirst(t *testing.T) {
	l := optionLab(t)
	s := l.serve()
	hears := func(when string) {
		t.Helper()
		if got := s.hear("nothing"); got[0] != strconv.Itoa(int(syscall.ECONNRESET)) {
			t.Errorf("%s: the server has error %s, want %d", when, got[0], syscall.ECONNRESET)
		}
	}
	resets := func(when string) {
		t.Helper()
		c := l.scripted()
		time.Sleep(300 * time.Millisecond) // an engine waits for a word of it
		reset(c)
		hears(when)
	}
	resets("with an engine")
	proposal := make([]byte, 52)
	copy(proposal, "\xe2\xd4\xc3\xd9\x01\x00\x34\x10")
	copy(proposal[48:], "\xe2\xd4\xc3\xd9")
	s.cmd.Process.Signal(syscall.SIGSTOP)
	for _, b := range [][]byte{nil, proposal} {
		c := l.scripted()
		c.Write(b)
		time.Sleep(100 * time.Millisecond)
		reset(c)
	}
	time.Sleep(100 * time.Millisecond)
	s.cmd.Process.Signal(syscall.SIGCONT)
	hears("before accept")
	hears("before accept, after a Proposal")
	for _, pid := range processesOf(t, "run-supervise", l.dirs[0]) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	resets("with no supervisor")
}

// slowly starts a client at end 1, whose connect is under way for a second or more, as its first SYN is lost.
func (l *lab) slowly(how string) *program {
	l.t.Helper()
	client := l.run(1, "later", l.addr(0), how, "1000") // it connects a second after its word
	client.hear("here")
	l.cables.IP(0, "link set cable0 down")
	time.Sleep(1500 * time.Millisecond)
	l.cables.IP(0, "link set cable0 up")
	return client
}

// TestHostsInterrupted has a signal interrupt connect, which goes on: its connection is SMC-R as others are.
func TestHostsInterrupted(t *testing.T) {
	l := optionLab(t)
	l.serve()
	l.slowly("signal").hear("done")
	l.want(0, "SMC-R", 1)
}

// TestHostsCopied has a client copy a descriptor while connect is under way: that stays TCP, and the server,
// which expects CLC, is told so before anything else.
func TestHostsCopied(t *testing.T) {
	l := optionLab(t)
	var listener net.Listener
	var err error
	config := net.ListenConfig{Control: asks}
	config.SetMultipathTCP(false)
	l.cables.Visit(0, func() { listener, err = config.Listen(t.Context(), "tcp", l.addr(0).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	l.slowly("copy")
	listener.(*net.TCPListener).SetDeadline(time.Now().Add(waitMost))
	c, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const decline = 28
	b := make([]byte, decline+1)
	c.SetDeadline(time.Now().Add(waitMost))
	if _, err := io.ReadFull(c, b); err != nil || string(b[:5]) != "\xe2\xd4\xc3\xd9\x04" || b[decline] != 'h' {
		t.Errorf("the server receives %x, %v, want a Decline and h", b, err)
	}
}

// TestHostsStopped has a client whose supervisor is stopped: it waits for that once, and not with each
// connection.
func TestHostsStopped(t *testing.T) {
	l := optionLab(t)
	l.serve()
	client := l.run(1, "laters", l.addr(0), "waits", "6")
	client.hear("here")
	began := time.Now()
	for _, pid := range processesOf(t, "run-supervise", l.dirs[1]) {
		syscall.Kill(pid, syscall.SIGSTOP)
		defer syscall.Kill(pid, syscall.SIGKILL)
	}
	client.hear("done")
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("6 connections have taken %v", took)
	}
}
