package link

import (
	"io"
	"testing"

	"github.com/gosmc/smc/wire/cdc"
)

// TestClear has RMBs clear after connections that have said little and much, have gone round them, or ended in an abort.
func TestClear(t *testing.T) {
	watchdog(t)
	s := newSides(t, nil)
	const code = 3
	size := sizes(code, code)[0].Bytes()
	for _, test := range []struct {
		name       string
		bytes      int
		eyecatcher bool
		last       cdc.ConnFlags
		touched    int // as known, the whole size if it is not
	}{
		{"one byte", 1, false, cdc.Closed, 1},
		{"with an eyecatcher", 1, true, cdc.Closed, 5},
		{"a few pages", 5000, false, cdc.Closed, 5000},
		{"more than is kept", keptBytes + 1, false, cdc.Closed, keptBytes + 1},
		{"round", size + 7, false, cdc.Closed, size},
		{"abort", 5000, false, cdc.Abort, size},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, b := s.connect(t, settings{code: sizes(code, code), eyecatcher: [2]bool{test.eyecatcher, test.eyecatcher}})
			data := make([]byte, test.bytes)
			for i := range data {
				data[i] = 1
			}
			wrote := make(chan error, 1)
			go func() {
				_, err := a.Write(data)
				wrote <- err
			}()
			if _, err := io.ReadFull(b, make([]byte, len(data))); err != nil {
				t.Fatal(err)
			}
			if err := <-wrote; err != nil {
				t.Fatal(err)
			}
			a.close(test.last)
			eventually(t, "the end is heard of", func() bool { return b.PeerFlags()&test.last != 0 })
			b.Conn.Close()
			b.SendLast(cdc.Closed)
			b.carrier.Detach()
			b.carrier.Release()
			if b.rmb.touched != test.touched {
				t.Errorf("%d bytes are touched, not %d", b.rmb.touched, test.touched)
			}
			b.rmb.Clear()
			for i, x := range b.rmb.Bytes() {
				if x != 0 {
					t.Fatalf("byte %d is %d", i, x)
				}
			}
			if b.rmb.touched != size {
				t.Error("what the next connection leaves is not cleared")
			}
			b.rmb.Free()
			a.awaitDrained(t)
			b.awaitDrained(t)
		})
	}
}

// TestTouched has how much of an RMB has to be cleared: the bytes that the peer has said to have
// written, but all where it may have written more.
func TestTouched(t *testing.T) {
	g := NewGroup()
	t.Cleanup(g.Close)
	rmb, err := g.NewRMB(0)
	if err != nil {
		t.Fatal(err)
	}
	defer rmb.Free()
	all := len(rmb.Bytes())
	for _, tt := range []struct {
		name   string
		flags  cdc.ConnFlags
		wrap   uint16
		count  uint32
		read   int
		closed bool // before Attach
		broken bool
		want   int
	}{
		{name: "closed", flags: cdc.Closed, count: 100, read: 100, want: 100},
		{name: "closed, and unread", flags: cdc.Closed, count: 100, want: 100},
		{name: "nothing said", count: 100, read: 100, want: all},
		{name: "done writing", flags: cdc.DoneWriting, count: 100, read: 100, want: all},
		{name: "abort", flags: cdc.Abort, count: 100, want: all},
		{name: "closed and abort", flags: cdc.Closed | cdc.Abort, count: 100, want: all},
		{name: "round, and unread", flags: cdc.Closed, wrap: 1, count: 5, read: 7, want: all},
		{name: "round as often as the cursor counts", flags: cdc.Closed, count: 5, read: all<<16 + 5, want: all},
		{name: "never attached", flags: cdc.Closed, count: 100, closed: true, want: all},
		{name: "a liar", flags: cdc.Closed, count: 100, broken: true, want: all},
		{name: "outside", flags: cdc.Closed, count: 1 << 31, want: all},
	} {
		c := &Carrier{rmb: rmb}
		c.in.open, c.in.broken = !tt.closed, tt.broken
		c.inProd.Store(cdc.PackProducer(cdc.Cursor{Wrap: tt.wrap, Count: tt.count}))
		c.inCons.Store(cdc.PackConsumer(cdc.Cursor{}, 0, tt.flags))
		c.read.Store(uint64(tt.read))
		if got := c.touched(); got != tt.want {
			t.Errorf("%s: %d bytes, want %d", tt.name, got, tt.want)
		}
	}
}
