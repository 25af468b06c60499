package rendezvous

import (
	"testing"
	"time"
)

// Whoever accepts a connection handles what peers have sent before. So a message costs the same however many connections a
// peer has said that it will make: one that sends without end is not to keep the accept loops of the process from accepting.
func TestExpectFlood(t *testing.T) {
	p, d := newPoint(t, 2)
	tcp := plainListener(t)
	l, err := p.Listen(tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, other := d.peers[testGID(2)], d.peers[testGID(3)]
	expect := func(from *fakePeer, id uint64) {
		m := Message{Kind: Expect, ID: id, Netns: l.Netns(), Socket: 1<<50 + id, Dest: AddrPort(tcp.Addr())}
		p.Signal(from, m.Append(nil))
	}
	for id := range uint64(MaxExpected) {
		expect(peer, id)
	}
	const floods = 20000
	start := time.Now()
	for id := range uint64(floods) {
		expect(peer, MaxExpected+id)
		cancel := Message{Kind: Cancel, ID: MaxExpected + id}
		p.Signal(peer, cancel.Append(nil))
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("%d messages took %v, want 1 µs each or so", 2*floods, took)
	}
	if got, want := peer.count(Refused), floods; got != want {
		t.Errorf("%d were refused, want %d", got, want)
	}
	if p.Expected() != MaxExpected {
		t.Errorf("%d connections are expected, want %d", p.Expected(), MaxExpected)
	}

	// Nothing of that is left, and what another peer has said stays.
	expect(other, 1<<40)
	twice := Message{Kind: Expect, ID: 1 << 40, Netns: l.Netns(), Socket: 5, Dest: AddrPort(tcp.Addr())}
	p.Signal(other, twice.Append(nil)) // one number for two connections: not both
	if p.Expected() != MaxExpected+1 {
		t.Errorf("%d connections are expected, want %d", p.Expected(), MaxExpected+1)
	}
	cancel := Message{Kind: Cancel, ID: 7}
	p.Signal(peer, cancel.Append(nil))
	expect(peer, 7)
	if p.Expected() != MaxExpected+1 {
		t.Errorf("%d connections are expected after one was taken back and another one came, want %d", p.Expected(), MaxExpected+1)
	}
	p.PeerGone(peer)
	if p.Expected() != 1 {
		t.Errorf("%d connections are expected after the peer has gone, want 1", p.Expected())
	}
}
