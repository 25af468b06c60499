package rendezvous

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// patience bounds every wait for something that has to happen. It only passes when a test fails.
const patience = 20 * time.Second

// A fakePeer keeps the messages that are sent to it.
type fakePeer struct {
	gid  wire.ISMGID
	uid  int
	pid  int
	done chan struct{}

	mu   sync.Mutex
	sent []Message
	on   func(Message) // is told each message
}

func newFakePeer(gid wire.ISMGID) *fakePeer {
	return &fakePeer{gid: gid, uid: os.Geteuid(), done: make(chan struct{})}
}

func (p *fakePeer) GID() wire.ISMGID      { return p.gid }
func (p *fakePeer) Cred() ism.Cred        { return ism.Cred{PID: p.pid, UID: p.uid} }
func (p *fakePeer) Done() <-chan struct{} { return p.done }

func (p *fakePeer) Leave(b []byte) error { return p.Send(b) }

func (p *fakePeer) Send(b []byte) error {
	m, err := Parse(b)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.sent = append(p.sent, m)
	on := p.on
	p.mu.Unlock()
	if on != nil {
		on(m)
	}
	return nil
}

// count counts the messages of a kind that were sent to the peer.
func (p *fakePeer) count(kind Kind) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.sent {
		if m.Kind == kind {
			n++
		}
	}
	return n
}

// A fakeDevice has the peers that it was given. Its first Peer waits for hold, if there is one.
type fakeDevice struct {
	mu    sync.Mutex
	peers map[wire.ISMGID]*fakePeer
	hold  func()
	poll  func() // Poll calls it; nil: nothing
}

func (d *fakeDevice) GID() wire.ISMGID { return testGID(1) }

// Poll implements [Device].
func (d *fakeDevice) Poll() {
	if d.poll != nil {
		d.poll()
	}
}
func (d *fakeDevice) Renew() error { return nil }

func (d *fakeDevice) Peer(_ context.Context, gid wire.ISMGID) (Peer, error) {
	d.mu.Lock()
	hold := d.hold
	d.hold = nil
	p := d.peers[gid]
	d.mu.Unlock()
	if hold != nil {
		hold()
	}
	if p == nil {
		return nil, ism.ErrDead
	}
	return p, nil
}

// newPoint returns a point with a run directory of its own, and its device, which has peers with
// the GIDs from 2 on.
func newPoint(tb testing.TB, peers int) (*Point, *fakeDevice) {
	tb.Helper()
	d := &fakeDevice{peers: make(map[wire.ISMGID]*fakePeer)}
	for i := range peers {
		gid := testGID(uint64(2 + i))
		d.peers[gid] = newFakePeer(gid)
	}
	dir := tb.TempDir()
	if err := rundir.Prepare(dir); err != nil {
		tb.Fatal(err)
	}
	p := New(Config{
		Dir:       dir,
		Open:      func() (Device, clc.Diagnosis, error) { return d, clc.DiagNone, nil },
		Opened:    func() Device { return d },
		Reason:    func(error) clc.Diagnosis { return clc.DiagUnreachable },
		DirFailed: func() bool { return false },
		Trace:     func(Peer, *Message, bool) {},
		Logger:    slog.New(slog.DiscardHandler),
	})
	tb.Cleanup(p.Close)
	return p, d
}

// plainListener listens at the loopback address.
func plainListener(tb testing.TB) *net.TCPListener {
	tb.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// announceAll announces each peer of the device at the address of l.
func announceAll(tb testing.TB, p *Point, d *fakeDevice, l *net.TCPListener) {
	tb.Helper()
	raw, err := l.SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	netns, err := SocketNetns(raw)
	if err != nil {
		tb.Fatal(err)
	}
	for gid := range d.peers {
		said, err := Announce(p.cfg.Dir, netns, gid, AddrPort(l.Addr()), false)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(said.Withdraw)
	}
}

// dial connects a socket for which c has asked before.
func dial(tb testing.TB, c *Call, l *net.TCPListener) *net.TCPConn {
	tb.Helper()
	d := net.Dialer{ControlContext: func(ctx context.Context, _, address string, raw syscall.RawConn) error {
		c.Ask(ctx, raw, netip.MustParseAddrPort(address))
		return nil
	}}
	conn, err := d.Dial("tcp4", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}
