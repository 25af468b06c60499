package rendezvous

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/clc"
)

// signal has a peer send a message.
func signal(tb testing.TB, p *Point, from *fakePeer, m Message) {
	tb.Helper()
	if err := p.Signal(from, m.Append(nil)); err != nil {
		tb.Fatal(err)
	}
}

// last returns the last message that was sent to the peer.
func (p *fakePeer) last() Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sent) == 0 {
		return Message{}
	}
	return p.sent[len(p.sent)-1]
}

// TestExpectRefused has peers announce connections that a server may not expect: each is told why.
func TestExpectRefused(t *testing.T) {
	p, d := newPoint(t, 3)
	tcp := plainListener(t)
	l, err := p.Listen(tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer, other, stranger := d.peers[testGID(2)], d.peers[testGID(3)], d.peers[testGID(4)]
	stranger.uid = os.Geteuid() + 1
	good := Message{Kind: Expect, ID: 1, Netns: l.Netns(), Socket: 1 << 50, Dest: AddrPort(tcp.Addr())}
	signal(t, p, peer, good)
	if p.Expected() != 1 || peer.count(Refused) != 0 {
		t.Fatalf("%d connections are expected, %+v was sent; want one and nothing", p.Expected(), peer.last())
	}
	for _, tt := range []struct {
		name   string
		from   *fakePeer
		change func(m *Message)
		reason clc.Diagnosis
		left   int // connections that are expected after that
	}{
		{"another port", other, func(m *Message) { m.Dest = AddrPort(plainListener(t).Addr()) }, clc.DiagNoListener, 1},
		{"another network namespace", other, func(m *Message) { m.Netns++ }, clc.DiagNoListener, 1},
		{"another user", stranger, func(*Message) {}, clc.DiagOtherUser, 1},
		{"one number for two sockets", peer, func(m *Message) { m.ID = good.ID }, clc.DiagRefused, 1},
		{"a socket of another peer's", other, func(m *Message) { m.Socket = good.Socket }, clc.DiagRefused, 0}, // one of them lies
	} {
		m := good
		m.ID, m.Socket = 2, 2<<50
		tt.change(&m)
		signal(t, p, tt.from, m)
		if got := tt.from.last(); got.Kind != Refused || got.ID != m.ID || got.Reason != uint32(tt.reason) || p.Expected() != tt.left {
			t.Errorf("%s: %+v was sent, %d are expected; want Refused because of %v, %d", tt.name, got, p.Expected(), tt.reason, tt.left)
		}
	}
	if got := peer.last(); got.Kind != Refused || got.ID != good.ID {
		t.Errorf("%+v was sent to the other peer with that socket, want Refused", got)
	}

	for id := range uint64(MaxExpected) {
		signal(t, p, peer, Message{Kind: Expect, ID: id, Netns: l.Netns(), Socket: 3<<50 + id, Dest: good.Dest})
	}
	more := good
	more.ID = MaxExpected
	signal(t, p, peer, more)
	if got := peer.last(); got.Kind != Refused || got.Reason != uint32(clc.DiagBusy) || p.Expected() != MaxExpected {
		t.Errorf("%+v was sent after %d connections, want Refused because of %v", got, p.Expected(), clc.DiagBusy)
	}
}

// TestTakeExpected has processes of three users say that a socket is theirs: it has to be, or root has.
func TestTakeExpected(t *testing.T) {
	const uid = 60001
	for _, tt := range []struct {
		says int // the user of the process that says it
		ok   bool
	}{{uid, true}, {0, true}, {uid + 1, false}} {
		p, d := newPoint(t, 1)
		p.cfg.Admit = func(int) bool { return true }
		l, err := p.Listen(plainListener(t))
		if err != nil {
			t.Fatal(err)
		}
		peer := d.peers[testGID(2)]
		peer.uid = tt.says
		signal(t, p, peer, Message{Kind: Expect, ID: 1, Netns: l.Netns(), Socket: 7, Dest: l.addr})
		e, ok := p.takeExpected(endSocket{cookie: 7, uid: uid})
		if ok != tt.ok || ok && e.peer != peer {
			t.Errorf("user %d says that a socket of %d is its own: %t, want %t", tt.says, uid, ok, tt.ok)
		}
		if _, ok := p.takeExpected(endSocket{cookie: 7, uid: uid}); ok {
			t.Error("a connection was taken twice")
		}
		l.Close()
	}
}

// TestCloseRefuses closes a listener of which connections are expected. They are refused, but for those that another
// listener at the same address may get.
func TestCloseRefuses(t *testing.T) {
	p, d := newPoint(t, 1)
	peer := d.peers[testGID(2)]
	tcp, elsewhere := plainListener(t), plainListener(t)
	var listenings []*Listening
	for _, tcp := range []*net.TCPListener{tcp, tcp, elsewhere} {
		l, err := p.Listen(tcp)
		if err != nil {
			t.Fatal(err)
		}
		listenings = append(listenings, l)
	}
	for i, l := range []*Listening{listenings[0], listenings[2]} {
		signal(t, p, peer, Message{Kind: Expect, ID: uint64(i), Netns: l.Netns(), Socket: uint64(i), Dest: l.addr})
	}
	for i, want := range []int{2, 1, 0} {
		listenings[i].Close()
		if p.Expected() != want || peer.count(Refused) != 2-want {
			t.Errorf("after %d closes %d are expected and %d refused, want %d and %d", i+1, p.Expected(), peer.count(Refused), want, 2-want)
		}
	}
	if got := peer.last(); got.ID != 1 || got.Reason != uint32(clc.DiagNoListener) {
		t.Errorf("the last was refused with %+v, want %v", got, clc.DiagNoListener)
	}

	// So is a message that has come and nobody has looked at.
	l, err := p.Listen(tcp)
	if err != nil {
		t.Fatal(err)
	}
	d.poll = func() {
		d.poll = nil
		signal(t, p, peer, Message{Kind: Expect, ID: 5, Netns: l.Netns(), Socket: 5, Dest: l.addr})
	}
	l.Close()
	if got := peer.last(); got.Kind != Refused || got.ID != 5 {
		t.Errorf("%+v was sent for what was found at the end, want Refused", got)
	}
}

// A goroutine that accepts a connection handles the messages that peers have sent before. So a
// message costs the same however many connections a peer has said that it will make: one that sends
// without end is not to keep the accept loops of the process from accepting.
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

	// Nothing of that is left, and the messages of another peer stay.
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
