package stream

import (
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// A half is one direction of a Conn that can be waited for.
type half struct {
	name string
	op   func([]byte) (int, error)
	set  func(time.Time) error
	wait *deadline
}

// halves returns the two halves of p, whose ring is filled so that a Write waits.
func halves(p *puppet) []half {
	p.conn.Write(make([]byte, p.conn.capacity))
	return []half{
		{"read", p.conn.Read, p.conn.SetReadDeadline, &p.conn.r.deadline},
		{"write", p.conn.Write, p.conn.SetWriteDeadline, &p.conn.w.deadline},
	}
}

// Time is the bubble's, so every wait below ends exactly when it should.
func TestDeadline(t *testing.T) {
	for _, tt := range []struct {
		name string
		run  func(t *testing.T, h half)
	}{
		{"future", func(t *testing.T, h half) {
			h.set(time.Now().Add(time.Hour))
			waitFor(t, h, time.Hour)
			waitFor(t, h, 0) // it stays expired
		}},
		{"past", func(t *testing.T, h half) {
			h.set(time.Now().Add(-time.Nanosecond))
			waitFor(t, h, 0)
		}},
		{"present", func(t *testing.T, h half) {
			h.set(time.Now())
			waitFor(t, h, 0)
		}},
		{"before the epoch", func(t *testing.T, h half) {
			h.set(time.Unix(-1, 0))
			waitFor(t, h, 0)
		}},
		{"reset after expiry", func(t *testing.T, h half) {
			h.set(time.Now())
			waitFor(t, h, 0)
			h.set(time.Now().Add(time.Minute))
			waitFor(t, h, time.Minute)
		}},
		{"removed, then set", func(t *testing.T, h half) {
			h.set(time.Now().Add(time.Second))
			h.set(time.Time{})
			time.AfterFunc(time.Hour, func() { h.set(time.Now()) })
			waitFor(t, h, time.Hour)
		}},
		{"removed after expiry", func(t *testing.T, h half) {
			h.set(time.Now())
			waitFor(t, h, 0)
			h.set(time.Time{})
			time.AfterFunc(time.Hour, func() { h.set(time.Now()) })
			waitFor(t, h, time.Hour)
		}},
		{"extended while waiting", func(t *testing.T, h half) {
			h.set(time.Now().Add(time.Minute))
			time.AfterFunc(30*time.Second, func() { h.set(time.Now().Add(time.Hour)) })
			waitFor(t, h, time.Hour+30*time.Second)
		}},
		{"shortened while waiting", func(t *testing.T, h half) {
			h.set(time.Now().Add(time.Hour))
			time.AfterFunc(time.Second, func() { h.set(time.Now().Add(time.Second)) })
			waitFor(t, h, 2*time.Second)
		}},
		{"set while waiting", func(t *testing.T, h half) {
			time.AfterFunc(time.Second, func() { h.set(time.Now().Add(time.Second)) })
			waitFor(t, h, 2*time.Second)
		}},
		{"far future", func(t *testing.T, h half) {
			h.set(time.Now().AddDate(5000, 0, 0))
			time.AfterFunc(time.Hour, func() { h.set(time.Now()) })
			waitFor(t, h, time.Hour)
		}},
		{"a timer that was late", func(t *testing.T, h half) {
			h.set(time.Now().Add(time.Minute))
			h.set(time.Now().Add(time.Hour))
			h.wait.fire() // as if the first had popped while the second was set
			waitFor(t, h, time.Hour)
		}},
		{"a timer that was late, removed", func(t *testing.T, h half) {
			h.set(time.Now().Add(time.Minute))
			h.set(time.Time{})
			h.wait.fire()
			time.AfterFunc(time.Hour, func() { h.set(time.Now()) })
			waitFor(t, h, time.Hour)
		}},
	} {
		for i := range 2 {
			synctest.Test(t, func(t *testing.T) {
				p := newPuppet(64, 64)
				h := halves(p)[i]
				tt.run(t, h)
				if t.Failed() {
					t.Logf("case %q of %s", tt.name, h.name)
				}
				p.conn.Close()
			})
		}
	}
}

// waitFor checks that the half's operation ends by its deadline after d.
func waitFor(t *testing.T, h half, d time.Duration) {
	t.Helper()
	begin := time.Now()
	n, err := h.op(make([]byte, 1))
	if n != 0 || err != os.ErrDeadlineExceeded {
		t.Errorf("%s = %d, %v, want 0, %v", h.name, n, err, os.ErrDeadlineExceeded)
	}
	if took := time.Since(begin); took != d {
		t.Errorf("%s took %v, want %v", h.name, took, d)
	}
}

// An expired deadline comes before data and room, as in package net, and loses neither.
func TestDeadlineBeforeData(t *testing.T) {
	p := newPuppet(64, 64)
	copy(p.element[0][32:], "abc")
	p.produce(at(3, 64))
	p.conn.SetReadDeadline(time.Unix(1, 0))
	p.conn.SetWriteDeadline(time.Unix(1, 0))
	buf := make([]byte, 8)
	if n, err := p.conn.Read(buf); n != 0 || err != os.ErrDeadlineExceeded {
		t.Errorf("Read = %d, %v, want %v", n, err, os.ErrDeadlineExceeded)
	}
	for name, op := range writeOps(p.conn) {
		if n, err := op([]byte("x")); n != 0 || err != os.ErrDeadlineExceeded {
			t.Errorf("%s = %d, %v, want %v", name, n, err, os.ErrDeadlineExceeded)
		}
	}
	p.conn.SetReadDeadline(time.Time{})
	p.conn.SetWriteDeadline(time.Time{})
	if n, err := p.conn.Read(buf); string(buf[:n]) != "abc" || err != nil {
		t.Errorf("Read = %q, %v, want abc", buf[:n], err)
	}
	if n, err := p.conn.Write([]byte("x")); n != 1 || err != nil {
		t.Errorf("Write = %d, %v", n, err)
	}
	p.conn.Close()
}

// A write that its deadline ends says how much the peer was given.
func TestDeadlinePartialWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPuppet(64, 100)
		p.conn.SetWriteDeadline(time.Now().Add(time.Second))
		if n, err := p.conn.Write(make([]byte, 250)); n != 100 || err != os.ErrDeadlineExceeded {
			t.Errorf("Write(250 bytes) = %d, %v, want 100, %v", n, err, os.ErrDeadlineExceeded)
		}
		if got := p.produced(); got != at(100, 100) {
			t.Errorf("producer cursor = %v, want %v", got, at(100, 100))
		}
		p.conn.Close()
	})
}

// A deadline ends the waits of all goroutines, also those that wait for another.
func TestDeadlineOfMany(t *testing.T) {
	watchdog(t)
	p := newPuppet(64, 64)
	for _, h := range halves(p) {
		var waiting []<-chan result
		for range 8 {
			waiting = append(waiting, start(h.op, make([]byte, 1)))
		}
		h.set(time.Now().Add(time.Millisecond))
		for _, c := range waiting {
			if got := <-c; got.n != 0 || got.err != os.ErrDeadlineExceeded {
				t.Errorf("%s = %d, %v, want 0, %v", h.name, got.n, got.err, os.ErrDeadlineExceeded)
			}
		}
	}
	p.conn.Close()
}

// Deadlines may be set from anywhere at any time.
func TestDeadlineRace(t *testing.T) {
	watchdog(t)
	random := newRandom(t)
	p := newPuppet(64, 64)
	done := make(chan struct{})
	both := halves(p)
	for i := range 4 {
		go func() {
			for {
				if _, err := both[i%2].op(make([]byte, 1)); err == net.ErrClosed {
					done <- struct{}{}
					return
				}
			}
		}()
	}
	for range 3000 {
		var when time.Time
		if random.IntN(3) > 0 {
			when = time.Now().Add(time.Duration(random.IntN(100)-20) * time.Microsecond)
		}
		both[random.IntN(2)].set(when)
	}
	p.conn.Close()
	for range 4 {
		<-done
	}
	if err := p.conn.SetReadDeadline(time.Now()); err != net.ErrClosed {
		t.Errorf("SetReadDeadline after Close = %v, want %v", err, net.ErrClosed)
	}
	if err := p.conn.SetWriteDeadline(time.Now()); err != net.ErrClosed {
		t.Errorf("SetWriteDeadline after Close = %v, want %v", err, net.ErrClosed)
	}
}
