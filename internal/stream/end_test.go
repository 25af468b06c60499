package stream

import (
	"errors"
	"io"
	"syscall"
	"testing"
)

// TestEnd ends a connection as for a peer that is gone and left nothing unread. The bytes that have
// arrived are read, then comes EOF. Writes fail like writes to a peer that has closed, after one
// more.
func TestEnd(t *testing.T) {
	a, b := newPair(t, 250, 0)
	if _, err := a.Write([]byte("last words")); err != nil {
		t.Fatal(err)
	}
	b.End()
	b.Fail(syscall.ECONNRESET) // too late
	got, err := io.ReadAll(b)
	if string(got) != "last words" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if n, err := b.Write([]byte("x")); n != 1 || err != nil {
		t.Errorf("first Write = %d, %v, want it taken", n, err)
	}
	if n, err := b.Write([]byte("x")); n != 0 || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("second Write = %d, %v, want EPIPE", n, err)
	}
}

// TestPeerReadAll asks, after each step of a transfer, whether the peer has read everything: also
// bytes whose reading it has not published yet count as read.
func TestPeerReadAll(t *testing.T) {
	a, b := newPair(t, 250, 0)
	check := func(want bool, when string) {
		t.Helper()
		if got := a.PeerReadAll(); got != want {
			t.Errorf("%s: PeerReadAll = %t", when, got)
		}
	}
	check(true, "at the beginning")
	for range 3 {
		if _, err := a.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		check(false, "after a write")
		if _, err := io.ReadFull(b, make([]byte, 99)); err != nil {
			t.Fatal(err)
		}
		check(false, "with a byte unread")
		if _, err := io.ReadFull(b, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		check(true, "after it was read")
	}
}
