package link

import (
	"io"
	"runtime"
	"testing"

	"github.com/gosmc/smc/internal/rdma"
)

// TestAllocations makes sure that Read and Write, and the messages and completions that come of them at both ends, cost
// no memory.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	watchdog(t)
	// The devices do not look for packets either: the test has no use for the clock readings of a wait.
	s := newSides(t, &rdma.Config{Spin: -1})
	a, b := s.connect(t, settings{code: sizes(2, 2)})
	big, small := make([]byte, 100_000), make([]byte, 10)
	reads := make(chan int)
	ended := make(chan error, 1)
	go func() {
		into := make([]byte, 100_000)
		for n := range reads {
			if _, err := io.ReadFull(b, into[:n]); err != nil {
				ended <- err
				return
			}
			if _, err := b.Write(into[:1]); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for _, tt := range []struct {
		name string
		data []byte
	}{{"small", small}, {"more than the buffers hold", big}} {
		op := func() {
			reads <- len(tt.data)
			if _, err := a.Write(tt.data); err != nil {
				t.Error(err)
			}
			if _, err := a.Read(small[:1]); err != nil {
				t.Error(err)
			}
		}
		for range 100 { // batches, timers and the like are made at first use
			op()
		}
		// The garbage collector's own work counts too, and pools that it empties.
		if n := testing.AllocsPerRun(1000, op); n > 0 {
			t.Errorf("%s: %v allocations for a Write, a Read, an answer and all that these take", tt.name, n)
		}
	}
	close(reads)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestIdleMemory makes connections that have moved a little and are idle: beyond their buffers, of which only
// touched pages count, they cost little, and they send nothing.
func TestIdleMemory(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	const conns, most = 250, 5 << 10 // 3.1 KiB, and the race detector's share
	ends := make([][2]*end, conns)
	before := heap()
	for i := range ends {
		ends[i][0], ends[i][1] = s.connect(t, settings{})
		rally(t, ends[i][0], ends[i][1])
	}
	if each := (heap() - before) / (2 * conns); each > most {
		t.Errorf("%d bytes for an end, more than %d", each, most)
	} else {
		t.Logf("%d bytes for an end", each)
	}
	if n := s[0].link.Stats().SentCDC; n != conns {
		t.Errorf("%d messages for %d", n, conns)
	}
	for _, e := range ends {
		finish(t, e[0], e[1])
	}
}

// heap returns the bytes that are in use.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
