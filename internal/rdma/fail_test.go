package rdma

import (
	"testing"

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
