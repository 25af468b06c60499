package rdma

import (
	"testing"
	"time"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// TestFailRefuses has a peer send to a queue pair that its owner has given up: it is told, each time, and nothing is written. Nobody answers an acknowledgement.
func TestFailRefuses(t *testing.T) {
	s, peer := victim(t)
	if err := s.qp.Fail(); err != nil {
		t.Fatal(err)
	}
	p := s.write([]byte{1, 2, 3})
	for range 2 {
		peer.sendPacket(&p)
		if got := peer.receive(); got.Opcode != roce.Acknowledge || got.AETH.Syndrome != roce.NakRemoteOperation || got.PSN != testRecvPSN || got.DestQPN != rawQPN {
			t.Errorf("the answer is %v, want %v for PSN %v", &got, roce.NakRemoteOperation, testRecvPSN)
		}
	}
	peer.sendPacket(&roce.Packet{BTH: roce.BTH{Opcode: roce.Acknowledge, DestQPN: p.DestQPN, PKey: p.PKey}, AETH: roce.AETH{Syndrome: roce.AckUnlimited}})
	peer.silence("an acknowledgement, in ERR")
	s.clean(t, 0)
}

// TestGiveUp has a queue pair given up that has executed more than its peer was told: it never is, whatever it sends then. A NAK is for the first packet
// of which it has heard nothing, or that it sends again, as that acknowledges all before it.
func TestGiveUp(t *testing.T) {
	for _, tt := range []struct {
		name       string
		told       int   // packets that are acknowledged; negative: by a NAK
		untold     int   // that come after them
		then, naks []int // packets that come when it was given up, and those that the NAKs are for
	}{
		{"nothing", 0, 0, []int{0, 1}, []int{0, 0}},
		{"all was told", 3, 0, []int{3, 4}, []int{3, 3}},
		{"none was told", 0, 3, []int{3, 0}, []int{0, 0}},
		{"some were told", 2, 3, []int{5, 2, 3}, []int{2, 2, 2}},
		{"what was told was lost", 3, 2, []int{1, 2, 5}, []int{1, 1, 1}},
		{"a NAK has told", -2, 0, []int{2, 1}, []int{2, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newRTS(t)
			packet := func(n int) roce.Packet {
				p := s.request(roce.WriteOnly, 0, nil)
				p.PSN = testRecvPSN.Add(n)
				return p
			}
			for n := range tt.told {
				s.take(packet(n))
			}
			for n := range -tt.told {
				p := packet(n)
				p.AckReq = false
				s.take(p)
			}
			if tt.told < 0 {
				s.take(packet(-tt.told + 1))
			}
			s.drain()
			for n := range tt.untold {
				s.take(packet(tt.told + n))
			}
			s.giveUp()
			if all := s.drain(); len(all) != 0 {
				t.Fatalf("given up, it says %v", &all[0])
			}
			for i, n := range tt.then {
				s.take(packet(n))
				all, want := s.drain(), testRecvPSN.Add(tt.naks[i])
				if len(all) != 1 || all[0].PSN != want || all[0].AETH.Syndrome != roce.NakRemoteOperation {
					t.Fatalf("after packet %d: %v, want a NAK for %v", n, all, want)
				}
			}
		})
	}
}

// TestHoldAnswers has answers held back: none goes out, of any kind, before it is time, and then
// one for all. Requests go out as ever, and packets that come are taken.
func TestHoldAnswers(t *testing.T) {
	for _, what := range []struct {
		name   string
		before bool // it came before
		gap    bool // and a packet is missing
	}{{"acknowledgement", false, false}, {"one that waits", true, false}, {"NAK", false, true}, {"NAK that waits", true, true}} {
		t.Run(what.name, func(t *testing.T) {
			s := newRTS(t)
			s.answersFirst = true
			arrive := func() {
				s.take(s.request(roce.WriteOnly, 0, nil))
				if what.gap {
					p := s.request(roce.WriteOnly, 0, nil)
					p.PSN = p.PSN.Add(3)
					s.take(p)
				}
			}
			if what.before {
				arrive()
			}
			s.hold(s.now)
			if !what.before {
				arrive()
			}
			s.post(1, 256)
			if all := s.drain(); len(all) != 1 || all[0].Opcode == roce.Acknowledge {
				t.Fatalf("held back, it sends %v", all)
			}
			until := s.now + maxHold
			if at := s.deadline(); at == 0 || at > until {
				t.Errorf("due at %v, want %v at the latest", at, until)
			}
			s.now = until
			s.advance(s.now)
			var psn wire.PSN
			answers := 0
			for _, p := range s.drain() {
				if p.Opcode == roce.Acknowledge {
					answers++
					psn = p.PSN
				}
			}
			want := testRecvPSN
			if what.gap {
				want = want.Add(1) // the missing one
			}
			if answers != 1 || psn != want {
				t.Errorf("%d answers, for %v; want one for %v", answers, psn, want)
			}
		})
	}
	s := newRTS(t)
	s.hold(s.now)
	s.now += maxHold
	s.take(s.request(roce.WriteOnly, 0, nil))
	if all := s.drain(); len(all) != 1 {
		t.Errorf("%d answers when that is over, without a timer", len(all))
	}
	s.hold(s.now)
	s.take(s.request(roce.WriteOnly, 1, nil))
	if at := s.deadline(); at != s.now+maxHold {
		t.Errorf("due at %v, want %v", at, s.now+maxHold)
	}
	s.take(s.request(roce.WriteOnly, 2, []byte{1, 2, 3}))
	s.take(roce.Packet{BTH: roce.BTH{Opcode: roce.WriteMiddle, PSN: testRecvPSN.Add(3)}})
	if all := s.drain(); len(all) != 1 || all[0].AETH.Syndrome != roce.NakInvalidRequest {
		t.Errorf("%v, want the end of the queue pair told at once", all)
	}
}

// TestHoldAnswersQP has the answers of a queue pair that is at work held back: they come when it is time, without anything else that happens.
func TestHoldAnswersQP(t *testing.T) {
	s, peer := victim(t)
	began := time.Now()
	s.qp.HoldAnswers()
	p := s.write([]byte{1, 2, 3})
	p.AckReq = true
	peer.sendPacket(&p)
	if got := peer.receive(); got.Opcode != roce.Acknowledge || got.PSN != testRecvPSN || got.AETH.Syndrome.Kind() != roce.KindAck {
		t.Errorf("the answer is %v, want an acknowledgement of %v", &got, testRecvPSN)
	}
	if held := time.Since(began); held < maxHold {
		t.Errorf("held back for %v, want %v", held, maxHold)
	}
}
