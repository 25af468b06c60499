package host

import (
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/agent"
	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/smctest"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){
		"host-agent":    childAgent,
		"host-impostor": childImpostor,
	})
}

// userC is the attacker.
const userC = userA + 77

// childAgent is an agent that can be killed. Its arguments are the socket, the control group and the pins.
func childAgent(p *smctest.Parent) {
	a, err := agent.Start(agent.Config{Socket: p.Args[0], Cgroup: p.Args[1], Pins: p.Args[2], NoOption: true, NoPort: true})
	p.Check(err)
	p.Say("serving")
	p.Hear()
	p.Check(a.Close())
}

// startApart starts the agent in a process of its own, in place of the one before.
func (n *podNet) startApart() *smctest.Process {
	n.t.Helper()
	if n.agent != nil {
		n.agent.Close()
	}
	p := smctest.Start(n.t, "host-agent", n.cfg.Socket, n.cfg.Cgroup, n.cfg.Pins)
	p.Hear("serving")
	return p
}

// childImpostor listens at the name of an agent that is dead, and takes the TCP sockets that programs pass to it.
func childImpostor(p *smctest.Parent) {
	uid, err := strconv.Atoi(p.Args[0])
	p.Check(err)
	becomeUser(p, uid)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	p.Check(err)
	name, err := pairing.ServiceName(uintptr(fd))
	p.Check(err)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: "@" + name})
	p.Check(err)
	p.Say("listening")
	for {
		c, err := l.AcceptUnix()
		p.Check(err)
		go func() {
			defer c.Close()
			for b, oob := make([]byte, 4096), make([]byte, dispose.Room); ; {
				n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
				if n == 0 || err != nil {
					return
				}
				m, _ := introduce.Parse(b[:n])
				p.Say("heard %d with %d descriptors", m.Kind, len(dispose.Descriptors(oob[:oobn])))
				c.Write((&introduce.Message{Kind: introduce.KindWelcome, PID: int32(os.Getpid())}).Append(nil))
			}
		}()
	}
}

// TestPodsImpostor has a program of another user take the name of an agent that was killed. The kernel still tells the name
// to programs, so they come, and have to notice before they pass their connections on.
func TestPodsImpostor(t *testing.T) {
	n := newPodNet(t)
	a := n.startApart()
	server, client := n.pod(0, userA, ""), n.pod(1, userB, "")
	where := serveAt(server, n.addr[0])
	allMoved(t, client, where, 1)
	a.Signal(syscall.SIGKILL)
	a.Wait()
	var impostor *smctest.Process
	n.run[1](func() { impostor = smctest.Start(t, "host-impostor", strconv.Itoa(userC)) })
	impostor.Hear("listening")
	victim := n.pod(1, userB, "")
	victim.Say("dial %s 1 2000", where)
	if got := victim.Hear("dialled"); got != "map[TCP NO_AGENT:1]" {
		t.Errorf("with an impostor: %s", got)
	}
	impostor.Signal(syscall.SIGKILL)
	for i, line := range strings.Split(strings.TrimSpace(impostor.Rest()), "\n") {
		if line != "heard 1 with 0 descriptors" && line != "" {
			t.Errorf("message %d: the impostor %s", i, line)
		}
	}
	n.startApart()
	allMoved(t, victim, where, 3)
}
