package host

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/wire/clc"
)

// The client's side of the rendezvous.

// An attempt asks, for one socket that is about to connect, those who announced that they
// listen at the destination.
type attempt struct {
	id      uint64
	dest    netip.AddrPort
	netns   uint64
	socket  uint64      // its cookie
	asked   []*ism.Peer // no peer twice
	answers chan answer // room for every answer that can come
}

type answer struct {
	peer   *ism.Peer
	kind   rendezvousKind // rvAccepted or rvRefused
	reason clc.Diagnosis
}

var attemptIDs atomic.Uint64

// answer hands on an answer if p was asked. It never blocks: a peer that answers more
// than it was asked is not heard.
func (a *attempt) answer(p *ism.Peer, ans answer) {
	for _, asked := range a.asked {
		if asked == p {
			ans.peer = p
			select {
			case a.answers <- ans:
			default:
			}
			return
		}
	}
}

// onAnswer hands an answer to the attempt it belongs to.
func (h *Host) onAnswer(p *ism.Peer, m rendezvous) {
	h.mu.Lock()
	a := h.attempts[m.id]
	h.mu.Unlock()
	if a != nil {
		m.dest = a.dest
	}
	h.traceRendezvous(p.Cred().PID, &m, false)
	if a != nil {
		reason := clc.Diagnosis(m.reason)
		if !reason.IsLocal() {
			reason = clc.DiagRefused
		}
		a.answer(p, answer{kind: m.kind, reason: reason})
	}
}

// endAttempt forgets an attempt. Those asked who have not answered are told.
func (h *Host) endAttempt(a *attempt, cancel bool) {
	h.mu.Lock()
	delete(h.attempts, a.id)
	h.mu.Unlock()
	if cancel {
		for _, p := range a.asked {
			h.sendRendezvous(p, rendezvous{kind: rvCancel, id: a.id, dest: a.dest})
		}
	}
}

// prepare runs on a socket that is about to connect to dest, asks for SMC if anybody
// announced a listener there. It returns no attempt and the reason if not.
func (h *Host) prepare(ctx context.Context, raw syscall.RawConn, dest netip.AddrPort) (*attempt, clc.Diagnosis) {
	if h.cfg.Disabled {
		return nil, clc.DiagDisabled
	}
	plain := netip.AddrPortFrom(dest.Addr().Unmap().WithZone(""), dest.Port())
	if plain.Addr().IsUnspecified() { // the kernel takes this for the loopback address
		plain = netip.AddrPortFrom(loopback(plain.Addr()), plain.Port())
	}
	if !h.locals.contains(plain.Addr()) {
		return nil, clc.DiagNotLocal
	}
	netns, err := socketNetns(raw)
	if err != nil {
		return nil, clc.DiagFabric
	}
	found, err := h.announced.lookup(h.cfg.Dir, netns, plain)
	if reason := resourceReason(err); err != nil && reason == clc.DiagNoFile {
		return nil, reason
	}
	if len(found) == 0 {
		if h.runDirFailed.Load() && prepareRunDir(h.cfg.Dir) != nil {
			return nil, clc.DiagNoRunDir
		}
		return nil, clc.DiagNoListener
	}
	peers, reason := h.findPeers(ctx, found, plain)
	if len(peers) == 0 {
		return nil, reason
	}
	socket, err := socketCookie(raw)
	if err != nil {
		return nil, clc.DiagFabric
	}
	a := &attempt{
		id:      attemptIDs.Add(1),
		dest:    plain,
		netns:   netns,
		socket:  socket,
		asked:   peers,
		answers: make(chan answer, 2*len(peers)),
	}
	h.mu.Lock()
	h.attempts[a.id] = a
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, peeringTimeout)
	defer cancel()
	for _, p := range peers {
		m := rendezvous{kind: rvExpect, id: a.id, netns: netns, socket: socket, dest: plain}
		if why := h.sendExpect(ctx, p, m); why != clc.DiagNone {
			a.answer(p, answer{kind: rvRefused, reason: why})
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

// findPeers returns the peerings with those who announced themselves, as far as they can
// be trusted and reached, or the reason for the last one that could not.
func (h *Host) findPeers(ctx context.Context, found []announced, dest netip.AddrPort) ([]*ism.Peer, clc.Diagnosis) {
	f, reason, err := h.open()
	if err != nil {
		return nil, reason
	}
	ctx, cancel := context.WithTimeout(ctx, peeringTimeout)
	defer cancel()
	reason = clc.DiagStale
	var peers []*ism.Peer
	for _, ann := range found {
		if len(peers) == maxAnnouncers || ctx.Err() != nil {
			break
		}
		p, err := f.device.Peer(ctx, ann.gid)
		switch {
		case errors.Is(err, ism.ErrDead):
			removeAnnouncement(ann.path) // of a process that was killed; fails if it is not ours
			reason = clc.DiagStale
			continue
		case err != nil:
			reason = resourceReason(err)
			continue
		}
		owner, err := h.owners.owner(dest)
		if err != nil {
			reason = clc.DiagStale // nobody listens there
			continue
		}
		if cred := p.Cred(); cred.UID != int(owner) && cred.UID != 0 {
			reason = clc.DiagForeign
			continue
		}
		if h.addPeer(p) && !slices.Contains(peers, p) {
			peers = append(peers, p)
		}
	}
	return peers, reason
}

// await waits until one of those asked says that it has accepted the connection. It
// returns no peer and the reason if the connection is to be plain TCP, and an error if it
// cannot be used.
func (h *Host) await(ctx context.Context, a *attempt, tcp *net.TCPConn) (*ism.Peer, clc.Diagnosis, error) {
	var refused []*ism.Peer
	reason := clc.DiagRefused
	start := time.Now()
	timer := time.NewTimer(rendezvousWait)
	defer timer.Stop()
	cancelled := false
	for len(refused) < len(a.asked) {
		select {
		case ans := <-a.answers:
			if ans.kind == rvAccepted {
				h.endAttempt(a, len(a.asked) > 1 && !cancelled)
				return ans.peer, clc.DiagNone, nil
			}
			if !slices.Contains(refused, ans.peer) {
				refused = append(refused, ans.peer)
				reason = ans.reason
			}
		case <-timer.C:
			if cancelled {
				h.endAttempt(a, false)
				return nil, clc.DiagRendezvousTimeout, os.NewSyscallError("connect", syscall.ETIMEDOUT)
			}
			if time.Since(start) < acceptWait && h.awaitsAccept(a, tcp) {
				timer.Reset(rendezvousWait)
				continue
			}
			// It went to another program, or whoever was asked is very slow. Only an
			// answer to a Cancel can tell.
			cancelled = true
			for _, p := range a.asked {
				h.sendRendezvous(p, rendezvous{kind: rvCancel, id: a.id, dest: a.dest})
			}
			timer.Reset(cancelWait)
		case <-ctx.Done():
			h.endAttempt(a, true)
			return nil, clc.DiagNone, ctx.Err()
		}
	}
	h.endAttempt(a, false)
	return nil, reason, nil
}

// awaitsAccept reports whether nobody has accepted the connection yet: the socket at its
// other end belongs to no file.
func (h *Host) awaitsAccept(a *attempt, tcp *net.TCPConn) bool {
	s, err := h.ends.find(a.netns, addrPort(tcp.RemoteAddr()), addrPort(tcp.LocalAddr()))
	return err == nil && s.inode == 0
}

// socketCookie returns what the kernel calls a socket.
func socketCookie(raw syscall.RawConn) (cookie uint64, err error) {
	if cerr := raw.Control(func(fd uintptr) {
		cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	}); cerr != nil {
		err = cerr
	}
	return cookie, err
}

// socketNetns returns the network namespace of a socket.
func socketNetns(raw syscall.RawConn) (netns uint64, err error) {
	if cerr := raw.Control(func(fd uintptr) { netns, err = netnsOf(int(fd)) }); cerr != nil {
		err = cerr
	}
	return netns, err
}
