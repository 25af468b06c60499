package rdma

import (
	"testing"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// A couple is two queue pairs in RTS that are each other's peer, without a network.
type couple struct {
	a, b *solo
	room []byte
	flow *roce.Flow // if not nil packets are sealed and verified
	p    roce.Packet
}

func newCouple(t testing.TB, mtu wire.MTU) *couple {
	c := &couple{a: newSolo(t), b: newSolo(t), room: make([]byte, 8192)}
	for _, s := range []*solo{c.a, c.b} {
		rtr := testRTR
		rtr.RemoteQPN, rtr.PathMTU, rtr.RecvPSN = testQPN, mtu, testSendPSN
		s.must(s.init(LocalWrite | RemoteWrite))
		s.must(s.readyToReceive(rtr))
		s.must(s.readyToSend(testRTS))
	}
	return c
}

// step carries one packet from one to the other, and reports whether there was one.
func (c *couple) step(from, to *solo) bool {
	n := from.transmit(from.now, c.room)
	if n == 0 {
		return false
	}
	b := c.room[:n+roce.ICRCLen]
	if c.flow != nil {
		c.flow.Seal(0, b)
	}
	if err := c.p.Parse(b); err != nil {
		from.t.Fatal(err)
	}
	if c.flow != nil {
		if _, v := c.flow.Verify(0, b); v != roce.Exact {
			from.t.Fatal(v)
		}
	}
	to.receive(to.now, &c.p)
	return true
}

// write posts a WRITE of n bytes from a to b and carries packets until it has completed.
func (c *couple) write(n int) {
	wr := SendWR{ID: 1, Op: OpWrite, Signaled: true, Remote: c.b.mr.addr, RKey: c.b.mr.rkey, Local: [2]SGE{c.a.sge(0, n)}}
	if err := c.a.postSend(&wr); err != nil {
		c.a.t.Fatal(err)
	}
	c.carry()
}

// carry carries packets until neither side has one.
func (c *couple) carry() {
	for c.step(c.a, c.b) || c.step(c.b, c.a) {
	}
	if len(c.a.done) != 1 || c.a.done[0].Status != StatusOK {
		c.a.t.Fatalf("completions %+v", c.a.done)
	}
	c.a.done = c.a.done[:0]
}

// TestAllocationsOfQueuePairs makes sure that packets and work cost no memory.
func TestAllocationsOfQueuePairs(t *testing.T) {
	c := newCouple(t, wire.MTU1024)
	for _, tt := range []struct {
		name string
		do   func()
	}{
		{"WRITE of 64 bytes", func() { c.write(64) }},
		{"WRITE of 60,000 bytes", func() { c.write(60000) }},
		{"SEND", func() {
			c.b.postReceive(1, 0, 44)
			if err := c.a.postSend(&SendWR{Op: OpSend, Signaled: true, Local: [2]SGE{c.a.sge(0, 44)}}); err != nil {
				t.Fatal(err)
			}
			c.carry()
			c.b.done = c.b.done[:0]
		}},
		{"WRITE whose second packet is lost", func() {
			wr := SendWR{Op: OpWrite, Signaled: true, Remote: c.b.mr.addr, RKey: c.b.mr.rkey, Local: [2]SGE{c.a.sge(0, 5000)}}
			if err := c.a.postSend(&wr); err != nil {
				t.Fatal(err)
			}
			c.step(c.a, c.b)
			c.a.transmit(c.a.now, c.room)
			c.carry()
		}},
	} {
		if got := testing.AllocsPerRun(200, tt.do); got != 0 {
			t.Errorf("%s: %v allocations, want 0", tt.name, got)
		}
	}
}

// TestAllocationsOfDevices is the same through two devices on loopback: posting, sending,
// receiving, completing.
func TestAllocationsOfDevices(t *testing.T) {
	a, b := newSide(t, randomLoopback(), nil, nil), newSide(t, randomLoopback(), nil, nil)
	connect(t, a, b, wire.MTU1024)
	sends := []SendWR{
		{ID: 1, Op: OpWrite, Remote: b.mr.Addr(), RKey: b.mr.RKey(), Local: [2]SGE{{MR: a.mr, Addr: a.mr.Addr(), Len: 20000}}},
		{ID: 2, Op: OpSend, Signaled: true, Local: [2]SGE{{MR: a.mr, Addr: a.mr.Addr(), Len: 44}}},
	}
	recvs := []RecvWR{{ID: 3, Local: [2]SGE{{MR: b.mr, Addr: b.mr.Addr() + 30000, Len: 44}}}}
	var one [1]Completion
	take := func(s *side, id uint64) {
		for s.cq.Poll(one[:]) == 0 {
			<-s.cq.Channel()
		}
		if one[0].ID != id || one[0].Status != StatusOK {
			t.Errorf("completion %+v, want %d", one[0], id)
		}
	}
	exchange := func() {
		if err := b.qp.PostRecv(recvs...); err != nil {
			t.Error(err)
		}
		if err := a.qp.PostSend(sends...); err != nil {
			t.Error(err)
		}
		take(b, 3)
		take(a, 2)
	}
	for range 200 { // the window has grown, all buffers are there
		exchange()
	}
	// AllocsPerRun rounds down: of several hundred exchanges none may have had one each, while the
	// runtime may have made a timer or a stack.
	if got := testing.AllocsPerRun(500, exchange); got != 0 && !raceEnabled {
		t.Errorf("an exchange has %v allocations, want 0", got)
	}
}
