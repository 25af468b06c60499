package link

import (
	"errors"
	"io"
	"testing"

	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire/cdc"
)

// TestOvertaken has messages come over a second link while one of the first waits to be looked at, of which the peer knows that it has arrived. The connection
// goes on once it was, and ends where it never came.
func TestOvertaken(t *testing.T) {
	watchdog(t)
	message := func(seq uint16, count uint32) cdc.Message {
		return cdc.Message{Seq: seq, Producer: cdc.Cursor{Count: count}}
	}
	urgent := message(4, 9)
	urgent.ProducerFlags = cdc.UrgentPresent
	validation := cdc.NewFailoverValidation(2, 0)
	for _, tt := range []struct {
		name   string
		comes  bool // the message that waits
		over   []cdc.Message
		kept   int  // messages put aside
		want   int  // bytes; -1: the connection ends
		urgent bool // and another one
	}{
		{"it says that it moves", true, []cdc.Message{validation}, 1, 7, false},
		{"and goes on", true, []cdc.Message{validation, message(3, 8)}, 2, 8, false},
		{"and on", true, []cdc.Message{validation, message(5, 8), message(6, 9), message(7, 10)}, 3, 10, false},
		{"twice", true, []cdc.Message{validation, validation, message(5, 8)}, 3, 8, false},
		{"it does not say so", true, []cdc.Message{message(3, 8)}, 1, 8, false},
		{"and goes on without a word", true, []cdc.Message{message(3, 8), message(4, 9), message(5, 10), message(6, 11)}, 2, 11, false},
		{"and has urgent data", true, []cdc.Message{message(3, 8), urgent, message(5, 9)}, 2, 8, true},
		{"it was lost", false, []cdc.Message{validation, message(3, 8)}, 2, -1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newTeller(t, 2)
			group := w.e.carrier.group
			var looks []func()
			group.overtaken.run = func(f func()) { looks = append(looks, f) }
			w.attach(1)
			l := w.links[0]
			turn := uint64(0)
			receive := func(k int, m cdc.Message) {
				m.AlertToken = w.e.carrier.AlertToken()
				turn++
				l[k].receiveCDC(m.Append(nil), turn)
			}
			receive(0, message(1, 5))
			for _, m := range tt.over {
				receive(1, m)
			}
			if n := len(group.overtaken.list); n != tt.kept || len(looks) != 1 {
				t.Fatalf("%d messages are put aside, and looked at %d times, want %d and 1", n, len(looks), tt.kept)
			}
			if n, err := w.e.Read(make([]byte, 20)); n != 5 || err != nil {
				t.Fatalf("Read before = %d, %v, want 5", n, err)
			}
			if tt.comes {
				receive(0, message(2, 7))
			}
			looks[0]()
			if n := len(w.e.carrier.in.overtaken) + len(group.overtaken.list); n != 0 || group.overtaken.runs {
				t.Errorf("%d messages are left", n)
			}
			if tt.want < 0 {
				var broken *stream.PeerError
				if n, err := w.e.Read(make([]byte, 20)); !errors.As(err, &broken) {
					t.Errorf("Read = %d, %v, want an error of type %T", n, err, broken)
				}
				return
			}
			if n, err := io.ReadFull(w.e, make([]byte, tt.want-5)); err != nil {
				t.Errorf("Read after it = %d, %v, want %d", n, err, tt.want-5)
			}
			if tt.urgent {
				if _, err := w.e.ReadUrgent(); err != nil {
					t.Errorf("ReadUrgent = %v", err)
				}
			}
		})
	}
}

// TestOvertakenMany puts aside more messages than a group keeps: the connection of the next one ends, and no other.
func TestOvertakenMany(t *testing.T) {
	watchdog(t)
	w := newTeller(t, 2)
	group := w.e.carrier.group
	var looks []func()
	group.overtaken.run = func(f func()) { looks = append(looks, f) }
	w.attach(1)
	for range maxOvertaken + 1 {
		m := cdc.NewFailoverValidation(2, w.e.carrier.AlertToken())
		w.links[0][1].receiveCDC(m.Append(nil), 1)
	}
	if n := len(group.overtaken.list); n != maxOvertaken {
		t.Errorf("%d messages are put aside, want %d", n, maxOvertaken)
	}
	if n, err := w.e.Read(make([]byte, 1)); err == nil {
		t.Errorf("Read = %d, want an error", n)
	}
	looks[0]()
}

// TestCloseDrains closes a link over which a message has come that nobody has looked at: it counts.
func TestCloseDrains(t *testing.T) {
	watchdog(t)
	devs, pds := newSimDevices(t)
	w := newWorld(t, devs, pds, 1)
	defer w.close()
	x, l := w.conns[0].ends[0], w.links[0]
	x.size = 10
	for x.carrier.posted == 0 {
		w.write(0, x)
	}
	l.qps[1].handling = true // by nobody
	for len(l.qps[1].arrived) == 0 {
		if !l.qps[0].deliver() {
			t.Fatal("nothing arrives")
		}
	}
	l.qps[1].handling = false
	l.ends[1].Close()
	if n := w.conns[0].ends[1].carrier.in.seq; n == 0 {
		t.Error("the message is gone")
	}
}
