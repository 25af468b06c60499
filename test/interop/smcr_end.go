package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/host"
	"github.com/gosmc/smc/test/interop/talk"
)

// Cases of SMC-R in which something is wrong, and connections are plain TCP, or end.

// A refusal is a case: a handshake that one side ends with a Decline. The connection goes on over
// TCP, and says why on both sides.
type refusal struct {
	config host.Config // of ours
	guest  string      // a shell command in the guest
}

var (
	strangers  = refusal{config: host.Config{UEIDs: []string{"SOMEBODY.ELSE"}}}      // the server finds no UEID that both have
	deviceless = refusal{config: host.Config{SMCRDevices: []string{"198.51.100.1"}}} // we have no device
	nameless   = refusal{guest: "smcpeer ueid del " + ueid}                          // the guest has no UEID
)

// client has us dial.
func (r refusal) client(ctx context.Context, l *lab) error {
	h, err := r.begin(ctx, l)
	if err != nil {
		return err
	}
	dest, finish, err := l.guestServes(ctx, 1)
	if err != nil {
		return err
	}
	c, err := l.dial(ctx, h, conn.AnyMode, dest)
	if err != nil {
		return err
	}
	err = talk.Client(c, talk.Script{Kind: talk.Echo, N: 100_000})
	said, guestErr := finish()
	return errors.Join(err, guestErr, l.isTCP(c, said))
}

// server has the guest dial.
func (r refusal) server(ctx context.Context, l *lab) error {
	h, err := r.begin(ctx, l)
	if err != nil {
		return err
	}
	listener, err := l.listen(ctx, h, conn.AnyMode)
	if err != nil {
		return err
	}
	finish, err := l.vm.start(ctx, fmt.Sprintf("smcpeer dial %v echo 100000 1 1", listener.Addr()))
	if err != nil {
		return err
	}
	listener.SetDeadline(time.Now().Add(commandTimeout))
	c, err := listener.Accept()
	if err != nil {
		return err
	}
	_, err = talk.Serve(c, nil)
	said, guestErr := finish()
	return errors.Join(err, guestErr, l.isTCP(c, said))
}

func (r refusal) begin(ctx context.Context, l *lab) (*host.Host, error) {
	if err := l.ready(ctx); err != nil {
		return nil, err
	}
	if r.guest != "" {
		if _, err := l.vm.run(ctx, commandTimeout, r.guest); err != nil {
			return nil, err
		}
	}
	return l.host(r.config)
}

// isTCP checks that a connection is TCP on both sides, and both know why.
func (l *lab) isTCP(c conn.Conn, guest string) error {
	if c.Mode() != conn.ModeTCP || c.Reason().Code == 0 || !strings.Contains(guest, "ok echo mode=tcp reason=0x0") {
		return fmt.Errorf("mode %v, reason %v, and the guest says %q; want TCP on both sides, with reasons", c.Mode(), c.Reason(), guest)
	}
	l.note("%s [%s]; %s", c.Reason().Sentence, c.Reason().Tag, strings.TrimSpace(guest))
	return nil
}

// endsWithin is the time in which an end must be noticed: with something on its way the time of a
// queue pair's retries, else 30 s until the link is tested.
const endsWithin = 60 * time.Second

// A cut is a case: something happens to the guest in the middle of a transfer in both directions.
// Our side must see its end, and there must be connections again after the repair.
type cut struct{ harm, repair string } // shell commands in the guest

var (
	killed   = cut{"kill -9 $(pidof smcpeer)", ""} // the guest's program
	vanished = cut{"/bin/ip link set eth0 down", "kill -9 $(pidof smcpeer); /bin/ip link set eth0 up; /bin/ip -6 addr add " +
		guestAddr6.String() + prefix6 + " dev eth0 nodad 2>/dev/null; true"} // its interface
)

// client has us dial.
func (x cut) client(ctx context.Context, l *lab) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	h, err := l.host(host.Config{SMCRPeers: l.guestPeers()})
	if err != nil {
		return err
	}
	dest, finish, err := l.guestServes(ctx, 1)
	if err != nil {
		return err
	}
	c, err := l.dial(ctx, h, conn.RequireSMCR, dest)
	if err != nil {
		return err
	}
	err = x.cut(ctx, l, c, func() error { return talk.Client(c, talk.Script{Kind: talk.Duplex, N: 1 << 30}) })
	finish() // it was killed
	if err != nil {
		return err
	}
	return l.dialGuest(ctx, h, says(talk.Echo, 100_000), witness{})
}

// server has the guest dial.
func (x cut) server(ctx context.Context, l *lab) error {
	if err := l.ready(ctx); err != nil {
		return err
	}
	h, err := l.host(host.Config{SMCRPeers: l.guestPeers()})
	if err != nil {
		return err
	}
	listener, err := l.listen(ctx, h, conn.RequireSMCR)
	if err != nil {
		return err
	}
	finish, err := l.vm.start(ctx, fmt.Sprintf("%s dial %v duplex %d 1 1", l.guestPeer(), listener.Addr(), 1<<30))
	if err != nil {
		return err
	}
	listener.SetDeadline(time.Now().Add(commandTimeout))
	c, err := listener.Accept()
	if err != nil {
		return err
	}
	listener.SetDeadline(time.Time{})
	err = x.cut(ctx, l, c, func() error { _, err := talk.Serve(c, nil); return err })
	finish() // it was killed
	if err != nil {
		return err
	}
	return l.serveGuest(ctx, listener, says(talk.Echo, 100_000), witness{})
}

func (x cut) cut(ctx context.Context, l *lab, c conn.Conn, transfer func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- transfer() }()
	err := try(ctx, "bytes of the transfer", func() (bool, error) {
		in, _ := c.Totals()
		return in > 1<<20, nil
	})
	if err != nil {
		return err
	}
	began := time.Now()
	_, harmErr := l.vm.run(ctx, commandTimeout, x.harm)
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
	if x.repair != "" {
		_, repairErr = l.vm.run(ctx, commandTimeout, x.repair)
	}
	if err := errors.Join(harmErr, repairErr); err != nil {
		return err
	}
	if err == nil {
		return fmt.Errorf("the transfer has not ended with an error within %v", endsWithin)
	}
	l.note("ended after %.1f s: %v", took.Seconds(), err)
	return nil
}
