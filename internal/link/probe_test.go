package link

import (
	"bytes"
	"slices"
	"testing"

	"github.com/gosmc/smc/wire/cdc"
)

// probeSize is the size of the elements in these tests.
const probeSize = 16 << 10

// arrived is how many bytes b was told of.
func (x *silent) arrived() int { return int(x.b.carrier.guard.Written.Load()) }

// awaitArrived waits until b was told of n bytes and nothing is on its way, and checks that it is not told of more.
func (x *silent) awaitArrived(n int) {
	x.t.Helper()
	eventually(x.t, "bytes", func() bool { return x.arrived() >= n && x.a.isIdle() })
	if got := x.arrived(); got != n {
		x.t.Fatalf("%d bytes have arrived, want %d", got, n)
	}
}

// readSilently has the program of b read all that is there, in a kernel that tells nobody, and returns it.
func (x *silent) readSilently() []byte {
	c, n := x.b.carrier, uint64(x.arrived())
	var all []byte
	for at := c.read.Load(); at < n; at++ {
		all = append(all, c.rmb.Bytes()[at%probeSize])
	}
	c.read.Store(n)
	c.told.Store(n) // so it says
	return all
}

// flagsAtB returns the flags of the newest message to b.
func (x *silent) flagsAtB() cdc.ProducerFlags {
	_, flags, _ := cdc.UnpackConsumer(x.b.carrier.inCons.Load())
	return flags
}

// writes has a write so many bytes, and returns them.
func (x *silent) writes(n int) []byte {
	all := make([]byte, n)
	for i := range all {
		all[i] = byte(i % 251)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.a.Write(all)
	}()
	x.t.Cleanup(func() { x.a.CloseWrite(); <-done }) // nobody waits for room any more
	return all
}

// TestProbe has the program of a peer read everything, and its kernel never say so, as its word was lost with a link: it is asked with a byte that was kept
// back for that. The kernel answers a read, and the flag.
func TestProbe(t *testing.T) {
	x := newSilent(t)
	all := x.writes(5 * probeSize)
	x.awaitArrived(probeSize - probeBytes)
	if f := x.flagsAtB(); f&cdc.WriterBlocked == 0 || f&cdc.CursorUpdateRequested != 0 {
		t.Errorf("a window that is full: %v, want %v", f, cdc.WriterBlocked)
	}
	got := x.readSilently()
	x.rest()
	if !x.look() {
		t.Fatal("not asked")
	}
	x.awaitArrived(probeSize - probeBytes + 1)
	for len(got) < len(all) {
		n := len(got)
		eventually(t, "more bytes", func() bool { return x.arrived() > n })
		got = append(got, x.readSilently()...)
		x.b.carrier.Consume(cdc.Cursor{}, 0, 0)
	}
	if !bytes.Equal(got, all) {
		t.Error("other bytes")
	}
}

// TestProbeFlagStays has more messages follow the one that asks with a byte: Linux heeds the flag of the newest one only, when its program reads.
func TestProbeFlagStays(t *testing.T) {
	x := newSilent(t)
	x.writes(5 * probeSize)
	x.awaitArrived(probeSize - probeBytes)
	x.rest()
	x.look()
	x.awaitArrived(probeSize - probeBytes + 1)
	for range 2 {
		x.say() // and a reads it
		x.a.carrier.Consume(cdc.Cursor{}, cdc.WriterBlocked|cdc.UrgentPending, 0)
		eventually(t, "a message", func() bool { return x.flagsAtB()&cdc.UrgentPending != 0 })
		if f := x.flagsAtB(); f&cdc.CursorUpdateRequested == 0 {
			t.Errorf("a later message has %v", f)
		}
		x.a.carrier.Consume(cdc.Cursor{}, cdc.WriterBlocked, 0)
		eventually(t, "another message", func() bool { return x.flagsAtB()&cdc.UrgentPending == 0 })
	}
	x.readSilently()
	x.b.carrier.Consume(cdc.Cursor{}, 0, 0)
	eventually(t, "the end of asking", func() bool {
		return x.arrived() > 2*probeSize-2*probeBytes && x.flagsAtB()&cdc.CursorUpdateRequested == 0
	})
}

// TestProbeWithoutWriter has nobody write any more when there is room for the bytes that were kept
// back. The peer is told that there are such bytes, though no Write waits.
func TestProbeWithoutWriter(t *testing.T) {
	x := newSilent(t)
	x.writes(probeSize)
	x.awaitArrived(probeSize - probeBytes)
	if f := x.flagsAtB(); f&cdc.WriterBlocked == 0 {
		t.Errorf("with bytes that are kept back: %v, want %v", f, cdc.WriterBlocked)
	}
	x.readSilently()
	x.b.carrier.Consume(cdc.Cursor{}, 0, 0)
	x.awaitArrived(probeSize)
}

// TestProbeEnd has an application say that nothing follows: then there is nothing to ask with, or for, and the peer gets all.
func TestProbeEnd(t *testing.T) {
	x := newSilent(t)
	x.writes(probeSize)
	x.awaitArrived(probeSize - probeBytes)
	x.a.CloseWrite()
	x.a.SendFlags(cdc.DoneWriting)
	x.awaitArrived(probeSize)
}

// TestProbeUrgent has an urgent byte be the last one for which there is room: the peer gets it, whether it reads or not.
func TestProbeUrgent(t *testing.T) {
	x := newSilent(t)
	x.writes(probeSize - 1)
	x.awaitArrived(probeSize - probeBytes)
	x.a.WriteUrgent([]byte("U"))
	wantUrgent(t, x.b, 'U')
	x.awaitArrived(probeSize)
}

// TestProbeForLong has the program of a peer not read, for long: it is asked on and on, less and less often, with a byte each time as long as there are some.
func TestProbeForLong(t *testing.T) {
	x := newSilent(t)
	all := x.writes(2 * probeSize)
	x.awaitArrived(probeSize - probeBytes)
	x.rest()
	var asked []int
	for i := 1; i <= 70*slowPace.again; i++ {
		if x.look() {
			asked = append(asked, i)
			x.awaitArrived(probeSize - probeBytes + min(len(asked), probeBytes))
		}
	}
	want := []int{1, 5, 25}
	for i := 1; i <= 70; i++ {
		want = append(want, i*slowPace.again)
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked at looks %v, want %v", asked, want)
	}
	got := x.readSilently()
	x.b.carrier.Consume(cdc.Cursor{}, 0, 0)
	for len(got) < len(all) {
		n := len(got)
		eventually(t, "more bytes", func() bool { return x.arrived() > n })
		got = append(got, x.readSilently()...)
		x.b.carrier.Consume(cdc.Cursor{}, 0, 0)
	}
	if !bytes.Equal(got, all) {
		t.Error("other bytes")
	}
}

// TestProbeAfterRest has nobody look any more at a connection, whose peer has ended its own direction, when the first bytes come for which there seems to be no
// room, as the peer's word was lost with the link.
func TestProbeAfterRest(t *testing.T) {
	x := newSilent(t)
	x.b.CloseWrite()
	x.b.SendFlags(cdc.DoneWriting)
	eventually(t, "the end", func() bool { return x.a.PeerFlags()&cdc.DoneWriting != 0 })
	all := x.writes(probeSize - 1000)
	x.awaitArrived(len(all))
	x.rest()
	got := x.readSilently()
	for range 30 {
		x.look()
	}
	if n := x.watched(); n != nobody {
		t.Fatalf("%d connections are looked at", n)
	}
	all = append(all, x.writes(2000)...)
	x.awaitArrived(probeSize - probeBytes)
	got = append(got, x.readSilently()...)
	x.rest()
	x.look()
	x.awaitArrived(probeSize - probeBytes + 1)
	x.b.carrier.Consume(cdc.Cursor{}, 0, 0)
	eventually(t, "all bytes", func() bool { return x.arrived() == len(all) })
	if got = append(got, x.readSilently()...); !bytes.Equal(got, all) {
		t.Error("other bytes")
	}
}

// TestProbeHalfClosed has a peer that has ended its own direction read everything, and never say so.
func TestProbeHalfClosed(t *testing.T) {
	x := newSilent(t)
	x.b.CloseWrite()
	x.b.SendFlags(cdc.DoneWriting)
	eventually(t, "the end", func() bool { return x.a.PeerFlags()&cdc.DoneWriting != 0 })
	x.writes(5 * probeSize)
	x.awaitArrived(probeSize - probeBytes)
	x.rest()
	if !x.look() {
		t.Error("not asked")
	}
	x.awaitArrived(probeSize - probeBytes + 1)
}

// TestProbeDetached has a connection end that keeps bytes back, and whose RMB is somebody else's already: nobody looks at it for ever.
func TestProbeDetached(t *testing.T) {
	x := newSilent(t)
	x.writes(2 * probeSize)
	x.awaitArrived(probeSize - probeBytes)
	x.a.carrier.resting.Store(true)
	x.a.carrier.Release()
	c := x.a.carrier
	c.mu.Lock()
	c.keepBack()
	c.mu.Unlock()
	if n := x.watched(); n == nobody {
		t.Error("nobody looks at a connection that keeps bytes back")
	}
	x.a.Conn.Close()
	c.Detach()
	for range 2 {
		x.look()
	}
	if n := x.watched(); n != nobody {
		t.Errorf("%d connections are looked at", n)
	}
}

// TestProbeLittleRoom has a peer make a little room, which a writer that wants more does not fill, and then read everything, and never say so.
func TestProbeLittleRoom(t *testing.T) {
	x := newSilent(t)
	x.writes(5 * probeSize)
	x.awaitArrived(probeSize - probeBytes)
	const little = 500
	c := x.a.carrier
	// As where the writer learns of the room while it looks for packets, before it sleeps: nobody wakes it.
	c.inCons.Store(cdc.PackConsumer(cdc.Cursor{Count: little}, 0, 0))
	c.held.Store(false)
	c.mu.Lock()
	c.poke()
	c.mu.Unlock()
	x.awaitArrived(probeSize) // the bytes that were kept back
	x.readSilently()
	x.rest()
	x.look()
	eventually(t, "bytes for the room that there is", func() bool { return x.arrived() > probeSize })
}

// TestSilentHeardOver has the link fail over which the peer has spoken, and not the one over which
// we do: the peer's last messages may be lost.
func TestSilentHeardOver(t *testing.T) {
	watchdog(t)
	w := newTwins(t, 2)
	a, b := w.connect(settings{})
	b.Write([]byte("x"))
	wantRead(t, a, "x")
	token, _ := b.rmb.Token(w.links[1][1])
	if err := a.carrier.Move(w.links[0][1], token); err != nil {
		t.Fatal(err)
	}
	a.Write([]byte("y"))
	wantRead(t, b, "y")
	looked := func() bool {
		g := a.side.group
		g.mu.Lock()
		defer g.mu.Unlock()
		return a.carrier.silence != nil
	}
	if looked() {
		t.Fatal("a connection is looked at that has moved in good order")
	}
	w.links[0][0].Fail(ErrClosed)
	eventually(t, "a look at it", looked)
}
