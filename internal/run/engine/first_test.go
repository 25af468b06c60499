package engine

// Tests of the first messages of connections, and of those that nobody takes: programs read no byte of CLC, and lose
// none of their own.

import (
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/option"
	"github.com/gosmc/smc/internal/smctest"
)

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
	l := optionLab(t)
	_, value := smctest.LibraryOption()
	l.env[1] = []string{"GOSMC_DISABLED=1"}
	l.serve("hello")
	l.run(1, "crossed", l.addr(0), "waits", value).hear("done")
	l.want(0, "TCP", 1)
}

// TestHostsStale has a client that looks at its connection long after that was made: it declines, and does not begin with a
// Proposal, as the server may have given up waiting.
func TestHostsStale(t *testing.T) {
	l := optionLab(t)
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

// asks has a socket ask for TCP option 254.
func asks(_, _ string, c syscall.RawConn) (err error) {
	if controlErr := c.Control(func(fd uintptr) { err = option.Ask(fd) }); controlErr != nil {
		return controlErr
	}
	return err
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
