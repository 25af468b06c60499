package host

import (
	"context"
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

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/agent"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/smctest"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){
		"host-pod": childPod,
	})
}

// childPod is a program in a container, roughly: it goes into an empty directory, its first argument,
// and becomes the user of its second, without capabilities. Then it serves and dials as it is told.
func childPod(p *smctest.Parent) {
	uid, err := strconv.Atoi(p.Args[1])
	p.Check(err)
	if p.Args[0] != "" {
		p.Check(syscall.Chroot(p.Args[0]))
		p.Check(syscall.Chdir("/"))
	}
	becomeUser(p, uid)
	h, err := New(Config{})
	p.Check(err)
	for {
		words := strings.Fields(p.Hear())
		switch words[0] {
		case "listen":
			l, err := h.Listen(context.Background(), "tcp", words[1], ListenOptions{})
			p.Check(err)
			go func() {
				for {
					s, err := l.Accept()
					p.Check(err)
					go func() {
						defer s.Close()
						io.Copy(s, s)
					}()
				}
			}()
			p.Say("listening %v %v", l.Addr(), l.paired)
		case "dial": // address, number of connections, bytes of each
			count, err := strconv.Atoi(words[2])
			p.Check(err)
			size, err := strconv.Atoi(words[3])
			p.Check(err)
			modes := make(map[string]int)
			for i := range count {
				c, err := h.Dial(context.Background(), "tcp", words[1], DialOptions{})
				p.Check(err)
				modes[strings.TrimSpace(fmt.Sprintf("%v %v", c.Mode(), c.Reason().Tag))]++
				p.Check(through(c, size, uint64(i)))
				p.Check(c.Close())
			}
			p.Say("dialled %v", modes)
		case "rush": // address, number of connections, and how many at a time
			p.Say("rushed %v", rush(p, h, words[1:]))
		case "fresh": // as "dial", and each connection is another program's, as far as the agent knows
			count, err := strconv.Atoi(words[2])
			p.Check(err)
			modes := make(map[string]int)
			var worst time.Duration
			for i := range count {
				h, err := New(Config{})
				p.Check(err)
				begin := time.Now()
				c, err := h.Dial(context.Background(), "tcp", words[1], DialOptions{})
				p.Check(err)
				worst = max(worst, time.Since(begin))
				modes[c.Mode().String()]++
				p.Check(through(c, 2000, uint64(i)))
				p.Check(c.Close())
				p.Check(h.Close())
			}
			p.Say("worst %v", worst)
			p.Say("dialled %v", modes)
		case "plain": // a server without SMC
			l, err := net.Listen("tcp", words[1])
			p.Check(err)
			go func() {
				for {
					s, err := l.Accept()
					p.Check(err)
					go func() {
						defer s.Close()
						io.Copy(struct{ io.Writer }{s}, struct{ io.Reader }{s}) // without splice
					}()
				}
			}()
			p.Say("listening %v", l.Addr())
		case "measure":
			p.Say("measured %s", measure(p, h, words[2], words[1] == "TCP"))
		case "path": // a connection until it ends, which finds out when the network is cut
			c, err := h.Dial(context.Background(), "tcp", words[1], DialOptions{})
			p.Check(err)
			var idle int
			raw, err := c.SyscallConn()
			p.Check(err)
			p.Check(raw.Control(func(fd uintptr) {
				idle, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
				if on, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE); on == 0 {
					idle = 0
				}
				for n := 1; n > 0; time.Sleep(time.Millisecond) { // of CLC: keepalive begins when all is acknowledged
					n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
				}
			}))
			p.Check(err)
			p.Check(through(c, 1000, 0))
			p.Say("path %v, keepalive after %d s", c.Mode(), idle)
			p.Check(c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2}))
			_, err = c.Read(make([]byte, 1))
			p.Say("ended: %v", err)
		case "hold": // a connection that moves bytes until the next word
			c, err := h.Dial(context.Background(), "tcp", words[1], DialOptions{})
			p.Check(err)
			p.Say("holding %v", c.Mode())
			next := make(chan string, 1)
			go func() { next <- p.Hear() }()
			for i := uint64(0); len(next) == 0; i++ {
				p.Check(through(c, 200_000, i))
			}
			<-next
			p.Check(c.Close())
			p.Say("held")
		}
	}
}

// rush makes connections, several at a time, and returns how many there were of each mode.
func rush(p *smctest.Parent, h *Host, words []string) map[string]int {
	count, err := strconv.Atoi(words[1])
	p.Check(err)
	together, err := strconv.Atoi(words[2])
	p.Check(err)
	modes := make(map[string]int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range together {
		wg.Go(func() {
			for range count / together {
				c, err := h.Dial(context.Background(), "tcp", words[0], DialOptions{})
				p.Check(err)
				mu.Lock()
				modes[strings.TrimSpace(fmt.Sprintf("%v %v", c.Mode(), c.Reason().Tag))]++
				mu.Unlock()
				p.Check(through(c, 2, 0))
				p.Check(c.Close())
			}
		})
	}
	wg.Wait()
	return modes
}

// measure returns the time of a round trip and of a connection, and the rate of a stream to an echo.
func measure(p *smctest.Parent, h *Host, addr string, plain bool) string {
	dial := func() net.Conn {
		if plain {
			c, err := net.Dial("tcp", addr)
			p.Check(err)
			return c
		}
		c, err := h.Dial(context.Background(), "tcp", addr, DialOptions{})
		p.Check(err)
		return c
	}
	c := dial()
	word := make([]byte, 64)
	const trips, conns, size = 20_000, 2_000, 1 << 30
	begin := time.Now()
	for range trips {
		_, err := c.Write(word)
		p.Check(err)
		_, err = io.ReadFull(c, word)
		p.Check(err)
	}
	trip := time.Since(begin) / trips
	begin = time.Now()
	go func() {
		b := make([]byte, 64<<10)
		for n := 0; n < size; n += len(b) {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}()
	_, err := io.CopyN(io.Discard, struct{ io.Reader }{c}, size)
	p.Check(err)
	rate := float64(size) / time.Since(begin).Seconds() / 1e9
	c.Close()
	begin = time.Now()
	for range conns {
		dial().Close()
	}
	each := time.Since(begin) / conns
	return fmt.Sprintf("round trip %v, echo of a stream %.2f GB/s, connection %v", trip, rate, each)
}

// through moves bytes to an echo and back.
func through(c net.Conn, size int, seed uint64) error {
	sent, got := make([]byte, size), make([]byte, size)
	smctest.Pattern(sent, seed)
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		wrote <- err
	}()
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if err := <-wrote; err != nil {
		return err
	}
	return smctest.CheckPattern(got, seed)
}

// A podNet is two network namespaces with a cable, and an agent outside of both.
type podNet struct {
	t     testing.TB
	run   [2]func(func())
	addr  []netip.Addr // of the server, at end 0
	cut   func()       // takes the cable away from end 0
	cfg   agent.Config
	agent *agent.Agent
}

func newPodNet(t testing.TB) *podNet {
	t.Helper()
	needRoot(t)
	c := smctest.NewCables(t, 1)
	n := &podNet{t: t, run: c.Run, addr: []netip.Addr{c.Addr[0][0], c.Six[0][0]}}
	n.cut = func() { c.IP(0, "link set cable0 down") }
	n.prepare()
	return n
}

// prepare starts an agent for the control group of the test.
func (n *podNet) prepare() {
	t := n.t
	t.Helper()
	root, err := bpf.CgroupRoot()
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	n.cfg = agent.Config{
		Socket: filepath.Join(dir, port.SocketName), Cgroup: smctest.EnterCgroup(t, root),
		Pins: filepath.Join(smctest.MountBPF(t), "gosmc"), NoOption: true, NoPort: true,
	}
	n.start()
	t.Cleanup(func() { n.agent.Close() })
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

// pod starts a program at an end of the cable, in an empty root unless that is "".
func (n *podNet) pod(end, uid int, root string) (p *smctest.Process) {
	n.t.Helper()
	n.run[end](func() { p = smctest.Start(n.t, "host-pod", root, strconv.Itoa(uid)) })
	return p
}

// emptyRoot is a directory with nothing in it, that others may enter.
func emptyRoot(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func serveAt(p *smctest.Process, addr netip.Addr) string {
	p.Say("listen %v", netip.AddrPortFrom(addr, 0))
	where, _, _ := strings.Cut(p.Hear("listening"), " ")
	return where
}

const modeMoved = "map[SMC-D:%d]"

// allMoved dials so many times, again and again until all connections of a round are moved: on a busy
// machine a program may take too long for its answer, and TCP is right then.
func allMoved(t testing.TB, client *smctest.Process, where string, count int) {
	t.Helper()
	smctest.Eventually(t, time.Minute, "a round in which all connections are moved", func() bool {
		client.Say("dial %s %d 2000", where, count)
		got := client.Hear("dialled")
		if got != fmt.Sprintf(modeMoved, count) {
			t.Logf("%s: %s", where, got)
		}
		return got == fmt.Sprintf(modeMoved, count)
	})
}

// TestPods has two users in two network namespaces, in roots with nothing in them, without
// capabilities: all connections are moved, over both families. The agent is closed and started again
// meanwhile.
func TestPods(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, userA, emptyRoot(t)), n.pod(1, userB, emptyRoot(t))
	for _, addr := range n.addr {
		where := serveAt(server, addr)
		allMoved(t, client, where, 100)
	}
	s, err := n.agent.Status()
	if err != nil || s.Introductions.Introduced == 0 || s.Introductions.Namespaces != 3 {
		t.Errorf("status %+v, %v; want introductions, and rooms in three namespaces", s.Introductions, err)
	}
	where := serveAt(server, n.addr[0])
	client.Say("hold %s", where)
	if got := client.Hear("holding"); got != "SMC-D" {
		t.Errorf("a connection is %s", got)
	}
	n.agent.Close()
	other := n.pod(1, userA, emptyRoot(t))
	other.Say("dial %s 5 2000", where)
	if got := other.Hear("dialled"); got != "map[TCP NO_AGENT:5]" {
		t.Errorf("without an agent: %s", got)
	}
	n.start()
	allMoved(t, other, where, 1)
	client.Say("enough")
	client.Hear("held")
	allMoved(t, client, where, 10)
}

// TestPodsRush has eight goroutines make the first connections of two processes, and all others.
func TestPodsRush(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, userA, emptyRoot(t)), n.pod(1, userB, emptyRoot(t))
	where := serveAt(server, n.addr[0])
	const count = 400
	smctest.Eventually(t, time.Minute, "a round in which all connections are moved", func() bool {
		client.Say("rush %s %d 8", where, count)
		got := client.Hear("rushed")
		t.Log(got)
		return got == fmt.Sprintf(modeMoved, count)
	})
}

// TestPodsEnd kills programs and the last one of a namespace: the agent leaves it.
func TestPodsEnd(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, userA, ""), n.pod(1, userB, "")
	where := serveAt(server, n.addr[0])
	client.Say("hold %s", where)
	client.Hear("holding")
	client.Kill()
	client.Wait()
	smctest.Eventually(t, 20*time.Second, "the agent to leave", func() bool {
		s, err := n.agent.Status()
		return err == nil && s.Introductions.Namespaces == 2
	})
	client = n.pod(1, userB, "")
	allMoved(t, client, where, 10)
}

// TestPodsPath cuts the network between two programs that share memory: their connection ends as over TCP.
func TestPodsPath(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, userA, ""), n.pod(1, userB, "")
	where := serveAt(server, n.addr[0])
	allMoved(t, client, where, 1)
	client.Say("path %s", where)
	if got, want := client.Hear("path"), "SMC-D, keepalive after 15 s"; got != want {
		t.Fatalf("the connection is %s, want %s", got, want)
	}
	n.cut()
	if got := client.Hear("ended: "); !strings.Contains(got, "timed out") && !strings.Contains(got, "reset") {
		t.Errorf("the connection ended with %q", got)
	}
}

// newNATNet is a podNet whose ends are joined by a router, in a namespace of its own. The router translates the
// address and the port of a service to those of the server, and hides the client behind its own address.
func newNATNet(t testing.TB) (n *podNet, service string, route func(port string)) {
	t.Helper()
	needRoot(t)
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: %v", tool, err)
		}
	}
	n = &podNet{t: t, addr: []netip.Addr{netip.MustParseAddr("10.98.0.2")}}
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
	return n, "10.96.0.1:6379", func(port string) {
		in(router, "nft add rule ip gosmc pre ip daddr 10.96.0.1 tcp dport 6379 dnat to 10.98.0.2:"+port)
	}
}

// TestPodsNAT connects to a service address, and is hidden behind another address. Neither end sees the other's.
func TestPodsNAT(t *testing.T) {
	n, service, route := newNATNet(t)
	server, client := n.pod(0, userA, emptyRoot(t)), n.pod(1, userB, emptyRoot(t))
	_, port, _ := net.SplitHostPort(serveAt(server, n.addr[0]))
	route(port)
	allMoved(t, client, service, 100)
}

// TestPodsRivals has a process of a third user in each namespace, which listens, dials, and has a device of its own:
// each client has the bytes of its own server.
func TestPodsRivals(t *testing.T) {
	n := newPodNet(t)
	var addrs []string
	var clients []*smctest.Process
	for uid := userA; uid < userA+3; uid++ {
		server := n.pod(0, uid, emptyRoot(t))
		addrs = append(addrs, serveAt(server, n.addr[0]))
		clients = append(clients, n.pod(1, uid+10, emptyRoot(t)))
	}
	for i, c := range clients {
		for j := range addrs {
			allMoved(t, c, addrs[(i+j)%len(addrs)], 5)
		}
	}
}

// BenchmarkPods measures round trips, bulk and connections between two namespaces and two users, and TCP over the
// same cable.
func BenchmarkPods(b *testing.B) {
	n := newPodNet(b)
	server, client := n.pod(0, userA, ""), n.pod(1, userB, "")
	where := serveAt(server, n.addr[0])
	plain := n.pod(0, userA, "")
	plain.Say("plain %v", netip.AddrPortFrom(n.addr[0], 0))
	at, _, _ := strings.Cut(plain.Hear("listening"), " ")
	for range b.N {
		for name, addr := range map[string]string{"SMC-D": where, "TCP": at} {
			client.Say("measure %s %s", name, addr)
			b.Logf("%-6s %s", name, client.Hear("measured"))
		}
	}
}
