package link

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/gosmc/smc/wire/cdc"
)

// onTheirWay counts the messages of l that have no completion yet.
func (l *Link) onTheirWay() (cdc, llc int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cdcSends - len(l.free), l.llcOut
}

func (c *Carrier) outstanding() (messages int, bytes, unposted uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out, c.posted - c.finished.Load(), c.put - c.posted
}

// TestPlaces shuts the network: as many messages go out as the peer has receives for, some places are left to
// LLC, and all that was held back goes when the network is open again.
func TestPlaces(t *testing.T) {
	watchdog(t)
	v, s := newValve(t)
	const conns = 30
	var from, to [conns]*end
	for i := range conns {
		from[i], to[i] = s.connect(t, settings{})
	}
	v.shut.Store(true)
	message := []byte("a message")
	for _, e := range from {
		if _, err := e.Write(message); err != nil {
			t.Fatal(err)
		}
	}
	l := s[0].link
	for i := range 6 {
		if err := l.SendLLC([]byte{7, byte(i)}, uint64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if c, m := l.onTheirWay(); c != 14 || m != 2 {
		t.Errorf("%d CDC and %d LLC messages are on their way, want 14 and 2", c, m)
	}
	v.shut.Store(false)
	for i, e := range to {
		b := make([]byte, 100)
		if n, err := e.Read(b); !bytes.Equal(b[:n], message) || err != nil {
			t.Errorf("connection %d: %q, %v", i, b[:n], err)
		}
	}
	for i := range 6 {
		if e := s[1].poll(t); e.Kind != EventLLC || !bytes.Equal(e.Message, []byte{7, byte(i)}) {
			t.Errorf("event %+v", e)
		}
		if e := s[0].poll(t); e.Kind != EventSent || e.Tag != uint64(i+1) {
			t.Errorf("event %+v", e)
		}
	}
}

// TestPlacesAfterLLC is TestPlaces where LLC has come first.
func TestPlacesAfterLLC(t *testing.T) {
	watchdog(t)
	v, s := newValve(t)
	const conns = 20
	var from, to [conns]*end
	for i := range conns {
		from[i], to[i] = s.connect(t, settings{})
	}
	v.shut.Store(true)
	l := s[0].link
	for range 6 {
		if err := l.SendLLC([]byte{7}, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range from {
		if _, err := e.Write([]byte("bytes")); err != nil {
			t.Fatal(err)
		}
	}
	if c, m := l.onTheirWay(); c != 12 || m != 4 {
		t.Errorf("%d CDC and %d LLC messages are on their way, want 12 and 4", c, m)
	}
	v.shut.Store(false)
	for _, e := range to {
		if _, err := io.ReadFull(e, make([]byte, 5)); err != nil {
			t.Error(err)
		}
	}
}

// TestQueued ends a connection that waits for a place, and then the link: its send ring comes back.
func TestQueued(t *testing.T) {
	watchdog(t)
	v, s := newValve(t)
	big, _ := s.connect(t, settings{code: sizes(6, 6)})
	e, _ := s.connect(t, settings{})
	v.shut.Store(true)
	if _, err := big.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Write([]byte("bytes")); err != nil {
		t.Fatal(err)
	}
	e.Conn.Close()
	e.SendLast(cdc.Closed)
	e.carrier.Detach()
	if e.carrier.ring == nil || !e.carrier.queued {
		t.Fatal("it does not wait for a place")
	}
	s[0].link.Fail(io.EOF)
	e.awaitDrained(t)
}

// TestTurns shuts the network while one connection has much to send and others little: each waits once for
// a place, in the order in which they came.
func TestTurns(t *testing.T) {
	watchdog(t)
	v, s := newValve(t)
	big, sink := s.connect(t, settings{code: sizes(7, 7), sendBuffer: 2 << 20})
	var small, others [5]*end
	for i := range small {
		small[i], others[i] = s.connect(t, settings{})
	}
	late, lateOther := s.connect(t, settings{})
	v.shut.Store(true)
	place, ok := s[0].link.take(late.carrier) // one that somebody gives back later
	if !ok {
		t.Fatal("no place")
	}
	data := make([]byte, 2<<20)
	for i := range data {
		data[i] = byte(i >> 8)
	}
	if _, err := big.Write(data); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds it queued
		for _, e := range small {
			if _, err := e.Write([]byte("one")); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := s[0].link
	l.giveBack(place)
	if _, err := late.Write([]byte("oneone")); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	var got []*Carrier
	for c := l.waiting.first; c != nil; c = c.next {
		got = append(got, c)
	}
	l.mu.Unlock()
	want := []*Carrier{big.carrier}
	for _, e := range small {
		want = append(want, e.carrier)
	}
	want = append(want, late.carrier) // though there was a place
	if len(got) != len(want) {
		t.Fatalf("%d connections wait, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("place %d of the queue is somebody else's", i)
		}
	}
	before := l.Stats().SentCDC
	v.shut.Store(false)
	for _, e := range append(others[:], lateOther) {
		b := make([]byte, 6)
		if n, err := e.Read(b); string(b[:n]) != "oneone" || err != nil { // gathered, sent together
			t.Errorf("%q, %v", b[:n], err)
		}
	}
	all := make([]byte, len(data))
	if _, err := io.ReadFull(sink, all); err != nil || !bytes.Equal(all, data) {
		t.Errorf("the bytes of the big one: %v", err)
	}
	left := len(data) - (cdcSends-1)*maxPost
	// One more has the last bytes of the element, which follow when the peer has read, if it had not before: see probe.go.
	if n, want := int(l.Stats().SentCDC-before), 6+left/maxPost; n != want && n != want+1 {
		t.Errorf("%d messages more for 6 small ones and %d bytes", n, left)
	}
}

// TestNoDelay has small writes go out at once if the program wants that, and those that had gathered.
func TestNoDelay(t *testing.T) {
	watchdog(t)
	v, s := newValve(t)
	a, b := s.connect(t, settings{code: sizes(4, 4)})
	v.shut.Store(true)
	write := func(want int) {
		t.Helper()
		if _, err := a.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		if out, _, unposted := a.carrier.outstanding(); out != want || (unposted == 0) != (want > 1) {
			t.Errorf("%d messages on their way, want %d; %d bytes gather", out, want, unposted)
		}
	}
	if _, err := a.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	a.carrier.SetNoDelay(true)
	if out, _, unposted := a.carrier.outstanding(); out != 2 || unposted != 0 {
		t.Errorf("after SetNoDelay %d messages on their way, %d bytes gather", out, unposted)
	}
	write(3)
	write(4)
	v.shut.Store(false)
	if _, err := io.ReadFull(b, make([]byte, 400)); err != nil {
		t.Error(err)
	}
}

// TestRequestedUpdate has a reader that has read less than the window asks for, and reads no more, tell how far it is when the writer wants to
// know.
func TestRequestedUpdate(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	a, b := s.connect(t, settings{})
	if _, err := a.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(b, make([]byte, 60)); err != nil {
		t.Fatal(err)
	}
	updates := func() uint64 { return s[1].link.Stats().SentCDC }
	if got := updates(); got != 0 {
		t.Fatalf("%d updates before anybody has asked", got)
	}
	ask := func() {
		before := a.carrier.Arrived()
		a.carrier.mu.Lock()
		a.carrier.ask = true
		a.carrier.mu.Unlock()
		if _, err := a.Write(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the question's arrival", func() bool { return a.carrier.Arrived() > before })
	}
	ask()
	eventually(t, "the answer", func() bool {
		at, _, _ := cdc.UnpackConsumer(a.carrier.inCons.Load())
		return at.Count == 60
	})
	if _, err := io.ReadFull(b, make([]byte, 41)); err != nil {
		t.Fatal(err)
	}
}

// TestGather has small writes wait for the message that is on its way, and large ones not.
func TestGather(t *testing.T) {
	watchdog(t)
	v, s := newValve(t)
	a, b := s.connect(t, settings{code: sizes(4, 4)})
	v.shut.Store(true)
	for range 100 {
		if _, err := a.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	if out, _, unposted := a.carrier.outstanding(); out != 1 || unposted != 9900 {
		t.Errorf("%d messages on their way, %d bytes gather", out, unposted)
	}
	if _, err := a.Write(make([]byte, corkBytes)); err != nil {
		t.Fatal(err)
	}
	if out, _, unposted := a.carrier.outstanding(); out != 2 || unposted != 0 {
		t.Errorf("after a large one %d messages on their way, %d bytes gather", out, unposted)
	}
	v.shut.Store(false)
	if _, err := io.ReadFull(b, make([]byte, 10000+corkBytes)); err != nil {
		t.Error(err)
	}
	// A connection whose peer has read all does not wait for a completion: the acknowledgement may
	// be late.
	eventually(t, "the last completion", func() bool { out, _, _ := a.carrier.outstanding(); return out == 0 })
	b.SayRead()
	eventually(t, "the news of it", a.carrier.answered)
	if _, err := a.Write(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	a.carrier.mu.Lock()
	a.carrier.out++ // one whose acknowledgement is late
	a.carrier.mu.Unlock()
	if _, err := b.Write(make([]byte, 1)); err != nil { // tells that all was read
		t.Fatal(err)
	}
	if _, err := a.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	a.carrier.mu.Lock()
	a.carrier.out--
	a.carrier.mu.Unlock()
}

// TestRoom fills the send ring of a connection whose peer has more room than that: the writer waits for completions.
func TestRoom(t *testing.T) {
	watchdog(t)
	v, s := newValve(t)
	a, b := s.connect(t, settings{code: sizes(0, 4), sendBuffer: minSendBuffer})
	v.shut.Store(true)
	if _, err := a.Write(make([]byte, minSendBuffer)); err != nil {
		t.Fatal(err)
	}
	written := make(chan error)
	go func() {
		_, err := a.Write(make([]byte, minSendBuffer))
		written <- err
	}()
	eventually(t, "the writer waits", a.carrier.short.Load)
	if _, written := a.Totals(); written != minSendBuffer {
		t.Errorf("%d bytes are in a ring of %d", written, minSendBuffer)
	}
	v.shut.Store(false)
	if err := <-written; err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(b, make([]byte, 2*minSendBuffer)); err != nil {
		t.Error(err)
	}
}

// TestClosedAfterWrites closes with bytes on their way: Closed waits until they have arrived, and the ring is given
// back after that.
func TestClosedAfterWrites(t *testing.T) {
	watchdog(t)
	v, s := newValve(t)
	a, b := s.connect(t, settings{})
	v.shut.Store(true)
	for range 2 { // the second gathers
		if _, err := a.Write([]byte("bytes")); err != nil {
			t.Fatal(err)
		}
	}
	a.Conn.Close()
	a.SendLast(cdc.DoneWriting | cdc.Closed)
	a.carrier.Detach()
	c := a.carrier
	c.mu.Lock()
	if c.said&cdc.Closed != 0 || c.out != 2 || c.put != c.posted || c.ring == nil {
		t.Errorf("with bytes on their way: said %v, %d messages on their way, %d bytes gather", c.said, c.out, c.put-c.posted)
	}
	c.mu.Unlock()
	v.shut.Store(false)
	got := make([]byte, 100)
	n := 0
	for {
		k, err := b.Read(got[n:])
		n += k
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if string(got[:n]) != "bytesbytes" {
		t.Errorf("read %q", got[:n])
	}
	eventually(t, "Closed", func() bool { return b.PeerFlags() == cdc.DoneWriting|cdc.Closed })
	a.awaitDrained(t)
	if n := s[0].link.Stats().SentCDC; n != 3 {
		t.Errorf("%d messages, want two with bytes and one more", n)
	}
}

// TestAbort aborts with bytes on their way and others that were not posted yet: Abort does not wait
// for the former, and takes the latter along, as those that TCP has sent before a reset. Bytes that
// do not fit into a post are dropped, and so are all where the peer has ended the connection.
func TestAbort(t *testing.T) {
	watchdog(t)
	for _, tt := range []struct {
		name       string
		more, want int // bytes
		peer       cdc.ConnFlags
	}{
		{"gathered", 5, 10, 0},
		{"more than a post", corkBytes + maxPost, 5 + maxPost, 0},
		{"peer aborted", 5, 5, cdc.Abort},
		{"peer closed", 5, 5, cdc.DoneWriting | cdc.Closed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, s := newValve(t)
			a, b := s.connect(t, settings{code: sizes(4, 4)}) // 256 KiB
			v.shut.Store(true)
			if _, err := a.Write([]byte("bytes")); err != nil {
				t.Fatal(err)
			}
			c := a.carrier
			c.mu.Lock()
			c.posting = true // the next bytes are there when Abort is, however it comes to that
			c.mu.Unlock()
			if _, err := a.Write(make([]byte, tt.more)); err != nil {
				t.Fatal(err)
			}
			if tt.peer != 0 {
				c.receive(s[0].link, 0, &cdc.Message{Seq: 1, AlertToken: c.token, ConnFlags: tt.peer})
			}
			a.Conn.Close()
			a.SendLast(cdc.Abort)
			a.carrier.Detach()
			if n, err := a.Write([]byte("more")); err == nil {
				t.Errorf("Write after an abort: %d", n)
			}
			c.postedAll()
			v.shut.Store(false)
			eventually(t, "Abort", func() bool { return b.PeerFlags() == cdc.Abort })
			if h := b.PeerHeader(); h.Producer.Count != uint32(tt.want) {
				t.Errorf("producer %v, want %d", h.Producer, tt.want)
			}
			if n := s[0].link.Stats().SentCDC; n != 2 {
				t.Errorf("%d messages", n)
			}
			a.awaitDrained(t)
			a.carrier.Release()
			a.rmb.Free()
		})
	}
}

// TestDetachWithoutFlags ends a connection whose peer has ended it: nothing more is sent.
func TestDetachWithoutFlags(t *testing.T) {
	watchdog(t)
	v, s := newValve(t)
	a, _ := s.connect(t, settings{})
	v.shut.Store(true)
	for range 2 {
		if _, err := a.Write([]byte("bytes")); err != nil {
			t.Fatal(err)
		}
	}
	a.Conn.Detach()
	a.carrier.Detach()
	v.shut.Store(false)
	a.awaitDrained(t)
	if n := s[0].link.Stats().SentBytes; n != 5 {
		t.Errorf("%d bytes were sent", n)
	}
}

// TestSequenceNumbers has messages numbered from 1 and one by one, with how far we have read in each.
func TestSequenceNumbers(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	a, b := s.connect(t, settings{})
	for i := range 5 {
		rally(t, a, b)
		b.carrier.in.Lock()
		seq := b.carrier.in.seq
		b.carrier.in.Unlock()
		if got := b.PeerHeader(); seq != uint16(i+1) || got.Consumer.Count != uint32(i) || got.Producer.Count != uint32(i+1) {
			t.Errorf("message %d has number %d and cursors %v", i+1, seq, got)
		}
	}
	if n := s[0].link.Stats().SentCDC; n != 5 {
		t.Errorf("%d messages for 5 writes", n)
	}
}

// rally sends a byte there and back.
func rally(t testing.TB, a, b *end) {
	t.Helper()
	var one [1]byte
	for _, e := range [][2]*end{{a, b}, {b, a}} {
		if _, err := e[0].Write(one[:]); err != nil {
			t.Fatal(err)
		}
		if _, err := e[1].Read(one[:]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWindowUpdate has a reader tell how far it is only when the writer has use for it.
func TestWindowUpdate(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	a, b := s.connect(t, settings{})
	size := a.PeerBuffer()
	read := func(n int) {
		t.Helper()
		if _, err := a.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(b, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	updates := func() uint64 { return s[1].link.Stats().SentCDC }
	read(size / 4)
	if got := updates(); got != 0 {
		t.Errorf("%d updates after a quarter of the buffer", got)
	}
	read(size / 4)
	read(size / 4)
	if got := updates(); got != 1 {
		t.Errorf("%d updates after three quarters", got)
	}
	// A writer that is blocked is told of every read, also by a reader that waits already.
	before := updates()
	if _, err := a.Write(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	reading := make(chan error)
	go func() {
		_, err := b.Read(make([]byte, 1))
		reading <- err
	}()
	a.carrier.Consume(cdc.Cursor{}, cdc.WriterBlocked, 0)
	eventually(t, "an update", func() bool { return updates() > before })
	eventually(t, "its arrival", func() bool { return a.PeerReadAll() })
	sent := s[0].link.Stats().SentCDC
	a.carrier.Consume(cdc.Cursor{}, 0, 0) // goes with the byte
	if _, err := a.Write(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := <-reading; err != nil {
		t.Error(err)
	}
	if n := s[0].link.Stats().SentCDC - sent; n != 1 {
		t.Errorf("%d messages for a byte, and that the writer is not blocked", n)
	}
}

// PeerBuffer is the size of the peer's buffer.
func (e *end) PeerBuffer() int { _, n := e.Buffers(); return n }

// TestSendLLC has the messages that SendLLC refuses, and long messages one at a time.
func TestSendLLC(t *testing.T) {
	watchdog(t)
	lonely := newSide(t, openDevice(t, randomLoopback(), nil))
	if err := lonely.link.SendLLC([]byte{1}, 0); !errors.Is(err, ErrNotReady) {
		t.Errorf("before the link is ready: %v", err)
	}
	v, s := newValve(t)
	l := s[0].link
	for _, n := range []int{0, receiveLen + 1} {
		if err := l.SendLLC(make([]byte, n), 0); !errors.Is(err, ErrArgument) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	v.shut.Store(true)
	var sent [][]byte
	for i := 0; ; i++ {
		m := bytes.Repeat([]byte{byte(i)}, []int{receiveLen, 72, 44, 45}[i%4])
		if err := l.SendLLC(m, 0); errors.Is(err, ErrTooMany) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		sent = append(sent, m)
	}
	if _, n := l.onTheirWay(); n != 1 {
		t.Errorf("%d messages on their way, the first two of which are long", n)
	}
	if len(sent) != maxLLCQueue+1 {
		t.Errorf("%d messages were taken", len(sent))
	}
	v.shut.Store(false)
	for i, m := range sent {
		if e := s[1].poll(t); e.Kind != EventLLC || !bytes.Equal(e.Message, m) {
			t.Fatalf("message %d of %d bytes is a %v of %d bytes", i, len(m), e.Kind, len(e.Message))
		}
	}
	cause := errors.New("the owner's reason")
	l.Fail(cause)
	l.Fail(io.EOF)
	if err := l.SendLLC([]byte{1}, 0); !errors.Is(err, cause) || !errors.Is(l.Err(), cause) {
		t.Errorf("after Fail: %v, %v", err, l.Err())
	}
	if e := s[0].poll(t); e.Kind != EventFailed || e.Err != cause {
		t.Errorf("event %+v", e)
	}
}
