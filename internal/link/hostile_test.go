package link

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// A liar is the peer of a connection that sends any bytes.
type liar struct {
	*end // the honest one
	link *Link
}

func newLiar(t testing.TB, set settings) (*liar, sides) {
	t.Helper()
	s := newSides(t, nil)
	e, _ := s.connect(t, set)
	return &liar{end: e, link: s[1].link}, s
}

// send sends bytes as a message, and waits until they are there.
func (l *liar) send(t testing.TB, b []byte) {
	t.Helper()
	before := l.side.link.Heard()
	if err := l.link.SendLLC(b, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the message", func() bool { return l.side.link.Heard() > before })
}

// say sends a CDC message to the connection.
func (l *liar) say(t testing.TB, m cdc.Message) {
	t.Helper()
	m.AlertToken = l.carrier.AlertToken()
	l.send(t, m.Append(nil))
}

// TestWrongMessages sends messages that are dropped, each for its reason, and then one that is not.
func TestWrongMessages(t *testing.T) {
	watchdog(t)
	l, _ := newLiar(t, settings{})
	good := cdc.Message{Seq: 10, AlertToken: l.carrier.AlertToken(), Producer: cdc.Cursor{Count: 5}}
	l.say(t, good)
	stranger := cdc.Message{Seq: 11, AlertToken: l.carrier.AlertToken() + 1, Producer: cdc.Cursor{Count: 7}}
	l.send(t, stranger.Append(nil))
	old := good
	old.Seq, old.Producer.Count = 9, 3
	l.say(t, old)
	long := good.Append(nil)
	long[1] = 45
	for _, b := range [][]byte{{cdc.TypeMessage}, good.Append(nil)[:43], long} {
		l.send(t, b)
	}
	want := Stats{ReceivedCDC: 2, UnknownToken: 1, Stale: 1, Malformed: 3}
	if got := l.side.link.Stats(); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	if h := l.PeerHeader(); h.Producer != (cdc.Cursor{Count: 5}) {
		t.Errorf("producer %v", h.Producer)
	}
	good.Producer.Count = 6 // with the number of the last one, which is not too old
	l.say(t, good)
	if h := l.PeerHeader(); h.Producer != (cdc.Cursor{Count: 6}) {
		t.Errorf("producer %v after a message with the same number", h.Producer)
	}
	good.Seq += 1 << 15 // neither older nor newer: older, as numbers go round
	l.say(t, good)
	if got := l.side.link.Stats().Stale; got != 2 {
		t.Errorf("%d stale ones", got)
	}
}

// TestBrokenCursor sends cursors that end the connection.
func TestBrokenCursor(t *testing.T) {
	watchdog(t)
	size := uint32(wire.SizeCode(0).Bytes())
	for _, tt := range []struct {
		name string
		set  settings
		m    cdc.Message
		want error
	}{
		{"producer outside", settings{}, cdc.Message{Producer: cdc.Cursor{Count: size}}, cdc.ErrCount},
		{"producer far outside", settings{}, cdc.Message{Producer: cdc.Cursor{Count: 1<<32 - 1}}, cdc.ErrCount},
		{"producer too far", settings{}, cdc.Message{Producer: cdc.Cursor{Wrap: 1, Count: 1}}, cdc.ErrAdvance},
		{"producer behind", settings{}, cdc.Message{Producer: cdc.Cursor{Wrap: 0xffff, Count: size - 1}}, cdc.ErrAdvance},
		{"producer in the eyecatcher", settings{eyecatcher: [2]bool{true, true}}, cdc.Message{Producer: cdc.Cursor{Count: 3}}, cdc.ErrCount},
		{"message that did not come", settings{}, cdc.Message{Seq: 7, ProducerFlags: cdc.FailoverValidation}, cdc.ErrCount},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, _ := newLiar(t, tt.set)
			l.say(t, tt.m)
			_, err := l.Read(make([]byte, 10))
			if broken, ok := errors.AsType[*stream.PeerError](err); !ok || !errors.Is(broken, tt.want) {
				t.Errorf("Read: %v, want %v", err, tt.want)
			}
		})
	}
	t.Run("consumer", func(t *testing.T) {
		l, _ := newLiar(t, settings{})
		if _, err := l.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		l.say(t, cdc.Message{Seq: 1, Consumer: cdc.Cursor{Wrap: 2}})
		if _, err := l.Write(make([]byte, 10)); !errors.Is(err, cdc.ErrAdvance) {
			t.Errorf("Write: %v", err)
		}
	})
}

// TestFailoverValidation has the peer ask for a message that has come: nothing happens.
func TestFailoverValidation(t *testing.T) {
	watchdog(t)
	l, _ := newLiar(t, settings{})
	l.say(t, cdc.Message{Seq: 3, Producer: cdc.Cursor{Count: 1}})
	l.say(t, cdc.Message{Seq: 2, ProducerFlags: cdc.FailoverValidation})
	l.say(t, cdc.Message{Seq: 3, ProducerFlags: cdc.FailoverValidation})
	if n, err := l.Read(make([]byte, 10)); n != 1 || err != nil {
		t.Errorf("Read = %d, %v", n, err)
	}
	l.say(t, cdc.Message{Seq: 4, Producer: cdc.Cursor{Count: 2}})
	if n, err := l.Read(make([]byte, 10)); n != 1 || err != nil {
		t.Errorf("Read = %d, %v", n, err)
	}
}

// TestEyecatcherWritten has the peer write to where it may not.
func TestEyecatcherWritten(t *testing.T) {
	watchdog(t)
	l, _ := newLiar(t, settings{eyecatcher: [2]bool{true, true}})
	if got := string(l.rmb.Bytes()[:4]); got != "\xe2\xd4\xc3\xd9" {
		t.Fatalf("eyecatcher %x", got)
	}
	l.say(t, cdc.Message{Seq: 1, Producer: cdc.Cursor{Count: 5}, Consumer: cdc.Cursor{Count: 4}})
	if n, err := l.Read(make([]byte, 10)); n != 1 || err != nil {
		t.Fatalf("Read = %d, %v", n, err)
	}
	l.rmb.Bytes()[1] = 0
	l.say(t, cdc.Message{Seq: 2, Producer: cdc.Cursor{Count: 6}, Consumer: cdc.Cursor{Count: 4}})
	if _, err := l.Read(make([]byte, 10)); !errors.Is(err, cdc.ErrCount) {
		t.Errorf("Read: %v", err)
	}
}

// TestKeptBack has a peer send before its element is known: data and flags wait for Attach, and of several
// messages the newest counts, not the last.
func TestKeptBack(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	e := s[0].prepare(t, 0, 0)
	l := &liar{end: e, link: s[1].link}
	copy(e.rmb.Bytes(), "hello")
	l.say(t, cdc.Message{Seq: 1, Producer: cdc.Cursor{Count: 2}})
	l.say(t, cdc.Message{Seq: 3, Producer: cdc.Cursor{Count: 5}, ConnFlags: cdc.DoneWriting})
	l.say(t, cdc.Message{Seq: 2, Producer: cdc.Cursor{Count: 4}})
	if e.carrier.inProd.Load() != 0 {
		t.Error("the inbox has something before Attach")
	}
	other := s[1].prepare(t, 0, 0)
	if err := e.carrier.Attach(s[0].link, other.as(t, false), false); err != nil {
		t.Fatal(err)
	}
	e.open(0)
	b := make([]byte, 10)
	if n, err := e.Read(b); string(b[:n]) != "hello" || err != nil {
		t.Errorf("Read %q, %v", b[:n], err)
	}
	if e.PeerFlags() != cdc.DoneWriting {
		t.Errorf("flags %v", e.PeerFlags())
	}
}

// TestFloodOfLLC has a peer send more than the owner takes: that ends the link, and the device goes on.
func TestFloodOfLLC(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	for i := 0; ; i++ {
		err := s[1].link.SendLLC([]byte{7, 44, byte(i)}, 0)
		if errors.Is(err, ErrTooMany) {
			select {
			case <-s[0].link.Failed():
			default:
				continue
			}
		}
		if s[0].link.Err() != nil {
			break
		}
		if err != nil && !errors.Is(err, ErrTooMany) {
			t.Fatal(err)
		}
	}
	if err := s[0].link.Err(); !errors.Is(err, ErrFlood) {
		t.Errorf("the link failed with %v", err)
	}
	got := 0
	for e := s[0].poll(t); e.Kind != EventFailed; e = s[0].poll(t) {
		if e.Kind != EventLLC || e.Message[2] != byte(got) {
			t.Fatalf("event %+v, after %d messages", e, got)
		}
		got++
	}
	if got != maxLLCQueue {
		t.Errorf("%d messages were kept", got)
	}
	again := joinSides(t, s[0].dev, s[1].dev)
	a, b := again.connect(t, settings{})
	exchange(t, a, b, 1<<16)
}

// TestFloodOfCDC has a peer send messages without end that say nothing, or lie to connections that are not there.
func TestFloodOfCDC(t *testing.T) {
	watchdog(t)
	l, s := newLiar(t, settings{})
	c, d := s.connect(t, settings{})
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for seq := uint16(1); ; seq++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			m := cdc.Message{Seq: seq, AlertToken: l.carrier.AlertToken(), ProducerFlags: cdc.WriterBlocked}
			if seq%3 == 0 {
				m.AlertToken ^= wire.AlertToken(seq)
			}
			if err := l.link.SendLLC(m.Append(nil), 0); err != nil && !errors.Is(err, ErrTooMany) {
				done <- fmt.Errorf("message %d: %w", seq, err)
				return
			}
		}
	}()
	exchange(t, c, d, 1<<20)
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if l.side.link.Stats().UnknownToken == 0 {
		t.Error("no message was of an unknown token")
	}
}

// TestImmediate has a peer send more WRITEs with immediate data, which SMC has not, than there are receives: nobody takes notice, and messages
// come through as before.
func TestImmediate(t *testing.T) {
	watchdog(t)
	l, s := newLiar(t, settings{})
	c, d := s.connect(t, settings{})
	token, _ := l.rmb.Token(l.side.link)
	before := l.link.QPStats().Messages
	for range 3 * receives {
		eventually(t, "room to send", func() bool {
			return l.link.qp.PostSend(verbs.SendWR{ID: idLLC, Op: verbs.OpWriteImm, Remote: token.Addr, RKey: token.RKey}) == nil
		})
	}
	eventually(t, "all of them", func() bool { return l.side.link.Stats().Malformed == 3*receives })
	// They have places in the send queue until they are acknowledged, of which the link knows nothing: it would find that full, and fail.
	eventually(t, "all are acknowledged", func() bool { return l.link.QPStats().Messages == before+3*receives })
	exchange(t, c, d, 1<<16)
	for _, side := range s {
		if err := side.link.Err(); err != nil {
			t.Error(err)
		}
	}
}
