package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/handshake"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/sysinfo"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// patience bounds every wait for something that has to happen. It only passes when a test fails. A transfer over two links takes 20 seconds
// under the race detector where a dozen other programs want each processor.
const patience = time.Minute

// A record keeps the log of a host.
type record struct {
	mu   sync.Mutex
	text strings.Builder
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(b)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func (r *record) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// newTestHost returns a host that is closed with the test.
func newTestHost(tb testing.TB, cfg Config) *Host {
	tb.Helper()
	if cfg.Dir == "" {
		cfg.Dir = tb.TempDir()
	}
	h, err := New(cfg)
	if err != nil {
		tb.Fatalf("New(%+v) = %v", cfg, err)
	}
	tb.Cleanup(func() { h.Close() })
	return h
}

// mustListen listens on the loopback address; the listener is closed with the test.
func mustListen(tb testing.TB, h *Host, addr string) *Listener {
	tb.Helper()
	l, err := h.Listen(context.Background(), "tcp", addr, ListenOptions{})
	if err != nil {
		tb.Fatalf("Listen(%q) = %v", addr, err)
	}
	tb.Cleanup(func() { l.Close() })
	return l
}

// plainListener listens like a program that knows nothing of SMC.
func plainListener(tb testing.TB, addr string) *net.TCPListener {
	tb.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// boundedContext ends when the test has taken too long.
func boundedContext(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// gidOf returns the GID of a host's device, which it opens.
func gidOf(tb testing.TB, h *Host) wire.ISMGID {
	tb.Helper()
	f, _, err := h.open()
	if err != nil {
		tb.Fatal(err)
	}
	return f.device.GID()
}

// mustAccept accepts one connection within the patience of the tests.
func mustAccept(tb testing.TB, l *Listener) conn.Conn {
	tb.Helper()
	if err := l.SetDeadline(time.Now().Add(patience)); err != nil {
		tb.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		tb.Fatalf("Accept() = %v", err)
	}
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// mustDial dials as an honest client.
func mustDial(tb testing.TB, h *Host, addr net.Addr) conn.Conn {
	tb.Helper()
	c, err := h.Dial(boundedContext(tb), "tcp", addr.String(), DialOptions{})
	if err != nil {
		tb.Fatalf("Dial(%v) = %v", addr, err)
	}
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// checkServes makes sure that an honest connection to the listener works, over SMC-D.
func checkServes(tb testing.TB, client *Host, l *Listener) {
	tb.Helper()
	c := mustDial(tb, client, l.Addr())
	s := mustAccept(tb, l)
	if c.Mode() != conn.ModeSMCD || s.Mode() != conn.ModeSMCD {
		tb.Errorf("modes = %v (%v), %v (%v), want SMC-D", c.Mode(), c.Reason().Tag, s.Mode(), s.Reason().Tag)
	}
	checkExchange(tb, c, s)
	c.Close()
	s.Close()
}

// checkExchange moves bytes both ways and compares them.
func checkExchange(tb testing.TB, a, b net.Conn) {
	tb.Helper()
	for i, ends := range [][2]net.Conn{{a, b}, {b, a}} {
		sent := []byte(fmt.Sprintf("application bytes %d, \xe2\xd4\xc3\xd9 and more", i))
		if _, err := ends[0].Write(sent); err != nil {
			tb.Errorf("Write: %v", err)
			return
		}
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(ends[1], got); err != nil || !bytes.Equal(got, sent) {
			tb.Errorf("Read = %q, %v; want %q", got, err, sent)
			return
		}
	}
}

// An adversary is a peer that a test plays: it has a device of its own, and speaks the
// rendezvous and CLC by hand. It can be on either side.
type adversary struct {
	stopPolling func() // nil if it does not poll
	tb          testing.TB
	dir         string
	device      *ism.Device

	// hold, if it has a channel, keeps every message waiting until that is closed: then
	// the adversary is deaf, and answers no Attach either.
	hold atomic.Value
	deaf atomic.Bool // a message is being kept waiting

	signals chan signal // other messages
	ids     atomic.Uint64

	mu sync.Mutex
	// on has the handlers of messages. Without an entry an Expect is noted for accept, and others
	// go to signals.
	on       map[rendezvous.Kind]func(p *ism.Peer, m rendezvous.Message)
	expected map[uint64]signal // by the client's socket
	held     []*ism.DMB        // buffers given to the victim, so that they live
}

type signal struct {
	peer *ism.Peer
	m    rendezvous.Message
}

func newAdversary(tb testing.TB, dir string, anyUser bool) *adversary {
	tb.Helper()
	a := &adversary{tb: tb, dir: dir, signals: make(chan signal, 4096), expected: make(map[uint64]signal)}
	var err error
	if a.device, err = ism.Open(ism.Config{Dir: rundir.Own(dir), Handler: a, AnyUser: anyUser}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(a.close)
	return a
}

func (a *adversary) close() {
	if a.stopPolling != nil {
		a.stopPolling()
	}
	a.device.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.held {
		d.Release(false)
	}
	a.held = nil
}

// PeerUp implements [ism.Handler].
func (a *adversary) PeerUp(*ism.Peer) {}

// PeerGone implements [ism.Handler].
func (a *adversary) PeerGone(*ism.Peer, error) {}

// Signal implements [ism.Handler].
func (a *adversary) Signal(p *ism.Peer, payload []byte) {
	if released, ok := a.hold.Load().(chan struct{}); ok {
		a.deaf.Store(true)
		<-released
	}
	m, err := rendezvous.Parse(payload)
	if err != nil {
		a.tb.Errorf("the host sent %x: %v", payload, err)
		return
	}
	a.mu.Lock()
	f := a.on[m.Kind]
	a.mu.Unlock()
	if f != nil {
		f(p, m)
		return
	}
	switch m.Kind {
	case rendezvous.Expect:
		a.mu.Lock()
		a.expected[m.Socket] = signal{p, m}
		a.mu.Unlock()
	default:
		select {
		case a.signals <- signal{p, m}:
		default:
		}
	}
}

// keepPolling has the adversary learn at once of messages that are left for it, until it is closed.
func (a *adversary) keepPolling() {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				a.device.Poll()
			}
		}
	})
	a.stopPolling = sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
}

// handle sets the handler of messages of a kind.
func (a *adversary) handle(kind rendezvous.Kind, f func(p *ism.Peer, m rendezvous.Message)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.on == nil {
		a.on = make(map[rendezvous.Kind]func(*ism.Peer, rendezvous.Message))
	}
	a.on[kind] = f
}

// send sends a rendezvous message.
func (a *adversary) send(p *ism.Peer, m rendezvous.Message) {
	a.tb.Helper()
	if err := p.Send(m.Append(nil)); err != nil {
		a.tb.Errorf("Send(%+v) = %v", m, err)
	}
}

// peering returns the peering with a host.
func (a *adversary) peering(h *Host) *ism.Peer {
	a.tb.Helper()
	p, err := a.device.Peer(boundedContext(a.tb), gidOf(a.tb, h))
	if err != nil {
		a.tb.Fatal(err)
	}
	return p
}

// reserve asks a listener to expect CLC from one connection, and returns the dialer that
// makes it.
func (a *adversary) reserve(p *ism.Peer, l *Listener, id uint64) net.Dialer {
	dest := addrPort(l.Addr())
	return beforeConnect(func(netns, socket uint64) {
		a.send(p, rendezvous.Message{Kind: rendezvous.Expect, ID: id, Netns: netns, Socket: socket, Dest: dest})
	})
}

// beforeConnect returns a dialer that calls tell with the names of a socket, before it connects.
func beforeConnect(tell func(netns, socket uint64)) net.Dialer {
	return net.Dialer{Timeout: patience, Control: func(_, _ string, raw syscall.RawConn) error {
		netns, err := rendezvous.SocketNetns(raw)
		if err != nil {
			return err
		}
		socket, err := rendezvous.SocketCookie(raw)
		if err != nil {
			return err
		}
		tell(netns, socket)
		return nil
	}}
}

// connect makes a TCP connection from which the listener expects CLC.
func (a *adversary) connect(p *ism.Peer, l *Listener) *net.TCPConn {
	a.tb.Helper()
	id := a.ids.Add(1)
	d := a.reserve(p, l, id)
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		a.tb.Fatal(err)
	}
	a.tb.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	a.awaitSignal(rendezvous.Accepted, id)
	return c.(*net.TCPConn)
}

// awaitSignal waits for a message; others with the same id are an error.
func (a *adversary) awaitSignal(kind rendezvous.Kind, id uint64) rendezvous.Message {
	a.tb.Helper()
	timeout := time.After(patience)
	for {
		select {
		case s := <-a.signals:
			if s.m.ID == id && s.m.Kind != kind {
				a.tb.Fatalf("message %+v, want kind %d", s.m, kind)
			}
			if s.m.ID == id {
				return s.m
			}
		case <-timeout:
			a.tb.Fatalf("no message of kind %d with id %d", kind, id)
		}
	}
}

// announceAt makes the adversary say that it listens at the address of l, which may belong to
// another process.
func (a *adversary) announceAt(l *net.TCPListener) {
	a.tb.Helper()
	raw, err := l.SyscallConn()
	if err != nil {
		a.tb.Fatal(err)
	}
	netns, err := rendezvous.SocketNetns(raw)
	if err != nil {
		a.tb.Fatal(err)
	}
	said, err := rendezvous.Announce(a.dir, netns, a.device.GID(), addrPort(l.Addr()), false)
	if err != nil {
		a.tb.Fatal(err)
	}
	a.tb.Cleanup(said.Withdraw)
}

// accept takes a TCP connection of a client that asked us, and says that we have it.
func (a *adversary) accept(l *net.TCPListener) (*net.TCPConn, *ism.Peer) {
	a.tb.Helper()
	l.SetDeadline(time.Now().Add(patience))
	c, err := l.AcceptTCP()
	if err != nil {
		a.tb.Errorf("AcceptTCP() = %v", err)
		return nil, nil
	}
	c.SetDeadline(time.Now().Add(patience))
	a.device.Poll()
	socket, err := rendezvous.CookieOf(addrPort(c.RemoteAddr()), addrPort(c.LocalAddr()))
	if err != nil {
		a.tb.Errorf("CookieOf(%v, %v) = %v", c.RemoteAddr(), c.LocalAddr(), err)
	}
	a.mu.Lock()
	s, ok := a.expected[socket]
	delete(a.expected, socket)
	a.mu.Unlock()
	if !ok {
		a.tb.Errorf("no Expect for socket %#x", socket)
		c.Close()
		return nil, nil
	}
	a.send(s.peer, rendezvous.Message{Kind: rendezvous.Accepted, ID: s.m.ID})
	return c, s.peer
}

// capabilities are the capabilities of an honest host.
func (a *adversary) capabilities() core.Capabilities {
	seid, err := sysinfo.SEID()
	if err != nil {
		a.tb.Fatal(err)
	}
	return core.Capabilities{
		OS: clc.OSLinux, HostName: "adversary", Release: clc.Release1, SEID: seid,
		ISM:      []clc.ISMDevice{{GID: a.device.GID(), CHID: wire.CHIDLoopback}},
		MaxConns: handshake.MaxConnsPerGroup, MaxLinks: 2,
	}
}

// A clcPeer does an honest handshake step by step, so that a test can spoil any message of it.
type clcPeer struct {
	a    *adversary
	core *core.Handshake
	role core.Role
	tcp  *net.TCPConn
	peer *ism.Peer
	dmb  *ism.DMB
	next clc.Message // the message that an honest peer would send
}

// start begins a handshake. A client's Proposal is then in next.
func (a *adversary) start(role core.Role, tcp *net.TCPConn, p *ism.Peer) *clcPeer {
	c := &clcPeer{a: a, core: core.NewHandshake(role, a.capabilities()), role: role, tcp: tcp, peer: p}
	c.core.SetReachable(p.GID())
	c.take(c.core.Start(time.Now(), nil))
	return c
}

// take carries out the outputs of core.
func (c *clcPeer) take(out []core.HandshakeOutput) {
	for len(out) > 0 {
		o := out[0]
		out = out[1:]
		switch o := o.(type) {
		case core.SendCLC:
			c.next = o.Message
		case core.Prepare:
			out = append(out, c.core.Prepared(time.Now(), c.resources(), nil)...)
		}
	}
}

const adversaryBuffer = 64 << 10

func (c *clcPeer) resources() core.Resources {
	dmb, err := c.peer.NewDMB(adversaryBuffer, nil)
	if err != nil {
		c.a.tb.Errorf("NewDMB = %v", err)
		return core.Resources{}
	}
	c.dmb = dmb
	c.a.mu.Lock()
	c.a.held = append(c.a.held, dmb)
	c.a.mu.Unlock()
	return core.Resources{
		FirstContact: c.role == core.RoleServer,
		D:            &clc.ParamsD{Token: dmb.Token(), DMBESize: wire.SizeCodeFor(adversaryBuffer), LinkID: wire.LinkID(c.a.ids.Add(1))},
	}
}

// read reads one message of the victim and goes on to the next of ours.
func (c *clcPeer) read() (clc.Message, error) {
	m, err := readCLC(c.tcp)
	if err == nil {
		c.next = nil
		c.take(c.core.HandleMessage(time.Now(), m, nil, nil))
	}
	return m, err
}

// readCLC reads one message and not a byte more.
func readCLC(r io.Reader) (clc.Message, error) {
	b := make([]byte, clc.HeaderLen)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	h, err := clc.ParseHeader(b)
	if err != nil {
		return nil, err
	}
	b = slices.Grow(b, h.Len)[:h.Len]
	if _, err := io.ReadFull(r, b[clc.HeaderLen:]); err != nil {
		return nil, err
	}
	return clc.Parse(b)
}

// encoded returns the bytes that an honest peer would send now.
func (c *clcPeer) encoded() []byte {
	c.a.tb.Helper()
	if c.next == nil {
		c.a.tb.Fatal("an honest peer would send nothing")
	}
	return c.next.Append(nil)
}

// write sends bytes as they are.
func (c *clcPeer) write(b []byte) {
	c.a.tb.Helper()
	if _, err := c.tcp.Write(b); err != nil && !isReset(err) {
		c.a.tb.Errorf("Write: %v", err)
	}
}

func isReset(err error) bool {
	return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// checkEnded reads to the end of the connection: nothing may come, and it must be over.
func (c *clcPeer) checkEnded() {
	c.a.tb.Helper()
	got, err := io.ReadAll(c.tcp)
	if len(got) > 0 || err != nil && !isReset(err) {
		c.a.tb.Errorf("the victim sent %x and ended with %v, want no byte and an end", got, err)
	}
}

// dialPlain connects like a program that knows nothing of SMC.
func dialPlain(tb testing.TB, l interface{ Addr() net.Addr }) *net.TCPConn {
	tb.Helper()
	c, err := net.DialTimeout("tcp", l.Addr().String(), patience)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}
