package udp

import (
	"net/netip"
	"testing"
)

// TestAllocations checks that sending and receiving needs no memory once it is under way, for every
// way to do it, with link-local addresses too.
func TestAllocations(t *testing.T) {
	type pair struct{ a, b *Socket }
	pairs := map[string]pair{}
	for family, addr := range families(t) {
		combinations(func(name string, noSegmentation, noCoalescing bool) {
			pairs[family+"/"+name] = pair{
				listen(t, Config{Local: addr, NoSegmentation: noSegmentation}),
				listen(t, Config{Local: addr, NoCoalescing: noCoalescing}),
			}
		})
	}
	addr := randomLoopback()
	if b := maybeHeaders(t, addr); b != nil {
		pairs["headers"] = pair{listen(t, Config{Local: addr}), b}
	}
	for name, p := range pairs {
		t.Run(name, func(t *testing.T) { allocations(t, p.a, p.b) })
	}
	t.Run("link-local", func(t *testing.T) {
		v := newVeth(t, 65535)
		allocations(t, v.listen(t, 0, Config{Local: netip.AddrPortFrom(v.six[0], 0)}),
			v.listen(t, 1, Config{Local: netip.AddrPortFrom(v.six[1], 0)}))
	})
}

func allocations(t *testing.T, a, b *Socket) {
	tx, rx := NewTxBatch(0), NewRxBatch(4)
	to := b.LocalAddr()
	var sealer Sealer = nothing{}
	n := testing.AllocsPerRun(100, func() {
		tx.Reset()
		tx.To(to, 0)
		for i := range 50 {
			tx.Next(1000)
			tx.Commit(1000 - i/30)
		}
		if err := a.Send(tx, sealer); err != nil {
			t.Error(err)
		}
		for got := 0; got < 50; {
			if err := b.Recv(rx); err != nil {
				t.Fatal(err)
			}
			for i := range rx.Len() {
				m := rx.Message(i)
				got += m.Segments()
				if m.From != a.LocalAddr() {
					t.Errorf("received from %v, want %v", m.From, a.LocalAddr())
				}
			}
		}
		if ok, err := b.TryRecv(rx); ok || err != nil {
			t.Errorf("TryRecv = %v, %v, want nothing", ok, err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per Send and Recv, want 0", n)
	}
}

// nothing is a Sealer that does nothing.
type nothing struct{}

func (nothing) Seal(int, uint16, []byte) {}
