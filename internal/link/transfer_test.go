package link

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/cdc"
)

// pour writes n bytes of a stream in pieces of random size, and ends it.
func pour(e *end, seed uint64, n int) error {
	r, data := rand.New(rand.NewPCG(seed, 1)), rand.NewChaCha8([32]byte{byte(seed)})
	b := make([]byte, 100_000)
	for n > 0 {
		k := min(n, 1+r.IntN(1<<r.IntN(17)))
		data.Read(b[:k])
		if m, err := e.Write(b[:k]); err != nil || m != k {
			return fmt.Errorf("Write of %d bytes: %d, %v", k, m, err)
		}
		n -= k
	}
	if err := e.CloseWrite(); err != nil {
		return err
	}
	e.SendFlags(cdc.DoneWriting)
	return nil
}

// drink reads the same stream to its end.
func drink(e *end, seed uint64, n int) error {
	r, data := rand.New(rand.NewPCG(seed, 2)), rand.NewChaCha8([32]byte{byte(seed)})
	b, want := make([]byte, 100_000), make([]byte, 100_000)
	for got := 0; ; {
		k, err := e.Read(b[:1+r.IntN(1<<r.IntN(17))])
		if err == io.EOF && got == n {
			return nil
		}
		if err != nil {
			return fmt.Errorf("Read after %d of %d bytes: %w", got, n, err)
		}
		data.Read(want[:k])
		if !bytes.Equal(b[:k], want[:k]) {
			return fmt.Errorf("bytes %d to %d are different", got, got+k)
		}
		got += k
	}
}

// exchange pours n bytes each way at once.
func exchange(t testing.TB, a, b *end, n int) {
	t.Helper()
	var all sync.WaitGroup
	for i, f := range []func() error{
		func() error { return pour(a, 1, n) }, func() error { return drink(b, 1, n) },
		func() error { return pour(b, 2, n) }, func() error { return drink(a, 2, n) },
	} {
		all.Go(func() {
			if err := f(); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	all.Wait()
}

func TestTransfer(t *testing.T) {
	watchdog(t)
	for _, tt := range []struct {
		name string
		cfg  rdma.Config
		set  settings
	}{
		{name: "equal"},
		{name: "unequal", set: settings{code: [2]wire.SizeCode{0, 4}, sendBuffer: 16 << 10}},
		{name: "eyecatchers", set: settings{eyecatcher: [2]bool{true, true}}},
		{name: "one eyecatcher", set: settings{eyecatcher: [2]bool{false, true}}},
		{name: "losses", cfg: rdma.Config{Drop: func([]byte) bool { return rand.IntN(100) == 0 }}, set: settings{code: [2]wire.SizeCode{2, 2}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSides(t, &tt.cfg)
			a, b := s.connect(t, tt.set)
			exchange(t, a, b, 4<<20)
			t.Logf("%+v\n%+v", a.side.link.Stats(), b.side.link.Stats())
		})
	}
}
