package link

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/gosmc/smc/wire/cdc"
)

// TestAttach has the arguments that Attach refuses.
func TestAttach(t *testing.T) {
	lonely := newSide(t, openDevice(t, randomLoopback(), nil))
	e := lonely.prepare(t, 0, 0)
	to := e.as(t, false)
	if err := e.carrier.Attach(lonely.link, to, false); !errors.Is(err, ErrNotReady) {
		t.Errorf("to a link that is not ready: %v", err)
	}
	s := newSides(t, nil)
	e = s[0].prepare(t, 0, 0)
	to.Index = 0
	if err := e.carrier.Attach(s[0].link, to, false); !errors.Is(err, ErrArgument) {
		t.Errorf("to element 0: %v", err)
	}
	e.open(0)
	if n, err := e.Write(make([]byte, 10)); n != 10 || err != nil { // it goes nowhere
		t.Errorf("Write = %d, %v", n, err)
	}
	e.close(cdc.Abort)
}

// TestElement writes to an element that is not the first.
func TestElement(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	a, b := s[0].prepare(t, 0, 0), s[1].prepare(t, 3, 0)
	to := b.as(t, false)
	to.Index, to.Size = 3, 1
	if err := a.carrier.Attach(s[0].link, to, false); err != nil {
		t.Fatal(err)
	}
	a.open(0)
	if _, err := a.Write([]byte("here")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the message", func() bool { return s[1].link.Heard() == 1 })
	if at := bytes.Index(b.rmb.Bytes(), []byte("here")); at != 2*to.Size.Bytes() {
		t.Errorf("the bytes are at %d", at)
	}
}

// TestRound has completions post for many that wait at once.
func TestRound(t *testing.T) {
	watchdog(t)
	v, s := newValve(t)
	big, sink := s.connect(t, settings{code: sizes(6, 6)})
	var from, to [10]*end
	for i := range from {
		from[i], to[i] = s.connect(t, settings{})
	}
	v.shut.Store(true)
	if _, err := big.Write(make([]byte, 1<<20)); err != nil { // takes all places
		t.Fatal(err)
	}
	for i, e := range from {
		if _, err := e.Write([]byte{byte(i), 1, 2}); err != nil {
			t.Fatal(err)
		}
	}
	l := s[0].link
	l.mu.Lock()
	if n := len(l.free); n != 0 {
		t.Errorf("%d places are free", n)
	}
	l.mu.Unlock()
	v.shut.Store(false)
	for i, e := range to {
		b := make([]byte, 3)
		if _, err := io.ReadFull(e, b); err != nil || b[0] != byte(i) {
			t.Errorf("connection %d: %v, %v", i, b, err)
		}
	}
	if _, err := io.ReadFull(sink, make([]byte, 1<<20)); err != nil {
		t.Error(err)
	}
	eventually(t, "all completions", func() bool { c, _ := l.onTheirWay(); return c == 0 })
}

// TestQueuedForNothing has a connection that waits for a place lose the bytes that it had to send:
// others get the place.
func TestQueuedForNothing(t *testing.T) {
	watchdog(t)
	v, s := newValve(t)
	big, sink := s.connect(t, settings{code: sizes(6, 6)})
	e, _ := s.connect(t, settings{})
	v.shut.Store(true)
	if _, err := big.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Write([]byte("bytes")); err != nil {
		t.Fatal(err)
	}
	e.Conn.Detach()
	e.carrier.Detach()
	v.shut.Store(false)
	if _, err := io.ReadFull(sink, make([]byte, 1<<20)); err != nil {
		t.Error(err)
	}
	eventually(t, "all places are free", func() bool { c, _ := s[0].link.onTheirWay(); return c == 0 })
	if n := s[0].link.Stats().SentBytes; n != 1<<20 {
		t.Errorf("%d bytes were sent", n)
	}
}
