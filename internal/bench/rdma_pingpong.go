package bench

import (
	"fmt"
	"net"
	"time"

	"github.com/gosmc/smc/internal/rdma"
)

const (
	// rdmaRallyPlaces is how many writes take turns in the memory of either side: a write that was
	// posted and not signaled keeps its place until a later one has completed.
	rdmaRallyPlaces = 64

	// rdmaSignalEvery says which messages are signaled, so that places become free.
	rdmaSignalEvery = rdmaRallyPlaces / 4
)

// rdmaPingPong sends a write and its message there and back, over and over. The answer is posted
// by the handler that takes the message.
var rdmaPingPong = &workload{
	clientCounts: true,
	server: func(m *meter, l net.Listener) error {
		peer, err := m.acceptControl(l)
		if err != nil {
			return err
		}
		defer peer.Close()
		p, err := newRallyPlayer(m, peer)
		if err != nil {
			return err
		}
		defer p.close()
		p.handle = p.answer
		if err := p.connect(peer, roleServer, m.settings.Packet); err != nil {
			return err
		}
		p.watch(peer)
		if err := p.wait(); !gone(err) {
			return err
		}
		return nil
	},
	client: func(m *meter, dial dialFunc) error {
		peer, err := dialControl(dial)
		if err != nil {
			return err
		}
		defer peer.Close()
		p, err := newRallyPlayer(m, peer)
		if err != nil {
			return err
		}
		defer p.close()
		p.handle = p.returned
		if err := p.connect(peer, roleClient, m.settings.Packet); err != nil {
			return err
		}
		m.note(p.describe(m.settings.Packet), 0)
		p.last = time.Since(p.start)
		if err := p.send(1); err != nil {
			return err
		}
		return p.wait()
	},
}

// A rallyPlayer is either side of rdmaPingPong.
type rallyPlayer struct {
	*rdmaEnd
	meter *meter
	size  int // bytes of a write
	count uint64
	wrs   []rdma.SendWR

	start time.Time
	last  time.Duration // since start
}

func newRallyPlayer(m *meter, peer *controlConn) (*rallyPlayer, error) {
	ring := rdmaRallyPlaces * m.settings.Size
	size := rdmaSizes{source: ring, target: ring, sends: 2 * rdmaRallyPlaces, outbox: rdmaRallyPlaces,
		inbox: rdmaRallyPlaces}
	end, err := openFor(m, peer, size, 0, 0)
	if err != nil {
		return nil, err
	}
	return &rallyPlayer{rdmaEnd: end, meter: m, size: m.settings.Size, start: time.Now()}, nil
}

// send posts write number, and its message.
func (p *rallyPlayer) send(number uint64) error {
	place := int(number % rdmaRallyPlaces)
	p.wrs = p.appendWrite(p.wrs[:0], number, place, p.size, place, number%rdmaSignalEvery == 0)
	return p.qp.PostSend(p.wrs...)
}

// next takes a completion. It reports whether it is the message for the next write.
func (p *rallyPlayer) next(c *rdma.Completion) (bool, error) {
	if c.Op != rdma.Received {
		return false, nil
	}
	number, err := p.received(c)
	if err != nil {
		return false, err
	}
	if number != p.count+1 {
		return false, fmt.Errorf("message %d came after %d", number, p.count)
	}
	place := int(number % rdmaRallyPlaces)
	if err := checkStamp(p.target.Bytes()[place*p.size:][:p.size], number); err != nil {
		return false, err
	}
	p.count = number
	p.receives = append(p.receives[:0], p.receiveInto(int(c.ID)))
	return true, p.qp.PostRecv(p.receives...)
}

// answer is the handler of the server.
func (p *rallyPlayer) answer(batch []rdma.Completion) error {
	for i := range batch {
		ok, err := p.next(&batch[i])
		if err == nil && ok {
			err = p.send(p.count)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// returned is the handler of the client.
func (p *rallyPlayer) returned(batch []rdma.Completion) error {
	for i := range batch {
		ok, err := p.next(&batch[i])
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		now := time.Since(p.start)
		if p.meter.measuring() {
			p.meter.latency.Record(now - p.last)
		}
		p.last = now
		p.meter.count(1, 2*p.size)
		p.meter.start()
		if p.meter.stopped() {
			p.end(nil)
			return nil
		}
		if err := p.send(p.count + 1); err != nil {
			return err
		}
	}
	return nil
}
