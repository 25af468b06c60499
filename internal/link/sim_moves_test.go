package link

// Single orders of events that the simulation has found, played by hand.

import (
	"slices"
	"testing"
)

// TestMoveBack moves a connection away from a good link, which waits for the bytes on their way,
// and back as the other link fails meanwhile: it is not to go there any more.
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

// TestMoveTwice moves a connection whose link has failed, and again before the peer knows of it. No
// data is on its way over a link that the peer does not know of: the peer would not end that link,
// and the data could come after the bytes that take its place.
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

// TestMoveUnheard moves a connection from a good link to one that fails before the peer has heard
// of it there, and to one that fails when it has. In the first case no data is on its way. In the
// second the peer ends the link, so that late bytes do not arrive.
func TestMoveUnheard(t *testing.T) {
	for _, heard := range []bool{false, true} {
		devs, pds := newSimDevices(t)
		w := newWorld(t, devs, pds, 1)
		defer w.close()
		x := w.conns[0].ends[0]
		x.size = 20_000
		from, to := w.links[0].qps[0], w.links[1].qps[0]
		for x.wrote < 10_000 {
			if !w.write(0, x) {
				for w.read(1, w.conns[0]) {
				}
			}
		}
		for from.deliver() || from.complete() || w.links[0].qps[1].deliver() {
		}
		w.move(0, w.conns[0], w.links[1])
		for x.wrote < 12_000 {
			w.write(0, x)
		}
		isWrite := func(p simPacket) bool { return p.write }
		if len(to.wire) != 1 || isWrite(to.wire[0]) {
			t.Errorf("%d packets are on their way to a peer that has heard nothing", len(to.wire))
		}
		if heard {
			to.deliver()
			to.complete()
			if !slices.ContainsFunc(to.wire, isWrite) {
				t.Error("no data follows")
			}
		}
		w.fail(0, w.links[1], "device down")
		for to.complete() {
		}
		w.owner(0)
		for from.deliver() || from.complete() {
			w.later()
		}
		if left := w.links[1].ends[1].Err() != nil; left != heard {
			t.Errorf("heard %t: the peer has ended the link: %t", heard, left)
		}
		w.settle()
		if x.carrier.Arrived() != 20_000 {
			t.Errorf("%d bytes have arrived", x.carrier.Arrived())
		}
	}
}

// TestMoveHolds has a peer move a connection after a failure of which we have not heard. The link
// that it has left acknowledges nothing more that has arrived there, before anything follows over
// the other one.
func TestMoveHolds(t *testing.T) {
	devs, pds := newSimDevices(t)
	w := newWorld(t, devs, pds, 1)
	defer w.close()
	x := w.conns[0].ends[0]
	x.size = 10_000
	for x.carrier.posted == 0 {
		w.write(0, x)
	}
	from, to := w.links[0], w.links[1]
	for from.qps[0].deliver() {
	}
	if n := from.qps[1].held; n != 0 {
		t.Errorf("held back %d times before the move", n)
	}
	to.up[0] = true
	w.fail(0, from, "device down")
	w.owner(0)
	for k := 0; from.qps[1].held == 0; k++ {
		if from.ends[1].Err() != nil || !to.qps[0].deliver() {
			t.Fatalf("not held back, after %d messages over the other link: %v", k, from.ends[1].Err())
		}
	}
	if n := to.qps[1].held; n != 0 {
		t.Errorf("the link that it moves to is held back %d times", n)
	}
}
