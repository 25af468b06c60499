package udp

import (
	"errors"
	"net"
	"testing"
	"time"
)

// TestTrySend has a full socket, which TrySend does not wait for, and goes on when there is room:
// each datagram is sent once, in order.
func TestTrySend(t *testing.T) {
	s, drain := fullSocket(t)
	b := fullBatch(t)
	all, err := s.TrySend(b, nil)
	if all || err != nil {
		t.Fatalf("TrySend = %v, %v, want false, nil", all, err)
	}
	sent := s.Stats().Sent.Datagrams
	if sent == 0 || sent == uint64(b.Len()) {
		t.Fatalf("%d of %d datagrams were sent into a full socket", sent, b.Len())
	}
	if all, err = s.TrySend(b, nil); all || err != nil || s.Stats().Sent.Datagrams != sent {
		t.Fatalf("again: TrySend = %v, %v, sent %d, want false, nil, %d", all, err, s.Stats().Sent.Datagrams, sent)
	}
	for range b.Len() {
		drain()
		if all, err = s.TrySend(b, nil); all || err != nil {
			break
		}
	}
	if st := s.Stats(); !all || err != nil || st.Sent.Datagrams != uint64(b.Len()) || st.SendErrors != (SendErrors{}) {
		t.Fatalf("TrySend = %v, %v, %+v, want %d datagrams", all, err, st, b.Len())
	}

	// The rest of a batch is forgotten with it.
	if all, _ = s.TrySend(b, nil); all {
		t.Fatal("the socket is not full")
	}
	b.Reset()
	b.To(anyPeer4, 0)
	put(t, b, 0, 100)
	drain()
	before := s.Stats().Sent.Datagrams
	if all, err = s.TrySend(b, nil); !all || err != nil || s.Stats().Sent.Datagrams != before+1 {
		t.Errorf("a new batch: TrySend = %v, %v, sent %d", all, err, s.Stats().Sent.Datagrams-before)
	}
	s.Close()
	if _, err = s.TrySend(b, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestTrySendThenSend has Send send the rest that TrySend has left. Where the test did not run for
// as long as Send is patient it is tried again.
func TestTrySendThenSend(t *testing.T) {
	for end := time.Now().Add(patience); ; {
		s, drain := fullSocket(t)
		b := fullBatch(t)
		if all, err := s.TrySend(b, nil); all || err != nil {
			t.Fatalf("TrySend = %v, %v, want false, nil", all, err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Send(b, nil) }()
		err := drainUntil(done, drain)
		st := s.Stats()
		if err == nil && st.Sent.Datagrams == uint64(b.Len()) && st.SendErrors == (SendErrors{}) {
			return
		}
		if err != nil || st.SendErrors.Overdue == 0 || time.Now().After(end) {
			t.Fatalf("Send = %v, %+v, want %d datagrams", err, st, b.Len())
		}
	}
}

// drainUntil makes room until a sender is done.
func drainUntil(done <-chan error, drain func()) error {
	for {
		select {
		case err := <-done:
			return err
		default:
			drain()
		}
	}
}
