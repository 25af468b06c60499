package supervisor

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/smctest"
)

// TestPodsWays has servers that listen and accept in ways of their own, and clients that would send
// with the SYN: the connections are moved at both ends, or at none.
func TestPodsWays(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, podUserA), n.pod(1, podUserB)
	for _, tt := range []struct {
		server, client string
		moved          int
	}{
		{"deferred", "", 5},
		{"fast", "", 5},
		{"fast", "fast", 0},
		{"shared", "", 5},
		{"forked", "", 5},
		{"inherited", "", 5},
	} {
		for _, addr := range n.addr {
			port := serveAt(server, addr, "serve %v "+tt.server)
			t.Logf("%s, %s, %v", tt.server, tt.client, addr)
			dialAllAs(t, client, addr.String(), port, 5, 20_000, tt.moved, tt.client)
		}
	}
	server.Kill() // with its programs, which end after one another
	smctest.Eventually(t, time.Minute, "all programs to end", func() bool {
		list, err := os.ReadFile(filepath.Join(n.cfg.Cgroup, "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range strings.Fields(string(list)) {
			if pid != strconv.Itoa(os.Getpid()) && pid != strconv.Itoa(client.PID()) {
				return false
			}
		}
		return true
	})
}

// TestPodsSamePort has a client whose own namespace has a listener at the port of its server, at all
// addresses, as the servers of many containers have.
func TestPodsSamePort(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, podUserA), n.pod(1, podUserA)
	for i, addr := range n.addr {
		port := serveAt(server, addr, "serve %v")
		client.Say("serve %v alone %s", []string{"0.0.0.0", "::"}[i], port)
		client.Hear("listening")
		dialAll(t, client, addr.String(), port, 5, 2000, 5)
		dialAll(t, client, []string{"127.0.0.1", "::1"}[i], port, 5, 2000, 5)
	}
}

// TestReachLate has the end of a pair come when the client waits no more, and has not ended the conversation yet: the
// client takes it, as its supervisor believes.
func TestReachLate(t *testing.T) {
	n := newPodNet(t)
	server := n.pod(0, podUserA)
	port := serveAt(server, n.addr[0], "serve %v")
	answersLate(t, n, 1, proto.KindReach, proto.RoleClient, nil, "connects", n.addr[0].String(), port)
}

// TestMeetLate is TestReachLate for a server.
func TestMeetLate(t *testing.T) {
	n := newPodNet(t)
	client := n.pod(1, podUserA)
	answersLate(t, n, 0, proto.KindMeet, proto.RoleServer, func(port string) {
		client.Say("leave %v %s 1", n.addr[0], port)
		client.Hear("left")
	}, "accepts", n.addr[0].String())
}

// answersLate runs a program at an end of the cable, whose supervisor gives it an end when it waits no more. listens is
// called when it listens; nil: it does not.
func answersLate(t *testing.T, n *podNet, end int, kind proto.Kind, role byte, listens func(port string), args ...string) {
	t.Helper()
	l := newLiar(t, map[proto.Kind]string{proto.KindAnnounce: "honest", proto.KindBoard: "honest"}, nil)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, n.program, args...)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(),
		"LD_PRELOAD="+n.library, proto.EnvSocket+"="+l.path, fmt.Sprintf("GOSMC_RUN_TOKENS=%d", pairing.Name))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	l.give = func(m proto.Message) int {
		if m.Kind != kind {
			t.Errorf("a message of kind %d, want %d", m.Kind, kind)
		}
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return -1
		}
		name := proto.Name{Role: role, IPv6: m.IPv6, Local: m.Local, Peer: m.Peer, Unique: 1}
		if err := unix.Bind(pair[0], &unix.SockaddrUnix{Name: name.String()}); err != nil {
			t.Error(err)
		}
		if _, err := unix.Write(pair[1], []byte("by the pair")); err != nil {
			t.Error(err)
		}
		unix.Close(pair[1])
		time.Sleep(100 * time.Millisecond) // until it waits
		if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
			t.Error(err)
		}
		time.Sleep(2500 * time.Millisecond) // the program waits for two seconds
		return pair[0]
	}
	l.gave = func() { cmd.Process.Signal(unix.SIGCONT) }
	n.run[end](func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	text := bufio.NewScanner(out)
	if listens != nil {
		text.Scan()
		listens(strings.TrimPrefix(text.Text(), "listening "))
	}
	text.Scan()
	if got := text.Text(); got != "moved by the pair" {
		t.Errorf("the program has %q, want the end that its supervisor takes for given", got)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestPodsMachine has clients ask for connections to the servers that the list of the machine's addresses has.
func TestPodsMachine(t *testing.T) {
	n := newPodNet(t)
	server := n.pod(0, podUserA)
	for _, addr := range n.addr {
		port := serveAt(server, addr, "serve %v")
		for list, moved := range map[string]int{
			"none": 0, "!" + addr.String(): 0, "192.0.2.0/24": 0, "x": 0, addr.String(): 2, "any": 2, "!192.0.2.1": 2,
		} {
			t.Setenv(config.Variables[config.MachineAddress], list)
			client := n.pod(1, podUserB)
			t.Log(list, addr)
			dialAll(t, client, addr.String(), port, 2, 2000, moved)
			client.Kill()
		}
	}
}
