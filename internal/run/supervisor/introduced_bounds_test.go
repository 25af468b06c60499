package supervisor

import (
	"io"
	"os"
	"runtime/pprof"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/smctest"
)

// TestAgentHangs has an agent that stops for longer than anybody waits: no supervisor has anything to
// do with it then. When it goes on no end is lost that a program has the other one of.
func TestAgentHangs(t *testing.T) {
	a, client, server := newTold(t)
	server.introduced.fate = time.Millisecond // it has a client, too
	c, other := a.connect(t), a.connect(t)
	end := answered(t, c.ask(t, client, 0, false))
	if end < 0 {
		t.Fatal("the client has no end")
	}
	a.gate.Lock()
	accepts, connects := c.ask(t, server, 1, false), other.ask(t, server, 0, false)
	if end := answered(t, accepts); end >= 0 {
		t.Error("the server has an end of an agent that is stopped")
	}
	if end := answered(t, connects); end >= 0 {
		t.Error("a client has an end of an agent that is stopped")
	}
	smctest.Eventually(t, 20*time.Second, "nobody to wait for the agent", func() bool {
		return len(server.introduced.meeting)+len(server.introduced.reaching) == 0
	})
	a.gate.Unlock()
	c.carries(t, end)
	if _, err := other.client.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	var b [1]byte
	if _, err := io.ReadFull(other.server, b[:]); err != nil {
		t.Errorf("over TCP: %v", err)
	}
}

// TestIntroducedLies has programs whose messages name other addresses than their sockets have.
func TestIntroducedLies(t *testing.T) {
	a, client, server := newTold(t)
	for end, s := range []*supervisor{client, server} {
		c, other := a.connect(t), a.connect(t)
		for name, m := range map[string]*toldLink{"the peer's": {m: c.m}, "its own": {m: c.m}} {
			if name == "its own" {
				m.m[end].Local = other.m[end].Local
			} else {
				m.m[end].Peer = other.m[end].Peer
			}
			m.tcp = c.tcp
			if got := answered(t, m.ask(t, s, end, false)); got >= 0 {
				t.Errorf("end %d, another address for %s: the program has an end", end, name)
			}
			if n := len(s.introduced.reaching) + len(s.introduced.meeting); n != 0 {
				t.Errorf("end %d, another address for %s: the agent is asked", end, name)
			}
		}
	}
}

// TestIntroducedOutside has programs of other users ask for all that they may have: those of our own
// have places left, as have
// programs of a third user.
func TestIntroducedOutside(t *testing.T) {
	a, _, server := newTold(t)
	n := server.introduced
	n.limit(8)
	begin := func(outside bool, uid uint32) bool {
		c := a.connect(t)
		server.Mu.Lock()
		defer server.Mu.Unlock()
		wait := make(chan struct{})
		t.Cleanup(func() { close(wait) })
		from := &broker.Talk{FD: c.tcp[1], Outside: outside, UID: uid, Ends: broker.EndsOf(c.tcp[1])}
		return n.begin(from, c.m[1], c.tcp[1], n.meeting, func(talk *broker.Talk, tcp int) func() {
			<-wait
			unix.Close(talk.FD)
			unix.Close(tcp)
			return nil
		})
	}
	for i, tt := range []struct {
		outside bool
		uid     uint32
		want    bool
	}{
		{true, 1, true}, {true, 1, true}, {true, 1, false},
		{true, 2, true}, {true, 2, true}, {true, 3, false},
		{false, 0, true}, {true, 3, false}, {false, 0, true},
		{false, 0, true}, {false, 0, true}, {false, 0, false},
	} {
		if got := begin(tt.outside, tt.uid); got != tt.want {
			t.Errorf("question %d, %+v: begun %v", i, tt, got)
		}
	}
}

// TestJoinedPlaces has connections that are joined to TCP keep their places, as they keep descriptors:
// where they have all, others are TCP from their beginning.
func TestJoinedPlaces(t *testing.T) {
	a, client, server := newTold(t)
	client.introduced.limit(1)
	c := a.connect(t)
	end := answered(t, c.ask(t, client, 0, false))
	if end < 0 {
		t.Fatal("the client has no end")
	}
	c.ask(t, server, 1, true)
	c.carries(t, end)
	if end := answered(t, a.connect(t).ask(t, client, 0, false)); end >= 0 {
		t.Error("another connection has an end, want TCP")
	}
	unix.Shutdown(end, unix.SHUT_RDWR)
	unix.Shutdown(c.tcp[1], unix.SHUT_RDWR)
	smctest.Eventually(t, 20*time.Second, "the place", func() bool {
		return len(client.introduced.reaching) == 0
	})
	if end := answered(t, a.connect(t).ask(t, client, 0, false)); end < 0 {
		t.Error("the next connection has no end")
	}
}

// TestReachSpeaks has a server that is none of ours, and speaks: the client's supervisor joins its end to
// TCP. While servers say nothing no thread waits for them: the supervisor of a container may have few.
func TestReachSpeaks(t *testing.T) {
	var client *supervisor
	t.Cleanup(func() { // when the conversation with the agent has ended
		client.programs.close()
		client.Poll.Close()
		unix.Close(client.Quit)
	})
	a, told, _ := newTold(t)
	client = told
	var err error
	if client.Poll, err = broker.NewPoller(); err != nil {
		t.Fatal(err)
	}
	client.Quit, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = client.Poll.Add(client.Quit, unix.EPOLLIN)
	}
	if err != nil {
		t.Fatal(err)
	}
	client.programs = newPrograms(client.Poll, "none", 1<<20)
	if err := client.programs.add(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- client.serve() }()
	t.Cleanup(func() { // before the conversation with the agent ends
		client.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	threads := pprof.Lookup("threadcreate").Count()
	const count = 100
	var links [count]*toldLink
	var ends [count]int
	for i := range links {
		links[i] = a.connect(t)
		ends[i] = answered(t, links[i].ask(t, client, 0, false))
		if ends[i] < 0 {
			t.Fatal("the client has no end")
		}
	}
	smctest.Eventually(t, 20*time.Second, "the servers to be watched", func() bool {
		client.Mu.Lock()
		defer client.Mu.Unlock()
		return len(client.introduced.watched) > 0
	})
	if more := pprof.Lookup("threadcreate").Count() - threads; more > count/2 {
		t.Errorf("%d threads more for %d servers", more, count)
	}
	for i, c := range links {
		if _, err := c.server.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		var b [5]byte
		tv := unix.NsecToTimeval((20 * time.Second).Nanoseconds())
		unix.SetsockoptTimeval(ends[i], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
		n, err := unix.Read(ends[i], b[:])
		for err == unix.EINTR {
			n, err = unix.Read(ends[i], b[:])
		}
		if err != nil || string(b[:n]) != "hello" {
			t.Fatalf("the client reads %q, %v", b[:n], err)
		}
	}
	client.Mu.Lock()
	defer client.Mu.Unlock()
	if n := len(client.introduced.watched); n != 0 {
		t.Errorf("%d are still watched", n)
	}
}
