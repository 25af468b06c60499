package introduce

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/smctest"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){"mortal-agent": childAgent})
}

// keeperSockets returns both ends of the socket between an agent and its keeper.
func keeperSockets(t testing.TB) (agent, keeper *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "agent"), os.NewFile(uintptr(fds[1]), "keeper")
}

// A mortalLine is a line of an agent that is killed at one of its steps.
type mortalLine struct {
	syscall.RawConn
	steps *atomic.Int64 // before or after the end; below 0: it is not to be killed yet
}

// Control implements [syscall.RawConn].
func (l mortalLine) Control(f func(uintptr)) error {
	step := func() {
		if l.steps.Load() >= 0 && l.steps.Add(-1) < 0 {
			unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	step()
	defer step()
	return l.RawConn.Control(f)
}

// childAgent is an agent with a keeper in the test's process. It listens at its first argument, and is
// told of tokens, and of the step at which it is killed: at each one it has sent something, or is
// about to, or looks how much somebody has not read.
func childAgent(p *smctest.Parent) {
	k := &fakeKernel{tokens: make(map[uint64][2]uint64)}
	steps := new(atomic.Int64)
	steps.Store(-1)
	var welcomed atomic.Int32
	var s *Server
	s = NewServer(Config{
		Verifier: k, Users: anyone, Identify: k.identify,
		Overcommit: func() uint8 {
			if welcomed.Add(1) > 2 { // memory is to be made, for one of the two
				return 1
			}
			// A process has connected, and has asked nothing.
			s.table.mu.Lock()
			defer s.table.mu.Unlock()
			for c := range s.table.byClient {
				if _, is := c.line.raw.(mortalLine); !is {
					c.line.raw = mortalLine{c.line.raw, steps}
				}
			}
			return 1
		},
	})
	s.KeepWith(os.NewFile(3, "keeper"))
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: p.Args[0]})
	p.Check(err)
	go s.Serve(l, nil)
	p.Say("serves")
	for {
		words := strings.Fields(p.Hear())
		var n [3]uint64
		for i, word := range words[1:] {
			n[i], err = strconv.ParseUint(word, 10, 64)
			p.Check(err)
		}
		switch words[0] {
		case "tokens":
			k.mu.Lock()
			k.tokens[n[0]] = [2]uint64{n[1], n[2]}
			k.mu.Unlock()
		case "step":
			steps.Store(int64(n[0]))
		case "waiting":
			for s.Status().Waiting != 1 {
			}
		}
		p.Say("done")
	}
}

// TestAgentKilled kills the agent at each of its steps, and between any two: the server has its end, or the
// client has both, never both of them, and never none. One of the two would take a peering, too, or none.
func TestAgentKilled(t *testing.T) {
	for _, first := range []Role{RoleClient, RoleServer} {
		for _, either := range []Role{0, RoleClient, RoleServer} {
			outcomes := make(map[string]int)
			for pass := 0; pass < 10 && len(outcomes) < 3; pass++ { // a busy machine may be too late for the last steps
				for step := 0; ; step++ {
					outcome := killAt(t, first, either, step)
					if outcome == "" {
						break
					}
					outcomes[outcome]++
				}
			}
			t.Logf("%d first, %d takes either: %v", first, either, outcomes)
			for _, want := range []string{"no pair", "returned", "taken"} {
				if outcomes[want] == 0 {
					t.Errorf("%d first, %d takes either: %v, want all outcomes", first, either, outcomes)
				}
			}
		}
	}
}

// killAt kills the agent at one step of an introduction. It returns "" if that has fewer steps.
func killAt(t *testing.T, first, either Role, step int) (outcome string) {
	own, other := keeperSockets(t)
	address := fmt.Sprintf("%s/agent%d", t.TempDir(), step)
	p := smctest.StartWith(t, []*os.File{own}, "mortal-agent", address)
	own.Close()
	kept := make(chan error, 1)
	go func() { kept <- Keep(other) }()
	defer func() {
		p.Kill()
		if err := <-kept; err != nil {
			t.Error(err)
		}
	}()
	tell := func(format string, args ...any) {
		t.Helper()
		p.Say(format, args...)
		p.Hear("done")
	}
	p.Hear("serves")
	c := (&fakeKernel{tokens: make(map[uint64][2]uint64)}).connect(t)
	tell("tokens %d 1 2", cookieOf(int(c.client.Fd())))
	tell("tokens %d 2 1", cookieOf(int(c.server.Fd())))
	dial := func(gid byte) *Client {
		d, err := Dial(t.Context(), address, gidOf(gid), anyone)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	alice, bob := dial(1), dial(2)
	// A busy agent may come to its last step before it answers.
	if !p.Ask("done", "step %d", step) {
		return "no pair"
	}

	ask := func(c *Client, role Role, f *os.File) *Question {
		var q *Question // nil: the agent has ended
		if role == either {
			q, _ = c.AskEither(role, f.Fd(), MaxWait)
		} else {
			q, _ = c.AskPair(role, f.Fd(), MaxWait, false)
		}
		return q
	}
	var asks *Question
	if first == RoleServer {
		asks = ask(bob, RoleServer, c.server)
		if asks == nil || !p.Ask("done", "waiting") {
			return "no pair"
		}
	}
	q := ask(alice, RoleClient, c.client)
	if q == nil {
		return "no pair"
	}
	if first == RoleClient && either == RoleClient { // which has its end when both have asked
		if !p.Ask("done", "waiting") {
			return "no pair"
		}
		asks = ask(bob, RoleServer, c.server)
	}
	a := await(t, q)
	if a.Lent {
		if _, err := unix.Write(a.Socket, []byte("early")); err != nil {
			t.Fatal(err)
		}
		q.Ready()
	}
	if first == RoleClient && either != RoleClient {
		asks = ask(bob, RoleServer, c.server)
	}
	end := -1
	if asks != nil {
		end = await(t, asks).Socket
	}
	// As the supervisor of a server does, before its program gets the end.
	if end >= 0 && unix.Bind(end, &unix.SockaddrUnix{Name: fmt.Sprintf("@gosmc-test-%d", cookieOf(end))}) != nil {
		end = -1
	}
	if !a.Lent {
		if end >= 0 {
			t.Fatalf("%d first, step %d: the server has an end, the client none", first, step)
		}
		return "no pair"
	}
	if end >= 0 {
		asks.Took()
	}
	fate := fateOf(t, q)
	switch {
	case end >= 0 && fate.Returned:
		t.Fatalf("%d first, step %d: both have the end", first, step)
	case end >= 0 && fate.Taken:
		return ""
	case end >= 0:
		outcome = "taken"
	case fate.Returned:
		outcome, end = "returned", fate.Socket
	default:
		t.Fatalf("%d first, step %d: nobody has the end: %+v", first, step, fate)
	}
	var early [8]byte
	if n, _, err := unix.Recvfrom(end, early[:], unix.MSG_DONTWAIT); err != nil || string(early[:n]) != "early" {
		t.Errorf("%d first, step %d: %s: the end has %q, %v", first, step, outcome, early[:n], err)
	}
	areEnds(t, outcome, a.Socket, end)
	areEnds(t, outcome, end, a.Socket)
	return outcome
}

// TestKeepers has an agent's keeper end. The next one keeps all ends, but none that the agent has
// given away, and none of a client that has gone. Without a keeper there are no pairs that would have
// to be kept.
func TestKeepers(t *testing.T) {
	b := newBureau(t)
	agent, keeper := keeperSockets(t)
	b.KeepWith(agent)
	alice, bob := b.dial(t, 1, anyone), b.dial(t, 2, anyone)
	var q [3]*Question
	var a [3]Answer
	for i := range q {
		c := b.kernel.connect(t)
		from := alice
		if i == 2 {
			from = b.dial(t, 3, anyone)
		}
		q[i] = askPair(t, from, RoleClient, c.client, MaxWait)
		a[i] = lent(t, q[i])
		q[i].Ready()
		switch i {
		case 1:
			asks := askPair(t, bob, RoleServer, c.server, MaxWait)
			await(t, asks)
			asks.Took()
			wantTaken(t, q[1])
		case 2:
			from.Close()
			smctest.Eventually(t, patience, "the client to leave", func() bool { return b.Status().Clients == 2 })
		}
	}
	keeper.Close()
	agent, keeper = keeperSockets(t)
	b.KeepWith(agent)
	kept := make(chan error, 1)
	go func() { kept <- Keep(keeper) }()

	b.strongroom.mu.Lock() // the agent ends, as far as its keeper can see
	made := len(b.strongroom.all)
	agent.Close()
	b.strongroom.mu.Unlock()
	if err := <-kept; err != nil {
		t.Error(err)
	}
	fate := fateOf(t, q[0])
	if !fate.Returned || fate.Socket < 0 {
		t.Fatalf("%+v, want the end back", fate)
	}
	areEnds(t, "returned", a[0].Socket, fate.Socket)
	if made != 2 {
		t.Errorf("%d safes for two ends at a time", made)
	}
	for range made - 1 { // the one that is free is used
		lent(t, askPair(t, alice, RoleClient, b.kernel.connect(t).client, MaxWait))
	}
	wantRefused(t, "without a keeper", await(t, askPair(t, alice, RoleClient, b.kernel.connect(t).client, MaxWait)), RefusedBusy)
}

// TestManySafes has an agent's keeper end when there are more safes than the socket to the next one has
// room for. An end that is put into one of the rest later is kept.
func TestManySafes(t *testing.T) {
	b := newBureau(t)
	r := &b.strongroom
	agent, keeper := keeperSockets(t)
	b.KeepWith(agent)
	var taken []*safe
	for range 1000 {
		s, err := r.take()
		for err != nil { // its keeper reads
			var oob [64]byte
			_, n, _, _, err2 := unix.Recvmsg(int(keeper.Fd()), make([]byte, 1), oob[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
			if err2 != nil {
				t.Fatal(err, err2)
			}
			dispose.Close(dispose.Descriptors(oob[:n])...)
			s, err = r.take()
		}
		taken = append(taken, s)
	}
	for _, s := range taken {
		r.empty(s)
	}
	keeper.Close()
	agent, keeper = keeperSockets(t)
	b.KeepWith(agent)
	if shown := len(taken) - countUnshown(r); shown == len(taken) || shown == 0 {
		t.Fatalf("the next keeper is shown %d of %d safes at once, want a part", shown, len(taken))
	}
	kept := make(chan error, 1)
	go func() { kept <- Keep(keeper) }()
	alice := b.dial(t, 1, anyone)
	const count = 20
	var q [count]*Question
	var a [count]Answer
	for i := range q {
		c := b.kernel.connect(t)
		smctest.Eventually(t, patience, "a pair", func() bool {
			q[i] = askPair(t, alice, RoleClient, c.client, MaxWait)
			a[i] = await(t, q[i]) // refused while the keeper has not read
			return a[i].Lent
		})
		q[i].Ready()
	}
	r.mu.Lock() // the agent ends, as far as its keeper can see
	agent.Close()
	r.mu.Unlock()
	if err := <-kept; err != nil {
		t.Error(err)
	}
	for i := range q {
		fate := fateOf(t, q[i])
		if !fate.Returned || fate.Socket < 0 || fate.Reason != RefusedBusy {
			t.Fatalf("%d: %+v, want the end back from the keeper", i, fate)
		}
		areEnds(t, "returned", a[i].Socket, fate.Socket)
	}
}

// countUnshown returns how many safes the keeper has not been sent.
func countUnshown(r *strongroom) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.all {
		if !s.shown {
			n++
		}
	}
	return n
}
