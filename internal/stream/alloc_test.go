package stream

import (
	"io"
	"testing"
	"time"
)

// The data path allocates nothing, whether it waits or not.
func TestAllocations(t *testing.T) {
	watchdog(t)
	check := func(name string, op func()) {
		t.Helper()
		for range 10 {
			op() // timers and the like are made at first use
		}
		if n := testing.AllocsPerRun(2000, op); n != 0 {
			t.Errorf("%s: %v allocations per run, want 0", name, n)
		}
	}
	a, b := newPair(t, 4064, 0)
	buf, small := make([]byte, 100), make([]byte, 1)
	bufs := [][]byte{buf[:10], buf[:20], nil}
	check("Write, Read", func() {
		a.Write(buf)
		b.Read(buf)
	})
	check("WriteBuffers, Read", func() {
		a.WriteBuffers(bufs)
		b.Read(buf)
	})
	check("SetDeadline", func() {
		a.SetReadDeadline(time.Now().Add(time.Hour))
		a.SetWriteDeadline(time.Now().Add(time.Hour))
		a.SetReadDeadline(time.Time{})
		a.SetWriteDeadline(time.Time{})
	})
	check("Read and Write past the deadline", func() {
		a.SetReadDeadline(time.Unix(1, 0))
		a.SetWriteDeadline(time.Unix(1, 0))
		a.Read(buf)
		a.Write(buf)
		a.SetReadDeadline(time.Time{})
		a.SetWriteDeadline(time.Time{})
	})
	check("Queues, Totals, SayRead, Idle", func() {
		a.Queues()
		a.Totals()
		a.SayRead()
		a.Idle()
	})

	for _, spin := range []time.Duration{0, DefaultSpin} {
		a, b := newPair(t, 256, spin)
		if spin > 0 { // before anybody waits
			spinNow(a)
			spinNow(b)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			buf := make([]byte, 100)
			for {
				n, err := b.Read(buf)
				if err != nil {
					return
				}
				b.Write(buf[:min(n, 1)])
			}
		}()
		name := "waiting, spin " + spin.String()
		check(name, func() {
			a.Write(small)
			if _, err := io.ReadFull(a, small); err != nil {
				t.Fatal(err)
			}
		})
		check(name+", again", func() {
			a.Write(small)
			if _, err := io.ReadFull(a, small); err != nil {
				t.Fatal(err)
			}
		})
		b.Close()
		<-done
	}

	// A writer that waits for room, too.
	a, b = newPair(t, 64, 0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64)
		for {
			if _, err := b.Read(buf); err != nil {
				return
			}
		}
	}()
	large := make([]byte, 1000)
	check("waiting for room", func() {
		if n, err := a.Write(large); err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	})
	b.Close()
	<-done
}
