package ism

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// An Introduction is a process that a third one, which both trust, has introduced to this one: the
// agent. The process may be of any user, and in any namespaces, so nothing but the socket leads to it.
type Introduction struct {
	Socket int         // of the type SOCK_SEQPACKET, connected to the process and to nobody else
	Key    wire.ISMGID // names the process, by the third one's word; no other process has it
	GID    wire.ISMGID // of its device, as the process says: others may say the same
	Cred   Cred        // by the kernel's word to the third process; PID zero if it means nothing here
	Secret [16]byte    // that both processes know and nobody else does
	Own    bool        // the process has the user of this one
	Strict bool        // the kernel may refuse pages (vm.overcommit_memory=2)
}

// Secret returns the secret that only the two processes of an introduction know. ok is false for a
// peering that was made otherwise.
func (p *Peer) Secret() (secret [16]byte, ok bool) {
	if p.introduced == nil {
		return secret, false
	}
	return p.introduced.Secret, true
}

// SameUser reports whether an introduced process has the user of this one.
func (p *Peer) SameUser() bool { return p.introduced != nil && p.introduced.Own }

// Key returns the name by which this process tells the processes of its peerings apart: the GID of the
// device, or the key of an introduction.
func (p *Peer) Key() wire.ISMGID { return p.key }

// PeerBy returns the peering with an introduced process, as [Device.Peer] does. It is the dialler's
// side of the Hello; the other process calls [Device.AcceptBy]. The socket belongs to the device, also
// after an error.
func (d *Device) PeerBy(ctx context.Context, in Introduction) (*Peer, error) {
	p, err := d.peer(ctx, in.Key, &in)
	if in.Socket >= 0 { // there was a peering, or none could be made
		closeForeign(in.Socket)
	}
	return p, err
}

// AcceptBy is for the process that an introduced one makes a peering with. It does not wait:
// Handler.PeerUp is called when the peering is made. The socket belongs to the device.
func (d *Device) AcceptBy(in Introduction) {
	if err := unix.SetNonblock(in.Socket, true); err != nil {
		closeForeign(in.Socket)
		return
	}
	if fewDescriptors(in.Socket) || !d.beginHello() {
		d.turnAway(in.Socket)
		return
	}
	d.wg.Go(func() { d.accept(in.Socket, &in) })
}

// dialIntroduced makes the peering of an introduction.
func dialIntroduced(ctx context.Context, d *Device, in *Introduction) (*Peer, error) {
	fd := in.Socket
	in.Socket = -1 // the caller keeps nothing to close
	if err := unix.SetNonblock(fd, true); err != nil {
		closeForeign(fd)
		return nil, err
	}
	p, err := d.dialOver(ctx, fd, in.GID, in)
	if err == nil {
		p.introduced, p.key = in, in.Key
	}
	return p, err
}

// credOf returns the process at the other end: by the introduction, or else by the kernel.
func (c *conn) credOf(in *Introduction) (Cred, error) {
	if in != nil {
		return in.Cred, nil
	}
	return c.cred()
}

// admits decides whether a process may be a peer. The agent has asked the policies of both processes
// about an introduced one. Under strict overcommit the memory of another user can end this process.
func admits(d *Device, cred Cred, in *Introduction) error {
	if in == nil {
		return d.checkUser(cred)
	}
	if !in.Own && (in.Strict || overcommit.isStrict()) { // rule: TestIntroducedStrict
		d.stats.otherUsers.Add(1)
		return fmt.Errorf("%w: under vm.overcommit_memory=2 the memory of others can end this one", ErrOtherUser)
	}
	return nil
}

// LearnOvercommit says whether the kernel may refuse pages, for a process that cannot read the
// setting. It is believed as long as the process cannot.
func LearnOvercommit(strict bool) { overcommit.learn(strict) }

func (o *overcommitMode) learn(strict bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unread || o.read.IsZero() {
		o.strict, o.told = strict, true
		o.read = time.Time{} // the file counts, if there is one
	}
}

// isStranger reports whether the process is one of another user, that was introduced.
func isStranger(p *Peer) bool { return p.introduced != nil && !p.introduced.Own }

// shareAccount reports whether two strangers may belong to one user, who can own a range of numbers.
func shareAccount(p, q *Peer) bool {
	a, b := p.cred.UID, q.cred.UID
	return isStranger(q) && (a == b || a >= 1<<16 && b >= 1<<16 && a>>16 == b>>16)
}

// crowdedLocked reports whether a stranger who is about to enter has too many peerings. d.mu is held.
func crowdedLocked(d *Device, p *Peer) bool {
	if !isStranger(p) {
		return false
	}
	own := 0
	for q := range d.accepted {
		if shareAccount(p, q) {
			own++
		}
	}
	return own >= maxStrangerPeers // rule: TestStrangerShare: own >= maxStrangerPeers -> own < 0
}

// strangerRoom checks that a connection with a stranger leaves memory for others. The error matches
// [ErrBudget].
func strangerRoom(d *Device, p *Peer, size int) error {
	if !isStranger(p) || d.maximum < 0 {
		return nil
	}
	var own, mapped int64
	for _, q := range d.peers() {
		if shareAccount(p, q) {
			o, m := usageOf(q)
			own, mapped = own+o, mapped+m
		}
	}
	if max(own, mapped)+int64(size) > d.maximum/strangerShare { // rule: TestStrangerShare
		return fmt.Errorf("%w: the part of user %d", ErrBudget, p.cred.UID)
	}
	return nil
}

// usageOf returns how many bytes of DMBs there are for the peer, and of the peer's memory here.
func usageOf(p *Peer) (own, mapped int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, seg := range p.segments {
		own += int64(len(seg.mem))
	}
	for _, rem := range p.remotes {
		mapped += int64(len(rem.mem))
	}
	for _, r := range p.requests {
		mapped += int64(r.size)
	}
	return own, mapped
}
