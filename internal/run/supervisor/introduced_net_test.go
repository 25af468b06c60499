package supervisor

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/agent"
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/preload"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){"run-pod": childPod, "run-told": childTold})
}

// Users of these tests.
const (
	podUserA = 60001
	podUserB = 60002
)

// childPod is a supervisor in a network namespace, as a user: the first argument. It has programs
// with the library do as it is told. The second argument is the run directory, the third the
// library, the fourth the program.
func childPod(p *smctest.Parent) {
	uid, err := strconv.Atoi(p.Args[0])
	p.Check(err)
	dir, library, program := p.Args[1], p.Args[2], p.Args[3]
	p.Check(os.Chown(dir, uid, uid))
	p.Check(syscall.Setgroups(nil))
	p.Check(syscall.Setgid(uid))
	p.Check(syscall.Setuid(uid))
	s, err := newSupervisor(dir, os.Getpid())
	p.Check(err)
	served := make(chan struct{})
	go func() {
		p.Check(s.serve())
		close(served)
	}()
	environ := append(os.Environ(),
		"LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path, fmt.Sprintf("GOSMC_RUN_TOKENS=%d", pairing.Name))
	var late *os.File
	for {
		words := strings.Fields(p.Hear())
		cmd := exec.Command(program, words...)
		cmd.Env = environ
		switch words[0] {
		case "bare": // without us
			cmd = exec.Command(program, words[1:]...)
		case "go":
			late.WriteString("go\n")
			continue
		case "end":
			p.Check(s.Stop())
			<-served
			s.close()
			p.Say("ended")
			continue
		case "counts":
			st := view{&s.record, s.Path, nil}.Status()
			var reasons []string
			for _, f := range st.Counters.Fallbacks {
				reasons = append(reasons, fmt.Sprintf("%s:%d", f.Tag, f.Count))
			}
			p.Say("counts moved %d %v", st.Counters.Connections[proto.ModeUnix], reasons)
			continue
		}
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		p.Check(err)
		r, w, err := os.Pipe()
		p.Check(err)
		cmd.Stdin = r
		p.Check(cmd.Start())
		r.Close()
		if strings.Contains(strings.Join(words, " "), "serve") {
			late = w
			go func() {
				for lines := bufio.NewScanner(out); lines.Scan(); {
					p.Say("%s", lines.Text())
				}
			}()
			continue
		}
		line, _ := bufio.NewReader(out).ReadString('\n')
		p.Check(cmd.Wait())
		w.Close()
		p.Say("%s", strings.TrimSpace(line))
	}
}

// A podNet is two network namespaces, and an agent outside of both.
type podNet struct {
	t       testing.TB
	run     [2]func(func())
	addr    []netip.Addr // of the server, at end 0
	cfg     agent.Config
	agent   *agent.Agent
	library string
	program string
}

func newPodNet(t testing.TB) *podNet {
	t.Helper()
	n := &podNet{t: t}
	n.needs()
	c := smctest.NewCables(t, 1)
	n.run, n.addr = c.Run, []netip.Addr{c.Addr[0][0], c.Six[0][0]}
	n.prepare()
	return n
}

func (n *podNet) needs() {
	n.t.Helper()
	if os.Geteuid() != 0 {
		n.t.Skip("needs root")
	}
	if preload.Library() == nil {
		n.t.Skip("no library for this architecture")
	}
	smctest.Apart()
	n.library, n.program = filepath.Join(n.dir(), "libgosmc.so"), filepath.Join(n.dir(), "reach")
	if err := os.WriteFile(n.library, preload.Library(), 0o555); err != nil {
		n.t.Fatal(err)
	}
	compile(n.t, "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", n.program, "testdata/reach.c")
}

// dir returns a directory with a short name that other users can enter.
func (n *podNet) dir() string {
	n.t.Helper()
	dir, err := os.MkdirTemp("", "pod")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// prepare starts an agent for the control group of the test.
func (n *podNet) prepare() {
	n.t.Helper()
	root, err := bpf.CgroupRoot()
	if err != nil {
		n.t.Skip(err)
	}
	n.cfg = agent.Config{
		Socket: filepath.Join(n.t.TempDir(), port.SocketName), Cgroup: smctest.EnterCgroup(n.t, root),
		Pins: filepath.Join(smctest.MountBPF(n.t), "gosmc"), NoOption: true, NoPort: true,
	}
	n.start()
	n.t.Cleanup(func() { n.agent.Close() })
}

func (n *podNet) start() {
	n.t.Helper()
	var err error
	if n.agent, err = agent.Start(n.cfg); err != nil {
		n.t.Fatal(err)
	}
	s, err := n.agent.Status()
	if err != nil || !s.Introductions.Enabled {
		n.t.Skipf("the kernel pairs no sockets: %+v, %v", s.Introductions, err)
	}
}

// pod starts a supervisor at an end of the cable.
func (n *podNet) pod(end, uid int) (p *smctest.Process) {
	n.t.Helper()
	dir := n.dir()
	n.run[end](func() { p = smctest.Start(n.t, "run-pod", strconv.Itoa(uid), dir, n.library, n.program) })
	return p
}

// serveAt has a pod's program listen, and returns its port.
func serveAt(p *smctest.Process, addr netip.Addr, how string) string {
	p.Say(how, addr)
	return strings.TrimSpace(p.Hear("listening"))
}

// dialAll has a client make connections, again and again until a round comes out as it should: on
// a busy machine a program may take too long for its word, and TCP is right then.
func dialAll(t testing.TB, client *smctest.Process, addr, port string, count, size, moved int) (sees string) {
	t.Helper()
	return dialAllAs(t, client, addr, port, count, size, moved, "")
}

// dialAllAs is dialAll in a way that the program knows.
func dialAllAs(
	t testing.TB, client *smctest.Process, addr, port string, count, size, moved int, how string,
) (sees string) {
	t.Helper()
	want := fmt.Sprintf("%d here %d there %d sees ", count, moved, moved)
	smctest.Eventually(t, time.Minute, "a round with "+want, func() bool {
		client.Say("dial %s %s %d %d %s", addr, port, count, size, how)
		got := client.Hear("dialled")
		rest, ok := strings.CutPrefix(strings.TrimSpace(got), want)
		if !ok {
			t.Logf("%s", got)
		}
		sees = rest
		return ok
	})
	return sees
}

// TestPods has a client and a server in two network namespaces, of one user and of two: all
// connections are moved, and have rings if it is one. The agent is closed and started again meanwhile.
func TestPods(t *testing.T) {
	n := newPodNet(t)
	for _, users := range [][2]int{{podUserA, podUserA}, {podUserA, podUserB}} {
		server, client := n.pod(0, users[0]), n.pod(1, users[1])
		for _, addr := range n.addr {
			port := serveAt(server, addr, "serve %v")
			dialAll(t, client, addr.String(), port, 50, 2000, 50)
			sees := dialAll(t, client, addr.String(), port, 2, 3_000_000, 2)
			want := " rings 2" // in both directions
			if users[0] != users[1] {
				want = " rings 2" // of which the agent has made the memory
			}
			if !strings.HasSuffix(sees, want) {
				t.Errorf("users %v: the client sees %q, want%s", users, sees, want)
			}
		}
		port := serveAt(server, n.addr[0], "serve %v")
		n.agent.Close()
		dialAll(t, client, n.addr[0].String(), port, 5, 2000, 0)
		client.Say("counts")
		if got := client.Hear("counts"); !strings.Contains(got, "NO_AGENT") {
			t.Errorf("without an agent: %s", got)
		}
		n.start()
		dialAll(t, client, n.addr[0].String(), port, 5, 2000, 5)
	}
}

// newNATNet is a podNet whose ends are joined by a router, in a namespace of its own. The router
// translates the address and the port of a service to those of the server, and hides the client
// behind its own address.
func newNATNet(t testing.TB) (n *podNet, service netip.AddrPort, route func(port string)) {
	t.Helper()
	n = &podNet{t: t, addr: []netip.Addr{netip.MustParseAddr("10.98.0.2")}}
	n.needs()
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: %v", tool, err)
		}
	}
	router, _ := smctest.EnterNamespace(t)
	in := func(run func(func()), line string) {
		t.Helper()
		var out []byte
		var err error
		words := strings.Fields(line)
		run(func() { out, err = exec.Command(words[0], words[1:]...).CombinedOutput() })
		if err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
	for end := range n.run {
		var name string
		n.run[end], name = smctest.EnterNamespace(t)
		in(router, fmt.Sprintf("ip link add v%d type veth peer name p%d", end, end))
		in(router, fmt.Sprintf("ip link set p%d netns %s", end, name))
		in(router, fmt.Sprintf("ip addr add 10.98.%d.1/24 dev v%d", end, end))
		in(router, fmt.Sprintf("ip link set v%d up", end))
		in(n.run[end], "ip link set lo up")
		in(n.run[end], fmt.Sprintf("ip addr add 10.98.%d.2/24 dev p%d", end, end))
		in(n.run[end], fmt.Sprintf("ip link set p%d up", end))
		in(n.run[end], fmt.Sprintf("ip route add default via 10.98.%d.1", end))
	}
	var err error
	router(func() { err = os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	if err != nil {
		t.Fatal(err)
	}
	in(router, "nft add table ip gosmc")
	in(router, "nft add chain ip gosmc pre { type nat hook prerouting priority -100 ; }")
	in(router, "nft add chain ip gosmc post { type nat hook postrouting priority 100 ; }")
	in(router, "nft add rule ip gosmc post masquerade")
	n.prepare()
	return n, netip.MustParseAddrPort("10.96.0.1:6379"), func(port string) {
		in(router, "nft add rule ip gosmc pre ip daddr 10.96.0.1 tcp dport 6379 dnat to 10.98.0.2:"+port)
	}
}

// TestPodsNAT connects to a service address, hidden behind the router's. Each end sees the
// addresses that TCP has there.
func TestPodsNAT(t *testing.T) {
	n, service, route := newNATNet(t)
	server, client := n.pod(0, podUserA), n.pod(1, podUserB)
	port := serveAt(server, n.addr[0], "serve %v")
	route(port)
	sees := dialAll(t, client, service.Addr().String(), "6379", 100, 2000, 100)
	if want := "moved 10.98.0.2 " + port + " 10.98.0.1 "; !strings.HasPrefix(sees, want) {
		t.Errorf("the server sees %q, want %q", sees, want)
	}
}

// TestPodsLate has clients that have sent and ended before their server accepts: nothing is lost,
// whether the server accepts in time for the pair, or later, when the connection was joined to
// TCP.
func TestPodsLate(t *testing.T) {
	n := newPodNet(t)
	client := n.pod(1, podUserB)
	for _, joined := range []bool{false, true} {
		server := n.pod(0, podUserA)
		port := serveAt(server, n.addr[0], "serve %v late")
		client.Say("leave %v %s 20", n.addr[0], port)
		client.Hear("left")
		if joined {
			smctest.Eventually(t, time.Minute, "the connections to be joined to TCP", func() bool {
				s, err := n.agent.Status()
				return err == nil && s.Introductions.Waiting == 0
			})
		}
		server.Say("go")
		for range 20 {
			got := strings.Fields(server.Hear("served"))
			if len(got) != 2 || got[1] != "8" || joined && got[0] != "tcp" {
				t.Errorf("joined %v: served %q, want 8 bytes", joined, got)
			}
		}
	}
}

// TestPodsStranger has servers that take nothing over: a bare one, and one whose supervisor has
// gone. All bytes arrive over TCP, joined to the client's end if that had one; the next
// connections are TCP from their beginning.
func TestPodsStranger(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, podUserA), n.pod(1, podUserB)
	addr := n.addr[0].String()
	port := serveAt(server, n.addr[0], "bare serve %v")
	dialAll(t, client, addr, port, 5, 20_000, 0)
	client.Say("counts")
	if got := client.Hear("counts"); strings.TrimSpace(got) != "moved 0 []" {
		t.Errorf("to a bare server: %s, want nothing to be told", got)
	}
	port = serveAt(server, n.addr[0], "serve %v")
	dialAll(t, client, addr, port, 5, 20_000, 5)
	server.Say("end")
	server.Hear("ended")
	client.Say("dial %s %s 5 20000", addr, port)
	if got := client.Hear("dialled"); !strings.HasPrefix(strings.TrimSpace(got), "5 here 1 there 0 sees tcp ") {
		t.Errorf("without the server's supervisor: %s, want one connection that is joined to TCP", got)
	}
}

// TestIntroducedPolicy has a server whose policy refuses one of its addresses, and a machine whose
// policy refuses other users: both ends of the connections are TCP.
func TestIntroducedPolicy(t *testing.T) {
	n := newPodNet(t)
	t.Setenv("GOSMC_LISTEN_ADDRESSES", "!"+n.addr[0].String())
	server := n.pod(0, podUserA)
	os.Unsetenv("GOSMC_LISTEN_ADDRESSES")
	client := n.pod(1, podUserA)
	port := serveAt(server, netip.IPv6Unspecified(), "serve %v")
	dialAll(t, client, n.addr[1].String(), port, 3, 2000, 3)
	dialAll(t, client, n.addr[0].String(), port, 3, 2000, 0)
	n.agent.Close()
	n.cfg.Introduce = &introduce.Users{Mode: introduce.ModeSame}
	n.start()
	other := n.pod(1, podUserB)
	dialAll(t, client, n.addr[1].String(), port, 3, 2000, 3)
	dialAll(t, other, n.addr[1].String(), port, 3, 2000, 0)
	other.Say("counts")
	if got := other.Hear("counts"); !strings.Contains(got, "OTHER_USER") {
		t.Errorf("the reason of another user: %s", got)
	}
}

// TestPatience lets many connections wait in vain: all together a tenth of the time, and what was
// saved.
func TestPatience(t *testing.T) {
	var p patience
	now := time.Unix(1000, 0)
	begin, vain := now, time.Duration(0)
	for range 10_000 {
		wait := p.left(now)
		if wait > meetTime || wait < leastWait {
			t.Fatalf("one connection may wait %v", wait)
		}
		p.spend(wait)
		if wait > leastWait {
			vain += wait
		}
		now = now.Add(wait)
	}
	if most := vainMost + now.Sub(begin)/vainShare; vain > most {
		t.Errorf("connections wait %v in vain in %v, want %v at most", vain, now.Sub(begin), most)
	}
	if now = now.Add(time.Hour); p.left(now) != meetTime || p.credit > vainMost {
		t.Errorf("after an hour one may wait %v, all %v", p.left(now), p.credit)
	}
}

// TestPodsForeignName has another user show a socket of another network namespace, and listen at the name that the agent
// has there: the supervisor does not take whoever is at that name in its own namespace for the agent, who could hand the
// challenge on to the true one.
func TestPodsForeignName(t *testing.T) {
	n := newPodNet(t)
	tcp := -1 // of a connection of the namespace with itself
	n.run[0](func() {
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(n.addr[0], 0)))
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { listener.Close() })
		c, err := net.DialTCP("tcp", nil, listener.Addr().(*net.TCPAddr))
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { c.Close() })
		f, err := c.File()
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { f.Close() })
		tcp = int(f.Fd())
	})
	if t.Failed() {
		return
	}
	var name string
	smctest.Eventually(t, time.Minute, "the agent's name in the other namespace", func() (ok bool) {
		n.run[0](func() {
			var err error
			name, err = pairing.ServiceName(uintptr(tcp))
			ok = err == nil
		})
		return ok
	})
	impostor, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: "@" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer impostor.Close()
	f, err := newFollowed()
	if err != nil {
		t.Fatal(err)
	}
	f.policy = &config.Policy{}
	s := emptySupervisor(f)
	ours, err1 := unix.Getsockname(tcp)
	theirs, err2 := unix.Getpeername(tcp)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	c := &toldLink{tcp: [2]int{-1, tcp}}
	c.m[1] = proto.Message{Kind: proto.KindMeet, Local: proto.AddrPort(ours), Peer: proto.AddrPort(theirs)}
	if end := answered(t, c.ask(t, s, 1, false)); end >= 0 {
		t.Error("a server that has no client has an end")
	}
	s.Mu.Lock()
	s.introduced.stop()
	s.Mu.Unlock()
	queue, err := impostor.File()
	if err != nil {
		t.Fatal(err)
	}
	defer queue.Close()
	waits := []unix.PollFd{{Fd: int32(queue.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(waits, 0); n != 0 || err != nil {
		t.Errorf("somebody has connected to a name of another network namespace: %d, %v", n, err)
	}
}
