package host

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// A follower keeps the events from control.FollowTrace.
type follower struct {
	tb     testing.TB
	cancel context.CancelFunc
	end    chan error // gets the result

	mu   sync.Mutex
	list []control.TraceEvent
}

// follow follows a host until the test ends.
func follow(tb testing.TB, dir, name string, opts control.TraceOptions) *follower {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{tb: tb, cancel: cancel, end: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.end <- control.FollowTrace(ctx, dir, name, opts, func(e control.TraceEvent) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.list = append(f.list, e)
		})
	}()
	tb.Cleanup(func() { cancel(); <-done })
	return f
}

// followHost follows h. The control socket of h is open when followHost returns, and later events
// are seen.
func followHost(tb testing.TB, h *Host, opts control.TraceOptions) *follower {
	tb.Helper()
	gidOf(tb, h)
	before := h.trace.Listeners()
	f := follow(tb, h.cfg.Dir, controlOf(h), opts)
	smctest.Eventually(tb, patience, "the listener is there", func() bool { return h.trace.Listeners() > before })
	return f
}

// controlOf returns the name of the control socket.
func controlOf(h *Host) string {
	h.fabricMu.Lock()
	defer h.fabricMu.Unlock()
	return h.control.Name()
}

func (f *follower) events() []control.TraceEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.list)
}

// short describes an event in few words, without the parts that depend on chance.
func short(e control.TraceEvent) string {
	way := "recv "
	if e.Sent {
		way = "sent "
	}
	switch e.Kind {
	case control.TraceCLC:
		m, err := clc.Parse(e.Bytes)
		if err != nil {
			return way + "malformed"
		}
		return way + m.Type().String()
	case control.TraceRendezvous:
		return way + e.Name
	case control.TraceCDC:
		h, err := cdc.ParseHeader(e.Bytes)
		if err != nil {
			return way + "malformed"
		}
		return way + h.ConnFlags.String()
	case control.TraceState:
		states, _, _ := strings.Cut(e.Text, " on ")
		return states
	}
	return string(e.Kind)
}

// await waits for an event.
func (f *follower) await(what string) {
	f.tb.Helper()
	smctest.Eventually(f.tb, patience, "event "+what, func() bool {
		return slices.ContainsFunc(f.events(), func(e control.TraceEvent) bool { return short(e) == what })
	})
}

// check compares all events with those that are wanted, after the last of them has come.
func (f *follower) check(want ...string) []control.TraceEvent {
	f.tb.Helper()
	f.await(want[len(want)-1])
	list := f.events()
	var got []string
	for i, e := range list {
		got = append(got, short(e))
		if i > 0 && e.Seq != list[i-1].Seq+1 {
			f.tb.Errorf("event %d has number %d after %d", i, e.Seq, list[i-1].Seq)
		}
	}
	if !slices.Equal(got, want) {
		f.tb.Errorf("events:\n got %q\nwant %q", got, want)
	}
	return list
}

var (
	clientSetup = []string{"sent Expect", "recv Accepted", "sent Proposal", "recv Accept", "sent Confirm", "established", "Init > Active"}
	serverSetup = []string{"recv Expect", "sent Accepted", "recv Proposal", "sent Accept", "recv Confirm", "established", "Init > Active"}
)

// Both hosts of a connection tell of every message, in order, with the same bytes.
func TestTraceConnection(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	s, c := followHost(t, server, control.TraceOptions{}), followHost(t, client, control.TraceOptions{})

	cc := mustDial(t, client, l.Addr())
	sc := mustAccept(t, l)
	checkExchange(t, cc, sc)
	if err := cc.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := sc.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Fatalf("Read = %d, %v, want EOF", n, err)
	}
	s.await("Active > AppCloseWait1")
	sc.Close()
	c.await("PeerCloseWait1 > AppFinCloseWait")
	cc.Close()

	atClient := c.check(append(slices.Clone(clientSetup),
		"Active > PeerCloseWait1", "sent DoneWriting", "recv Closed", "PeerCloseWait1 > AppFinCloseWait",
		"AppFinCloseWait > Closed", "sent DoneWriting|Closed", "closed")...)
	atServer := s.check(append(slices.Clone(serverSetup),
		"recv DoneWriting", "Active > AppCloseWait1", "AppCloseWait1 > PeerFinCloseWait", "sent Closed",
		"recv DoneWriting|Closed", "PeerFinCloseWait > Closed", "closed")...)
	for i := 2; i <= 4; i++ {
		if !bytes.Equal(atClient[i].Bytes, atServer[i].Bytes) {
			t.Errorf("%s and %s are %x and %x", short(atClient[i]), short(atServer[i]), atClient[i].Bytes, atServer[i].Bytes)
		}
	}
	ends := [2][2]netip.AddrPort{
		{addrPort(cc.LocalAddr()), addrPort(l.Addr())}, // of the client: local, peer
		{addrPort(l.Addr()), addrPort(cc.LocalAddr())},
	}
	for end, list := range [][]control.TraceEvent{atClient, atServer} {
		for i, e := range list {
			local, peer, conn := ends[end][0], ends[end][1], uint64(1)
			if i < 2 { // a rendezvous knows only where the connection goes
				conn = 0
				if end == 0 {
					local = netip.AddrPort{}
				} else {
					peer = netip.AddrPort{}
				}
			}
			if e.Client != (end == 0) || e.Local != local || e.Peer != peer || e.Conn != conn || time.Since(e.Time) > time.Minute {
				t.Errorf("%s of end %d = %+v, want connection %d from %v to %v", short(e), end, e, conn, local, peer)
			}
		}
	}
	if text := atClient[len(atClient)-1].Text; !strings.HasPrefix(text, "SMC-D in=34 out=34 after ") {
		t.Errorf("text of closed = %q, want the bytes that checkExchange moves", text)
	}

	// A later follower gets the events that are remembered, and as many of them as it asks for.
	late := followHost(t, client, control.TraceOptions{History: 1000})
	late.await("closed")
	if got := late.events(); !slices.EqualFunc(got, atClient, func(a, b control.TraceEvent) bool { return a.Seq == b.Seq && short(a) == short(b) }) {
		t.Errorf("history has %d events, want those %d that came live", len(got), len(atClient))
	}
	followHost(t, client, control.TraceOptions{History: 2}).check("sent DoneWriting|Closed", "closed")
}

// A reset is seen by both sides.
func TestTraceAbort(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	s, c := followHost(t, server, control.TraceOptions{}), followHost(t, client, control.TraceOptions{})
	cc := mustDial(t, client, l.Addr())
	sc := mustAccept(t, l)
	if err := cc.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	cc.Close()
	s.await("Active > ProcessAbort")
	sc.Close()
	s.check(append(slices.Clone(serverSetup), "recv Abort", "Active > ProcessAbort", "sent Abort", "ProcessAbort > Closed", "closed")...)
	// The client learns of the answer at once, and does not wait for its timer.
	c.check(append(slices.Clone(clientSetup), "Active > PeerAbortWait", "sent Abort", "recv Abort", "PeerAbortWait > Closed", "closed")...)
}

// A connection that stays TCP has a reason, and one that cannot be used, too.
func TestTraceFallback(t *testing.T) {
	smctest.CheckLeaks(t)
	client := newTestHost(t, Config{})
	f := followHost(t, client, control.TraceOptions{})
	plain := plainListener(t, "127.0.0.1:0")
	mustDial(t, client, plain.Addr()).Close()
	list := f.check("fallback", "closed")
	want := clc.Lookup(clc.DiagNoListener, clc.OSUnspecified)
	if list[0].Mode != "TCP" || !strings.HasPrefix(list[0].Text, want.String()) || list[0].Peer != addrPort(plain.Addr()) {
		t.Errorf("fallback = %+v, want to TCP because of %v", list[0], want)
	}
	if _, err := client.Dial(boundedContext(t), "tcp", plain.Addr().String(), DialOptions{Require: conn.RequireSMCD}); err == nil {
		t.Error("Dial with a requirement that is not met = nil")
	}
	list = f.check("fallback", "closed", "fallback", "failed")
	if list[3].Text == "" {
		t.Error("failed has no text")
	}
}

// A peer's answer is in the trace as it came, also where it is no message.
func TestTracePeerLies(t *testing.T) {
	r := newClientRig(t)
	f := followHost(t, r.client, control.TraceOptions{})
	decline := clc.Decline{Version: clc.V2, Diagnosis: clc.DiagConfig, OS: clc.OSLinux}
	c, result := r.begin()
	c.write(decline.Append(nil))
	res := <-result
	if res.err != nil {
		t.Fatal(res.err)
	}
	res.conn.Close()
	list := f.check("sent Expect", "recv Accepted", "sent Proposal", "recv Decline", "fallback", "closed")
	if !strings.HasSuffix(list[4].Text, ", says the peer") {
		t.Errorf("text of fallback = %q, want it to name who declined", list[4].Text)
	}

	garbage := []byte("HTTP/1.1 400 Bad Request\r\n")
	c, result = r.begin()
	c.write(garbage)
	if res := <-result; res.err == nil {
		t.Error("Dial of a server that is no SMC server = nil")
	}
	f.await("failed")
	list = f.events()[9:]
	if got := short(list[0]); got != "recv malformed" || !bytes.Equal(list[0].Bytes, garbage[:clc.HeaderLen]) {
		t.Errorf("after the Proposal comes %s, %q, want a malformed message, %q", got, list[0].Bytes, garbage[:clc.HeaderLen])
	}
}

// The end of a host and of its process are told apart.
func TestTraceEnds(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	child := smctest.Start(t, "host-serve", dir)
	addr := child.Hear("listening")
	list, errs := control.Gather(t.Context(), dir)
	if len(list) != 1 || errs != nil {
		t.Fatalf("Gather = %v, %v, want the child", list, errs)
	}
	f := follow(t, dir, list[0].Name, control.TraceOptions{History: 10})
	client := newTestHost(t, Config{Dir: dir})
	c, err := client.Dial(boundedContext(t), "tcp", addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.check(serverSetup...)
	mine := followHost(t, client, control.TraceOptions{})
	child.Kill()
	if err := <-f.end; err != control.ErrProcessEnded {
		t.Errorf("control.FollowTrace of a process that was killed = %v, want %v", err, control.ErrProcessEnded)
	}
	mine.await("peer gone")
	mine.await("Active > ProcessAbort") // before or after, because of the TCP connection's end
	c.Close()
	client.Close()
	if err := <-mine.end; err != control.ErrHostClosed {
		t.Errorf("control.FollowTrace of a host that is closed = %v, want %v", err, control.ErrHostClosed)
	}
}

// Cursors are sampled in both directions, as often as it was asked for.
func TestTraceCursors(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir, ReadBuffer: 16 << 10}), newTestHost(t, Config{Dir: dir, ReadBuffer: 16 << 10})
	l := mustListen(t, server, "127.0.0.1:0")
	cc := mustDial(t, client, l.Addr())
	sc := mustAccept(t, l)
	defer cc.Close()
	defer sc.Close()
	const capacity = 16<<10 - cdc.HeaderLen
	if _, err := cc.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	s, c := followHost(t, server, control.TraceOptions{Cursors: 10 * time.Millisecond}), followHost(t, client, control.TraceOptions{Cursors: 10 * time.Millisecond})
	for _, f := range []*follower{c, s} {
		smctest.Eventually(t, patience, "samples", func() bool { return len(f.events()) >= 4 })
		for i, e := range f.events()[:4] {
			sent := i%2 == 0
			h, err := cdc.ParseHeader(e.Bytes)
			moved, room := uint64(0), capacity
			if sent == (f == c) {
				moved, room = 1000, capacity-1000
			}
			if e.Kind != control.TraceCursors || e.Sent != sent || err != nil || uint64(h.Producer.Count) != moved || h.Consumer.Count != 0 ||
				e.Moved != moved || e.Window != room || e.Seq != 0 {
				t.Errorf("sample %d = %+v with %v, want %d bytes moved and room for %d", i, e, h, moved, room)
			}
		}
	}
}

// TestSMCRTraced has CDC messages of SMC-R as they are on the network: each side's with the other's alert token.
func TestSMCRTraced(t *testing.T) {
	r := newSMCRRig(t, nil)
	f := map[*Host]*follower{r.client: followHost(t, r.client, control.TraceOptions{}), r.server: followHost(t, r.server, control.TraceOptions{})}
	c, s := r.connect()
	checkSMCR(t, c, s)
	if _, err := c.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(s, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	s.Close()
	checkGone(t, r.client, r.server)
	message := func(h *Host, sent bool) (m cdc.Message) {
		t.Helper()
		smctest.Eventually(t, patience, "a CDC message", func() bool {
			for _, e := range f[h].events() {
				if e.Kind == control.TraceCDC && e.Sent == sent {
					var err error
					if m, err = cdc.ParseMessage(e.Bytes); err != nil {
						t.Fatal(err)
					}
					return true
				}
			}
			return false
		})
		return m
	}
	for _, ends := range [][2]*Host{{r.client, r.server}, {r.server, r.client}} {
		sent, received := message(ends[0], true), message(ends[1], false)
		if sent.AlertToken == 0 || sent.AlertToken != received.AlertToken || received.Seq == 0 || received.ConnFlags&cdc.Closed == 0 {
			t.Errorf("sent %+v, received %+v", sent, received)
		}
	}
	if m := message(r.server, false); m.Producer != (cdc.Cursor{Count: 100}) {
		t.Errorf("the client's message is %+v", m)
	}
}
