package host

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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

// childPod is a program in a container, roughly: it goes into an empty directory, its first argument, and becomes
// the user of its second, without capabilities. Then it serves and dials as it is told.
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
	t      testing.TB
	cables *smctest.Cables
	cfg    agent.Config
	agent  *agent.Agent
}

func newPodNet(t testing.TB) *podNet {
	t.Helper()
	needRoot(t)
	root, err := bpf.CgroupRoot()
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	n := &podNet{t: t, cables: smctest.NewCables(t, 1)}
	n.cfg = agent.Config{
		Socket: filepath.Join(dir, port.SocketName), Cgroup: smctest.EnterCgroup(t, root),
		Pins: filepath.Join(smctest.MountBPF(t), "gosmc"), NoOption: true, NoPort: true,
	}
	n.start()
	t.Cleanup(func() { n.agent.Close() })
	return n
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
	n.cables.Run[end](func() { p = smctest.Start(n.t, "host-pod", root, strconv.Itoa(uid)) })
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

// allMoved dials so many times, again and again until all connections of a round are moved: on a busy machine a
// program may take too long for its answer, and TCP is right then.
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

// TestPods has two users in two network namespaces, in roots with nothing in them, without capabilities: all
// connections are moved, over both families. The agent is closed and started again meanwhile.
func TestPods(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, userA, emptyRoot(t)), n.pod(1, userB, emptyRoot(t))
	for _, addr := range []netip.Addr{n.cables.Addr[0][0], n.cables.Six[0][0]} {
		where := serveAt(server, addr)
		allMoved(t, client, where, 100)
	}
	s, err := n.agent.Status()
	if err != nil || s.Introductions.Introduced == 0 || s.Introductions.Namespaces != 3 {
		t.Errorf("status %+v, %v; want introductions, and rooms in three namespaces", s.Introductions, err)
	}
	where := serveAt(server, n.cables.Addr[0][0])
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

// TestPodsEnd kills programs and the last one of a namespace: the agent leaves it.
func TestPodsEnd(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, userA, ""), n.pod(1, userB, "")
	where := serveAt(server, n.cables.Addr[0][0])
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
