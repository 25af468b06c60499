package link

import (
	"io"
	"testing"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire/cdc"
)

// A puppet is the peer of a connection, and writes any bytes at any place over any link, as the
// test says.
type puppet struct {
	t   *testing.T
	w   *twins
	to  *end // on side 0
	own *end
	mem *memory
	seq uint16
}

// newPuppet makes a connection between two sides that have several links. Nobody moves it.
func newPuppet(t *testing.T, links int, set settings) *puppet {
	t.Helper()
	p := &puppet{t: t, w: newTwins(t, links)}
	p.to, p.own = p.w.sides.connect(t, set)
	var err error
	if p.mem, err = p.w.sides[1].group.newMemory(64<<10, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

// truth is byte number n of the stream.
func truth(n int) byte { return byte(n*7 + n>>8*13) }

// write writes bytes from to to of the stream over a link, true ones or others.
func (p *puppet) write(k, from, to int, honest bool) {
	p.t.Helper()
	for n := from; n < to; n++ {
		p.mem.bytes[n] = truth(n)
		if !honest {
			p.mem.bytes[n] ^= 0x55
		}
	}
	token, _ := p.to.rmb.Token(p.w.links[0][k])
	size, base := int(p.to.carrier.ownSize()), int(p.to.carrier.in.base)
	l := p.w.links[1][k]
	region := p.w.sides[1].group.region(p.mem, l)
	for from < to {
		n := min(to-from, size-from%size)
		err := l.qp.PostSend(verbs.SendWR{
			ID: idLLC, Op: verbs.OpWrite, Remote: token.Addr + uint64(base+from%size), RKey: token.RKey,
			Local: [2]verbs.SGE{{MR: region, Addr: region.Addr() + uint64(from), Len: uint32(n)}},
		})
		if err != nil {
			p.t.Fatal(err)
		}
		from += n
	}
}

// say tells over a link that all before byte number to is written.
func (p *puppet) say(k, to int) {
	p.t.Helper()
	p.seq++
	m := cdc.Message{Seq: p.seq, Producer: cursor(uint64(to), p.to.carrier.ownSize())}
	m.Producer.Count += p.to.carrier.in.base
	m.Consumer.Count = p.to.carrier.base
	p.post(k, m)
}

func (p *puppet) post(k int, m cdc.Message) {
	p.t.Helper()
	m.AlertToken = p.to.carrier.AlertToken()
	if err := p.w.links[1][k].SendLLC(m.Append(nil), 0); err != nil {
		p.t.Fatal(err)
	}
}

// await waits until n messages have come over a link.
func (p *puppet) await(k int, n uint64) {
	p.t.Helper()
	eventually(p.t, "the messages", func() bool { return p.w.links[0][k].Heard() >= n })
}

// read reads up to a byte of the stream, and compares.
func (p *puppet) read(from, to int) {
	p.t.Helper()
	b := make([]byte, to-from)
	if n, err := io.ReadFull(p.to, b); err != nil {
		p.t.Fatalf("%d of %d bytes from %d: %v", n, len(b), from, err)
	}
	for i, got := range b {
		if got != truth(from+i) {
			p.t.Fatalf("byte %d is %#x, want %#x", from+i, got, truth(from+i))
		}
	}
}

// replay has the peer write the second lap of a ring of 16 KiB over link 0, and announce a part of
// it. The peer then writes the same once more over link k with other bytes, and goes on from there.
func (p *puppet) replay(k int, validated bool) {
	p.t.Helper()
	p.write(0, 0, 12_000, true)
	p.say(0, 12_000)
	p.await(0, 1)
	p.read(0, 9_000)
	eventually(p.t, "there is room", func() bool { return p.to.carrier.told.Load() >= 4_000 })
	p.write(0, 12_000, 18_000, true)
	p.say(0, 18_000)
	p.await(0, 2)
	heard := p.w.links[0][k].Heard()
	if validated {
		p.post(k, cdc.NewFailoverValidation(p.seq, 0))
		heard++
	}
	p.write(k, 6_000, 18_000, false)
	p.say(k, 12_000)
	p.say(k, 18_000)
	p.write(k, 18_000, 20_000, true)
	p.say(k, 20_000)
	p.await(k, heard+3)
	p.read(9_000, 20_000)
	token, _ := p.own.rmb.Token(p.w.links[1][k])
	if err := p.to.carrier.Move(p.w.links[0][k], token); err != nil {
		p.t.Fatal(err)
	}
	eventually(p.t, "there is room", func() bool { return p.to.carrier.told.Load() >= 14_000 })
	p.write(k, 20_000, 30_000, true)
	p.say(k, 30_000)
	p.read(20_000, 30_000)
}

var eyecatchers = []settings{{}, {eyecatcher: [2]bool{true, true}}}

// TestGuardReplay has a peer move to another link, and write other bytes there in the place of
// announced ones that were not read: the first bytes count. It does not tell of the move if the
// connection is being closed.
func TestGuardReplay(t *testing.T) {
	watchdog(t)
	for _, set := range eyecatchers {
		newPuppet(t, 2, set).replay(1, true)
		newPuppet(t, 2, set).replay(1, false)
	}
}

// TestGuardLaterLink is TestGuardReplay over a link that was made when the connection was there.
func TestGuardLaterLink(t *testing.T) {
	watchdog(t)
	p := newPuppet(t, 1, settings{})
	p.w.addLink(openDevice(t, randomLoopback(), nil), openDevice(t, randomLoopback(), nil))
	p.replay(1, true)
}

// TestGuardReleased gives an RMB to a second connection while there is something in it that the
// first one has not read. The bytes that are written for the second, attached or not yet, are all
// there.
func TestGuardReleased(t *testing.T) {
	watchdog(t)
	for _, set := range eyecatchers {
		p := newPuppet(t, 1, set)
		p.write(0, 0, 5_000, false)
		p.say(0, 5_000)
		p.await(0, 1)
		old := p.to
		old.Conn.Close()
		old.SendLast(cdc.Abort)
		old.carrier.Detach()
		old.carrier.Release()
		old.rmb.Clear()
		next := &end{side: old.side, rmb: old.rmb}
		var err error
		if next.carrier, err = old.side.group.NewCarrier(CarrierConfig{RMB: old.rmb, Wake: func() {}}); err != nil {
			t.Fatal(err)
		}
		next.carrier.in.base = old.carrier.in.base // which the peer knows before
		p.to = next
		p.write(0, 0, 1_000, true)
		p.say(0, 1_000)
		p.await(0, 2)
		other := p.w.sides[1].prepare(t, 0, 0)
		if err := next.carrier.Attach(p.w.links[0][0], other.as(t, set.eyecatcher[1]), set.eyecatcher[0]); err != nil {
			t.Fatal(err)
		}
		next.open(0)
		p.write(0, 1_000, 8_000, true)
		p.say(0, 8_000)
		p.await(0, 3)
		p.read(0, 8_000)
	}
}
