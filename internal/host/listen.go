package host

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/core"
	"github.com/gosmc/smc/internal/handshake"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/wire/clc"
)

// ListenOptions say how to listen. The zero value is useful.
type ListenOptions struct {
	Require    conn.Requirement // connections that are less are closed, and Accept does not see them
	ReadBuffer int              // bytes; 0: the host's
	Net        net.ListenConfig // KeepAlive, Control and so on
}

// A Listener accepts TCP connections, and moves a connection onto shared memory if its client asked
// for it. It accepts on its own, so that a slow application does not keep a client waiting for the
// handshake.
type Listener struct {
	host      *Host
	tcp       *net.TCPListener
	opts      ListenOptions
	buffer    int
	addr      netip.AddrPort
	asked     bool               // for TCP option 254
	paired    bool               // for pairing tokens
	keepAlive conn.LateKeepAlive // of each connection
	asksAlive net.KeepAliveConfig
	backlog   handshake.Backlog
	meeting   atomic.Pointer[rendezvous.Listening]
	programs  atomic.Pointer[programs] // nil if it is not announced to them
	refused   atomic.Bool              // by the policy, when it was to be announced
	crier     crier
	pace      pacer
	since     time.Time
	ready     chan accepted
	closed    chan struct{}   // once nothing more is taken from the system
	ctx       context.Context // of the handshakes; ends when nobody gets taken connections any more
	cancel    context.CancelFunc
	finished  chan struct{}
	once      sync.Once
	working   sync.WaitGroup // accept loop and handshakes
	busy      chan struct{}  // a token for each handshake under way
	timeout   acceptDeadline

	handled atomic.Uint64
}

type accepted struct {
	conn conn.Conn
	err  error
}

// Listen opens a listener on a TCP address, and announces it.
func (h *Host) Listen(ctx context.Context, network, address string, opts ListenOptions) (*Listener, error) {
	fail := func(err error) error { return &net.OpError{Op: "listen", Net: network, Err: err} }
	buffer, err := h.begin(network, opts.ReadBuffer)
	if err != nil {
		return nil, fail(err)
	}
	var asked, paired atomic.Bool
	lc := opts.Net
	wantsOption, wantsTokens := h.wantsOption(), h.wantsTokens()
	if wantsOption || wantsTokens {
		lc.SetMultipathTCP(false) // which has no room for it
		lc.Control = func(network, address string, c syscall.RawConn) error {
			if opts.Net.Control != nil {
				if err := opts.Net.Control(network, address, c); err != nil {
					return err
				}
			}
			bound, err := netip.ParseAddrPort(address)
			if err == nil && bound.Port() != 0 && h.rules.refusesListener(bound) {
				return nil // with TCP option 254 peers would begin with CLC, to be declined
			}
			if wantsOption && h.option.source.Ask(c) == nil {
				asked.Store(true)
			}
			if wantsTokens && h.pairing.Ask(c, netip.AddrPort{}) {
				paired.Store(true)
			}
			return nil
		}
	}
	keepAlive := conn.PutOff(lc.KeepAliveConfig, &lc.KeepAlive)
	inner, err := lc.Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l := h.newListener(inner.(*net.TCPListener), buffer, opts)
	l.asked, l.keepAlive, l.asksAlive = asked.Load(), keepAlive, lc.KeepAliveConfig
	l.paired = paired.Load()
	err = l.announce()
	if err != nil {
		inner.Close()
		return nil, fail(err)
	}
	l.start()
	return l, nil
}

// ListenOn makes a listener of one that was made elsewhere. Others may accept from its socket, too,
// so it accepts only while Accept waits, and is not announced before. If it succeeds, inner belongs
// to the result. Net of the options has no effect.
func (h *Host) ListenOn(inner *net.TCPListener, opts ListenOptions) (*Listener, error) {
	buffer, err := h.begin("tcp", opts.ReadBuffer)
	if err == nil {
		err = conn.CheckListening(inner)
	}
	if err == nil {
		l := h.newListener(inner, buffer, opts)
		l.pace.shared.Store(true)
		l.crier.silent = true
		if err = l.enlist(h.meeting.Unannounced(inner)); err == nil {
			h.openControl()
			l.start()
			return l, nil
		}
	}
	return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: inner.Addr(), Err: err}
}

func (h *Host) newListener(inner *net.TCPListener, buffer int, opts ListenOptions) *Listener {
	l := &Listener{
		host:     h,
		tcp:      inner,
		opts:     opts,
		buffer:   buffer,
		addr:     addrPort(inner.Addr()),
		since:    time.Now(),
		ready:    make(chan accepted, acceptBacklog),
		busy:     make(chan struct{}, handshake.MaxOfListener),
		closed:   make(chan struct{}),
		finished: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.timeout.init()
	l.pace.init()
	return l
}

// start begins to accept connections.
func (l *Listener) start() {
	l.working.Add(1)
	go l.loop()
}

// announce lets local clients know. A listener that cannot is one for plain TCP. The
// only error is that the host is closed.
func (l *Listener) announce() error {
	h := l.host
	h.hold()
	defer h.letGo()
	if h.rules.refusesListener(l.addr) { // rule: TestPolicyListen
		l.refused.Store(true)
		h.openControl()
		return l.enlist(h.meeting.Unannounced(l.tcp))
	}
	meeting, err := h.meeting.Listen(l.tcp)
	if meeting == nil {
		return errHostClosed
	}
	if err := l.enlist(meeting); err != nil {
		return err
	}
	if err != nil {
		h.openControl()
		h.cfg.Logger.Warn("listener is not announced, clients will use TCP", "addr", l.addr, "err", err)
		return nil
	}
	l.announceToPrograms()
	return nil
}

// enlist makes the listener one of the host's. The only error is that the host is closed.
func (l *Listener) enlist(meeting *rendezvous.Listening) error {
	h := l.host
	l.meeting.Store(meeting)
	h.mu.Lock()
	closing := h.closing
	if !closing {
		h.listeners[l] = struct{}{}
	}
	h.mu.Unlock()
	if closing {
		meeting.Close()
		return errHostClosed
	}
	return nil
}

// loop accepts connections until the listener is closed.
func (l *Listener) loop() {
	defer l.working.Done()
	var pause time.Duration
	for {
		tcp, err := l.acceptTCP()
		if err != nil {
			select {
			case <-l.closed:
				return
			default:
			}
			if !errors.Is(err, net.ErrClosed) {
				// Most often out of descriptors. The application gets the error from Accept; and
				// the condition may pass.
				pause = min(max(2*pause, 5*time.Millisecond), time.Second)
				l.deliver(accepted{err: err})
				if l.sleep(pause) {
					continue
				}
			}
			return
		}
		pause = 0
		l.handled.Add(1)
		l.route(tcp)
	}
}

// sleep waits and reports false if the listener is closed meanwhile.
func (l *Listener) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.closed:
		return false
	}
}

// route decides the kind of a new connection.
func (l *Listener) route(tcp *net.TCPConn) {
	if l.claimPair(tcp) { // of which the policy was asked when it was offered
		return
	}
	h := l.host
	announceLate(l) // connections after this one gain by it
	claim, reason := l.meeting.Load().Claim(tcp)
	if h.rules.refusesServer(addrPort(tcp.LocalAddr())) { // rule: TestPolicyAccept
		if claim != nil {
			claim.Refuse(clc.DiagNotAllowed)
		}
		claim, reason = nil, clc.DiagNotAllowed
	}
	if claim != nil && !l.opts.Require.Met(conn.ModeOf(h.smcd.Mode())) {
		claim.Refuse(clc.DiagPolicy)
		claim, reason = nil, clc.DiagPolicy
	}
	if claim != nil {
		select {
		case l.busy <- struct{}{}:
			if claim.Accept() {
				l.working.Add(1)
				peer := claim.Peer().(*ism.Peer)
				go l.serve(tcp, func(ctx context.Context, c *conn.Pending, buffer int, require conn.Requirement) (conn.Conn, error) {
					return h.shakePeer(ctx, core.RoleServer, c, peer, buffer, require)
				})
				return
			}
			<-l.busy
			tcp.Close() // the client has no use for it either
			l.settled()
			return
		default:
			claim.Refuse(clc.DiagBusy)
			reason = clc.DiagBusy
		}
	}
	if claim == nil && l.paired {
		candidate, why := h.pairing.Claim(tcp)
		if candidate != nil { // the peer is on this kernel
			routePaired(l, tcp, candidate, reason)
			return
		}
		if reason == clc.DiagNotLocal || reason == clc.DiagPeerNoSMC {
			reason = why
		}
	}
	if claim == nil && l.speaksCLC(tcp, &reason) {
		l.serveCLC(tcp)
		return
	}
	if c, err := l.newConn(tcp).FallBack(l.opts.Require,
		conn.Fallback{Reason: h.lookup(reason)}); err == nil {
		l.deliver(accepted{conn: c})
		return
	}
	l.settled()
}

// newConn returns a connection that was accepted and is not yet anything.
func (l *Listener) newConn(tcp *net.TCPConn) *conn.Pending {
	return l.host.newConn(tcp, false, l.asksAlive, l.keepAlive)
}

// speaksCLC reports whether a client that has not said so on this machine begins with CLC.
// Otherwise reason may become better.
func (l *Listener) speaksCLC(tcp *net.TCPConn, reason *clc.Diagnosis) bool {
	if l.asked {
		both, why := l.host.readOption(tcp)
		if both {
			return true
		}
		if *reason == clc.DiagNotLocal && why != clc.DiagNone {
			*reason = why
		}
	}
	return l.host.speaksCLC(addrOf(tcp.RemoteAddr()), addrPort(tcp.LocalAddr()).Port())
}

// serveCLC begins a handshake with a client of another machine that awaits our word. It waits for room.
func (l *Listener) serveCLC(tcp *net.TCPConn) {
	select {
	case l.busy <- struct{}{}:
	default:
		tick := time.NewTicker(roomTick)
		defer tick.Stop()
		for room := false; !room; {
			l.backlog.Evict(time.Now())
			select {
			case l.busy <- struct{}{}:
				room = true
			case <-tick.C:
			case <-l.ctx.Done():
				tcp.Close()
				l.settled()
				return
			}
		}
	}
	l.working.Add(1)
	go l.serve(tcp, func(ctx context.Context, c *conn.Pending, buffer int, require conn.Requirement) (conn.Conn, error) {
		ctx, remove := l.backlog.Add(ctx, handshake.PeerAddr(c))
		defer remove()
		return l.host.shakeNetworks(ctx, core.RoleServer, c, buffer, require)
	})
}

// serve does the handshake on a connection that a client has asked for.
func (l *Listener) serve(tcp *net.TCPConn, accept func(ctx context.Context, c *conn.Pending, buffer int, require conn.Requirement) (conn.Conn, error)) {
	defer l.working.Done()
	deepen()
	p := l.newConn(tcp)
	end := l.pace.watch()
	c, err := accept(l.ctx, p, l.buffer, l.opts.Require)
	end()
	<-l.busy
	if err != nil {
		l.host.cfg.Logger.Debug("handshake ended", "peer", tcp.RemoteAddr(), "err", err)
		l.settled()
		return
	}
	l.deliver(accepted{conn: c})
}

// deepen makes the stack of a new goroutine as large as a handshake needs at once, while there is
// nothing on it to be moved: growing step by step took a tenth of the server's time for a
// connection.
//
//go:noinline
func deepen() {
	var b [6 << 10]byte
	keep(&b)
}

//go:noinline
func keep(*[6 << 10]byte) {}

// deliver hands a result to Accept, or drops it when nobody gets it any more.
func (l *Listener) deliver(a accepted) {
	select {
	case <-l.ctx.Done():
	default:
		select {
		case l.ready <- a:
			return
		case <-l.ctx.Done():
		}
	}
	if a.conn != nil {
		abandon(a.conn)
	}
}

// abandon ends a connection that the application never got.
func abandon(c conn.Conn) {
	c.Abort()
	c.Close()
}

// Accept returns the next connection.
func (l *Listener) Accept() (conn.Conn, error) {
	select {
	case <-l.ctx.Done():
		return nil, l.error("accept", net.ErrClosed)
	case <-l.timeout.wait():
		return nil, l.error("accept", os.ErrDeadlineExceeded)
	default:
	}
	l.enter()
	select {
	case a := <-l.ready:
		l.leave() // first, or the loop would accept one more for this call
		if a.conn != nil {
			l.settled()
		}
		return a.conn, a.err
	case <-l.ctx.Done():
		l.leave()
		return nil, l.error("accept", net.ErrClosed)
	case <-l.timeout.wait():
		l.leave()
		return nil, l.error("accept", os.ErrDeadlineExceeded)
	}
}

func (l *Listener) error(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: l.tcp.Addr(), Err: err}
}

// Addr returns the address that is listened on.
func (l *Listener) Addr() net.Addr { return l.tcp.Addr() }

// SetDeadline bounds Accept, for calls under way and to come; zero means no bound.
func (l *Listener) SetDeadline(t time.Time) error {
	select {
	case <-l.closed:
		return l.error("set", net.ErrClosed)
	default:
	}
	l.timeout.set(t)
	return nil
}

// SyscallConn returns the TCP socket.
func (l *Listener) SyscallConn() (syscall.RawConn, error) { return l.tcp.SyscallConn() }

// Close ends listening. Connections that Accept has not returned are reset, unless a call of Accept
// waits for them, or others may accept from the socket, too: see drain.
func (l *Listener) Close() error {
	return l.end(l.pace.shared.Load() || l.pace.waiting.Load() > 0)
}

// closeNow is Close for the host, which takes everything along.
func (l *Listener) closeNow() {
	l.end(false)
	l.cancel()
	<-l.finished
}

// end ends listening. With drain, connections that were taken may still be accepted for a while.
func (l *Listener) end(drain bool) error {
	err := l.error("close", net.ErrClosed)
	l.once.Do(func() {
		l.host.hold()
		l.meeting.Load().Withdraw()
		l.withdrawFromPrograms()
		close(l.closed)
		err = l.tcp.Close()
		l.meeting.Load().Close()
		l.pace.accepting.Lock() // a connection that was in accept is under way now
		drain = drain && l.pace.underWay.Load() > 0
		l.pace.accepting.Unlock()
		if drain {
			go l.drain()
		} else {
			l.finish()
		}
	})
	return err
}

// drain ends a listener once Accept has returned the taken connections, or after drainTime. A
// socket of package net has handed a connection to a waiting Accept at once, where ours is still in
// its handshake. If other processes share the socket, they would have the connections now if we had
// not taken them. So a server that is replaced by another one, as in a restart without a pause,
// loses none.
func (l *Listener) drain() {
	late := time.NewTimer(drainTime)
	defer late.Stop()
	for l.pace.underWay.Load() > 0 && l.ctx.Err() == nil {
		select {
		case <-l.pace.changed: // the loop does not wait for it any more
		case <-l.ctx.Done():
		case <-late.C:
			l.cancel()
		}
	}
	l.finish()
}

// finish resets the connections that nobody has accepted.
func (l *Listener) finish() {
	defer l.host.letGo()
	l.cancel()
	l.working.Wait()
	l.host.mu.Lock()
	delete(l.host.listeners, l)
	l.host.mu.Unlock()
	l.timeout.set(time.Time{})
	for {
		select {
		case a := <-l.ready:
			if a.conn != nil {
				abandon(a.conn)
			}
			continue
		default:
		}
		break
	}
	close(l.finished)
}

// acceptDeadline is a deadline as a channel.
type acceptDeadline struct {
	mu      sync.Mutex
	timer   *time.Timer
	expired chan struct{}
}

func (d *acceptDeadline) init() { d.expired = make(chan struct{}) }

func (d *acceptDeadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expired
}

func (d *acceptDeadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.expired // the timer's function has closed it, or is about to
	}
	d.timer = nil
	select {
	case <-d.expired:
		d.expired = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	expired := d.expired
	if wait := time.Until(t); wait > 0 {
		d.timer = time.AfterFunc(wait, func() { close(expired) })
	} else {
		close(expired)
	}
}
