package link

import (
	"errors"
	"io"
	"testing"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// TestAttachTooLate attaches a connection to a link that has failed: bytes that the peer has sent
// before can be read, and written bytes go nowhere.
func TestAttachTooLate(t *testing.T) {
	watchdog(t)
	w := newTeller(t, 2)
	w.say(0, cdc.Message{Seq: 1, Producer: cdc.Cursor{Count: 5}})
	to := w.sides[1].prepare(t, 0, 0).asOn(t, w.links[1][0])
	w.links[0][0].Fail(io.ErrClosedPipe)
	if err := w.e.carrier.Attach(w.links[0][0], to, false); !errors.Is(err, ErrNotReady) {
		t.Fatalf("Attach = %v", err)
	}
	w.e.open(0)
	if n, err := w.e.Read(make([]byte, 10)); n != 5 || err != nil {
		t.Errorf("Read = %d, %v", n, err)
	}
}

// TestAttachSizes attaches to elements of all sizes that there are, and of one more.
func TestAttachSizes(t *testing.T) {
	s := newSides(t, nil)
	for _, code := range []wire.SizeCode{0, wire.MaxSizeCode, wire.MaxSizeCode + 1, 255} {
		e := s[0].prepare(t, 0, 0)
		to := s[1].prepare(t, 0, 0).asOn(t, s[1].link)
		to.Size = code
		err := e.carrier.Attach(s[0].link, to, false)
		if want := code > wire.MaxSizeCode; want != errors.Is(err, ErrArgument) || !want && err != nil {
			t.Errorf("to an element of size %v: %v", code, err)
		}
		e.carrier.Detach()
	}
}

// TestNeverAttached ends a carrier whose handshake came to nothing: there is nothing to wait for, and its owner is told so, once.
func TestNeverAttached(t *testing.T) {
	s := newSides(t, nil)
	rmb, err := s[0].group.NewRMB(0)
	if err != nil {
		t.Fatal(err)
	}
	defer rmb.Free()
	done := 0
	c, err := s[0].group.NewCarrier(CarrierConfig{RMB: rmb, Wake: func() {}, Done: func() { done++ }})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ReturnPages(0, 1<<20); err != nil {
		t.Errorf("ReturnPages = %v", err)
	}
	for range 2 {
		c.Detach()
		<-c.Sent()
		c.Release()
	}
	if done != 1 {
		t.Errorf("Done was called %d times", done)
	}
}
