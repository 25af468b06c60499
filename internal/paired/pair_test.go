package paired

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A tokenTable is a kernel that knows the tokens of each socket, and the agent's address.
type tokenTable struct {
	address string

	mu     sync.Mutex
	tokens map[uint64]Tokens // by cookie
}

func (k *tokenTable) of(fd int) (Tokens, bool) {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	k.mu.Lock()
	defer k.mu.Unlock()
	t, ok := k.tokens[cookie]
	return t, ok && err == nil
}

func (k *tokenTable) add(t *testing.T, tcp *net.TCPConn, tokens Tokens) {
	t.Helper()
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		cookie, err := unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
		if err != nil {
			t.Fatal(err)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.tokens[cookie] = tokens
	})
}

// Tokens implements [introduce.Verifier].
func (k *tokenTable) Tokens(fd int) (mine, theirs uint64, err error) {
	t, ok := k.of(fd)
	if !ok {
		return 0, 0, unix.ENOENT
	}
	return t.Mine, t.Theirs, nil
}

// Ask implements [Kernel].
func (*tokenTable) Ask(syscall.RawConn, netip.AddrPort) bool { return true }

// Addresses implements [Kernel].
func (k *tokenTable) Addresses(syscall.RawConn) []string { return []string{k.address} }

// Read implements [Kernel].
func (k *tokenTable) Read(c syscall.RawConn, _ netip.AddrPort) (t Tokens, why clc.Diagnosis) {
	why = clc.DiagNoToken
	c.Control(func(fd uintptr) {
		var ok bool
		if t, ok = k.of(int(fd)); ok {
			why = clc.DiagNone
		}
	})
	return t, why
}

// An office is an agent, and the kernel of its test.
type office struct {
	*introduce.Server
	kernel *tokenTable
	next   uint64
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{
		kernel: &tokenTable{address: filepath.Join(t.TempDir(), "agent"), tokens: make(map[uint64]Tokens)},
	}
	o.Server = introduce.NewServer(introduce.Config{
		Verifier: o.kernel, Users: introduce.Users{Mode: introduce.ModeAny}, Overcommit: func() uint8 { return 0 },
		Identify: func(*net.UnixConn) (introduce.Identity, error) { return introduce.Identity{}, nil },
	})
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: o.kernel.address})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { o.Serve(l, nil); close(served) }()
	t.Cleanup(func() { l.Close(); <-served; o.Close() })
	return o
}

// side returns a process of package smc.
func (o *office) side(t *testing.T) *side {
	t.Helper()
	s := newSide(t, Tokens{})
	s.point.cfg.Kernel = o.kernel
	return s
}

// supervisor returns the conversation of a supervisor with the agent.
func (o *office) supervisor(t *testing.T) *introduce.Client {
	t.Helper()
	gid := wire.ISMGIDFromUUID([16]byte{1, 15: 7})
	c, err := introduce.Dial(t.Context(), o.kernel.address, gid, introduce.Users{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// connect returns a connection with tokens.
func (o *office) connect(t *testing.T) (c, s *net.TCPConn) {
	t.Helper()
	c, s = connect(t)
	o.next += 2
	o.kernel.add(t, c, Tokens{o.next, o.next + 1})
	o.kernel.add(t, s, Tokens{o.next + 1, o.next})
	return c, s
}

// waits waits until so many connections have questions at the agent.
func (o *office) waits(t *testing.T, count int) {
	t.Helper()
	smctest.Eventually(t, patience, "the questions", func() bool { return o.Status().Waiting == count })
}

// askPair asks for a pair as a supervisor does.
func askPair(t *testing.T, sv *introduce.Client, role introduce.Role, tcp *net.TCPConn) *introduce.Question {
	t.Helper()
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var q *introduce.Question
	raw.Control(func(fd uintptr) { q, err = sv.AskPair(role, fd, introduce.MaxWait, true) })
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func answerTo(t *testing.T, q *introduce.Question) introduce.Answer {
	t.Helper()
	select {
	case a := <-q.Answer():
		return a
	case <-time.After(patience):
		t.Fatal("no answer")
	}
	panic("unreachable")
}

// An awaited is what Await of a client has returned.
type awaited struct {
	Outcome
	err error
}

func (s *side) dials(c *net.TCPConn, pairs bool) <-chan awaited {
	done := make(chan awaited, 1)
	go func() {
		o, err := s.point.Await(context.Background(), c, pairs)
		done <- awaited{o, err}
	}()
	return done
}

// areEnds checks that bytes come through a pair, and that an end has the name of its connection.
func areEnds(t *testing.T, end net.Conn, other int, role byte, tcp *net.TCPConn) {
	t.Helper()
	name, ok := proto.ParseName(end.LocalAddr().String())
	if !ok || name.Role != role || name.IPv6 || name.Local != proto.AddrPortOf(tcp.LocalAddr()) ||
		name.Peer != proto.AddrPortOf(tcp.RemoteAddr()) {
		t.Errorf("the end is %q: %+v", end.LocalAddr(), name)
	}
	if _, err := unix.Write(other, []byte("word")); err != nil {
		t.Fatal(err)
	}
	var b [8]byte
	end.SetDeadline(time.Now().Add(patience))
	if n, err := end.Read(b[:]); err != nil || string(b[:n]) != "word" {
		t.Errorf("the end reads %q, %v", b[:n], err)
	}
	if _, err := end.Write([]byte("back")); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Read(other, b[:]); err != nil || string(b[:n]) != "back" {
		t.Errorf("the other end reads %q, %v", b[:n], err)
	}
}

// TestPairClient has a client whose server is a program of 'gosmc run'. It has its end of a pair once the
// server's program has the other one, and not before.
func TestPairClient(t *testing.T) {
	o := newOffice(t)
	client, sv := o.side(t), o.supervisor(t)
	for _, serverFirst := range []bool{false, true} {
		c, s := o.connect(t)
		var q *introduce.Question
		if serverFirst {
			q = askPair(t, sv, introduce.RoleServer, s)
			o.waits(t, 1)
		}
		done := client.dials(c, true)
		if !serverFirst {
			o.waits(t, 1)
			q = askPair(t, sv, introduce.RoleServer, s)
		}
		a := answerTo(t, q)
		if a.Socket < 0 || a.Memory >= 0 {
			t.Fatalf("the server hears %+v, want its end", a)
		}
		select {
		case got := <-done:
			t.Fatalf("before its server's program has the other end, the client has %+v", got)
		case <-time.After(20 * time.Millisecond): // not longer: this finds the fault most often
		}
		q.Took()
		got := <-done
		if got.End == nil || got.Peer != nil || !got.Paired || got.err != nil {
			t.Fatalf("the client has %+v, want an end", got)
		}
		areEnds(t, got.End, a.Socket, proto.RoleClient, c)
		got.End.Close()
		a.Discard()
	}
}

// TestPairServer has a server whose client is a program of 'gosmc run', which has its end before the
// server asks, or after that.
func TestPairServer(t *testing.T) {
	o := newOffice(t)
	server, sv := o.side(t), o.supervisor(t)
	for _, early := range []bool{false, true} {
		c, s := o.connect(t)
		candidate, why := server.point.Claim(s)
		if candidate == nil {
			t.Fatal(why)
		}
		var q *introduce.Question
		var a introduce.Answer
		if early {
			q = askPair(t, sv, introduce.RoleClient, c)
			a = answerTo(t, q)
			q.Ready()
			o.waits(t, 1)
		}
		done := make(chan clc.Diagnosis, 1)
		go func() { done <- candidate.Await(context.Background(), true) }()
		if !early {
			o.waits(t, 1)
			q = askPair(t, sv, introduce.RoleClient, c)
			if a = answerTo(t, q); !a.Lent {
				t.Fatalf("the client hears %+v, want its end", a)
			}
			if next := answerTo(t, q); !next.Wanted {
				t.Errorf("the client hears %+v, want that its server waits", next)
			}
			q.Ready()
		}
		if why := <-done; why != clc.DiagNone || candidate.End() == nil || candidate.Peer() != nil {
			t.Fatalf("the server has %v, %v, %v; want an end", why, candidate.End(), candidate.Peer())
		}
		fate := answerTo(t, q)
		if fate.Wanted { // if the server was faster
			fate = answerTo(t, q)
		}
		if !fate.Taken {
			t.Errorf("the client hears %+v, want that its server has the other end", fate)
		}
		areEnds(t, candidate.End(), a.Socket, proto.RoleServer, s)
		candidate.End().Close()
		a.Discard()
	}
}

// TestPairLeft has the supervisor of a client be killed when its program has its end, and before the server
// has accepted: the TCP connection has ended, and the server has the pair.
func TestPairLeft(t *testing.T) {
	o := newOffice(t)
	server := o.side(t)
	smctest.Eventually(t, time.Minute, "a server that is in time", func() bool {
		c, s := o.connect(t)
		sv := o.supervisor(t)
		q := askPair(t, sv, introduce.RoleClient, c)
		a := answerTo(t, q)
		defer a.Discard()
		q.Ready()
		sv.Close()
		c.Close()
		candidate, why := server.point.Claim(s)
		if candidate == nil {
			t.Fatal(why)
		}
		begin := time.Now()
		why = candidate.Await(context.Background(), true)
		end := candidate.End()
		if end == nil {
			if time.Since(begin) < claimTime { // it has not waited for the agent
				t.Errorf("the server has %v, want an end", why)
			}
			return t.Failed()
		}
		defer end.Close()
		areEnds(t, end, a.Socket, proto.RoleServer, s)
		return true
	})
}

// TestPairUnwanted has processes that may not use pairs, as their connections have to be SMC: the
// connections are TCP at both ends, with that reason.
func TestPairUnwanted(t *testing.T) {
	o := newOffice(t)
	smc, sv := o.side(t), o.supervisor(t)
	c, s := o.connect(t)
	done := smc.dials(c, false)
	o.waits(t, 1)
	if a := answerTo(t, askPair(t, sv, introduce.RoleServer, s)); a.Reason != introduce.RefusedDeclined {
		t.Errorf("the server hears %+v", a)
	}
	if got := <-done; got.End != nil || got.Peer != nil || got.Why != clc.DiagRefused || got.err != nil {
		t.Errorf("the client has %+v, want %v", got, clc.DiagRefused)
	}
	c, s = o.connect(t)
	candidate, why := smc.point.Claim(s)
	if candidate == nil {
		t.Fatal(why)
	}
	q := askPair(t, sv, introduce.RoleClient, c)
	a := answerTo(t, q)
	defer a.Discard()
	q.Ready()
	if why := candidate.Await(context.Background(), false); why != clc.DiagRefused || candidate.End() != nil {
		t.Errorf("the server has %v, want %v", why, clc.DiagRefused)
	}
	fate := answerTo(t, q)
	if !fate.Returned || fate.Reason != introduce.RefusedDeclined {
		t.Errorf("the client hears %+v, want the other end", fate)
	}
	fate.Discard()
}

// TestPairReturned has servers whose programs do not get their ends: the client uses TCP.
func TestPairReturned(t *testing.T) {
	o := newOffice(t)
	client := o.side(t)
	for name, end := range map[string]func(q *introduce.Question, a *introduce.Answer){
		"given back": func(q *introduce.Question, a *introduce.Answer) { q.GiveBack(a.Socket); a.Discard() },
		"with a copy": func(q *introduce.Question, a *introduce.Answer) {
			q.GiveBack(a.Socket)
			t.Cleanup(a.Discard)
		},
	} {
		c, s := o.connect(t)
		done := client.dials(c, true)
		o.waits(t, 1)
		q := askPair(t, o.supervisor(t), introduce.RoleServer, s)
		a := answerTo(t, q)
		end(q, &a)
		if got := <-done; got.End != nil || got.Why != clc.DiagNotAccepted || !got.Paired || got.err != nil {
			t.Errorf("%s: the client has %+v, want %v", name, got, clc.DiagNotAccepted)
		}
	}
}

// question asks for a pair, and has the server get its end of it: nobody tells its fate.
func (o *office) question(t *testing.T, client *side) (q *introduce.Question, l *lent) {
	t.Helper()
	c, s := o.connect(t)
	device, _, _ := client.point.cfg.Open()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	mine, why := client.point.ask(t.Context(), device, raw, introduce.RoleClient, true)
	if mine == nil {
		t.Fatal(why)
	}
	o.waits(t, 1)
	q = askPair(t, o.supervisor(t), introduce.RoleServer, s)
	a := answerTo(t, mine)
	if l = lend(mine, &a, c); l == nil {
		t.Fatal("the end is of no use")
	}
	got := answerTo(t, q)
	if got.Socket < 0 {
		t.Fatalf("the server hears %+v, want its end", got)
	}
	t.Cleanup(got.Discard)
	return q, l
}

// TestPairSilence has a server of another user get its end, and never say so: the client waits for a
// bounded time, and does not use TCP, as the server may be in the pair. A client that is cancelled waits no more.
func TestPairSilence(t *testing.T) {
	o := newOffice(t)
	client := o.side(t)
	_, l := o.question(t, client)
	const soon = 20 * time.Millisecond
	bounded, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	end, why, err := l.fate(bounded, soon, soon)
	if end != nil || why != clc.DiagNone || !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("a server that says nothing: %v, %v, %v; want a timeout", end, why, err)
	}
	_, l = o.question(t, client)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if end, why, err = l.fate(ctx, patience, patience); end != nil || err != context.Canceled {
		t.Errorf("a client that is cancelled: %v, %v, %v", end, why, err)
	}
	q, l := o.question(t, client)
	q.Took()
	if end, why, err = l.fate(context.Background(), patience, patience); end == nil || err != nil {
		t.Fatalf("a server that says it: %v, %v, %v", end, why, err)
	}
	end.Close()
}

// TestPairAgentGone has the agent end before it hears that a client has its end: the client uses TCP, as the
// server gets nothing. Afterwards the server has the other end.
func TestPairAgentGone(t *testing.T) {
	o := newOffice(t)
	client := o.side(t)
	_, l := o.question(t, client)
	client.point.Release()
	if end, why, err := l.fate(context.Background(), patience, patience); end == nil || err != nil {
		t.Errorf("an agent that has handed the end over: %v, %v, %v", end, why, err)
	} else {
		end.Close()
	}

	c, s := o.connect(t)
	device, _, _ := client.point.cfg.Open()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	mine, why := client.point.ask(t.Context(), device, raw, introduce.RoleClient, true)
	if mine == nil {
		t.Fatal(why)
	}
	o.waits(t, 1)
	q := askPair(t, o.supervisor(t), introduce.RoleServer, s)
	a := answerTo(t, mine)
	client.point.Release()
	if l := lend(mine, &a, c); l != nil {
		t.Error("the end of an agent that has gone is used")
		l.end.Close()
	}
	if got := answerTo(t, q); got.Socket >= 0 {
		t.Errorf("the server hears %+v", got)
	}
}

// TestPairNamed has the agent's keeper give the end of a server back that the server has just got: it has a
// name. And somebody has taken the name of an end.
func TestPairNamed(t *testing.T) {
	o := newOffice(t)
	server := o.side(t)
	c, s := o.connect(t)
	device, _, _ := server.point.cfg.Open()
	raw, err := s.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	q, why := server.point.ask(t.Context(), device, raw, introduce.RoleServer, true)
	if q == nil {
		t.Fatal(why)
	}
	candidate, why := server.point.Claim(s)
	if candidate == nil {
		t.Fatal(why)
	}
	pair := func() (mine, theirs int) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fds[0], fds[1]
	}
	mine, theirs := pair()
	if err := unix.Bind(mine, &unix.SockaddrUnix{Name: "@gosmc-test-returned"}); err != nil {
		t.Fatal(err)
	}
	a := introduce.Answer{Socket: mine, Memory: -1, Pair: true}
	if why := candidate.takePair(q, &a); why != clc.DiagBusy || candidate.End() != nil || a.Socket >= 0 {
		t.Errorf("an end that the keeper has: %v, %v, %+v", why, candidate.End(), a)
	}
	unix.Close(theirs)

	mine, theirs = pair()
	defer unix.Close(theirs)
	cookie, err := unix.GetsockoptUint64(mine, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		t.Fatal(err)
	}
	n := proto.Name{
		Role: proto.RoleServer, Local: proto.AddrPortOf(s.LocalAddr()), Peer: proto.AddrPortOf(c.LocalAddr()), Unique: cookie,
	}
	taken, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: n.String()})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	a = introduce.Answer{Socket: mine, Memory: -1, Pair: true}
	if why := candidate.takePair(q, &a); why != clc.DiagNone || candidate.End() == nil {
		t.Fatalf("an end whose name somebody has: %v", why)
	}
	areEnds(t, candidate.End(), theirs, proto.RoleServer, s)
	candidate.End().Close()
	q.Withdraw()
}
