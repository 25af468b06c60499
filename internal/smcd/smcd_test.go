package smcd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
	"github.com/gosmc/smc/wire/clc"
)

// checkBuffers compares the counts of a side: the buffers in use, of its own and of its peer's
// memory, and its connections.
func (s *side) checkBuffers(t *testing.T, when string, dmbs, windows int64, conns int) {
	t.Helper()
	n := 0
	for _, g := range s.groups.Status(nil) {
		n += g.Conns
	}
	if st := s.Stats(); st.DMBs != dmbs || st.Windows != windows || n != conns {
		t.Errorf("%s: %d DMBs, %d windows, %d connections; want %d, %d, %d", when, st.DMBs, st.Windows, n, dmbs, windows, conns)
	}
}

// TestPeering looks at the common end of connections with one peer: they end together, when its
// process does.
func TestPeering(t *testing.T) {
	r := newRig(t)
	c1, s1 := r.connect()
	c2, s2 := r.connect()
	a := c1.binding.Association()
	if a != c2.binding.Association() || a != transport.Association(Peering{r.client.peer}) {
		t.Error("connections with one peer have two associations")
	}
	want := transport.Traits{HeaderLen: cdc.HeaderLen, PeerPID: int32(os.Getpid())}
	if got := c1.binding.Traits(); got != want {
		t.Errorf("traits %+v, want %+v", got, want)
	}
	if got := c1.path.Traits(); got != (transport.PathTraits{Local: true}) {
		t.Errorf("traits of the path: %+v, want a local one", got)
	}
	select {
	case <-a.Done():
		t.Error("the peering ends while both sides are there")
	default:
	}
	if !c1.path.Alive() {
		t.Error("a peer that is there is not alive")
	}
	s1.close(false)
	s2.close(false)
	r.server.Close()
	<-a.Done()
	if a.Cause() != core.EventPeerDead {
		t.Errorf("the end of a peering is event %v, want %v", a.Cause(), core.EventPeerDead)
	}
	if c1.path.Alive() {
		t.Error("a peer that is gone is alive")
	}
	<-r.client.gone
	if n := len(r.client.groups.Status(nil)); n != 0 {
		t.Errorf("%d link groups with a peer that is gone", n)
	}
	if _, _, err := c1.path.Prepare(testContext(t), c1.request(core.Choice{Remote: clc.ISMDevice{GID: r.client.peer.GID()}})); err == nil {
		t.Error("a buffer was made for a peer that is gone")
	}
	c1.close(false)
	c2.close(false)
	r.client.checkBuffers(t, "at the end", 0, 0, 0)
}

// TestBuffers has connections use their memory one after the other: memory that was released in
// order serves again, without a question to the peer, and other memory does not.
func TestBuffers(t *testing.T) {
	r := newRig(t)
	var tokens []wire.Token
	for i, clean := range []bool{true, false, true} {
		c, s := r.connect()
		exchange(t, c, s)
		tokens = append(tokens, c.binding.dmb.Token())
		r.client.checkBuffers(t, "while it lasts", 1, 1, 1)
		mine := c.binding
		c.data.Load().Detach()
		mine.Detach(clean)
		kept := int64(0)
		if clean {
			kept = 1 << 16
		}
		if n := r.client.Stats().MappedBytes; n != kept {
			t.Errorf("connection %d: %d bytes of the peer are mapped after its end, want %d", i, n, kept)
		}
		c.close(clean)
		s.close(clean)
		if mine.dmb != nil || mine.window != nil || mine.last != nil {
			t.Errorf("connection %d has memory after its end", i)
		}
		mine.Detach(clean)
		mine.Release(clean)
		r.client.checkBuffers(t, "after its end", 0, 0, 0)
		if err := mine.ReturnPages(0, 1<<16); err != nil {
			t.Errorf("pages of memory that it does not have: %v", err)
		}
	}
	if tokens[0] != tokens[1] || tokens[1] == tokens[2] {
		t.Errorf("DMBs %v: want the first one, which was released in order, to serve again, and then another", tokens)
	}
	if st := r.server.Stats(); st.WindowsReattached != 1 || st.WindowsAttached != 2 {
		t.Errorf("of windows %d were attached and %d were here; want 2 and 1", st.WindowsAttached, st.WindowsReattached)
	}
}

// TestStream looks at the words by which the data paths of both sides know of each other.
func TestStream(t *testing.T) {
	r := newRig(t)
	c, s := r.connect()
	mine, theirs := c.binding.Stream(), s.binding.Stream()
	theirs.Read.Store(7)
	if mine.PeerRead == nil || mine.PeerRead.Load() != 7 {
		t.Error("the client does not see how much the server has read")
	}
	theirs.Read.Store(0)
	reader, writer := s.binding.dmb.ReaderSleeps(), s.binding.dmb.WriterSleeps()
	reader.Store(1)
	writer.Store(1)
	if _, err := c.data.Load().Write([]byte("something")); err != nil {
		t.Fatal(err)
	}
	if reader.Load() != 0 || writer.Load() != 1 {
		t.Errorf("data wakes a reader: %t, a writer: %t; want the reader", reader.Load() == 0, writer.Load() == 0)
	}
	if mine.Spin != time.Millisecond || mine.Doorbell != stream.Doorbell(r.client.peer) {
		t.Errorf("it spins for %v at doorbell %v; want what the device has", mine.Spin, mine.Doorbell)
	}
	c.close(false)
	s.close(false)
}

// TestReturnPages gives pages of the peer's memory back: they are zero then, on both sides.
func TestReturnPages(t *testing.T) {
	r := newRig(t)
	c, s := r.connect()
	theirs := s.binding.dmb.Mem()
	for i := range theirs {
		theirs[i] = 1
	}
	page := os.Getpagesize()
	if err := c.binding.ReturnPages(page, 3*page); err != nil {
		t.Fatal(err)
	}
	if theirs[page] != 0 || theirs[3*page-1] != 0 || theirs[page-1] != 1 || theirs[3*page] != 1 {
		t.Error("other pages were given back than the second and the third")
	}
	if err := c.binding.ReturnPages(0, len(theirs)+1); !errors.Is(err, ism.ErrSize) {
		t.Errorf("pages behind the memory: %v, want %v", err, ism.ErrSize)
	}
	c.close(false)
	s.close(false)
}

// TestLeft has the peer give up its memory: the client of it is told, for as long as it has its own.
func TestLeft(t *testing.T) {
	r := newRig(t)
	c, s := r.connect()
	s.close(false)
	smctest.Eventually(t, patience, "the client is told", c.left.Load)
	if s.left.Load() {
		t.Error("the server is told what only a client asks for")
	}
	c.close(false)

	c, s = r.connect()
	c.close(true) // the window stays, for the next connection
	s.close(false)
	smctest.Eventually(t, patience, "the client's device is told", func() bool { return r.client.Stats().MappedBytes == 0 })
	r.client.Close() // waits for the goroutines that are told
	if c.left.Load() {
		t.Error("a connection that has released its memory is told of the peer")
	}
}

// TestHostileTokens has a server, and a client, tell memory that is not there: the connection has
// none of it, and gives back the memory that it has.
func TestHostileTokens(t *testing.T) {
	r := newRig(t)
	good, err := r.server.peer.NewDMB(1<<16, func() {})
	if err != nil {
		t.Fatal(err)
	}
	size := wire.SizeCodeFor(1 << 16)
	taken, err := r.server.peer.NewDMB(1<<16, func() {})
	if err != nil {
		t.Fatal(err)
	}
	window, err := r.client.peer.Attach(testContext(t), taken.Token(), 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	ended, err := r.server.peer.NewDMB(1<<16, func() {})
	if err != nil {
		t.Fatal(err)
	}
	endedToken := ended.Token()
	ended.Release(false)
	client := r.newEnd(core.RoleClient, r.client)
	server := r.newEnd(core.RoleServer, r.client) // of connections from the other side
	for _, tt := range []struct {
		name  string
		token wire.Token
		size  wire.SizeCode
		want  error
	}{
		{"zero", 0, size, ism.ErrToken},
		{"of nothing", good.Token() + 1<<32, size, ism.ErrToken},
		{"of another size", good.Token(), size + 1, ism.ErrToken},
		{"of a size that is too large", good.Token(), wire.MaxSizeCode, ism.ErrSize},
		{"of memory that was destroyed", endedToken, size, ism.ErrToken},
	} {
		choice, mirrored := r.choices(tt.token, tt.size)
		b, _, err := client.path.Prepare(testContext(t), client.request(choice))
		if b != nil || !errors.Is(err, tt.want) || transport.Reason(err) != clc.DiagUnreachable {
			t.Errorf("an Accept with a token %s: %v, %v; want %v", tt.name, b, err, tt.want)
		}
		r.client.checkBuffers(t, "after an Accept with a token "+tt.name, 0, 1, 0)

		mirrored.Local, mirrored.Remote = mirrored.Remote, mirrored.Local
		b, _, err = server.path.Prepare(testContext(t), server.request(mirrored))
		if err != nil {
			t.Fatal(err)
		}
		err = b.Attach(testContext(t), core.Result{D: choice.D})
		if !errors.Is(err, tt.want) || errors.Is(err, transport.ErrGone) {
			t.Errorf("a Confirm with a token %s: %v, want %v", tt.name, err, tt.want)
		}
		if cfg := b.Stream(); cfg.In.Data == nil || cfg.PeerRead != nil {
			t.Errorf("a Confirm with a token %s: what is written does not go nowhere", tt.name)
		}
		b.Detach(false)
		b.Release(false)
		b.Leave()
		r.client.checkBuffers(t, "after a Confirm with a token "+tt.name, 0, 1, 0)
	}
	// Memory that another connection uses is waited for, as its end may be late here; not for ever.
	choice, _ := r.choices(taken.Token(), size)
	hasty, cancel := context.WithCancel(context.Background())
	cancel()
	if b, _, err := client.path.Prepare(hasty, client.request(choice)); b != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("memory of another connection: %v, %v; want %v", b, err, context.Canceled)
	}
	r.client.checkBuffers(t, "after that", 0, 1, 0)
	window.Release(false)
	taken.Release(false)
	good.Release(false)
}

// TestForeignDevice has core choose a device that is not at the other end of the peering: nothing is made for it.
func TestForeignDevice(t *testing.T) {
	r := newRig(t)
	client := r.newEnd(core.RoleClient, r.client)
	choice, _ := r.choices(1, 0)
	choice.Remote.GID.Lo++
	if b, _, err := client.path.Prepare(testContext(t), client.request(choice)); b != nil || !errors.Is(err, transport.ErrUnreachable) {
		t.Errorf("Prepare = %v, %v; want %v", b, err, transport.ErrUnreachable)
	}
	r.client.checkBuffers(t, "afterwards", 0, 0, 0)
}

// TestPeerGone has the peer end before its memory is reached.
func TestPeerGone(t *testing.T) {
	r := newRig(t)
	server := r.newEnd(core.RoleServer, r.client)
	choice, _ := r.choices(1, 0)
	b, _, err := server.path.Prepare(testContext(t), server.request(choice))
	if b != nil || !errors.Is(err, ism.ErrToken) {
		t.Errorf("Prepare = %v, %v; want %v", b, err, ism.ErrToken)
	}
	choice.D = nil
	if b, _, err = server.path.Prepare(testContext(t), server.request(choice)); err != nil {
		t.Fatal(err)
	}
	r.server.Close()
	<-r.client.gone
	if err := b.Attach(testContext(t), core.Result{D: &clc.ParamsD{Token: 1}}); !errors.Is(err, transport.ErrGone) || !errors.Is(err, ism.ErrPeerGone) {
		t.Errorf("Attach = %v, want %v and %v", err, transport.ErrGone, ism.ErrPeerGone)
	}
	b.Detach(false)
	b.Release(false)
	b.Leave()
}

// TestNoGroup has a server name a link group that the client does not have: the client gives back
// the parts that it has made.
func TestNoGroup(t *testing.T) {
	r := newRig(t)
	theirs, err := r.server.peer.NewDMB(1<<16, func() {})
	if err != nil {
		t.Fatal(err)
	}
	client := r.newEnd(core.RoleClient, r.client)
	choice, _ := r.choices(theirs.Token(), wire.SizeCodeFor(1<<16))
	choice.FirstContact = false
	b, _, err := client.path.Prepare(testContext(t), client.request(choice))
	if b != nil || transport.Reason(err) != clc.DiagSync {
		t.Errorf("Prepare = %v, %v; want reason %v", b, err, clc.DiagSync)
	}
	r.client.checkBuffers(t, "afterwards", 0, 0, 0)
	theirs.Release(false)
}

// TestOpen opens devices where none can be: nothing is left of the attempt, and a device that is closed leaves nothing either.
func TestOpen(t *testing.T) {
	smctest.CheckLeaks(t)
	before := smctest.CountDescriptors()
	if d, err := Open(ism.Config{Dir: filepath.Join(t.TempDir(), "missing")}, nil, 0); err == nil {
		d.Close()
		t.Error("a device was opened in a directory that does not exist")
	}
	if n := smctest.CountDescriptors(); n != before {
		t.Errorf("%d descriptors after a device could not be opened, want %d", n, before)
	}
	d, err := Open(ism.Config{Dir: t.TempDir()}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	if w := d.NewPath(nil, wire.EID{}).Watcher(); w == nil {
		t.Error("a path has no watcher for TCP sockets")
	}
	d.Close()
	if n := smctest.CountDescriptors(); n != before {
		t.Errorf("%d descriptors after a device was closed, want %d", n, before)
	}
}
