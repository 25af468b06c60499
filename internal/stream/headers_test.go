package stream

import (
	"io"
	"testing"

	"github.com/gosmc/smc/wire/cdc"
)

// Each side sees its own header as the other sees the peer's.
func TestHeaders(t *testing.T) {
	watchdog(t)
	a, b := newPair(t, 100, 0)
	check := func(what string, wantA, wantB cdc.Header) {
		t.Helper()
		for _, got := range []struct {
			of        string
			own, peer cdc.Header
			want      cdc.Header
		}{{"a", a.OwnHeader(), b.PeerHeader(), wantA}, {"b", b.OwnHeader(), a.PeerHeader(), wantB}} {
			if got.own != got.want || got.peer != got.want {
				t.Errorf("%s: header of %s = %v, seen by its peer %v, want %v", what, got.of, got.own, got.peer, got.want)
			}
		}
	}
	check("at first", cdc.Header{}, cdc.Header{})
	a.Write(make([]byte, 70))
	check("after a Write", cdc.Header{Producer: cdc.Cursor{Count: 70}}, cdc.Header{})
	if _, err := io.ReadFull(b, make([]byte, 70)); err != nil {
		t.Fatal(err)
	}
	a.Write(make([]byte, 50))
	b.SayRead()
	a.SendFlags(cdc.DoneWriting)
	a.WriteUrgent([]byte("U"))
	if own, peer := a.OwnHeader(), b.PeerHeader(); joined == byMemory && own != peer || peer.ProducerFlags != bothUrgent {
		t.Errorf("with urgent data: header of a = %v, seen by its peer %v", own, peer)
	}
	if v, err := b.ReadUrgent(); v != 'U' || err != nil {
		t.Fatal(v, err)
	}
	io.ReadFull(b, make([]byte, 50))
	a.Write(make([]byte, 50))
	check("after a wrap", cdc.Header{Producer: cdc.Cursor{Wrap: 1, Count: 71}, ConnFlags: cdc.DoneWriting}, b.OwnHeader())
}
