package link

// Single orders of events that the simulation has found, played by hand.

import (
	"slices"
	"testing"
)

// TestMoveBack moves a connection away from a good link, which waits for what is on its way, and back as the other link fails meanwhile:
// it is not to go there any more.
func TestMoveBack(t *testing.T) {
	devs, pds := newSimDevices(t)
	w := newWorld(t, devs, pds, 1)
	defer w.close()
	x := w.conns[0].ends[0]
	x.size = 10_000
	for x.carrier.posted == 0 {
		w.write(0, x)
	}
	from, to := w.links[0], w.links[1]
	w.move(0, w.conns[0], to)
	w.fail(0, to, "device down")
	w.owner(0)
	w.settle()
	if l := x.carrier.Link(); l != from.ends[0] || x.carrier.Arrived() != 10_000 || x.carrier.done.seq == 0 {
		t.Errorf("%d bytes have arrived, over a link with the error %v", x.carrier.Arrived(), l.Err())
	}
}

// TestMoveTwice moves a connection whose link has failed, and again before the peer knows of it: no data is on its way over a link that
// the peer does not know of, as it would not end that link, and the data could come after what takes its place.
func TestMoveTwice(t *testing.T) {
	devs, pds := newSimDevices(t)
	w := newWorld(t, devs, pds, 1)
	defer w.close()
	w.addLink(t)
	x := w.conns[0].ends[0]
	x.size = 10_000
	for x.carrier.posted == 0 {
		w.write(0, x)
	}
	for i, l := range w.links[:2] {
		next := w.links[i+1]
		next.up[0] = true
		w.fail(0, l, "device down")
		for l.qps[0].complete() {
		}
		w.owner(0)
		wire := next.qps[0].wire
		if data := slices.ContainsFunc(wire, func(p simPacket) bool { return p.write }); data || len(wire) != len(w.conns) {
			t.Errorf("after move %d %d messages are on their way for %d connections, and data: %t", i+1, len(wire), len(w.conns), data)
		}
	}
	w.settle()
	if x.carrier.Arrived() != 10_000 {
		t.Errorf("%d bytes have arrived", x.carrier.Arrived())
	}
}
