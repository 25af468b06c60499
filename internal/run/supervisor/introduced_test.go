package supervisor

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/bureau"
	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
)

// A toldAgent is an agent that is told of tokens, and that can be stopped.
type toldAgent struct {
	*introduce.Server
	mu     sync.Mutex
	tokens map[uint64][2]uint64
	gate   sync.RWMutex // locked: it is stopped
}

// Tokens implements [introduce.Verifier].
func (a *toldAgent) Tokens(fd int) (mine, theirs uint64, err error) {
	a.gate.RLock()
	defer a.gate.RUnlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	t, ok := a.tokens[cookieOf(fd)]
	if !ok {
		return 0, 0, unix.ENOENT
	}
	return t[0], t[1], nil
}

// newTold returns two supervisors, of a client and of a server, with their agent.
func newTold(t *testing.T) (a *toldAgent, client, server *supervisor) {
	t.Helper()
	address := filepath.Join(t.TempDir(), "agent")
	a = newToldAgent()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: address})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { a.Serve(l, nil); close(served) }()
	t.Cleanup(func() { l.Close(); <-served; a.Close() })
	client, server = dialTold(t, address)
	return a, client, server
}

func newToldAgent() *toldAgent {
	a := &toldAgent{tokens: make(map[uint64][2]uint64)}
	a.Server = introduce.NewServer(introduce.Config{
		Verifier: a, Users: introduce.Users{Mode: introduce.ModeAny}, Overcommit: func() uint8 { return 1 },
		Identify: func(*net.UnixConn) (introduce.Identity, error) {
			return introduce.Identity{PID: int32(os.Getpid())}, nil
		},
	})
	return a
}

// dialTold has two supervisors connect to an agent.
func dialTold(t *testing.T, address string) (client, server *supervisor) {
	t.Helper()
	for _, s := range []**supervisor{&client, &server} {
		f, err := newFollowed()
		if err != nil {
			t.Fatal(err)
		}
		f.policy = &config.Policy{}
		*s = emptySupervisor(f)
		n := (*s).introduced
		told := func(ctx context.Context, _ wire.ISMGID) (*introduce.Client, error) {
			return introduce.Dial(ctx, address, newGID(), n.users)
		}
		if c, why := n.bureau.Get(t.Context(), wire.ISMGID{}, told); c == nil {
			t.Fatal(why)
		}
		t.Cleanup(func() {
			n.s.Mu.Lock()
			n.stop()
			n.s.Mu.Unlock()
		})
	}
	return client, server
}

// childTold is an agent of its own, at its first argument, whose keeper is in the test's process.
func childTold(p *smctest.Parent) {
	a := newToldAgent()
	a.KeepWith(os.NewFile(3, "keeper"))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: p.Args[0]})
	p.Check(err)
	go a.Serve(l, nil)
	p.Say("serves")
	for {
		var cookie, number uint64
		var end int
		_, err := fmt.Sscan(p.Hear(), &cookie, &end, &number)
		p.Check(err)
		a.pair(cookie, end, number)
		p.Say("told")
	}
}

// TestAgentKilled kills the agent before the server asks, while it waits for the client's word, and when it has its
// end: no byte is lost, and each program is in the pair, or both ends are TCP. internal/introduce kills it between any two steps.
func TestAgentKilled(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	own := os.NewFile(uintptr(fds[0]), "agent")
	address := filepath.Join(t.TempDir(), "agent")
	p := smctest.StartWith(t, []*os.File{own}, "run-told", address)
	own.Close()
	kept := make(chan error, 1)
	go func() { kept <- introduce.Keep(os.NewFile(uintptr(fds[1]), "keeper")) }()
	p.Hear("serves")
	client, server := dialTold(t, address)
	connect := func() *toldLink {
		c := newLink(t)
		for i, fd := range c.tcp {
			p.Say("%d %d %d", cookieOf(fd), i, c.number)
			p.Hear("told")
		}
		return c
	}
	moved := connect()
	there := answered(t, moved.ask(t, client, 0, false))
	here := answered(t, moved.ask(t, server, 1, false))
	if there < 0 || here < 0 {
		t.Fatalf("the client has %d, the server %d, want ends", there, here)
	}
	early, waits := connect(), connect()
	end := answered(t, early.ask(t, client, 0, false))
	if end < 0 {
		t.Fatal("the client has no end")
	}
	accepts := waits.ask(t, server, 1, false) // whose client does not ask
	p.Kill()
	if err := <-kept; err != nil {
		t.Error(err)
	}
	early.carries(t, end)
	if end := answered(t, accepts); end >= 0 {
		t.Error("the server has an end of an agent that is dead")
	}
	unix.Write(there, []byte("word"))
	var b [8]byte
	if n, err := unix.Read(here, b[:]); err != nil || string(b[:n]) != "word" {
		t.Errorf("the server that has its end reads %q, %v", b[:n], err)
	}
	if end := answered(t, newLink(t).ask(t, server, 1, false)); end >= 0 {
		t.Error("a server has an end without an agent")
	}
}

// A toldLink is a connection with tokens.
type toldLink struct {
	client, server net.Conn
	tcp            [2]int // of the client and of the server
	m              [2]proto.Message
	number         uint64 // of the tokens
}

func (a *toldAgent) connect(t *testing.T) *toldLink {
	t.Helper()
	c := newLink(t)
	for i, fd := range c.tcp {
		a.pair(cookieOf(fd), i, c.number)
	}
	return c
}

// pair gives a socket its tokens.
func (a *toldAgent) pair(cookie uint64, end int, number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens[cookie] = [2]uint64{number + uint64(end), number + 1 - uint64(end)}
}

// links counts connections: two tokens for each.
var links atomic.Uint64

func newLink(t *testing.T) *toldLink {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := toldLink{number: links.Add(2)}
	if c.client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if c.server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	for i, end := range []net.Conn{c.client, c.server} {
		t.Cleanup(func() { end.Close() })
		f, err := end.(*net.TCPConn).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		c.tcp[i] = int(f.Fd())
		unix.SetNonblock(c.tcp[i], true) // which Fd has changed for both
		c.m[i] = proto.Message{
			Kind:  []proto.Kind{proto.KindReach, proto.KindMeet}[i],
			Local: end.LocalAddr().(*net.TCPAddr).AddrPort(), Peer: end.RemoteAddr().(*net.TCPAddr).AddrPort(),
		}
	}
	return &c
}

// ask asks a supervisor as a program does, and returns the program's socket.
func (c *toldLink) ask(t *testing.T, s *supervisor, end int, gone bool) int {
	t.Helper()
	talk, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if gone {
		unix.Close(talk[1])
		talk[1] = -1
	} else {
		t.Cleanup(func() { unix.Close(talk[1]) })
	}
	s.Mu.Lock()
	from := &broker.Talk{FD: talk[0]}
	if end == 0 {
		s.introduced.reach(from, c.m[end], c.tcp[end])
	} else {
		s.introduced.meet(from, c.m[end], c.tcp[end])
	}
	s.Mu.Unlock()
	unix.Close(talk[0])
	return talk[1]
}

// answered waits for the answer to a program: its end, -1 for TCP.
func answered(t *testing.T, sock int) (end int) {
	t.Helper()
	var b, oob [64]byte
	tv := unix.NsecToTimeval((20 * time.Second).Nanoseconds())
	unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	n, oobn, _, _, err := unix.Recvmsg(sock, b[:], oob[:], unix.MSG_CMSG_CLOEXEC)
	for err == unix.EINTR { // the runtime's signals
		n, oobn, _, _, err = unix.Recvmsg(sock, b[:], oob[:], unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil || n == 0 {
		t.Fatalf("no answer: %d, %v", n, err)
	}
	controls, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(controls) == 0 {
		return -1
	}
	fds, err := unix.ParseUnixRights(&controls[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[0]) })
	return fds[0]
}

// carries writes at a client's end of a pair, and reads at the server's TCP socket, and the other
// way round.
func (c *toldLink) carries(t *testing.T, end int) {
	t.Helper()
	tv := unix.NsecToTimeval((20 * time.Second).Nanoseconds())
	unix.SetsockoptTimeval(end, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	if _, err := unix.Write(end, []byte("to")); err != nil {
		t.Fatal(err)
	}
	var b [4]byte
	c.server.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(c.server, b[:2]); err != nil || string(b[:2]) != "to" {
		t.Fatalf("the server reads %q, %v", b[:2], err)
	}
	if _, err := c.server.Write([]byte("fro")); err != nil {
		t.Fatal(err)
	}
	for got := 0; got < 3; {
		n, err := unix.Read(end, b[got:3])
		if err != nil || n == 0 {
			t.Fatalf("the client reads %d, %v", n, err)
		}
		got += n
	}
	if string(b[:3]) != "fro" {
		t.Errorf("the client reads %q", b[:3])
	}
}

// TestReachGone has a client that waits for its end no more when it comes, and is with TCP. The
// server does not get the other one, though it waits for it.
func TestReachGone(t *testing.T) {
	a, client, server := newTold(t)
	for _, known := range []bool{false, true} {
		c := a.connect(t)
		if known {
			client.introduced.servers.took(c.m[0].Peer, time.Now())
		}
		accepts := c.ask(t, server, 1, false)
		c.ask(t, client, 0, true)
		if end := answered(t, accepts); end >= 0 {
			t.Errorf("known %v: the server gets an end", known)
		}
		if _, err := c.client.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		var b [1]byte
		if _, err := io.ReadFull(c.server, b[:]); err != nil {
			t.Errorf("known %v: over TCP: %v", known, err)
		}
	}
}

// TestMeetGone has a server that waits for its end no more when it comes, and is with TCP. The
// client, which has the other one, is joined to that.
func TestMeetGone(t *testing.T) {
	a, client, server := newTold(t)
	c := a.connect(t)
	end := answered(t, c.ask(t, client, 0, false))
	if end < 0 {
		t.Fatal("the client has no end")
	}
	c.ask(t, server, 1, true)
	c.carries(t, end)
}

// TestAgentStopped has an agent that stops between any two of its steps, and goes on: whoever has
// asked it goes on with TCP, and all bytes arrive.
func TestAgentStopped(t *testing.T) {
	a, client, server := newTold(t)

	c := a.connect(t)
	a.gate.Lock()
	begin := time.Now()
	if end := answered(t, c.ask(t, client, 0, false)); end >= 0 {
		t.Fatal("the client has an end of an agent that is stopped")
	}
	if c, _ := client.introduced.agent(); c != nil && time.Since(begin) < bureau.Pause {
		t.Error("an agent that does not answer is asked again at once")
	}
	again := a.connect(t)
	if end := answered(t, again.ask(t, client, 0, false)); end >= 0 {
		t.Fatal("and the next one")
	}
	accepts := c.ask(t, server, 1, false)
	if end := answered(t, accepts); end >= 0 {
		t.Fatal("the server has one")
	}
	a.gate.Unlock()
	if _, err := c.client.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	var b [1]byte
	if _, err := io.ReadFull(c.server, b[:]); err != nil {
		t.Errorf("over TCP: %v", err)
	}

	a, client, server = newTold(t)
	c = a.connect(t)
	end := answered(t, c.ask(t, client, 0, false))
	if end < 0 {
		t.Fatal("the client has no end")
	}
	a.gate.Lock()
	accepts = c.ask(t, server, 1, false)
	if end := answered(t, accepts); end >= 0 {
		t.Fatal("the server has an end of an agent that is stopped")
	}
	a.gate.Unlock()
	c.carries(t, end)
}

// TestCareful has another process take O_NONBLOCK from an end that is joined to TCP: the relay
// goes on in both directions.
func TestCareful(t *testing.T) {
	a, _, _ := newTold(t)
	c := a.connect(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	copied, err := unix.Dup(pair[1])
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(copied)
	h := carefully(broker.Stream(pair[1]))
	if h == nil {
		t.Fatal("no half")
	}
	if err := unix.SetNonblock(copied, false); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 64<<10); ; { // until there is no room
		if err := unix.Sendto(copied, b, unix.MSG_DONTWAIT, nil); err == unix.EAGAIN {
			if len(b) == 1 {
				break
			}
			b = b[:1]
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for name, call := range map[string]func() (int, error){
		"reading nothing":      func() (int, error) { return h.Read(make([]byte, 4)) },
		"writing without room": func() (int, error) { return h.Write(make([]byte, 4)) },
	} {
		h.SetDeadline(time.Now().Add(10 * time.Millisecond))
		result := make(chan error, 1)
		go func() {
			_, err := call()
			result <- err
		}()
		select {
		case err := <-result:
			if !os.IsTimeout(err) {
				t.Errorf("%s: %v, want that its time is over", name, err)
			}
		case <-time.After(20 * time.Second):
			unix.Shutdown(pair[0], unix.SHUT_RDWR) // the call waits
			t.Fatalf("%s waits", name)
		}
	}
	h.SetDeadline(time.Time{})
	for b := make([]byte, 1<<20); ; {
		if n, _, err := unix.Recvfrom(pair[0], b, unix.MSG_DONTWAIT); err != nil || n == 0 {
			break
		}
	}
	go broker.Join(h, streamOf(t, c.tcp[0]))
	c.carries(t, pair[0])
}

func streamOf(t *testing.T, fd int) broker.Half {
	t.Helper()
	copied, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	return broker.Stream(copied)
}

// TestIntroducedOutlives has all programs end while a connection with tokens is being dealt with:
// the supervisor stays as long.
func TestIntroducedOutlives(t *testing.T) {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program := exec.Command("sleep", "1000")
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	s, err := newSupervisor(dir, program.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.introduced.busy = 1
	done := make(chan error, 1)
	go func() { done <- s.serve() }()
	program.Process.Kill()
	program.Wait()
	smctest.Eventually(t, 20*time.Second, "the supervisor to see that its program has ended", func() bool {
		s.Mu.Lock()
		defer s.Mu.Unlock()
		return s.alone
	})
	select {
	case err := <-done:
		t.Fatalf("the supervisor has ended: %v", err)
	case <-time.After(20 * time.Millisecond): // shorter waits find less, and no wait fails without reason
	}
	s.introduced.parted(&broker.Talk{})
	if err := <-done; err != nil {
		t.Error(err)
	}
}
