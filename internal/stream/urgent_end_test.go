package stream

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// TestUrgentEnds checks the events that end a wait for urgent data.
func TestUrgentEnds(t *testing.T) {
	failure := errors.New("failure")
	for _, tt := range []struct {
		name string
		end  func(p *puppet)
		want error
	}{
		{"deadline", func(p *puppet) { p.conn.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		{"later deadline", func(p *puppet) { p.conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) }, os.ErrDeadlineExceeded},
		{"CloseRead", func(p *puppet) { p.conn.CloseRead() }, io.EOF},
		{"Close", func(p *puppet) { p.conn.Close() }, net.ErrClosed},
		{"Fail", func(p *puppet) { p.conn.Fail(failure) }, failure},
		{"End", func(p *puppet) { p.conn.End() }, io.EOF},
		{"DoneWriting", func(p *puppet) { p.consume(cdc.Cursor{}, 0, cdc.DoneWriting); p.conn.Wake() }, io.EOF},
		{"Closed", func(p *puppet) { p.consume(cdc.Cursor{}, 0, cdc.Closed); p.conn.Wake() }, io.EOF},
		{"Abort", func(p *puppet) { p.consume(cdc.Cursor{}, 0, cdc.Abort); p.conn.Wake() }, errReset},
	} {
		for _, beside := range []bool{false, true} {
			watchdog(t)
			p := newPuppet(100, 100)
			var read <-chan result
			if beside {
				read = start(p.conn.Read, make([]byte, 10))
				p.asleep(t, 1)
			}
			done := start(func([]byte) (int, error) { _, err := p.conn.ReadUrgent(); return 0, err }, nil)
			eventually(t, "it waits", func() bool {
				p.conn.urgent.mu.Lock()
				defer p.conn.urgent.mu.Unlock()
				return p.conn.urgent.changed != nil
			})
			tt.end(p)
			if r := <-done; r.err != tt.want {
				t.Errorf("%s, beside a Read %v: ReadUrgent = %v, want %v", tt.name, beside, r.err, tt.want)
			}
			if err := p.conn.WaitUrgent(); err != tt.want {
				t.Errorf("%s: WaitUrgent = %v, want %v", tt.name, err, tt.want)
			}
			if beside {
				<-read
			}
			if p.conn.r.state.Load()&stUrgentWaits != 0 {
				t.Errorf("%s: somebody still waits", tt.name)
			}
		}
	}
}

// TestUrgentThenEnd checks that the bytes that came before the end are there.
func TestUrgentThenEnd(t *testing.T) {
	watchdog(t)
	a, b := newPair(t, 100, 0)
	a.WriteUrgent([]byte("abU"))
	a.CloseWrite()
	a.SendFlags(cdc.DoneWriting)
	wantUrgent(t, b, 'U')
	if _, err := b.ReadUrgent(); err != io.EOF {
		t.Errorf("ReadUrgent = %v, want EOF", err)
	}
	wantRead(t, b, 10, "ab")
	if n, err := b.Read(make([]byte, 10)); n != 0 || err != io.EOF {
		t.Errorf("Read = %d, %v, want EOF", n, err)
	}
}

// TestUrgentUnreadClose checks that an urgent byte that nobody wanted is no unread data.
func TestUrgentUnreadClose(t *testing.T) {
	a, b := newPair(t, 100, 0)
	a.WriteUrgent([]byte("U"))
	if unread := b.Close(); unread != 0 {
		t.Errorf("Close = %d bytes unread", unread)
	}
	a, b = newPair(t, 100, 0)
	a.WriteUrgent([]byte("abU"))
	if unread := b.Close(); unread != 3 {
		t.Errorf("Close = %d bytes unread, want 3", unread)
	}
}

// TestUrgentAgain has a peer that repeats its flags, as it may: without new data they say nothing.
func TestUrgentAgain(t *testing.T) {
	watchdog(t)
	p := newPuppet(100, 100)
	p.place(0, []byte("aU"))
	p.produceUrgent(2, bothUrgent)
	wantUrgent(t, p.conn, 'U')
	wantRead(t, p.conn, 10, "a")
	p.produceUrgent(2, cdc.UrgentPresent)
	p.produceUrgent(2, 0)
	p.produceUrgent(2, bothUrgent)
	wantMark(t, p.conn, true)
	p.place(2, []byte("b"))
	p.produceUrgent(3, 0)
	wantRead(t, p.conn, 10, "b")
	p.conn.SetReadDeadline(time.Unix(1, 0))
	if _, err := p.conn.ReadUrgent(); err != os.ErrDeadlineExceeded {
		t.Errorf("ReadUrgent = %v, want that there is none", err)
	}
}

// TestUrgentImpatient has a peer that does not wait, though it must: nothing is lost, and the older byte becomes an ordinary one.
func TestUrgentImpatient(t *testing.T) {
	watchdog(t)
	p := newPuppet(100, 100)
	p.place(0, []byte("aUbVc"))
	p.produceUrgent(2, bothUrgent)
	wantMark(t, p.conn, false)
	p.produceUrgent(4, bothUrgent)
	wantMark(t, p.conn, false)
	p.produceUrgent(5, 0)
	wantRead(t, p.conn, 10, "aUb")
	wantMark(t, p.conn, true)
	wantUrgent(t, p.conn, 'V')
	wantRead(t, p.conn, 10, "c")
}

// TestUrgentLies has urgent cursors that no correct peer has: they end the connection, with a reason.
func TestUrgentLies(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cursor cdc.Cursor
		want   error
	}{
		{"outside the element", cdc.Cursor{Count: 100}, cdc.ErrCount},
		{"far outside", cdc.Cursor{Count: 1<<32 - 1}, cdc.ErrCount},
		{"from the future", cdc.Cursor{Wrap: 1, Count: 51}, cdc.ErrAdvance},
		{"far in the future", cdc.Cursor{Wrap: 2, Count: 50}, cdc.ErrAdvance},
		{"backwards", cdc.Cursor{Count: 49}, cdc.ErrAdvance},
		{"backwards by a wrap", cdc.Cursor{Wrap: 0xffff, Count: 50}, cdc.ErrAdvance},
	} {
		watchdog(t)
		p := newPuppet(100, 100)
		p.produceUrgent(50, 0)
		wantMark(t, p.conn, false) // looks
		word(p.element[0], cdc.ProducerOffset).Store(cdc.PackUrgent(tt.cursor, bothUrgent))
		p.conn.Wake()
		var broken *PeerError
		if _, err := p.conn.ReadUrgent(); !errors.As(err, &broken) || broken.Field != "urgent cursor" || !errors.Is(err, tt.want) {
			t.Errorf("%s: ReadUrgent = %v, want a PeerError of the urgent cursor: %v", tt.name, err, tt.want)
		}
		if len(p.noticed()) == 0 {
			t.Errorf("%s: no notice", tt.name)
		}
		if _, err := p.conn.Read(make([]byte, 100)); !errors.As(err, &broken) {
			t.Errorf("%s: Read = %v, want a PeerError", tt.name, err)
		}
	}
}

// TestUrgentKept has the next message come before anybody has looked.
func TestUrgentKept(t *testing.T) {
	data := []byte("aUb..")
	c := New(Config{In: MessageInbox(data), Out: NoMemory()})
	receive := func(total uint32, flags cdc.ProducerFlags) {
		c.Receive(cdc.Header{Producer: cdc.Cursor{Count: total}, ProducerFlags: flags})
	}
	receive(2, bothUrgent)
	receive(2, 0)
	wantUrgent(t, c, 'U')
	wantRead(t, c, 10, "a")
	receive(2, cdc.UrgentPending) // of the next one
	if err := c.WaitUrgent(); err != nil {
		t.Error(err)
	}
	receive(3, 0)
	wantRead(t, c, 10, "b")
}

// TestUrgentAllocs checks that reads and writes beside urgent data allocate nothing.
func TestUrgentAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	a, b := newPair(t, 1000, 0)
	buf := make([]byte, 10)
	if n := testing.AllocsPerRun(100, func() {
		a.WriteUrgent(buf[:3])
		b.Read(buf)
		b.AtUrgentMark()
		a.Write(buf)
		b.Read(buf)
	}); n != 0 {
		t.Errorf("%v allocations for an urgent byte", n)
	}
}
