package rdma

import (
	"slices"
	"testing"

	"github.com/gosmc/smc/wire/roce"
)

// TestAnswerComesSoon counts the packets of ours that go before an answer.
func TestAnswerComesSoon(t *testing.T) {
	for _, tt := range []struct {
		name    string
		request func(s *solo) roce.Packet
		want    int
	}{
		{"ACK", func(s *solo) roce.Packet { return s.request(roce.WriteOnly, 0, nil) }, ackAfterPackets},
		{"NAK", func(s *solo) roce.Packet { return s.request(roce.WriteOnly, 1, nil) }, 0},
		{"RNR NAK", func(s *solo) roce.Packet { return s.request(roce.SendOnly, 0, nil) }, 0},
	} {
		for _, packets := range []int{0, 1, 15, 16, 17, 60} {
			s := newRTS(t)
			if packets > 0 {
				s.post(1, packets*256)
			}
			s.take(tt.request(s))
			s.take(s.request(roce.WriteOnly, -1, nil)) // must not put it off
			all := s.drain()
			if s.deadline() == s.now+maxAckDelay { // an ACK waits for more, and not longer than this
				s.now += maxAckDelay
				s.advance(s.now)
				if !s.wantsToTransmit(s.now) || s.deadline() == s.now {
					t.Errorf("%s: after its time the answer still waits", tt.name)
				}
				all = append(all, s.drain()...)
			}
			at := slices.IndexFunc(all, func(p roce.Packet) bool { return p.Opcode == roce.Acknowledge })
			if want := min(packets, tt.want); at != want {
				t.Errorf("%s: %d packets of ours went first, of %d; want %d", tt.name, at, packets, want)
			}
		}
	}
}

// TestAnswerFirst has an ACK go before all packets of ours where that is wanted, as long as there is one.
func TestAnswerFirst(t *testing.T) {
	s := newRTS(t)
	s.answersFirst = true
	for range 3 {
		s.post(1, 5*256)
		s.take(s.request(roce.WriteOnly, 0, nil))
		s.take(s.request(roce.WriteOnly, 0, nil))
		all := s.drain()
		if at := slices.IndexFunc(all, func(p roce.Packet) bool { return p.Opcode == roce.Acknowledge }); at != 0 || len(all) != 6 {
			t.Fatalf("%d packets, the ACK is number %d", len(all), at)
		}
	}
}

// TestAnswerToMany has an ACK wait behind our packets, as long as few messages wait for it.
func TestAnswerToMany(t *testing.T) {
	for asked := 1; asked <= 6; asked++ {
		s := newRTS(t)
		s.post(1, 1)
		s.take(s.request(roce.WriteOnly, 0, nil))
		if s.drain(); s.answerOf() != silent {
			t.Fatal("the ACK did not wait")
		}
		for i := 1; i < asked; i++ {
			s.take(s.request(roce.WriteOnly, i, nil))
		}
		if got, want := s.wantsToTransmit(s.now), asked >= 4; got != want {
			t.Errorf("with %d messages that wait for it an ACK is due: %v", asked, got)
		}
	}
}

// TestNoAnswerUnasked has packets that do not ask for an acknowledgement.
func TestNoAnswerUnasked(t *testing.T) {
	s := newRTS(t)
	for i := range 100 {
		p := s.request(roce.WriteOnly, i, nil)
		p.AckReq = false
		s.take(p)
	}
	if got := s.answerOf(); got != silent || s.msn != 100 {
		t.Errorf("the answer is %v, MSN %d", got, s.msn)
	}
}
