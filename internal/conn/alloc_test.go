//go:build !race

package conn

import (
	"io"
	"testing"

	"github.com/gosmc/smc/internal/ring"
	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire/cdc"
)

// TestAllocations writes to connections and reads from them, as package smc does, with a buffer on the
// stack. With the race detector the compiler puts it on the heap.
func TestAllocations(t *testing.T) {
	t.Run("SMC", func(t *testing.T) {
		r := newLifeRig(t)
		if err := r.establish(t); err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var c Conn = r.SMC
		in, out := stream.ElementInbox(r.binding.in), stream.ElementInbox(r.binding.out)
		n := testing.AllocsPerRun(100, func() {
			var buf [1]byte
			b := buf[:]
			if _, err := Write(c, b); err != nil {
				t.Fatal(err)
			}
			in.Consumer.Store(cdc.PackConsumer(cdc.UnpackProducer(out.Producer.Load()), 0, 0))
			in.Producer.Store(out.Producer.Load())
			if _, err := Read(c, b); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
	t.Run("TCP", func(t *testing.T) {
		ours, theirs := newTCPPair(t)
		var c Conn = NewTCP(newPending(ours), Fallback{})
		peers := make([]byte, 1)
		n := testing.AllocsPerRun(100, func() {
			var buf [1]byte
			b := buf[:]
			if _, err := Write(c, b); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(theirs, peers); err != nil {
				t.Fatal(err)
			}
			if _, err := theirs.Write(peers); err != nil {
				t.Fatal(err)
			}
			if _, err := Read(c, b); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
	t.Run("Unix", func(t *testing.T) {
		lent, _ := newTCPPair(t)
		end, theirs := newUnixPair(t)
		var c Conn = NewUnix(newPending(lent), ring.New(end, -1, false), 0)
		peers := make([]byte, 1)
		n := testing.AllocsPerRun(100, func() {
			var buf [1]byte
			if _, err := Write(c, buf[:]); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(theirs, peers); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}
