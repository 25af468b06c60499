package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/attempts"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/late"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/user"
	"github.com/gosmc/smc/wire/clc"
)

// A Call is the client's side of the rendezvous: one dial. Package net may connect several
// sockets at once, to different addresses of a name, and use the one that is connected first.
//
// Its Ask may be called from several goroutines; then either Await or HangUp is called, once.
// Asks that come later, of sockets that have lost the race, ask for nothing.
type Call struct {
	point *Point
	set   attempts.Set[*attempt]
}

// NewCall returns a call that has asked for nothing.
func (p *Point) NewCall() *Call { return &Call{point: p} }

// Ask asks for SMC on a socket that is about to connect to dest, if anybody announced a listener
// there. It returns the reason if it has not.
func (c *Call) Ask(ctx context.Context, raw syscall.RawConn, dest netip.AddrPort) clc.Diagnosis {
	if c.set.Over() {
		return clc.DiagNotAccepted
	}
	a, reason := c.point.prepare(ctx, raw, dest)
	switch {
	case a == nil:
		c.set.AddReason(dest, reason)
	case !c.set.Add(a):
		c.point.endAttempt(a, true)
	}
	return reason
}

// HangUp takes back whatever was asked for.
func (c *Call) HangUp() {
	for _, a := range c.set.End() {
		c.point.endAttempt(a, true)
	}
}

// Await takes back the requests for other sockets than tcp, which is connected, and waits until one
// of the peers asked says that it has accepted the connection. It returns no peering and the reason
// if the connection is to be plain TCP, and an error if it cannot be used.
func (c *Call) Await(ctx context.Context, tcp *net.TCPConn) (Peer, clc.Diagnosis, error) {
	a, reason := c.outcome(tcp)
	if a == nil {
		return nil, reason, nil
	}
	return c.point.await(ctx, a, tcp)
}

// outcome returns the attempt of the connected socket, and cancels the others, or the
// reason why there is none.
func (c *Call) outcome(tcp *net.TCPConn) (*attempt, clc.Diagnosis) {
	list := c.set.End()
	remote := AddrPort(tcp.RemoteAddr())
	var socket uint64
	if raw, err := tcp.SyscallConn(); err == nil && len(list) > 0 {
		socket, _ = SocketCookie(raw)
	}
	var mine *attempt
	for _, a := range list {
		if a.socket == socket {
			mine = a
		} else {
			c.point.endAttempt(a, true)
		}
	}
	if mine != nil {
		return mine, clc.DiagNone
	}
	if reason, ok := c.set.Reason(remote); ok {
		return nil, reason
	}
	return nil, clc.DiagNotAccepted // the connection went to another address than those asked for
}

// An attempt asks, for one socket that is about to connect, the peers that announced that they
// listen at the destination.
type attempt struct {
	id      uint64
	dest    netip.AddrPort
	netns   uint64
	socket  uint64      // its cookie
	iface   uint32      // that it is bound to, 0 for none
	asked   []Peer      // no peer twice
	unsure  []Peer      // those asked that have to show that the connection is theirs
	answers chan answer // room for every answer that can come
}

type answer struct {
	peer   Peer
	kind   Kind // Accepted or Refused
	reason clc.Diagnosis
}

var attemptIDs atomic.Uint64

// answer hands on an answer if p was asked. It never blocks: a peer that answers more
// than it was asked is not heard.
func (a *attempt) answer(p Peer, ans answer) {
	if !slices.Contains(a.asked, p) { // rule: TestAnswerUnasked
		return
	}
	ans.peer = p
	select {
	case a.answers <- ans:
	default:
	}
}

// onAnswer hands an answer to the attempt it belongs to.
func (p *Point) onAnswer(peer Peer, m Message) {
	p.mu.Lock()
	a := p.attempts[m.ID]
	p.mu.Unlock()
	if a != nil {
		m.Dest = a.dest
	}
	p.cfg.Trace(peer, &m, false)
	if a != nil {
		reason := clc.Diagnosis(m.Reason)
		if !reason.IsLocal() {
			reason = clc.DiagRefused
		}
		a.answer(peer, answer{kind: m.Kind, reason: reason})
	}
}

// endAttempt forgets an attempt. Peers asked that have not answered are told.
func (p *Point) endAttempt(a *attempt, cancel bool) {
	p.mu.Lock()
	delete(p.attempts, a.id)
	p.mu.Unlock()
	if cancel {
		p.cancel(a)
	}
}

func (p *Point) cancel(a *attempt) {
	for _, peer := range a.asked {
		p.send(peer, Message{Kind: Cancel, ID: a.id, Dest: a.dest})
	}
}

// prepare asks for SMC on a socket that is about to connect to dest. It returns no attempt and the
// reason if there is nobody to ask.
func (p *Point) prepare(ctx context.Context, raw syscall.RawConn,
	dest netip.AddrPort) (*attempt, clc.Diagnosis) {
	if p.cfg.Disabled {
		return nil, clc.DiagDisabled
	}
	plain := netip.AddrPortFrom(dest.Addr().Unmap().WithZone(""), dest.Port())
	if plain.Addr().IsUnspecified() { // the kernel takes this for the loopback address
		plain = netip.AddrPortFrom(loopback(plain.Addr()), plain.Port())
	}
	if !p.locals.contains(plain.Addr()) {
		return nil, clc.DiagNotLocal
	}
	socket, netns, iface, err := identify(raw, dest.Addr())
	if err != nil {
		return nil, clc.DiagFabric
	}
	found, err := p.announced.lookup(p.cfg.Dir, netns, plain)
	if err != nil && p.cfg.Reason(err) == clc.DiagNoFile {
		return nil, clc.DiagNoFile
	}
	if len(found) == 0 {
		if p.cfg.DirFailed() {
			return nil, clc.DiagNoRunDir
		}
		return nil, clc.DiagNoListener
	}
	wait := late.WithTimeout(ctx, PeeringTime)
	defer wait.Cancel()
	peers, unsure, reason := p.findPeers(wait, found, plain)
	if len(peers) == 0 {
		return nil, reason
	}
	a := &attempt{
		id:      attemptIDs.Add(1),
		dest:    plain,
		netns:   netns,
		socket:  socket,
		iface:   iface,
		asked:   peers,
		unsure:  unsure,
		answers: make(chan answer, 2*len(peers)),
	}
	p.mu.Lock()
	p.attempts[a.id] = a
	p.mu.Unlock()
	for _, peer := range peers {
		m := Message{Kind: Expect, ID: a.id, Netns: netns, Socket: socket, Dest: plain, Iface: a.iface}
		if why := p.sendExpect(wait, peer, m); why != clc.DiagNone {
			a.answer(peer, answer{kind: Refused, reason: why})
		}
	}
	return a, clc.DiagNone
}

func loopback(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// findPeers returns the peerings with the processes that announced themselves, as far as they can
// be trusted and reached, or the reason for the last one that could not.
//
// A listening socket belongs to the user that has made it. Another user may accept from it: root
// may have handed it over. Of a process at a socket of root's it shows later whether the connection
// has come to it, so that is in unsure, too.
func (p *Point) findPeers(
	wait context.Context, found []announced, dest netip.AddrPort,
) (peers, unsure []Peer, reason clc.Diagnosis) {
	d, reason, err := p.cfg.Open()
	if err != nil {
		return nil, nil, reason
	}
	reason = clc.DiagStale
	for _, ann := range found {
		if wait.Err() != nil {
			break
		}
		if why := refuses(p, ann, dest); why != clc.DiagNone {
			reason = why
			continue
		}
		peer, err := d.Peer(wait, ann.gid)
		switch {
		case errors.Is(err, ism.ErrDead):
			removeAnnouncement(ann.path) // of a process that was killed; fails if it is not ours
			reason = clc.DiagStale
			continue
		case err != nil:
			reason = p.cfg.Reason(err)
			continue
		}
		owner, err := p.owners.owner(dest)
		if err != nil {
			reason = p.diagReason(err)
			continue
		}
		uid := peer.Cred().UID
		sure := uid == 0 || uid == int(owner) && user.Known(uid)
		if !sure && (owner != 0 || !user.Ours(uid)) { // rule: TestStrangerAtSocketOfRoot
			reason = clc.DiagForeign
			continue
		}
		if slices.Contains(peers, peer) {
			continue
		}
		if len(peers) == maxAnnouncers { // rule: TestManyAnnouncers
			return nil, nil, clc.DiagCrowded
		}
		peers = append(peers, peer)
		if !sure {
			unsure = append(unsure, peer)
		}
	}
	return peers, unsure, reason
}

// refuses returns the reason why the device of an announcement is not dialled, if it is of a user who can
// have no listener at an address that is wanted: neither our own user nor root nor the listener's, by the
// kernel's word about the file of the device and about the listening socket. Anybody may announce
// anything, and answer late or never.
func refuses(p *Point, ann announced, dest netip.AddrPort) clc.Diagnosis {
	uid, there := rundir.OwnerOf(filepath.Join(rundir.Path(p.cfg.Dir, rundir.ISM), ann.gid.String()))
	switch {
	case !there || user.Ours(uid): // what is not there does not answer late
		return clc.DiagNone
	case !user.Known(uid) || p.cfg.Admit == nil || !p.cfg.Admit(uid): // rule: TestStrangerNotDialled
		return clc.DiagOtherUser
	case uid == 0:
		return clc.DiagNone
	}
	owner, err := p.owners.owner(dest)
	switch {
	case err != nil:
		return p.diagReason(err)
	case uid != int(owner): // rule: TestStrangerNotDialled
		return clc.DiagForeign
	}
	return clc.DiagNone
}

// isTheirs reports whether a connection was accepted by the user of a peer that says so.
func (p *Point) isTheirs(a *attempt, peer Peer, tcp *net.TCPConn) bool {
	uid := peer.Cred().UID
	s, err := p.serverEnd(a, tcp)
	return err == nil && s.inode != 0 && int(s.uid) == uid && user.Known(uid)
}

// await waits for the answers to an attempt; see [Call.Await].
func (p *Point) await(ctx context.Context, a *attempt, tcp *net.TCPConn) (Peer, clc.Diagnosis, error) {
	var refused []Peer
	reason := clc.DiagRefused
	start := time.Now()
	timer := time.NewTimer(lookTime)
	defer timer.Stop()
	looked, cancelled := false, false
	for len(refused) < len(a.asked) {
		select {
		case ans := <-a.answers:
			if ans.kind == Accepted {
				p.endAttempt(a, len(a.asked) > 1 && !cancelled)
				if slices.Contains(a.unsure, ans.peer) && !p.isTheirs(a, ans.peer, tcp) { // rule: TestSocketOfRoot
					return nil, clc.DiagForeign, nil
				}
				return ans.peer, clc.DiagNone, nil
			}
			if !slices.Contains(refused, ans.peer) {
				refused = append(refused, ans.peer)
				reason = ans.reason
			}
		case <-timer.C:
			if cancelled {
				p.endAttempt(a, false)
				return nil, clc.DiagRendezvousTimeout, os.NewSyscallError("connect", syscall.ETIMEDOUT)
			}
			if !looked {
				looked = true
				if !p.isElsewhere(a, tcp) {
					timer.Reset(AcceptTime - lookTime)
					continue
				}
			} else if time.Since(start) < maxAcceptTime && p.awaitsAccept(a, tcp) {
				timer.Reset(AcceptTime)
				continue
			}
			// It went to another program, or the peer that was asked is very slow. Only an answer
			// to a Cancel can tell.
			cancelled = true
			p.cancel(a)
			timer.Reset(CancelTime)
		case <-ctx.Done():
			p.endAttempt(a, true)
			return nil, clc.DiagNone, ctx.Err()
		}
	}
	p.endAttempt(a, false)
	return nil, reason, nil
}

// awaitsAccept reports whether nobody has accepted the connection yet: the socket at its
// other end belongs to no file.
func (p *Point) awaitsAccept(a *attempt, tcp *net.TCPConn) bool {
	s, err := p.serverEnd(a, tcp)
	return err == nil && s.inode == 0
}

// isElsewhere reports whether the connection is known to have been accepted by another process than
// those asked, as one that shares their port (SO_REUSEPORT) and knows nothing of SMC.
func (p *Point) isElsewhere(a *attempt, tcp *net.TCPConn) bool {
	s, err := p.serverEnd(a, tcp)
	if err != nil || s.inode == 0 {
		return false
	}
	for _, peer := range a.asked {
		if has, err := hasSocket(peer.Cred().PID, s.inode); has || err != nil {
			return false
		}
	}
	return true
}

// hasSocket reports whether a process has a descriptor of the socket with this inode. An error means that it
// cannot be seen.
func hasSocket(pid int, inode uint32) (bool, error) {
	if pid <= 0 { // in another PID namespace
		return false, os.ErrNotExist
	}
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return false, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxFDs + 1)
	switch {
	case err != nil:
		return false, err
	case len(names) > maxFDs:
		return false, errors.New("too many descriptors to look at")
	}
	want := fmt.Sprintf("socket:[%d]", inode)
	for _, name := range names {
		if target, err := os.Readlink(filepath.Join(dir.Name(), name)); err == nil && target == want {
			return true, nil
		} else if errors.Is(err, os.ErrPermission) {
			return false, err
		}
	}
	return false, nil
}

// serverEnd returns the socket at the other end of a connection. It is bound as the listener is, or,
// at a link-local address, to the interface that this one is bound to.
func (p *Point) serverEnd(a *attempt, tcp *net.TCPConn) (endSocket, error) {
	local, remote := AddrPort(tcp.LocalAddr()), AddrPort(tcp.RemoteAddr())
	s, err := p.ends.find(a.netns, remote, local, a.iface)
	if errors.Is(err, errNoSocket) {
		s, err = p.ends.find(a.netns, remote, local, ifaceOf(remote.Addr()))
	}
	return s, err
}
