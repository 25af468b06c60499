package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/test/interop/talk"
)

// The cases of SMC-R: programs on this library here, on AF_SMC sockets of the guest's kernel there. Every
// connection must be SMC-R on both sides, unless the case is about one that is not.

// A conversation is a script, and how often.
type conversation struct {
	talk.Script
	conns int // that are open at the same time
}

func says(kind talk.Kind, n int) conversation {
	return conversation{Script: talk.Script{Kind: kind, N: n, Seed: 1, Soft: true}, conns: 1}
}

// urgentData is says for urgent data: 20 rounds, in 5 connections.
func urgentData(kind talk.Kind, n int) conversation {
	c := says(kind, n).times(5)
	c.Rounds = 20
	return c
}

func (c conversation) times(conns int) conversation { c.conns = conns; return c }

func (c conversation) String() string {
	return fmt.Sprintf("%v %d B, %d connections", c.Kind, c.N, c.conns)
}

// A visit is a case: conversations of one host of ours with the guest, one after the other.
type visit struct {
	list     []conversation
	version  string // of SMC-R that both agree on; empty: 2.1
	groups   int    // link groups that there are in the end; 0: one, which all use
	maxConns int    // connections of a link group that the guest agrees to; 0: 255
}

func visits(list ...conversation) visit { return visit{list: list} }

// begin makes the host.
func (v visit) begin(ctx context.Context, l *lab) (*host.Host, *census, error) {
	if err := l.ready(ctx); err != nil {
		return nil, nil, err
	}
	if v.maxConns == 0 {
		v.maxConns = 255
	}
	if _, err := l.vm.run(ctx, commandTimeout, fmt.Sprintf("echo %d >/proc/sys/net/smc/smcr_max_conns_per_lgr", v.maxConns)); err != nil {
		return nil, nil, err
	}
	if v.version == "" {
		v.version = "2.1"
	}
	v.groups = max(v.groups, 1)
	h, err := l.host(host.Config{Release0: v.version == "2.0", SMCRPeers: l.guestPeers()})
	return h, &census{lab: l, want: v, seen: make(map[uint32]bool)}, err
}

// client has the guest serve and us dial.
func (v visit) client(ctx context.Context, l *lab) error {
	h, groups, err := v.begin(ctx, l)
	if err != nil {
		return err
	}
	for _, c := range v.list {
		if err := l.dialGuest(ctx, h, c, groups.witness()); err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
	}
	return groups.result()
}

// server has the guest dial and us serve.
func (v visit) server(ctx context.Context, l *lab) error {
	h, groups, err := v.begin(ctx, l)
	if err != nil {
		return err
	}
	listener, err := l.listen(ctx, h, conn.RequireSMCR)
	if err != nil {
		return err
	}
	for _, c := range v.list {
		if err := l.serveGuest(ctx, listener, c, groups.witness()); err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
	}
	return groups.result()
}

// A witness looks on while the connections of a conversation are open. Functions may be nil.
type witness struct {
	open    func(ctx context.Context, conns int) error         // before anything is said
	talking func(ctx context.Context, conns []conn.Conn) error // meanwhile
	said    func(ctx context.Context) error                    // when our end has said and heard all
}

// hears runs the conversation of each connection by a call of talk. A call of await returns when
// all connections await, or have ended.
func (w witness) hears(ctx context.Context, conns []conn.Conn, talk func(i int, await func()) error) error {
	if w.open != nil {
		if err := w.open(ctx, len(conns)); err != nil {
			return err
		}
	}
	said := make(chan error, 1)
	var talking sync.WaitGroup
	talking.Add(len(conns))
	go func() {
		said <- all(len(conns), func(i int) error {
			done := sync.OnceFunc(talking.Done)
			defer done()
			return talk(i, func() { done(); talking.Wait() })
		})
	}()
	var err error
	if w.talking != nil {
		err = w.talking(ctx, conns)
	}
	err = errors.Join(err, <-said)
	if w.said != nil {
		err = errors.Join(err, w.said(ctx))
	}
	return err
}

// A census counts link groups while connections are open.
type census struct {
	lab  *lab
	want visit
	seen map[uint32]bool // by LG-ID
}

func (s *census) witness() witness { return witness{open: s.take} }

// take asks 'gosmc linkgroup' while so many connections are open.
func (s *census) take(ctx context.Context, conns int) error {
	groups, err := s.lab.linkGroups(ctx)
	if err != nil {
		return err
	}
	total := 0
	for _, g := range groups {
		if g.Mode != "SMC-R" || g.Version != s.want.version || g.MaxConns != s.want.maxConns || g.Conns > g.MaxConns {
			return fmt.Errorf("link group %+v; want SMC-R %s with at most %d connections", g, s.want.version, s.want.maxConns)
		}
		total += g.Conns
		s.seen[g.ID] = true
	}
	if total < conns {
		return fmt.Errorf("%d connections in link groups, want %d: %+v", total, conns, groups)
	}
	return nil
}

func (s *census) result() error {
	if len(s.seen) != s.want.groups {
		return fmt.Errorf("there were %d link groups, want %d", len(s.seen), s.want.groups)
	}
	return nil
}

func (l *lab) dialGuest(ctx context.Context, h *host.Host, c conversation, w witness) error {
	dest, finish, err := l.guestServes(ctx, c.conns)
	if err != nil {
		return err
	}
	began := time.Now()
	conns := make([]conn.Conn, c.conns)
	ours := all(c.conns, func(i int) (err error) {
		conns[i], err = l.dial(ctx, h, conn.RequireSMCR, dest)
		return err
	})
	if ours == nil {
		ours = w.hears(ctx, conns, func(i int, await func()) error {
			s := c.Script
			s.Seed += uint64(i) << 32
			s.Await = await
			return talk.Client(conns[i], s)
		})
	}
	if ours != nil {
		for _, conn := range conns {
			if conn != nil {
				conn.Close() // the guest awaits something of it
			}
		}
	}
	said, err := finish()
	if err := errors.Join(ours, err); err != nil {
		return fmt.Errorf("%w\nthe guest says:\n%s", err, said)
	}
	if err := allSMCR(said, c); err != nil {
		return err
	}
	l.note("%v: %.1f s", c, time.Since(began).Seconds())
	return nil
}

func (l *lab) serveGuest(ctx context.Context, listener *host.Listener, c conversation, w witness) error {
	began := time.Now()
	finish, err := l.vm.start(ctx, fmt.Sprintf("%s dial %v %v %d %d %d", l.guestPeer(), listener.Addr(), c.Kind, c.N, c.Rounds, c.conns))
	if err != nil {
		return err
	}
	type report struct {
		said string
		err  error
	}
	reports := make(chan report, 1)
	go func() {
		said, err := finish()
		if err != nil {
			listener.SetDeadline(time.Now()) // nobody comes any more
		}
		reports <- report{said, err}
	}()
	var conns []conn.Conn
	var ours error
	for range c.conns {
		c, err := listener.Accept()
		if err != nil {
			ours = err
			break
		}
		stop := context.AfterFunc(ctx, func() { c.SetLinger(0); c.Close() })
		defer stop()
		if mode := c.Mode(); mode != conn.ModeSMCR {
			ours = errors.Join(ours, fmt.Errorf("a connection with mode %v", mode))
		}
		conns = append(conns, c)
	}
	if ours == nil {
		ours = w.hears(ctx, conns, func(i int, await func()) error {
			_, err := talk.Serve(conns[i], await)
			return err
		})
	}
	if ours != nil {
		for _, conn := range conns {
			conn.Close() // the guest awaits something of it
		}
	}
	r := <-reports
	listener.SetDeadline(time.Time{})
	if err := errors.Join(ours, r.err); err != nil {
		return fmt.Errorf("%w\nthe guest says:\n%s", err, r.said)
	}
	if err := allSMCR(r.said, c); err != nil {
		return err
	}
	l.note("%v: %.1f s", c, time.Since(began).Seconds())
	return nil
}

// A rush is a case: so many programs of the guest dial at once that its kernel, which has them take
// turns, needs longer than a handshake may take otherwise. None fails, and none hangs. A turn has a
// CONFIRM RKEY in it, so that packets that are late make it long.
type rush struct{ conns int }

const rushDelay = "10ms" // of each packet of the guest

func (r rush) server(ctx context.Context, l *lab) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	h, err := l.host(host.Config{})
	if err != nil {
		return err
	}
	listener, err := l.listen(ctx, h, conn.AnyMode)
	if err != nil {
		return err
	}
	c := says(talk.Echo, 1000).times(r.conns)
	l.atEnd(func() error { return l.inGuest(context.WithoutCancel(ctx), restore("eth0")) })
	if err := l.inGuest(ctx, "/bin/tc qdisc add dev eth0 root netem limit 20000 delay "+rushDelay); err != nil {
		return err
	}
	began := time.Now()
	finish, err := l.vm.start(ctx, fmt.Sprintf("smcpeer dial %v %v %d %d %d", listener.Addr(), c.Kind, c.N, c.Rounds, c.conns))
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // it is closed at the end
			}
			stop := context.AfterFunc(ctx, func() { conn.SetLinger(0); conn.Close() })
			go func() {
				defer stop()
				talk.Serve(conn, nil) // the guest says how it went
			}()
		}
	}()
	said, err := finish()
	smcr, good := 0, 0
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "ok ") {
			good++
		}
		if strings.HasPrefix(line, "ok ") && strings.Contains(line, "mode=smc-r") {
			smcr++
		}
	}
	l.note("%v: %d by SMC-R, %d by TCP: %.1f s", c, smcr, good-smcr, time.Since(began).Seconds())
	if err != nil || good != r.conns || smcr == 0 {
		return fmt.Errorf("%d of %d connections were good, %d by SMC-R: %w", good, r.conns, smcr, err)
	}
	return nil
}

// all runs f n times at the same time.
func all(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// allSMCR checks the output of one of the ends about the connections.
func allSMCR(said string, c conversation) error {
	want := fmt.Sprintf("ok %v mode=smc-r", c.Kind)
	good := 0
	for line := range strings.Lines(said) {
		if strings.TrimSpace(line) == want {
			good++
		}
	}
	if good != c.conns {
		return fmt.Errorf("%d times %q, want %d:\n%s", good, want, c.conns, said)
	}
	return nil
}

// lastPort is the port of the newest server in another process, here or in the guest. Each has one
// of its own: a port waits after its connections.
var lastPort uint16 = 9000

// isListening is the text of a server's port in /proc/net/tcp.
func isListening(port uint16) string { return fmt.Sprintf(":%04X 00000000:0000 0A", port) }

// guestServes has the guest serve so many connections.
func (l *lab) guestServes(ctx context.Context, conns int) (dest netip.AddrPort, finish func() (string, error), err error) {
	lastPort++
	if finish, err = l.vm.start(ctx, fmt.Sprintf("%s serve %d %d", l.guestPeer(), lastPort, conns)); err != nil {
		return dest, nil, err
	}
	_, err = l.vm.run(ctx, commandTimeout, "until grep -q '"+isListening(lastPort)+"' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done")
	return netip.AddrPortFrom(guestAddr4, lastPort), finish, err
}

// dial dials the guest.
func (l *lab) dial(ctx context.Context, h *host.Host, require conn.Requirement, dest netip.AddrPort) (conn.Conn, error) {
	c, err := h.Dial(ctx, "tcp4", dest.String(), host.DialOptions{Require: require})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetLinger(0); c.Close() })
	l.atEnd(func() error { stop(); c.Close(); return nil })
	return c, nil
}

// listen listens for the guest.
func (l *lab) listen(ctx context.Context, h *host.Host, require conn.Requirement) (*host.Listener, error) {
	listener, err := h.Listen(ctx, "tcp4", net.JoinHostPort(ourAddr4.String(), "0"), host.ListenOptions{Require: require})
	if err != nil {
		return nil, err
	}
	l.atEnd(func() error { listener.Close(); return nil })
	return listener, nil
}
