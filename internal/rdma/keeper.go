package rdma

import (
	"sync"
	"sync/atomic"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// A keeper keeps packets that came before the one that is expected, until it has come. To the peer
// that looks like a network that delayed them: when the gap is filled they are carried out in
// order, and one acknowledgement tells of all. A peer that goes back to the gap has sent them again
// for nothing; one like us (see requester.keeps) sends only the missing packets.
//
// Packets are kept by their PSN, at most keepAhead beyond the expected one, and none that has more than the
// path MTU: it will be refused when it is its turn, and can be sent again for that.
type keeper struct {
	packets [keepAhead]keptPacket
	count   int
}

type keptPacket struct {
	kept    bool
	packet  roce.Packet
	payload []byte // of packet; the memory stays for the next one
}

func (k *keeper) slot(psn wire.PSN) *keptPacket { return &k.packets[psn%keepAhead] }

// put keeps a copy of p. The first one with a PSN stays.
func (k *keeper) put(p *roce.Packet) {
	s := k.slot(p.PSN)
	if s.kept {
		return
	}
	if n := len(p.Payload); cap(s.payload) < n {
		s.payload = make([]byte, 0, powerOfTwo(max(n, minKept))) // append may take more
	}
	s.payload = append(s.payload[:0], p.Payload...)
	s.packet, s.kept = *p, true
	s.packet.Payload = s.payload
	k.count++
}

// take returns the packet psn, which stays valid until the next put, and nil if it is not there.
func (k *keeper) take(psn wire.PSN) *roce.Packet {
	s := k.slot(psn)
	if !s.kept {
		return nil
	}
	s.kept = false
	k.count--
	return &s.packet
}

// A keeperPool has the keepers of a device: as many as queue pairs may miss packets at a time. A
// queue pair that gets none drops packets that come too early, as the specification has it. Those
// that nobody uses wait for the next loss, until the garbage collector has come by twice.
type keeperPool struct {
	used atomic.Int32
	idle sync.Pool // of *keeper
}

func (p *keeperPool) get() *keeper {
	if p.used.Add(1) > maxKeepers {
		p.used.Add(-1)
		return nil
	}
	if k, ok := p.idle.Get().(*keeper); ok {
		return k
	}
	return new(keeper)
}

// put takes k back, with or without packets.
func (p *keeperPool) put(k *keeper) {
	if k.count > 0 {
		for i := range k.packets {
			k.packets[i].kept = false
		}
		k.count = 0
	}
	p.idle.Put(k)
	p.used.Add(-1)
}
