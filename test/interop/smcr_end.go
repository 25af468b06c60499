package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	smc "github.com/gosmc/smc"
	"github.com/gosmc/smc/test/interop/talk"
)

// Cases of SMC-R in which something is wrong, and connections are plain TCP, or end.

// strangersDial: both have no UEID in common: the server declines, and both go on over TCP.
func strangersDial(ctx context.Context, l *lab) error {
	if _, err := l.ready(ctx); err != nil {
		return err
	}
	h, err := l.host("SOMEBODY.ELSE")
	if err != nil {
		return err
	}
	dest, finish, err := l.guestServes(ctx, 1)
	if err != nil {
		return err
	}
	c, err := l.dial(ctx, h, smc.AnyMode, dest)
	if err != nil {
		return err
	}
	state := c.State()
	err = talk.Client(c, talk.Script{Kind: talk.Echo, N: 100_000})
	said, guestErr := finish()
	if err := errors.Join(err, guestErr, isTCP(state, said)); err != nil {
		return err
	}
	l.note("%v; %s", state.Reason, strings.TrimSpace(said))
	return nil
}

func strangersListen(ctx context.Context, l *lab) error {
	if _, err := l.ready(ctx); err != nil {
		return err
	}
	h, err := l.host("SOMEBODY.ELSE")
	if err != nil {
		return err
	}
	listener, err := l.listen(ctx, h, smc.AnyMode)
	if err != nil {
		return err
	}
	finish, err := l.vm.start(ctx, fmt.Sprintf("smcpeer dial %v echo 100000 1 1", listener.Addr()))
	if err != nil {
		return err
	}
	listener.SetDeadline(time.Now().Add(commandTimeout))
	c, err := listener.AcceptSMC()
	if err != nil {
		return err
	}
	state := c.State()
	_, err = talk.Serve(c)
	said, guestErr := finish()
	if err := errors.Join(err, guestErr, isTCP(state, said)); err != nil {
		return err
	}
	l.note("%v; %s", state.Reason, strings.TrimSpace(said))
	return nil
}

func isTCP(ours smc.State, guest string) error {
	if ours.Mode != smc.ModeTCP || ours.Reason.Code == 0 || !strings.Contains(guest, "ok echo mode=tcp reason=0x0") {
		return fmt.Errorf("mode %v, reason %v, and the guest says %q; want TCP on both sides, with reasons", ours.Mode, ours.Reason, guest)
	}
	return nil
}

// endsWithin is the time in which an end must be noticed: with something on its way what a queue pair's retries take, else
// 30 s until the link is tested.
const endsWithin = 60 * time.Second

// killed kills the guest's program in the middle of a transfer.
func killed(ctx context.Context, l *lab) error {
	return l.cut(ctx, "kill -9 $(pidof smcpeer)", "")
}

// vanished takes the guest's interface down in the middle of a transfer, and up again.
func vanished(ctx context.Context, l *lab) error {
	return l.cut(ctx, "/bin/ip link set eth0 down", "kill -9 $(pidof smcpeer); /bin/ip link set eth0 up; /bin/ip -6 addr add "+
		guestAddr6.String()+prefix6+" dev eth0 nodad 2>/dev/null; true")
}

// cut does something to the guest in the middle of a transfer in both directions: our side must see its end, and connect again after
// repair.
func (l *lab) cut(ctx context.Context, harm, repair string) error {
	h, err := l.ready(ctx)
	if err != nil {
		return err
	}
	dest, finish, err := l.guestServes(ctx, 1)
	if err != nil {
		return err
	}
	c, err := l.dial(ctx, h, smc.RequireSMCR, dest)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- talk.Client(c, talk.Script{Kind: talk.Duplex, N: 1 << 30}) }()
	if err := try(ctx, "bytes of the transfer", func() (bool, error) { return c.State().BytesRead > 1<<20, nil }); err != nil {
		return err
	}
	began := time.Now()
	_, harmErr := l.vm.run(ctx, commandTimeout, harm)
	var repairErr error
	select {
	case err = <-ended:
	case <-time.After(endsWithin):
		c.SetLinger(0)
		c.Close()
		<-ended
		err = nil
	}
	took := time.Since(began)
	if repair != "" {
		_, repairErr = l.vm.run(ctx, commandTimeout, repair)
	}
	finish() // it was killed
	if err := errors.Join(harmErr, repairErr); err != nil {
		return err
	}
	if err == nil {
		return fmt.Errorf("the transfer has not ended with an error within %v", endsWithin)
	}
	l.note("ended after %.1f s: %v", took.Seconds(), err)
	return l.dialGuest(ctx, h, says(talk.Echo, 100_000))
}

// guestServes has the guest serve so many connections.
func (l *lab) guestServes(ctx context.Context, conns int) (dest netip.AddrPort, finish func() (string, error), err error) {
	guestPort++
	if finish, err = l.vm.start(ctx, fmt.Sprintf("smcpeer serve %d %d", guestPort, conns)); err != nil {
		return dest, nil, err
	}
	listening := fmt.Sprintf("until grep -q ':%04X 00000000:0000 0A' /proc/net/tcp; do sleep 0.05; done", guestPort)
	_, err = l.vm.run(ctx, commandTimeout, listening)
	return netip.AddrPortFrom(guestAddr4, guestPort), finish, err
}

// dial dials the guest with TCP option 254.
func (l *lab) dial(ctx context.Context, h *smc.Host, require smc.Requirement, dest netip.AddrPort) (*smc.Conn, error) {
	d := smc.Dialer{Host: h, Require: require, ControlContext: func(_ context.Context, _, _ string, raw syscall.RawConn) error {
		return askOption(raw)
	}}
	c, err := d.DialContext(ctx, "tcp4", dest.String())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetLinger(0); c.Close() })
	l.atEnd(func() error { stop(); c.Close(); return nil })
	return c, nil
}

// listen listens for the guest with TCP option 254.
func (l *lab) listen(ctx context.Context, h *smc.Host, require smc.Requirement) (*smc.Listener, error) {
	lc := smc.ListenConfig{Host: h, Require: require, Control: func(_, _ string, raw syscall.RawConn) error { return askOption(raw) }}
	listener, err := lc.Listen(ctx, "tcp4", net.JoinHostPort(ourAddr4.String(), "0"))
	if err != nil {
		return nil, err
	}
	l.atEnd(func() error { listener.Close(); return nil })
	return listener, nil
}
