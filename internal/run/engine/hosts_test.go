package engine

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/internal/smctest"
)

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
