package conn

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/tcpwatch"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// soon is how long tests wait for an event that needs no more than a goroutine to run.
const soon = time.Minute

// A notingOwner notes the calls that connections make to their host.
type notingOwner struct {
	closing bool // Add fails

	mu     sync.Mutex
	calls  []string // "add", "forget", "closed", and reasons of failures
	traced []Record
}

func (o *notingOwner) note(call string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, call)
}

func (o *notingOwner) Add(Conn) error {
	if o.closing {
		return transport.ErrClosed
	}
	o.note("add")
	return nil
}
func (o *notingOwner) Forget(Conn)               { o.note("forget") }
func (o *notingOwner) Closed(Conn)               { o.note("closed") }
func (o *notingOwner) FellBack(clc.Reason, bool) { o.note("fell back") }
func (o *notingOwner) Failed(reason string)      { o.note(reason) }
func (o *notingOwner) BeginTrace() *Record {
	o.mu.Lock()
	o.traced = append(o.traced, Record{})
	return &o.traced[len(o.traced)-1]
}
func (o *notingOwner) EndTrace([]byte) { o.mu.Unlock() }

// has reports whether a call was made, or a failure has a reason that begins with it.
func (o *notingOwner) has(call string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.calls, func(c string) bool { return strings.HasPrefix(c, call) })
}

// newTCPPair returns the two ends of a TCP connection.
func newTCPPair(t *testing.T) (ours, theirs *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// newPending returns a connection of a host that takes no notes.
func newPending(tcp *net.TCPConn) *Pending {
	return New(&Env{Owner: new(notingOwner), Logger: slog.New(slog.DiscardHandler)}, Params{ID: 1, TCP: tcp, Client: true})
}

// A memoryBinding is a binding whose fabric is memory of this process. The test plays the peer.
type memoryBinding struct {
	transport.NoLinks
	in, out     []byte // our buffer and the peer's, headers first
	readerWords [2]atomic.Uint32
	gone        chan struct{}

	mu    sync.Mutex
	calls []string // "detach", "release", "leave"
}

func (b *memoryBinding) note(call string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, call)
}

func (b *memoryBinding) noted() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.calls)
}

func (b *memoryBinding) Attach(context.Context, core.Result) error { return nil }
func (b *memoryBinding) Confirm(core.Result) transport.Membership  { return transport.Membership{} }
func (b *memoryBinding) OutOfSync()                                {}
func (b *memoryBinding) Leave()                                    { b.note("leave") }
func (b *memoryBinding) Detach(bool)                               { b.note("detach") }
func (b *memoryBinding) Release(bool)                              { b.note("release") }
func (b *memoryBinding) ReturnPages(from, to int) error            { return nil }
func (b *memoryBinding) Association() transport.Association        { return b }
func (b *memoryBinding) Done() <-chan struct{}                     { return b.gone }
func (b *memoryBinding) Cause() core.ConnEventKind                 { return core.EventPeerDead }
func (b *memoryBinding) Traits() transport.Traits                  { return transport.Traits{HeaderLen: cdc.HeaderLen} }
func (b *memoryBinding) AppendHeader(buf []byte, h cdc.Header, _ bool) []byte {
	return h.Append(buf)
}
func (b *memoryBinding) Stream() stream.Config {
	return stream.Config{In: stream.ElementInbox(b.in), Out: stream.NewMemory(b.out, &b.readerWords[0], &b.readerWords[1], func() {})}
}

// flags are those that we have sent.
func (b *memoryBinding) flags() cdc.ConnFlags {
	_, _, flags := cdc.UnpackConsumer(stream.ElementInbox(b.out).Consumer.Load())
	return flags
}

// say has the peer say that its connection is in another state.
func (b *memoryBinding) say(flags cdc.ConnFlags) {
	in := stream.ElementInbox(b.in)
	in.Consumer.Store(cdc.PackConsumer(cdc.Cursor{}, 0, flags))
}

// A lifeRig is an SMC connection over memory.
type lifeRig struct {
	*SMC
	owner   *notingOwner
	binding *memoryBinding
	theirs  *net.TCPConn
}

// newLifeRig returns one that is bound and not yet established.
func newLifeRig(t *testing.T) *lifeRig {
	t.Helper()
	aligned := func(n int) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&make([]uint64, n/8)[0])), n) }
	r := &lifeRig{owner: new(notingOwner), binding: &memoryBinding{in: aligned(4096), out: aligned(4096), gone: make(chan struct{})}}
	var ours *net.TCPConn
	ours, r.theirs = newTCPPair(t)
	p := newPending(ours)
	p.env.Owner = r.owner
	r.SMC = NewSMC(p)
	r.Bind(r.binding)
	return r
}

// establish does so.
func (r *lifeRig) establish(t *testing.T) error {
	t.Helper()
	w, err := tcpwatch.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return r.Establish(Agreement{Mode: core.SMCD, Agreed: new(Agreed), Watcher: w})
}

// mustEstablish is establish where nothing keeps the connection from it.
func (r *lifeRig) mustEstablish(t *testing.T) {
	t.Helper()
	if err := r.establish(t); err != nil {
		t.Fatal(err)
	}
}

// TestEventBeforeEstablished has news of a peer that has aborted come before the connection is established: it is the application's from then on, so
// its memory stays until that has closed it.
func TestEventBeforeEstablished(t *testing.T) {
	r := newLifeRig(t)
	r.sends, r.holds, r.state = true, true, core.NewConn(core.SMCD)
	r.binding.say(cdc.Abort)
	for _, kind := range []core.ConnEventKind{core.EventPeerFlags, core.EventTCPReset, core.EventPeerDead} {
		r.event(core.ConnEvent{Kind: kind})
	}
	if calls := r.binding.noted(); len(calls) > 0 {
		t.Fatalf("before it is established: %v", calls)
	}
	r.mustEstablish(t)
	if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Read = %d, %v, want %v", n, err, syscall.ECONNRESET)
	}
	r.Close()
	if calls := r.binding.noted(); !slices.Equal(calls, []string{"detach", "release", "leave"}) || !r.owner.has("forget") {
		t.Errorf("after Close: %v, and of the host %v", calls, r.owner.calls)
	}
}

// TestEstablish has the events that end a connection come before it is in its host's table, where
// nothing finds it.
func TestEstablish(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(r *lifeRig)
		why    string
	}{
		{"flags", func(r *lifeRig) { r.binding.say(cdc.Abort) }, core.FailReset.String()},
		{"lost element", func(r *lifeRig) { r.ElementLost() }, "the peer uses our element"},
		{"end of the association", func(r *lifeRig) { close(r.binding.gone) }, core.FailPeerEnded.String()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newLifeRig(t)
			tt.before(r)
			r.mustEstablish(t)
			if !r.owner.has("add") || !r.owner.has(tt.why) {
				t.Errorf("the host was told %q, want add and %q", r.owner.calls, tt.why)
			}
			r.Close()
			if !r.owner.has("forget") {
				t.Error("the host still has it")
			}
		})
	}
	t.Run("host that closes", func(t *testing.T) {
		r := newLifeRig(t)
		r.owner.closing = true
		if err := r.establish(t); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Establish = %v, want %v", err, transport.ErrClosed)
		}
		if r.binding.flags()&cdc.Abort == 0 {
			t.Error("the peer is not told")
		}
		if calls := r.binding.noted(); !slices.Equal(calls, []string{"detach", "release", "leave"}) {
			t.Errorf("the binding has %v", calls)
		}
	})
}

// TestPeerLeft has a peer without a word of its end leave, before and after the application has closed.
func TestPeerLeft(t *testing.T) {
	for _, first := range []bool{true, false} {
		r := newLifeRig(t)
		r.mustEstablish(t)
		if first {
			r.PeerLeft()
		}
		r.Close()
		if !first {
			if r.owner.has("forget") {
				t.Fatal("nobody waits for the peer's flags")
			}
			r.PeerLeft()
		}
		smctest.Eventually(t, soon, "the end of the connection", func() bool { return r.owner.has("forget") })
	}
}

// TestUrgentCursorReset has a peer with an urgent cursor that cannot be: the connection is reset, and the reason is kept.
func TestUrgentCursorReset(t *testing.T) {
	r := newLifeRig(t)
	r.mustEstablish(t)
	defer r.Close()
	stream.ElementInbox(r.binding.in).Producer.Store(cdc.PackUrgent(cdc.Cursor{Wrap: 9, Count: 1}, cdc.UrgentPending|cdc.UrgentPresent))
	if _, err := r.ReadUrgent(); err == nil || err == io.EOF {
		t.Errorf("ReadUrgent = %v, an urgent byte from nowhere", err)
	}
	if !r.owner.has(core.FailProtocol.String() + ": ") {
		t.Errorf("the host was told %q, want a reason", r.owner.calls)
	}
	if r.binding.flags()&cdc.Abort == 0 {
		t.Error("the peer is not reset")
	}
}
