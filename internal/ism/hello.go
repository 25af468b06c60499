package ism

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/user"
	"github.com/gosmc/smc/wire"
)

// An offer holds the parts of a side's Hello.
type offer struct {
	bell    *bell
	nonce   [16]byte
	memFD   int
	chimeFD int
}

func (d *Device) newOffer() (*offer, error) {
	o := &offer{}
	rand.Read(o.nonce[:])
	var err error
	o.bell, o.memFD, o.chimeFD, err = newBell(o.nonce, &d.stats.rings)
	return o, err
}

// send sends the Hello. It can be called once.
func (o *offer) send(c *conn, own, peer wire.ISMGID) error {
	m := message{kind: kindHello, gid: own, peerGID: peer, nonce: o.nonce, slots: SlotCount, options: optionTray}
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.sendFD < 0 {
		return ErrPeerGone
	}
	err := sendWithFDs(c.sendFD, m.append(nil), o.memFD, o.chimeFD)
	o.closeFDs()
	if err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	return nil
}

func (o *offer) closeFDs() {
	if o.memFD >= 0 {
		unix.Close(o.memFD)
		unix.Close(o.chimeFD)
		o.memFD, o.chimeFD = -1, -1
	}
}

// discard is for an offer that does not become a peer's.
func (o *offer) discard() {
	o.closeFDs()
	o.bell.close()
	o.bell.unmap()
}

// dial connects to a device and exchanges Hellos.
//
//	dialler               accepter
//	connect   ->          checks SO_PEERCRED
//	checks SO_PEERCRED
//	Hello     ->          checks GID, bell, limits; the peer is up
//	          <-  Hello   or Refuse
//	checks GID, bell; the peer is up
//
// The listening socket of a process that dies is closed at some other moment than the connections
// in its backlog. So a dialler that is hung up on without a word tries again, to learn whether the
// device is dead.
func (d *Device) dial(ctx context.Context, gid wire.ISMGID) (*Peer, error) {
	pause := time.Millisecond
	for try := 1; ; try++ {
		p, err := d.dialOnce(ctx, gid)
		if !errors.Is(err, ErrPeerGone) || try == maxHangups {
			return p, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
			pause = min(2*pause, dialRetry)
		}
	}
}

func (d *Device) dialOnce(ctx context.Context, gid wire.ISMGID) (*Peer, error) {
	fd, err := d.connect(ctx, gid)
	if err != nil {
		return nil, err
	}
	return d.dialOver(ctx, fd, gid, nil)
}

// dialOver exchanges Hellos over a connected socket, which it takes over. in is nil if the process was found
// by its GID.
func (d *Device) dialOver(ctx context.Context, fd int, gid wire.ISMGID, in *Introduction) (*Peer, error) {
	c, err := newConn(fd, &d.wg)
	if err != nil {
		return nil, err
	}
	stop := c.limit(ctx)
	p, o, err := d.dialHello(c, gid, in)
	if !stop() && err == nil {
		o.discard()
		p.ringer.close()
		err = ctx.Err()
	}
	if err != nil {
		c.close()
		if ctx.Err() != nil {
			err = fmt.Errorf("ism: hello with %v: %w", gid, ctx.Err())
		}
		return nil, err
	}
	return p, nil
}

// limit makes waiting on the conn end with ctx. The caller calls stop when it no longer waits; if
// that returns false, it was too late, and the conn is of no more use.
func (c *conn) limit(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { c.file.SetDeadline(time.Unix(1, 0)) })
}

// connect repeats connecting while the backlog of the device is full.
func (d *Device) connect(ctx context.Context, gid wire.ISMGID) (int, error) {
	pause := time.Millisecond
	for {
		fd, err := d.dir.Connect(gid)
		if err != unix.EAGAIN {
			return fd, err
		}
		select {
		case <-ctx.Done():
			return -1, fmt.Errorf("ism: connect to %v: %w", gid, ctx.Err())
		case <-time.After(pause):
			pause = min(2*pause, dialRetry)
		}
	}
}

func (d *Device) dialHello(c *conn, gid wire.ISMGID, in *Introduction) (*Peer, *offer, error) {
	cred, err := c.credOf(in)
	if err != nil {
		return nil, nil, err
	}
	if err := admits(d, cred, in); err != nil {
		c.refuse(err)
		return nil, nil, err
	}
	o, err := d.newOffer()
	if err != nil {
		return nil, nil, err
	}
	// The answer may have come before the question: a Refuse because of our user.
	if err := o.send(c, d.gid, gid); err != nil && !isGone(err) {
		o.discard()
		return nil, nil, err
	}
	p, err := d.awaitHello(c, cred, o, func(m *message) error {
		if m.gid != gid || m.peerGID != d.gid { // rule: TestDialRefusals
			return fmt.Errorf("%w: %v answered %v", ErrWrongGID, m.gid, m.peerGID)
		}
		return nil
	})
	if err != nil {
		if errors.Is(err, ErrOtherUser) {
			d.stats.otherUsers.Add(1)
		}
		o.discard()
		return nil, nil, err
	}
	return p, o, nil
}

// accept takes over a connection that was accepted, exchanges Hellos and runs the peer until it ends. in is
// nil unless the other process was introduced.
func (d *Device) accept(fd int, in *Introduction) {
	c, err := newConn(fd, &d.wg)
	if err != nil {
		d.endHello()
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, helloTimeout)
	stop := c.limit(ctx)
	p, o, err := d.acceptHello(c, in)
	inTime := stop()
	cancel()
	d.endHello()
	if err == nil {
		switch {
		case !inTime:
			err = context.DeadlineExceeded
		case !d.enter(p):
			err = fmt.Errorf("%w: %d peers", ErrLimit, MaxPeers)
		}
		if err != nil {
			o.discard()
			p.ringer.close()
		}
	}
	if err != nil {
		d.stats.refused.Add(1)
		d.log.Info("ism peering refused", "err", err)
		c.refuse(err)
		c.close()
		return
	}
	// The peer may send signals as soon as it has our Hello. Poll must find them from then on,
	// but deliver none before PeerUp was called; and nothing that PeerUp sends may overtake the
	// Hello.
	c.recvMu.Lock()
	d.poll(p)
	if err := o.send(c, d.gid, p.gid); err != nil {
		c.refuse(err)
		p.fail(err)
	}
	d.handler.PeerUp(p)
	c.recvMu.Unlock()
	d.start(p)
}

func (d *Device) acceptHello(c *conn, in *Introduction) (*Peer, *offer, error) {
	cred, err := c.credOf(in)
	if err != nil {
		return nil, nil, err
	}
	if err := admits(d, cred, in); err != nil {
		return nil, nil, err
	}
	o, err := d.newOffer()
	if err != nil {
		return nil, nil, err
	}
	p, err := d.awaitHello(c, cred, o, func(m *message) error {
		if m.peerGID != d.gid { // rule: TestRefusals
			return fmt.Errorf("%w: asked for %v, this is %v", ErrWrongGID, m.peerGID, d.gid)
		}
		if in != nil && m.gid != in.GID { // rule: TestIntroducedRefusals
			return fmt.Errorf("%w: %v was introduced, and %v says Hello", ErrWrongGID, in.GID, m.gid)
		}
		return nil
	})
	if err != nil {
		o.discard()
		return nil, nil, err
	}
	p.accepted = true
	if in != nil {
		p.introduced, p.key = in, in.Key // rule: TestIntroducedTwice
	}
	p.bell.follows = true
	return p, o, nil
}

// awaitHello receives the other side's Hello and makes the peer of it, not yet running.
func (d *Device) awaitHello(c *conn, cred Cred, o *offer, check func(*message) error) (*Peer, error) {
	var m message
	var short bool
	var err error
	rerr := c.raw.Read(func(uintptr) bool {
		c.recvMu.Lock()
		m, short, err = c.receive()
		c.recvMu.Unlock()
		return err != errAgain
	})
	switch {
	case rerr != nil:
		return nil, fmt.Errorf("ism: awaiting Hello: %w", rerr)
	case errors.Is(err, wire.ErrVersion):
		return nil, fmt.Errorf("%w: %w", ErrVersion, err)
	case err == io.EOF:
		return nil, fmt.Errorf("%w: no Hello", ErrPeerGone)
	case err != nil:
		return nil, err
	case m.kind == kindRefuse:
		return nil, m.reason.err()
	case m.kind != kindHello:
		return nil, violation("%v before Hello", m.kind)
	case short:
		return nil, fmt.Errorf("ism: receiving Hello: %w", unix.EMFILE)
	}
	if err := check(&m); err != nil {
		return nil, err
	}
	memFD, chimeFD := c.in.take(), c.in.take()
	r, err := openRinger(memFD, chimeFD, m.nonce)
	closeForeign(memFD)
	if err != nil {
		closeForeign(chimeFD)
		return nil, err
	}
	p := &Peer{
		dev:       d,
		gid:       m.gid,
		key:       m.gid,
		cred:      cred,
		conn:      c,
		bell:      o.bell,
		ringer:    r,
		done:      make(chan struct{}),
		attaching: make(chan struct{}, maxAttaching),
		segments:  make(map[wire.Token]*segment),
		remotes:   make(map[wire.Token]*remote),
		requests:  make(map[wire.Token]*request),
	}
	if m.options&optionTray != 0 {
		p.trays = true
		c.tray = &r.seg.tray
	}
	p.refs.Store(2) // one for each goroutine of start
	return p, nil
}

// refuse tells the other side why there will be no peering, if it can be told.
func (c *conn) refuse(err error) {
	m := message{kind: kindRefuse, reason: refusalFor(err)}
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.sendFD >= 0 {
		sendNow(c.sendFD, m.append(nil))
	}
}

// checkUser decides whether a process may be a peer: whether it has the user that we have now. A
// process that gives up a user while it has a device is a peer of nobody's: others know the device
// by the user that opened it.
func (d *Device) checkUser(cred Cred) error {
	if user.Ours(cred.UID) {
		return nil
	}
	admitted := d.anyUser && (d.admit == nil || d.admit(cred.UID)) // rule: TestAdmit: d.admit(cred.UID) -> true
	if admitted && !overcommit.isStrict() {
		return nil
	}
	d.stats.otherUsers.Add(1)
	if admitted {
		return fmt.Errorf("%w: process %d has user %d, and under vm.overcommit_memory=2 the memory of others can end this one",
			ErrOtherUser, cred.PID, cred.UID)
	}
	return fmt.Errorf("%w: process %d has user %d, this one %d", ErrOtherUser, cred.PID, cred.UID, os.Geteuid())
}
