package host

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A pairProgram is a program of 'gosmc run' and its supervisor, as an agent knows them.
type pairProgram struct {
	t     *testing.T
	agent *introduce.Client
}

func newPairProgram(t *testing.T, a *testAgent) pairProgram {
	t.Helper()
	gid := wire.ISMGIDFromUUID([16]byte{1, 15: 7})
	c, err := introduce.Dial(t.Context(), a.kernel.agent, gid, introduce.Users{Mode: introduce.ModeAny})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return pairProgram{t, c}
}

// ask asks for a pair in place of a connection.
func (p pairProgram) ask(role introduce.Role, tcp net.Conn) *introduce.Question {
	p.t.Helper()
	raw, err := tcp.(*net.TCPConn).SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	var q *introduce.Question
	raw.Control(func(fd uintptr) { q, err = p.agent.AskPair(role, fd, introduce.MaxWait, false) })
	if err != nil {
		p.t.Fatal(err)
	}
	return q
}

// answer waits for an answer, but for the word that the server waits.
func (p pairProgram) answer(q *introduce.Question) introduce.Answer {
	p.t.Helper()
	for {
		select {
		case a := <-q.Answer():
			if !a.Wanted {
				return a
			}
		case <-time.After(20 * time.Second):
			p.t.Fatal("no answer of the agent")
		}
	}
}

// conn makes a connection of an end.
func (p pairProgram) conn(end int) *net.UnixConn {
	p.t.Helper()
	f := os.NewFile(uintptr(end), "end")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		p.t.Fatal(err)
	}
	return c.(*net.UnixConn)
}

// accept accepts a connection at a listener of package net, and returns the end in its place; nil: TCP, for
// the reason.
func (p pairProgram) accept(l net.Listener) (*net.UnixConn, introduce.Refusal) {
	p.t.Helper()
	tcp, err := l.Accept()
	if err != nil {
		p.t.Fatal(err)
	}
	defer tcp.Close()
	q := p.ask(introduce.RoleServer, tcp)
	a := p.answer(q)
	if a.Socket < 0 {
		return nil, a.Reason
	}
	name := "@gosmc-test-" + tcp.RemoteAddr().String()
	if err := unix.Bind(a.Socket, &unix.SockaddrUnix{Name: name}); err != nil {
		p.t.Fatal(err)
	}
	q.Took()
	return p.conn(a.Socket), 0
}

// dial connects, and returns the end in the place of the connection; nil: TCP, for the reason.
func (p pairProgram) dial(address string) (*net.UnixConn, introduce.Refusal) {
	p.t.Helper()
	tcp, err := net.Dial("tcp", address)
	if err != nil {
		p.t.Fatal(err)
	}
	defer tcp.Close()
	q := p.ask(introduce.RoleClient, tcp)
	a := p.answer(q)
	if !a.Lent {
		return nil, a.Reason
	}
	q.Ready()
	fate := p.answer(q)
	if !fate.Taken {
		fate.Discard()
		a.Discard()
		return nil, fate.Reason
	}
	return p.conn(a.Socket), 0
}

// TestPairsIntroduced has a program of 'gosmc run' at the other end of a connection with tokens, which only
// the agent can introduce: the connection is a pair of Unix sockets, in both roles.
func TestPairsIntroduced(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	h, program := newPairedHost(t, a), newPairProgram(t, a)
	check := func(c conn.Conn, end *net.UnixConn, tcp net.Addr) {
		t.Helper()
		defer end.Close()
		defer c.Close()
		if c.Mode() != conn.ModeUnix || c.RemoteAddr().String() != tcp.String() {
			t.Errorf("the connection to %v is %v: %v; want %v to %v",
				c.RemoteAddr(), c.Mode(), c.Reason(), conn.ModeUnix, tcp)
		}
		go io.Copy(struct{ io.Writer }{end}, struct{ io.Reader }{end})
		if err := through(c, 100_000, 1); err != nil {
			t.Error(err)
		}
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	ends := make(chan *net.UnixConn, 1)
	go func() {
		end, why := program.accept(plain)
		if end == nil {
			t.Errorf("the program has no end: %v", why)
		}
		ends <- end
	}()
	c, err := h.Dial(boundedContext(t), "tcp", plain.Addr().String(), DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check(c, <-ends, plain.Addr())

	l := mustListen(t, h, "127.0.0.1:0")
	go func() {
		end, why := program.dial(l.Addr().String())
		if end == nil {
			t.Errorf("the program has no end: %v", why)
		}
		ends <- end
	}()
	s := mustAccept(t, l)
	check(s, <-ends, s.RemoteAddr())
}

// TestPairsShort has short connections, which the agent has to introduce, stay TCP after a few, and be tried
// far more seldom than those that need no agent.
func TestPairsShort(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	h := newTestHost(t, Config{Dir: t.TempDir(), Pairing: a.kernel, ShortAfter: 2})
	program := newPairProgram(t, a)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	dial := func() (conn.Mode, clc.Diagnosis) {
		t.Helper()
		c, err := h.Dial(boundedContext(t), "tcp", plain.Addr().String(), DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.Mode(), c.Reason().Code
	}
	for range 2 {
		done := make(chan *net.UnixConn, 1)
		go func() {
			end, _ := program.accept(plain)
			done <- end
		}()
		if got, why := dial(); got != conn.ModeUnix {
			t.Errorf("the first ones are %v %v, want %v", got, why, conn.ModeUnix)
		}
		if end := <-done; end != nil {
			end.Close()
		}
	}
	for i := range 255 { // one in 32 would be more than one
		accepted := make(chan struct{})
		go func() {
			defer close(accepted)
			if tcp, err := plain.Accept(); err == nil {
				tcp.Close()
			}
		}()
		if got, why := dial(); got != conn.ModeTCP || why != clc.DiagShort {
			t.Fatalf("number %d of those after them is %v %v, want %v", i, got, why, clc.DiagShort)
		}
		<-accepted
	}
}

// TestPairsRequired has connections that have to be SMC: they are no pairs.
func TestPairsRequired(t *testing.T) {
	smctest.CheckLeaks(t)
	a := newTestAgent(t)
	h, program := newPairedHost(t, a), newPairProgram(t, a)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	refused := make(chan introduce.Refusal, 1)
	go func() {
		end, why := program.accept(plain)
		if end != nil {
			end.Close()
		}
		refused <- why
	}()
	c, err := h.Dial(boundedContext(t), "tcp", plain.Addr().String(), DialOptions{Require: conn.RequireSMC})
	fallback, ok := errors.AsType[*conn.FallbackError](err)
	if !ok || fallback.Reason.Code != clc.DiagRefused {
		t.Errorf("Dial = %v, %v; want an error: %v", c, err, clc.DiagRefused)
	}
	if why := <-refused; why != introduce.RefusedDeclined {
		t.Errorf("the server hears %v", why)
	}

	l, err := h.Listen(t.Context(), "tcp", "127.0.0.1:0", ListenOptions{Require: conn.RequireSMC})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if end, why := program.dial(l.Addr().String()); end != nil || why != introduce.RefusedDeclined {
		t.Errorf("the client has %v: %v", end, why)
	}
}
