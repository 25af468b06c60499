package host

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/agent"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){"host-attacker": childAttacker})
}

// An attacker is a program without privileges that knows where the agent is.
type attacker struct {
	p          *smctest.Parent
	room, path string
}

// childAttacker becomes the user of its first argument, and attacks the agent, whose path is the second one, as the third one
// says.
func childAttacker(p *smctest.Parent) {
	uid, err := strconv.Atoi(p.Args[0])
	p.Check(err)
	becomeUser(p, uid)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	p.Check(err)
	name, err := pairing.ServiceName(uintptr(fd))
	p.Check(err)
	a := &attacker{p, "@" + name, p.Args[1]}
	map[string]func(){
		"linger": a.linger, "messages": a.messages, "connections": a.connections, "rights": a.rights,
		"crowd": a.crowd, "proofs": a.proofs, "liar": a.liar,
	}[p.Args[2]]()
	p.Hear()
}

// dial connects, and says Hello to the agent if it should. It returns nil if the agent does not want that.
func (a *attacker) dial(address string, hello bool) *net.UnixConn {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: address})
	if err != nil {
		return nil
	}
	if hello {
		m := introduce.Message{Kind: introduce.KindHello, GID: wire.ISMGIDFromUUID([16]byte{1})}
		if _, err := c.Write(m.Append(nil)); err != nil {
			c.Close()
			return nil
		}
	}
	return c
}

// linger has the agent close sockets that linger for ever: in messages to connections that it refuses, in messages that it
// reads, and in those to its path.
func (a *attacker) linger() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	a.p.Check(err)
	send := func(c *net.UnixConn, f *os.File) {
		if _, _, err := c.WriteMsgUnix([]byte("x"), unix.UnixRights(int(f.Fd())), nil); err != nil {
			unix.SetsockoptLinger(int(f.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{}) // or it is we who wait
		}
		closed := make(chan bool)
		go func() { f.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(20 * time.Millisecond): // the agent was faster, and now it is we who wait
		}
	}
	var all []*net.UnixConn
	for range 512 {
		if c := a.dial(a.room, true); c != nil {
			all = append(all, c)
		}
	}
	for _, c := range all[:100] {
		send(c, a.lingering(l))
	}
	for i := range 400 {
		address := a.room
		if i%10 == 9 {
			address = a.path
		}
		f := a.lingering(l)
		if c := a.dial(address, false); c != nil { // and a message is there before the agent accepts, perhaps
			send(c, f)
			all = append(all, c)
		}
	}
	a.p.Say("attacking")
	a.p.Hear()
}

// lingering returns the only descriptor of a TCP socket whose close waits.
func (a *attacker) lingering(l net.Listener) *os.File {
	c, err := net.Dial("tcp", l.Addr().String())
	a.p.Check(err)
	s, err := l.Accept() // which is never closed
	a.p.Check(err)
	s.(*net.TCPConn).SetReadBuffer(1)
	c.(*net.TCPConn).SetWriteBuffer(1)
	c.(*net.TCPConn).SetLinger(100_000)
	f, err := c.(*net.TCPConn).File()
	a.p.Check(err)
	c.Close()
	for b := make([]byte, 1<<16); err == nil; {
		err = unix.Sendto(int(f.Fd()), b, unix.MSG_DONTWAIT, nil)
	}
	return f
}

// messages sends questions without end on as many connections as there may be.
func (a *attacker) messages() {
	null, err := os.Open(os.DevNull)
	a.p.Check(err)
	question := introduce.Message{Kind: introduce.KindAsk, Role: introduce.RoleClient, Offer: 1}
	for range 32 {
		go func() {
			for {
				c := a.dial(a.room, true)
				if c == nil {
					continue
				}
				go func() {
					for b := make([]byte, 4096); ; {
						if n, err := c.Read(b); n == 0 || err != nil {
							return
						}
					}
				}()
				for {
					if _, _, err := c.WriteMsgUnix(question.Append(nil), unix.UnixRights(int(null.Fd())), nil); err != nil {
						break
					}
				}
				c.Close()
			}
		}()
	}
	a.p.Say("attacking")
}

// connections opens connections without end, which say nothing, half of a message, or end at once.
func (a *attacker) connections() {
	for i := range 32 {
		go func() {
			for ; ; i++ {
				address := a.room
				if i%8 == 0 {
					address = a.path
				}
				c := a.dial(address, i%3 == 0)
				if c == nil {
					continue
				}
				switch i % 4 {
				case 0:
					c.Write(make([]byte, 7))
				case 1:
					c.Write([]byte{byte(introduce.KindHello), introduce.Version, 0, 60})
				}
				c.Close()
			}
		}()
	}
	a.p.Say("attacking")
}

// rights sends as many descriptors of all types as a message may have: among them the connection itself, and Unix sockets
// that have each other in unread messages.
func (a *attacker) rights() {
	go func() {
		for {
			c := a.dial(a.room, true)
			if c == nil {
				continue
			}
			own, err := c.File()
			a.p.Check(err)
			ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			a.p.Check(err)
			event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			a.p.Check(err)
			memory, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
			a.p.Check(err)
			epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
			a.p.Check(err)
			kinds := []int{int(own.Fd()), ends[0], ends[1], event, memory, epoll, 0, 1}
			var fds []int
			for len(fds) < 253 {
				fds = append(fds, kinds[len(fds)%len(kinds)])
			}
			unix.Sendmsg(ends[0], []byte{1}, unix.UnixRights(ends[1], ends[0], int(own.Fd())), nil, unix.MSG_DONTWAIT)
			unix.Sendmsg(ends[1], []byte{1}, unix.UnixRights(ends[0], int(own.Fd())), nil, unix.MSG_DONTWAIT)
			question := introduce.Message{Kind: introduce.KindAsk, Role: introduce.RoleServer, Offer: 1}
			c.WriteMsgUnix(question.Append(nil), unix.UnixRights(fds[:1]...), nil)
			c.WriteMsgUnix(question.Append(nil), unix.UnixRights(fds...), nil)
			for _, fd := range kinds[1:6] {
				unix.Close(fd)
			}
			own.Close()
			c.Close()
		}
	}()
	a.p.Say("attacking")
}

// crowd holds as many conversations as there may be, and 10,000 connections more if it gets them.
func (a *attacker) crowd() {
	var all []*net.UnixConn
	for i := range 10_000 {
		if c := a.dial(a.room, i < 600); c != nil {
			all = append(all, c)
		}
	}
	a.p.Say("attacking")
	a.p.Hear()
	a.p.Say("%d", len(all))
}

// proofs asks about sockets that are not an end of a connection with tokens, and about its own ones in both roles, over and
// over. None leads to an introduction.
func (a *attacker) proofs() {
	client, err := introduce.Dial(context.Background(), a.room, wire.ISMGIDFromUUID([16]byte{9}), introduce.Users{Mode: introduce.ModeAny})
	a.p.Check(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	a.p.Check(err)
	c, err := net.Dial("tcp", l.Addr().String())
	a.p.Check(err)
	self, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	a.p.Check(err)
	a.p.Check(pairing.Request(uintptr(self)))
	a.p.Check(unix.Bind(self, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := unix.Getsockname(self)
	a.p.Check(err)
	a.p.Check(unix.Connect(self, name)) // to itself
	idle, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	a.p.Check(err)
	a.p.Check(pairing.Request(uintptr(idle)))
	packet, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	a.p.Check(err)
	listening, err := l.(*net.TCPListener).File()
	a.p.Check(err)
	plain, err := c.(*net.TCPConn).File()
	a.p.Check(err)
	a.p.Say("attacking")
	for range 200 {
		for _, fd := range []int{int(listening.Fd()), int(plain.Fd()), self, idle, packet, 0} {
			for _, role := range []introduce.Role{introduce.RoleClient, introduce.RoleServer} {
				q, err := client.Ask(role, uintptr(fd), introduce.MaxWait)
				a.p.Check(err)
				if answer := <-q.Answer(); answer.Socket >= 0 || answer.Reason == introduce.RefusedAlone {
					a.p.Check(fmt.Errorf("descriptor %d: %+v", fd, answer))
				}
			}
		}
	}
	a.p.Say("refused")
}

// liar is a server that is introduced to its clients, one after the other, and does not keep to the protocol with them: it says
// nothing, hangs up, sends garbage or descriptors, or all of its own connection at once. On TCP it is an honest echo.
func (a *attacker) liar() {
	client, err := introduce.Dial(context.Background(), a.room, wire.ISMGIDFromUUID([16]byte{9}), introduce.Users{Mode: introduce.ModeAny})
	a.p.Check(err)
	l, err := (&net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		c.Control(func(fd uintptr) { err = pairing.Request(fd) })
		return err
	}}).Listen(context.Background(), "tcp4", a.p.Args[3])
	a.p.Check(err)
	a.p.Say("listening %v", l.Addr())
	memory, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	a.p.Check(err)
	a.p.Check(unix.Ftruncate(memory, 1<<20))
	for i := 0; ; i++ {
		s, err := l.Accept()
		a.p.Check(err)
		f, err := s.(*net.TCPConn).File()
		a.p.Check(err)
		q, err := client.Ask(introduce.RoleServer, f.Fd(), time.Second)
		a.p.Check(err)
		f.Close()
		go func() {
			answer := <-q.Answer()
			if fd := answer.Socket; fd >= 0 {
				switch i % 6 {
				case 0: // never answers
				case 1:
					unix.Close(fd)
				case 2:
					unix.Sendto(fd, make([]byte, 300), unix.MSG_NOSIGNAL, nil)
				case 3:
					unix.Sendmsg(fd, []byte{1}, unix.UnixRights(memory, memory, fd), nil, unix.MSG_NOSIGNAL)
				case 4: // the client's own words, with memory that can shrink
					b := make([]byte, 65536)
					n, _, _ := unix.Recvfrom(fd, b, 0)
					unix.Sendmsg(fd, b[:max(n, 0)], unix.UnixRights(memory), nil, unix.MSG_NOSIGNAL)
					unix.Ftruncate(memory, int64(i)<<12)
				case 5:
					for range 1000 {
						unix.Sendto(fd, make([]byte, 12), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, nil)
					}
				}
			}
		}()
		go func() {
			defer s.Close()
			io.Copy(struct{ io.Writer }{s}, struct{ io.Reader }{s})
		}()
	}
}

// TestPodsLiar connects to a server of another user that lies after its introduction. No connection fails, and the client goes on
// with others.
func TestPodsLiar(t *testing.T) {
	n := newPodNet(t)
	server, client := n.pod(0, userA, ""), n.pod(1, userB, "")
	where := serveAt(server, n.addr[0])
	allMoved(t, client, where, 1)
	var liar *smctest.Process
	n.run[0](func() {
		liar = smctest.Start(t, "host-attacker", strconv.Itoa(userC), n.cfg.Socket, "liar", net.JoinHostPort(n.addr[0].String(), "0"))
	})
	at := liar.Hear("listening")
	client.Say("fresh %s 6", at)
	t.Logf("worst dial %s, %s", client.Hear("worst"), client.Hear("dialled"))
	client.Say("dial %s 12 5000", at)
	if got := client.Hear("dialled"); !strings.HasPrefix(got, "map[TCP") {
		t.Errorf("connections to a liar: %s", got)
	} else {
		t.Log(got)
	}
	allMoved(t, client, where, 10)
	s, err := n.agent.Status()
	if err != nil || s.Introductions.Introduced < 10 {
		t.Errorf("status %+v, %v; want the liar introduced", s.Introductions, err)
	}
}

// agentOf returns what a process holds.
func agentOf(t testing.TB, pid int) (descriptors, threads int) {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatalf("the agent: %v", err)
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatalf("the agent: %v", err)
	}
	return len(list), len(tasks)
}

// TestPodsAttacked has another user attack the agent from the namespace of a client, while programs that the agent does not know
// yet are introduced. Nobody's connection fails, some are moved, and nothing is left in the agent.
func TestPodsAttacked(t *testing.T) {
	n := newPodNet(t)
	for _, dir := range []string{filepath.Dir(n.cfg.Socket), filepath.Dir(filepath.Dir(n.cfg.Socket))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	a := n.startApart()
	server, client := n.pod(0, userA, ""), n.pod(1, userB, "")
	where := serveAt(server, n.addr[0])
	allMoved(t, client, where, 10)
	for i, kind := range []string{"linger", "messages", "connections", "rights", "crowd", "proofs"} {
		t.Run(kind, func(t *testing.T) {
			descriptors, _ := agentOf(t, a.PID())
			var eve *smctest.Process
			n.run[1](func() { eve = smctest.Start(t, "host-attacker", strconv.Itoa(userC+i), n.cfg.Socket, kind) })
			eve.Hear("attacking")
			moved := false
			for round := 0; round < 20 && !moved; round++ {
				client.Say("fresh %s 10", where)
				worst := client.Hear("worst")
				modes := client.Hear("dialled")
				moved = strings.Contains(modes, "SMC-D")
				_, threads := agentOf(t, a.PID())
				t.Logf("worst dial %s, %s, %d threads of the agent", worst, modes, threads)
				if threads > 1000 || kind == "linger" && threads > 250 {
					t.Errorf("the agent has %d threads", threads)
				}
			}
			if !moved {
				t.Error("no connection is moved")
			}
			if kind == "proofs" {
				eve.Hear("refused")
			}
			if kind != "linger" { // which does nothing any more, but may have stopped the agent
				eve.Signal(syscall.SIGKILL)
			}
			var s agent.Status
			smctest.Eventually(t, 20*time.Second, "the agent's answer at its path", func() bool {
				answer, _, err := port.Ask(t.Context(), []string{n.cfg.Socket}, port.Request{Request: "status"})
				return err == nil && json.Unmarshal(answer.Status, &s) == nil
			})
			t.Logf("status %+v", s.Introductions.Counters)
			eve.Kill()
			smctest.Eventually(t, time.Minute, "the agent to let go of everything", func() bool {
				now, _ := agentOf(t, a.PID())
				return now <= descriptors+3 // of programs that have just ended
			})
		})
	}
}

// TestPodsAgentKilled kills the agent again and again while programs ask it. No connection fails, and new ones are moved
// when it is back.
func TestPodsAgentKilled(t *testing.T) {
	n := newPodNet(t)
	a := n.startApart()
	server, client, old := n.pod(0, userA, ""), n.pod(1, userB, ""), n.pod(1, userC, "")
	where := serveAt(server, n.addr[0])
	allMoved(t, client, where, 1)
	old.Say("hold %s", where)
	old.Hear("holding")
	client.Say("fresh %s 200", where)
	for range 4 {
		a.Signal(syscall.SIGKILL)
		a.Wait()
		a = n.startApart()
	}
	t.Logf("worst dial %s, %s", client.Hear("worst"), client.Hear("dialled"))
	a.Signal(syscall.SIGKILL)
	a.Wait()
	client.Say("fresh %s 10", where)
	t.Logf("without an agent: worst dial %s, %s", client.Hear("worst"), client.Hear("dialled"))
	a = n.startApart()
	began := time.Now()
	smctest.Eventually(t, time.Minute, "a connection that is moved", func() bool {
		client.Say("fresh %s 1", where)
		client.Hear("worst")
		return client.Hear("dialled") == "map[SMC-D:1]"
	})
	t.Logf("moved %v after the agent has come back", time.Since(began))
	a.Signal(syscall.SIGSTOP)
	client.Say("fresh %s 5", where)
	t.Logf("with a stopped agent: worst dial %s, %s", client.Hear("worst"), client.Hear("dialled"))
	a.Signal(syscall.SIGCONT)
	allMoved(t, client, where, 10)
	old.Say("enough")
	old.Hear("held")
}
