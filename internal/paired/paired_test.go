package paired

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

func TestMain(m *testing.M) { smctest.Main(m) }

const patience = 20 * time.Second

// A fixedKernel has the same tokens for each socket.
type fixedKernel struct{ Tokens }

func (fixedKernel) Ask(syscall.RawConn, netip.AddrPort) bool { return true }
func (fixedKernel) Addresses(syscall.RawConn) []string       { return nil }
func (k fixedKernel) Read(syscall.RawConn, netip.AddrPort) (Tokens, clc.Diagnosis) {
	return k.Tokens, clc.DiagNone
}

// A side is a device with a point.
type side struct {
	device *ism.Device
	point  *Point
	ups    chan *ism.Peer
	bad    chan error
}

func newSide(t *testing.T, tokens Tokens) *side {
	t.Helper()
	s := &side{ups: make(chan *ism.Peer, 100), bad: make(chan error, 100)}
	s.point = New(Config{
		Kernel: fixedKernel{tokens},
		Users:  introduce.Users{},
		Open:   func() (*ism.Device, clc.Diagnosis, error) { return s.device, clc.DiagNone, nil },
		Opened: func() *ism.Device { return s.device },
		Enlist: func(*ism.Peer) bool { return true },
		Reason: func(error) clc.Diagnosis { return clc.DiagFabric },
		Trace:  func(*ism.Peer, *Message, bool) {},
		Logger: slog.New(slog.DiscardHandler),
	})
	var err error
	if s.device, err = ism.Open(ism.Config{Handler: s}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.device.Close(); s.point.Close() })
	return s
}

func (s *side) PeerUp(p *ism.Peer) {
	s.point.PeerUp(p)
	s.ups <- p
}

func (s *side) Signal(p *ism.Peer, payload []byte) {
	if err := s.point.Signal(p, payload); err != nil {
		s.bad <- err
	}
}
func (s *side) PeerGone(p *ism.Peer, _ error) { s.point.PeerGone(p) }

// meet introduces two sides, and returns both ends of the peering.
func meet(t *testing.T, dials, accepts *side, secret byte) (p, q *ism.Peer) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	in := func(fd int, other *side, n byte) ism.Introduction {
		return ism.Introduction{
			Socket: fd, Key: wire.ISMGIDFromUUID([16]byte{0: n, 1: secret, 15: 1}), GID: other.device.GID(),
			Secret: [16]byte{secret}, Cred: ism.Cred{UID: 60001},
		}
	}
	accepts.device.AcceptBy(in(ends[1], dials, 2))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if p, err = dials.device.PeerBy(ctx, in(ends[0], accepts, 1)); err != nil {
		t.Fatal(err)
	}
	select {
	case q = <-accepts.ups:
	case <-time.After(patience):
		t.Fatal("no peer")
	}
	return p, q
}

// connect returns a TCP connection.
func connect(t *testing.T) (c, s *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

const tokenC, tokenS = 11, 22

var (
	atClient = Tokens{Mine: tokenC, Theirs: tokenS}
	atServer = Tokens{Mine: tokenS, Theirs: tokenC}
)

func TestParse(t *testing.T) {
	for _, m := range []Message{
		{Kind: Expect, ID: 1, Name: 2, Proof: Proof{3}},
		{Kind: Accepted, ID: 1}, {Kind: Cancel, ID: 1},
		{Kind: Refused, ID: 1, Reason: 4},
	} {
		b := m.Append(nil)
		if got, err := Parse(b); err != nil || got != m {
			t.Errorf("Parse(%x) = %+v, %v; want %+v", b, got, err, m)
		}
		if !IsMessage(b) || IsMessage([]byte{1}) || IsMessage(nil) {
			t.Error("messages are mistaken")
		}
		for _, wrong := range [][]byte{b[:len(b)-1], append(b[:len(b):len(b)], 0), nil, {byte(m.Kind)}} {
			if _, err := Parse(wrong); err == nil {
				t.Errorf("Parse(%x) finds nothing wrong", wrong)
			}
		}
	}
	if _, err := Parse(make([]byte, headerLen)); err == nil {
		t.Error("a message of the rendezvous is taken")
	}
}

func FuzzParse(f *testing.F) {
	m := Message{Kind: Expect, ID: 1, Name: 2, Proof: Proof{3}}
	f.Add(m.Append(nil))
	smctest.Fuzz(f, func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		if again, err := Parse(m.Append(nil)); err != nil || again != m {
			t.Errorf("%+v becomes %+v, %v", m, again, err)
		}
	})
}

// TestProof has a hostile process that knows the name of a connection, and the proof that was meant
// for it. The server does not take it for the client.
func TestProof(t *testing.T) {
	client, server, eve := newSide(t, atClient), newSide(t, atServer), newSide(t, Tokens{})
	p, _ := meet(t, client, server, 1)
	e, _ := meet(t, eve, server, 2)
	name := nameOf(tokenC, tokenS)
	proofs := []Proof{{}, proofOf([16]byte{1}, tokenC, tokenS), proofOf([16]byte{2}, tokenS, tokenC)}
	for i, proof := range proofs {
		m := Message{Kind: Expect, ID: uint64(i), Name: name, Proof: proof}
		if err := e.Send(m.Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	_, s := connect(t)
	c, why := server.point.Claim(s)
	if c == nil || c.Peer() != nil {
		t.Fatalf("a process without the tokens has the connection: %+v, %v", c, why)
	}
	secret, _ := p.Secret()
	m := Message{Kind: Expect, ID: 7, Name: name, Proof: proofOf(secret, tokenC, tokenS)}
	if err := p.Send(m.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if why := c.Await(context.Background(), true); why != clc.DiagNone || c.Peer() == nil || c.id != 7 {
		t.Errorf("the client: %+v, %v", c, why)
	}
}

// TestExpectBetween has the client's message come after Claim, and before Await.
func TestExpectBetween(t *testing.T) {
	client, server := newSide(t, atClient), newSide(t, atServer)
	_, q := meet(t, client, server, 1)
	_, s := connect(t)
	c, why := server.point.Claim(s)
	if c == nil || c.Peer() != nil {
		t.Fatalf("%+v, %v before the message", c, why)
	}
	secret, _ := q.Secret()
	m := Message{Kind: Expect, ID: 7, Name: nameOf(tokenC, tokenS), Proof: proofOf(secret, tokenC, tokenS)}
	server.point.onExpect(q, m, secret)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if why := c.Await(ctx, true); why != clc.DiagNone || c.Peer() != q || c.id != 7 {
		t.Errorf("the client: %+v, %v", c, why)
	}
}

// TestExpectBounds has a peer say more than it may.
func TestExpectBounds(t *testing.T) {
	client, server := newSide(t, atClient), newSide(t, atServer)
	_, q := meet(t, client, server, 1)
	point := server.point
	expect := func(id uint64, name Name) clc.Diagnosis {
		point.mu.Lock()
		defer point.mu.Unlock()
		return point.expectLocked(expectation{peer: q, id: id, at: time.Now()}, name)
	}
	for i := range uint64(maxExpected) {
		if why := expect(i, Name(1000+i)); why != clc.DiagNone {
			t.Fatalf("connection %d: %v", i, why)
		}
	}
	if why := expect(maxExpected, 1); why != clc.DiagBusy {
		t.Errorf("one too many: %v, want %v", why, clc.DiagBusy)
	}
	point.mu.Lock()
	for name, list := range point.expected {
		list[0].at = time.Now().Add(-2 * expectAge)
		point.expected[name] = list
	}
	point.mu.Unlock()
	for i := range uint64(maxRivals) {
		if why := expect(i, 1); why != clc.DiagNone {
			t.Fatalf("after their age: %v", why)
		}
	}
	if why := expect(0, 2); why != clc.DiagRefused {
		t.Errorf("one ID twice: %v, want %v", why, clc.DiagRefused)
	}
	if why := expect(maxRivals, 1); why != clc.DiagBusy {
		t.Errorf("rivals: %v, want %v", why, clc.DiagBusy)
	}
	point.PeerGone(q)
	if len(point.expected) != 0 || len(point.peers) != 0 {
		t.Errorf("after the peer: %d, %d", len(point.expected), len(point.peers))
	}
}

// TestUnasked has a peer answer that nobody has asked.
func TestUnasked(t *testing.T) {
	client, server := newSide(t, atClient), newSide(t, atServer)
	p, q := meet(t, client, server, 1)
	c := &call{point: client.point, id: 1, answers: make(chan answer, 1)}
	client.point.calls[1] = c
	m := Message{Kind: Accepted, ID: 1}
	if err := q.Send(m.Append(nil)); err != nil {
		t.Fatal(err)
	}
	m = Message{Kind: Cancel, ID: 99} // behind it
	if err := q.Send(m.Append(nil)); err != nil {
		t.Fatal(err)
	}
	client.device.Poll()
	client.point.onAnswer(p, Message{Kind: Accepted, ID: 1})
	if len(c.answers) != 0 {
		t.Error("the answer counts")
	}
}

// TestStrangers has a peer that was not introduced send a message of this package.
func TestStrangers(t *testing.T) {
	dir := t.TempDir()
	s := newSide(t, Tokens{})
	a, err := ism.Open(ism.Config{Dir: dir, Handler: s})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := ism.Open(ism.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := b.Peer(ctx, a.GID())
	if err != nil {
		t.Fatal(err)
	}
	m := Message{Kind: Expect, ID: 1}
	if err := p.Send(m.Append(nil)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.bad:
	case <-time.After(patience):
		t.Error("the message is taken")
	}
}

// TestCalls has a client whose server accepts, refuses, and has decided before.
func TestCalls(t *testing.T) {
	client, server := newSide(t, atClient), newSide(t, atServer)
	p, _ := meet(t, client, server, 1)
	for _, refuse := range []bool{false, true} {
		c, s := connect(t)
		client.point.known.add(remoteOf(c), p)
		done := make(chan clc.Diagnosis)
		go func() {
			o, err := client.point.Await(context.Background(), c, true)
			if err != nil || !o.Paired || (o.Peer == p) == refuse {
				t.Errorf("refused %v: %+v, %v", refuse, o, err)
			}
			done <- o.Why
		}()
		claim, why := server.point.Claim(s)
		if why == clc.DiagNone {
			why = claim.Await(context.Background(), true)
		}
		if why != clc.DiagNone {
			t.Fatal(why)
		}
		if refuse {
			claim.Refuse(clc.DiagBudget)
		} else if !claim.Accept() {
			t.Fatal("the client is gone")
		}
		if why := <-done; refuse && why != clc.DiagBudget {
			t.Errorf("reason %v, want %v", why, clc.DiagBudget)
		}
	}
	c, s := connect(t)
	claim, _ := server.point.Claim(s)
	claim.Refuse(clc.DiagNotAllowed)
	client.point.known.add(remoteOf(c), p)
	o, err := client.point.Await(context.Background(), c, true)
	if o.Peer != nil || o.Why != clc.DiagNotAllowed || err != nil {
		t.Errorf("decided before: %+v, %v; want %v", o, err, clc.DiagNotAllowed)
	}
}

// TestTimeout has a client whose known server never accepts: the client takes its word back, and uses TCP.
func TestTimeout(t *testing.T) {
	client, server := newSide(t, atClient), newSide(t, atServer)
	p, _ := meet(t, client, server, 1)
	c, _ := connect(t)
	client.point.known.add(remoteOf(c), p)
	o, err := client.point.Await(context.Background(), c, true)
	if o.Peer != nil || !o.Paired || o.Why != clc.DiagNotAccepted || err != nil {
		t.Errorf("%+v, %v; want %v", o, err, clc.DiagNotAccepted)
	}
	server.point.mu.Lock()
	defer server.point.mu.Unlock()
	if len(server.point.expected) != 0 {
		t.Error("the server expects it still")
	}
}

// TestLostSYN has a SYN with a token be lost: the server is left alone for a while.
func TestLostSYN(t *testing.T) {
	k := &AgentKernel{}
	dest := netip.MustParseAddrPort("192.0.2.1:80")
	k.note(pairing.SentAgain, dest)
	if k.mayAsk(dest, time.Now()) {
		t.Error("the next socket asks")
	}
	if other := netip.MustParseAddrPort("192.0.2.2:80"); !k.mayAsk(other, time.Now()) {
		t.Error("a socket to another server does not ask")
	}
	if !k.mayAsk(dest, time.Now().Add(lostTime)) {
		t.Error("it is never forgotten")
	}
	for i := range 2 * maxDests {
		k.note(pairing.SentAgain, netip.AddrPortFrom(dest.Addr(), uint16(i)))
	}
	if len(k.lost) > maxDests {
		t.Errorf("%d servers are remembered", len(k.lost))
	}
}
