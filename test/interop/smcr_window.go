package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/test/interop/talk"
)

// A fullWindow is a case: the guest's program does not read until its buffer is full; then it reads
// everything, and the word of its kernel that it has done so is lost with the link over which it
// goes. Linux says it once, and has to be asked in a way that it understands.
type fullWindow struct{ client bool }

func (f fullWindow) run(ctx context.Context, l *lab) error {
	if err := l.readyTwin(ctx, true); err != nil {
		return err
	}
	for _, first := range []bool{true, false} { // the interface of the link
		if err := f.try(ctx, l, first); err != nil {
			return err
		}
	}
	return nil
}

// try does it once. The second time the first link is busy with a connection of which nothing is
// lost, so that the one of the case is on the second link.
func (f fullWindow) try(ctx context.Context, l *lab, first bool) error {
	h, err := l.host(host.Config{SMCRDevices: twinDevices})
	if err != nil {
		return err
	}
	c := says(talk.Take, 20_000_000) // the server sends, and for longer than it takes to stop the guest's program
	if f.client {
		c.Kind = talk.Give // the client sends
	}
	conns := 1
	if !first {
		conns = 2
	}
	c = c.times(conns)
	undo := func() error {
		ctx := context.WithoutCancel(ctx)
		return errors.Join(l.inGuest(ctx, restore("eth0")+"; "+restore("eth2")+"; /bin/ip link set eth0 up; /bin/ip link set eth2 up; "+guestAddress6),
			l.inGuest(ctx, "kill -CONT $(pidof smcpeer) 2>/dev/null; true"))
	}
	l.atEnd(undo)
	w := witness{
		open:    func(ctx context.Context, _ int) error { return l.agree(ctx, "SYMMETRIC") },
		talking: func(ctx context.Context, conns []conn.Conn) error { return f.cut(ctx, l, conns, first) },
		said:    func(ctx context.Context) error { return errors.Join(l.moved(ctx), undo()) },
	}
	if f.client {
		err = l.dialGuest(ctx, h, c, w)
	} else {
		var listener *host.Listener
		if listener, err = l.listen(ctx, h, conn.RequireSMCR); err == nil {
			err = l.serveGuest(ctx, listener, c, w)
		}
	}
	if err := errors.Join(err, h.Close()); err != nil {
		return err
	}
	return l.agree(ctx, "")
}

// cut fills the window, has the guest's program read it, and cuts the link meanwhile.
func (f fullWindow) cut(ctx context.Context, l *lab, conns []conn.Conn, first bool) error {
	total := func() (out uint64) {
		for _, c := range conns {
			_, sent := c.Totals()
			out += sent
		}
		return out
	}
	if err := try(ctx, "bytes of the transfer", func() (bool, error) { return total() >= uint64(100_000*len(conns)), nil }); err != nil {
		return err
	}
	if err := l.inGuest(ctx, "kill -STOP $(pidof smcpeer)"); err != nil {
		return err
	}
	if err := settle(ctx, total); err != nil {
		return err
	}
	dev, err := l.guestDevice(ctx, first)
	if err != nil {
		return err
	}
	// The packets of the guest vanish from now on, and with them its word of the reads.
	if err := l.inGuest(ctx, losesOut(dev)+"; kill -CONT $(pidof smcpeer)"); err != nil {
		return err
	}
	err = try(ctx, "a lost packet of the guest's", func() (bool, error) {
		text, err := l.vm.run(ctx, commandTimeout, "/bin/tc -s qdisc show dev "+dev)
		return strings.Contains(text, "netem") && !strings.Contains(text, "dropped 0,"), err
	})
	if err != nil {
		return err
	}
	l.note("%s goes down after the word of a read was lost", dev)
	return l.inGuest(ctx, "/bin/ip link set "+dev+" down")
}

// settle waits until the window is full: nothing more is taken for so long.
func settle(ctx context.Context, sent func() uint64) error {
	const settled = 2 * time.Second
	last, since := sent(), time.Now()
	return try(ctx, "a full window", func() (bool, error) {
		if n := sent(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) >= settled, nil
	})
}

// guestDevice returns the guest's interface of the first link of the only group, or of the other one.
func (l *lab) guestDevice(ctx context.Context, first bool) (string, error) {
	groups, err := l.linkGroups(ctx)
	if err != nil {
		return "", err
	}
	for _, g := range groups {
		for _, link := range g.Links {
			gid, err := netip.ParseAddr(link.PeerGID)
			if err != nil {
				return "", err
			}
			switch isFirst := gid.Unmap() == guestAddr4; {
			case link.Conns == 0 || isFirst != first:
			case isFirst:
				return "eth0", nil
			default:
				return "eth2", nil
			}
		}
	}
	return "", fmt.Errorf("no connection is on the link that the case wants to cut: %+v", groups)
}

// A lostWord is a case: the guest's program is killed while our window toward it is full, and the
// one message in which its kernel says so is lost with the link. Only the end of TCP tells, and the
// connection must be reset, for that reason.
type lostWord struct{}

func (lostWord) client(ctx context.Context, l *lab) error {
	if err := l.readyTwin(ctx, true); err != nil {
		return err
	}
	h, err := l.host(host.Config{SMCRDevices: twinDevices})
	if err != nil {
		return err
	}
	l.atEnd(func() error {
		return l.inGuest(context.WithoutCancel(ctx), "kill -9 $(pidof smcpeer) 2>/dev/null; "+restore("eth2")+"; /bin/ip link set eth2 up")
	})
	const conns = 2 // the second one is on the second link, over which TCP does not go
	dest, finish, err := l.guestServes(ctx, conns)
	if err != nil {
		return err
	}
	var first, second conn.Conn
	if first, err = l.dial(ctx, h, conn.RequireSMCR, dest); err == nil {
		err = l.agree(ctx, "SYMMETRIC")
	}
	if err == nil {
		second, err = l.dial(ctx, h, conn.RequireSMCR, dest)
	}
	if err != nil {
		return err
	}
	ended := make(chan error, conns)
	for _, c := range []conn.Conn{first, second} {
		go func() { ended <- talk.Client(c, talk.Script{Kind: talk.Give, N: 1 << 30, Soft: true}) }()
	}
	sent := func() (out uint64) {
		for _, c := range []conn.Conn{first, second} {
			_, n := c.Totals()
			out += n
		}
		return out
	}
	if err := try(ctx, "bytes of the transfer", func() (bool, error) { return sent() >= 200_000, nil }); err != nil {
		return err
	}
	if err := l.inGuest(ctx, "kill -STOP $(pidof smcpeer)"); err != nil {
		return err
	}
	if err := settle(ctx, sent); err != nil {
		return err
	}
	began := time.Now()
	if err := l.inGuest(ctx, losesOut("eth2")+"; kill -9 $(pidof smcpeer); sleep 0.5; /bin/ip link set eth2 down"); err != nil {
		return err
	}
	finish() // it was killed
	for range conns {
		select {
		case err := <-ended:
			if !errors.Is(err, syscall.ECONNRESET) {
				return fmt.Errorf("a connection whose peer was killed: %w", err)
			}
		case <-time.After(2 * endsWithin):
			return fmt.Errorf("a connection whose peer was killed has not ended after %v", 2*endsWithin)
		}
	}
	took := time.Since(began)
	text, err := l.gosmc(ctx, "stats", "--dir", l.runDir())
	if err == nil && !strings.Contains(text, "what it said before was lost with a link") {
		err = fmt.Errorf("gosmc stats does not have the reason:\n%s", text)
	}
	l.note("reset after %.1f s", took.Seconds())
	return err
}
