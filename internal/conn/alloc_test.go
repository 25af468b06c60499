package conn

import (
	"io"
	"testing"

	"github.com/gosmc/smc/internal/stream"
	"github.com/gosmc/smc/wire/cdc"
)

// TestAllocations writes to connections of two kinds and reads from them, as an application does, by [Conn].
func TestAllocations(t *testing.T) {
	t.Run("SMC", func(t *testing.T) {
		r := newLifeRig(t)
		if err := r.establish(t); err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var c Conn = r.SMC
		in, out := stream.ElementInbox(r.binding.in), stream.ElementInbox(r.binding.out)
		b := make([]byte, 1)
		n := testing.AllocsPerRun(100, func() {
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
			in.Consumer.Store(cdc.PackConsumer(cdc.UnpackProducer(out.Producer.Load()), 0, 0))
			in.Producer.Store(out.Producer.Load())
			if _, err := c.Read(b); err != nil {
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
		b := make([]byte, 1)
		n := testing.AllocsPerRun(100, func() {
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(theirs, b); err != nil {
				t.Fatal(err)
			}
			if _, err := theirs.Write(b); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(b); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}
