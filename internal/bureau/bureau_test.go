package bureau

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

func TestMain(m *testing.M) { smctest.MainDescriptors(m) }

var testUsers = introduce.Users{Mode: introduce.ModeAny}

func testGID(n byte) wire.ISMGID { return wire.ISMGIDFromUUID([16]byte{15: n}) }

// newAgent starts an agent of this process, and returns its address.
func newAgent(t *testing.T) (*introduce.Server, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	s := introduce.NewServer(introduce.Config{
		Users: testUsers, BootID: [16]byte{3}, Overcommit: func() uint8 { return 0 },
		Identify: func(*net.UnixConn) (introduce.Identity, error) { return introduce.Identity{PID: 1}, nil },
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(l, nil)
	}()
	t.Cleanup(func() { l.Close(); s.Close(); <-done })
	return s, path
}

func to(addresses ...string) Dial { return At(func() []string { return addresses }, testUsers) }

// counted counts the attempts of a Dial.
func counted(d Dial, count *int) Dial {
	return func(ctx context.Context, gid wire.ISMGID) (*introduce.Client, error) {
		*count++
		return d(ctx, gid)
	}
}

// TestGet has one connection for all that ask, another one under another GID, and another one once
// the first has ended or was released.
func TestGet(t *testing.T) {
	s, path := newAgent(t)
	var b Bureau
	defer b.Close()
	dials := 0
	dial := counted(to(path), &dials)
	get := func(gid byte, want int) *introduce.Client {
		t.Helper()
		c, why := b.Get(t.Context(), testGID(gid), dial)
		if c == nil || dials != want {
			t.Fatalf("%v, %v after %d attempts, want a connection after %d", c, why, dials, want)
		}
		return c
	}
	if id, ok := b.BootID(); ok {
		t.Errorf("the boot ID is %x before an agent was asked", id)
	}
	first := get(1, 1)
	if get(1, 1) != first {
		t.Error("the second one to ask has another connection")
	}
	if id, ok := b.BootID(); !ok || id != [16]byte{3} {
		t.Errorf("the boot ID is %x, %v", id, ok)
	}
	get(2, 2)
	<-first.Done()
	b.Release()
	last := get(2, 3)
	s.Close()
	<-last.Done()
	_, path = newAgent(t)
	dial = counted(to(path), &dials)
	get(2, 4)
}

// stuck is a Dial that waits until it is given up. It tells each attempt.
func stuck(begun chan<- struct{}) Dial {
	return func(ctx context.Context, _ wire.ISMGID) (*introduce.Client, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
}

// TestGetWaits has an agent that does not answer. All that ask wait for one attempt, as long as their
// contexts last, and none waits for the lock. An attempt that is given up says nothing about the agent.
func TestGetWaits(t *testing.T) {
	var b Bureau
	defer b.Close()
	begun := make(chan struct{}, 2)
	ctx, cancel := context.WithCancel(t.Context())
	reasons := make(chan clc.Diagnosis, 2)
	ask := func(ctx context.Context) {
		_, why := b.Get(ctx, testGID(1), stuck(begun))
		reasons <- why
	}
	go ask(ctx)
	<-begun
	other, cancelOther := context.WithCancel(t.Context())
	go ask(other)
	if !b.mu.TryLock() {
		t.Fatal("the lock is taken while the agent is waited for")
	}
	b.mu.Unlock()
	cancelOther()
	if why := <-reasons; why != clc.DiagNoAgent {
		t.Errorf("one that waits for another's attempt hears %v, want %v", why, clc.DiagNoAgent)
	}
	if len(begun) != 0 {
		t.Error("a second attempt was made beside the first")
	}
	cancel()
	if why := <-reasons; why != clc.DiagNoAgent {
		t.Errorf("the one that makes an attempt hears %v, want %v", why, clc.DiagNoAgent)
	}
	_, path := newAgent(t)
	if c, why := b.Get(t.Context(), testGID(1), to(path)); c == nil {
		t.Errorf("after an attempt that was given up: %v", why)
	}
}

// TestPause has no second attempt at once after one that has failed, nor after an agent that is slow.
func TestPause(t *testing.T) {
	_, path := newAgent(t)
	for name, fail := range map[string]func(b *Bureau){
		"no agent": func(b *Bureau) { b.Get(t.Context(), testGID(1), to()) },
		"slow":     func(b *Bureau) { b.Get(t.Context(), testGID(1), to(path)); b.Slow() },
	} {
		var b Bureau
		begin := time.Now()
		fail(&b)
		// A machine that takes longer than the pause may have a connection already.
		if c, why := b.Get(t.Context(), testGID(1), to(path)); why != clc.DiagNoAgent && time.Since(begin) < Pause {
			t.Errorf("%s: %v, %v at once afterwards", name, c, why)
		}
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if c, why := b.Get(t.Context(), testGID(1), to(path)); c != nil {
				break
			} else if time.Now().After(end) {
				t.Fatalf("%s: %v for ever", name, why)
			}
		}
		b.Close()
	}
}

// TestOldAgent has an agent of another version.
func TestOldAgent(t *testing.T) {
	var b Bureau
	defer b.Close()
	old := func(context.Context, wire.ISMGID) (*introduce.Client, error) { return nil, introduce.ErrAgentVersion }
	if _, why := b.Get(t.Context(), testGID(1), old); why != clc.DiagOldAgent {
		t.Errorf("an agent of another version: %v, want %v", why, clc.DiagOldAgent)
	}
}

// TestClose gives an attempt up. One that succeeds all the same has its connection closed.
func TestClose(t *testing.T) {
	var b Bureau
	begun := make(chan struct{}, 1)
	reasons := make(chan clc.Diagnosis)
	go func() {
		_, why := b.Get(context.Background(), testGID(1), stuck(begun))
		reasons <- why
	}()
	<-begun
	b.Close()
	if why := <-reasons; why != clc.DiagClosing {
		t.Errorf("an attempt of a bureau that was closed: %v, want %v", why, clc.DiagClosing)
	}

	_, path := newAgent(t)
	var late Bureau
	var client *introduce.Client
	c, why := late.Get(t.Context(), testGID(1), func(context.Context, wire.ISMGID) (*introduce.Client, error) {
		late.Close()
		var err error
		client, err = introduce.Dial(t.Context(), path, testGID(1), testUsers)
		return client, err
	})
	if c != nil || why != clc.DiagClosing || client == nil {
		t.Fatalf("a connection that is made too late: %v, %v; want %v", c, why, clc.DiagClosing)
	}
	select {
	case <-client.Done():
	default:
		t.Error("the connection was not closed")
		client.Close()
	}
}

// TestAt tries all addresses. The reason of several is the one that an administrator can do something about.
func TestAt(t *testing.T) {
	_, path := newAgent(t)
	nobody := filepath.Join(t.TempDir(), "nobody")
	c, err := to(nobody, path)(t.Context(), testGID(1))
	if err != nil {
		t.Fatalf("the second address: %v", err)
	}
	c.Close()
	old := filepath.Join(t.TempDir(), "old")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: old})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("good day"))
			defer c.Close()
		}
	}()
	if _, err := to(old, nobody)(t.Context(), testGID(1)); !errors.Is(err, introduce.ErrAgentVersion) {
		t.Errorf("another version and no agent: %v, want %v", err, introduce.ErrAgentVersion)
	}
	if _, err := to(nobody)(t.Context(), testGID(1)); !errors.Is(err, introduce.ErrNoAgent) {
		t.Errorf("no agent: %v, want %v", err, introduce.ErrNoAgent)
	}
}

// TestReason has an agent that is newer than we are.
func TestReason(t *testing.T) {
	if got := Reason(introduce.RefusedBusy); got != clc.DiagBusy {
		t.Errorf("a quota: %v", got)
	}
	if got := Reason(99); got != clc.DiagRefused {
		t.Errorf("a reason that is new: %v", got)
	}
}
