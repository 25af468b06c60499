package ism

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// A Window is a DMB of the peer, mapped here to be written. It is one use of that memory, by one
// connection, as [DMB] is on the other side.
//
// The methods other than Release change nothing of the Window and may be called from any goroutine
// until Release.
type Window struct {
	rem      *remote
	released atomic.Bool
}

// A remote is the mapping of a peer's DMB. Peer.mu guards the fields that change.
type remote struct {
	peer    *Peer
	mem     []byte
	waiter  *takeover // an Attach that waits for the Release of the present use
	token   wire.Token
	slot    uint32
	busy    bool // a Window uses it
	revoked bool // to be unmapped when no longer busy

	user     *Window // the newest; it may be released
	onRevoke func()  // the user's
}

// use returns a Window on the mapping. Peer.mu is held.
func (rem *remote) use() *Window {
	rem.user, rem.onRevoke = &Window{rem: rem}, nil
	return rem.user
}

// A takeover is an Attach that waits for a mapping which is still in use.
type takeover struct {
	done chan struct{} // closed under Peer.mu when decided
	ok   bool          // the mapping is the waiter's
}

// A request is an Attach that waits for the peer's answer.
type request struct {
	size      int
	done      chan struct{} // closed under Peer.mu when answered
	rem       *remote       // the outcome, with a reference on the peer
	err       error         // or why there is none
	abandoned bool          // nobody waits any more
}

// Attach maps the peer's DMB with this token, whose element has size bytes. Memory that was
// attached for an earlier connection and released in order is found without asking the peer; when
// the earlier connection has not released it here yet, Attach waits for that.
//
// A token can be attached once. ctx bounds the wait. Errors match ErrSize (also of more than 8 MiB),
// ErrToken, ErrBudget, ErrMappings, ErrPeerGone or the error of ctx, or are the kernel's.
//
// Attach must not be called from a Handler function, which runs where the answer would arrive.
func (p *Peer) Attach(ctx context.Context, token wire.Token, size int) (*Window, error) {
	if _, ok := elementSize(size); !ok {
		return nil, fmt.Errorf("%w: no DMB has %d bytes", ErrSize, size)
	}
	if size > maxWindow { // rule: TestDMB
		return nil, fmt.Errorf("%w: a DMB of %d bytes; of others, at most %d are taken", ErrSize, size, maxWindow)
	}
	if token == 0 {
		return nil, fmt.Errorf("%w: token is zero", ErrToken)
	}
	if w, err := p.attachKnown(ctx, token, size); w != nil || err != nil {
		return w, err
	}
	if !p.dev.reserveMapped(int64(size), true) {
		return nil, fmt.Errorf("%w: %d bytes more of peers", ErrBudget, size)
	}
	select {
	case p.attaching <- struct{}{}: // taken back by the answer
	case <-ctx.Done():
		p.dev.mapped.Add(-int64(size))
		return nil, fmt.Errorf("ism: attach: %w", ctx.Err())
	case <-p.done:
		p.dev.mapped.Add(-int64(size))
		return nil, ErrPeerGone
	}
	p.mu.Lock()
	if p.gone || p.remotes[token] != nil || p.requests[token] != nil {
		gone := p.gone
		p.mu.Unlock()
		p.dev.mapped.Add(-int64(size))
		<-p.attaching
		if gone {
			return nil, ErrPeerGone
		}
		return nil, fmt.Errorf("%w: %v is being attached", ErrToken, token)
	}
	r := &request{size: size, done: make(chan struct{})}
	p.requests[token] = r
	err := p.control(&message{kind: kindAttach, token: token, size: uint32(size)}, -1)
	if err != nil { // it was not sent
		delete(p.requests, token)
		p.mu.Unlock()
		p.dev.mapped.Add(-int64(size))
		<-p.attaching
		return nil, err
	}
	p.mu.Unlock()

	select {
	case <-r.done:
	case <-ctx.Done():
	case <-p.done:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r.rem != nil:
		p.dev.stats.attached.Add(1)
		p.dev.stats.windows.Add(1)
		return r.rem.use(), nil
	case r.err != nil:
		return nil, r.err
	case p.gone || p.closing():
		r.abandoned = true
		return nil, ErrPeerGone
	}
	r.abandoned = true
	return nil, fmt.Errorf("ism: attach: %w", ctx.Err())
}

// attachKnown takes a mapping that is already here, and returns nil if there is none.
func (p *Peer) attachKnown(ctx context.Context, token wire.Token, size int) (*Window, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return nil, ErrPeerGone
	}
	rem := p.remotes[token]
	switch {
	case rem == nil:
		return nil, nil
	case len(rem.mem) != size:
		return nil, fmt.Errorf("%w: %v has %d bytes, not %d", ErrToken, token, len(rem.mem), size)
	case rem.busy:
		return p.takeOver(ctx, rem)
	}
	rem.busy = true
	p.idleWindows--
	p.refs.Add(1)
	p.dev.stats.reattached.Add(1)
	p.dev.stats.windows.Add(1)
	return rem.use(), nil
}

// takeOver waits for a mapping that is in use. p.mu is held, and released while it waits.
func (p *Peer) takeOver(ctx context.Context, rem *remote) (*Window, error) {
	if rem.waiter != nil || rem.revoked {
		return nil, fmt.Errorf("%w: %v is in use", ErrToken, rem.token)
	}
	t := &takeover{done: make(chan struct{})}
	rem.waiter = t
	p.mu.Unlock()
	select {
	case <-t.done:
	case <-ctx.Done():
	case <-p.done:
	}
	p.mu.Lock()
	if rem.waiter == t {
		rem.waiter = nil
	}
	// A mapping that is ours now must be taken, whatever else has come to an end meanwhile.
	switch {
	case t.ok:
		p.dev.stats.reattached.Add(1)
		p.dev.stats.windows.Add(1)
		return rem.use(), nil
	case p.closing():
		return nil, ErrPeerGone
	case ctx.Err() != nil:
		return nil, fmt.Errorf("ism: attach: %w", ctx.Err())
	}
	return nil, fmt.Errorf("%w: %v was given up", ErrToken, rem.token)
}

// Peer returns the owner of the memory.
func (w *Window) Peer() *Peer { return w.rem.peer }

// Token returns the token that was attached.
func (w *Window) Token() wire.Token { return w.rem.token }

// Mem returns the element: page-aligned memory that the peer may read and write at any time. It
// must not be touched after Release.
func (w *Window) Mem() []byte { return w.rem.mem }

// PeerReaderSleeps returns the word by which the peer says that it waits for data in this memory.
// After data was written there, swap it to 0, and call Ring if it was not 0. It must not be
// touched after Release.
func (w *Window) PeerReaderSleeps() *atomic.Uint32 {
	return &w.rem.peer.ringer.seg.slots[w.rem.slot].reader
}

// PeerWriterSleeps returns the word by which the peer says that it waits for space in our DMB.
// Otherwise it is as PeerReaderSleeps.
func (w *Window) PeerWriterSleeps() *atomic.Uint32 {
	return &w.rem.peer.ringer.seg.slots[w.rem.slot].writer
}

// PeerRead returns the word in which the peer says how many bytes it has read from this memory. It is for
// the case that the peer has died, and as little to be trusted as everything that the peer writes. It must
// not be touched after Release.
func (w *Window) PeerRead() *atomic.Uint64 {
	return &w.rem.peer.ringer.seg.slots[w.rem.slot].read
}

// Ring calls the ring function of the peer's DMB, in the peer. It never blocks and never
// allocates, and makes a system call only if the peer's bell goroutine sleeps. It does nothing
// when the peer has gone.
func (w *Window) Ring() { w.rem.peer.ringer.ring(w.rem.slot) }

// OnRevoke has f called when the owner of the memory has given it up for good: nobody reads the
// bytes that are written there, and the peer's user of it makes no more use of our memory. f is
// called at once if that is so already, otherwise from a goroutine that serves all memory of the
// peer, and must not block. It also comes after a Release that was clean, unless the memory was
// attached again, and not after OnRevoke(nil). It is for connections that wait for the peer to end;
// of a peer that is gone [Handler] is told.
func (w *Window) OnRevoke(f func()) {
	rem := w.rem
	rem.peer.mu.Lock()
	late := false
	if rem.user == w {
		late = f != nil && rem.revoked
		rem.onRevoke = f
	}
	rem.peer.mu.Unlock()
	if late {
		f()
	}
}

// ReturnPages gives the whole pages within the bytes [from, to) of the element back to the system;
// they read as zero after that, on both sides. Only the writer of the element may do so, and only
// where no byte is that the other side may still read.
func (w *Window) ReturnPages(from, to int) error {
	if from < 0 || to < from || to > len(w.rem.mem) {
		return fmt.Errorf("%w: bytes %d to %d of %d", ErrSize, from, to, len(w.rem.mem))
	}
	page := os.Getpagesize()
	from = (from + page - 1) / page * page
	to = to / page * page
	if from >= to || overcommit.isStrict() { // then all pages are reserved, and to stay so
		return nil
	}
	if err := unix.Madvise(w.rem.mem[from:to:to], unix.MADV_REMOVE); err != nil {
		return os.NewSyscallError("madvise", err)
	}
	return nil
}

// Release ends the use of the memory. The second call and later ones do nothing.
//
// clean says that the connection has ended in order, and has the same meaning as for
// [DMB.Release]: the memory stays mapped for the next connection until the peer revokes it.
// Otherwise it is unmapped, and the peer is told.
//
// The caller must make sure that no goroutine uses Mem, Ring or the sleep words when it calls
// Release.
func (w *Window) Release(clean bool) {
	if w.released.Swap(true) {
		return
	}
	rem, p := w.rem, w.rem.peer
	p.dev.stats.windows.Add(-1)
	p.mu.Lock()
	t := rem.waiter
	rem.waiter = nil
	keep := clean && !rem.revoked && !p.gone && (t != nil || p.idleWindows < maxIdleWindows)
	switch {
	case keep && t != nil:
		t.ok = true // busy as before, and the reference on the peer goes over
		close(t.done)
		p.mu.Unlock()
		return
	case keep:
		rem.busy = false
		p.idleWindows++
	default:
		delete(p.remotes, rem.token)
		if !rem.revoked && !p.gone {
			p.control(&message{kind: kindDrop, token: rem.token}, -1)
		}
		if t != nil {
			close(t.done)
		}
	}
	p.mu.Unlock()
	if !keep {
		p.dev.unmapRemote(rem)
	}
	p.unref()
}

// unmapRemote unmaps a peer's memory that is in no table any more.
func (d *Device) unmapRemote(rem *remote) {
	size := int64(len(rem.mem))
	unmap(rem.mem)
	rem.mem = nil
	d.mapped.Add(-size)
}

// dropIdle unmaps memory of the peer that no connection uses, at least size bytes if there are as
// many, and returns how many they were.
func (p *Peer) dropIdle(size int64) int64 {
	var dead []*remote
	var taken int64
	p.mu.Lock()
	for token, rem := range p.remotes {
		if taken >= size || p.gone {
			break
		}
		if rem.busy {
			continue
		}
		delete(p.remotes, token)
		p.idleWindows--
		p.control(&message{kind: kindDrop, token: token}, -1)
		taken += int64(len(rem.mem))
		dead = append(dead, rem)
	}
	p.mu.Unlock()
	for _, rem := range dead {
		p.dev.unmapRemote(rem)
	}
	return taken
}

// handleAttachReply takes the answer to an Attach of ours. short means that the descriptor could
// not be installed because we have too many. The descriptor is in the inbox.
func (p *Peer) handleAttachReply(m *message, in *inbox, short bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.requests[m.token]
	if r == nil {
		return violation("answer to an Attach that was not sent")
	}
	delete(p.requests, m.token)
	<-p.attaching
	defer close(r.done)
	var mem []byte
	var err error
	switch {
	case m.status == attachResources:
		err = fmt.Errorf("ism: the peer has no resources to hand over %v", m.token)
	case m.status != attachOK:
		err = fmt.Errorf("%w: %v was refused with status %d", ErrToken, m.token, m.status)
	case short:
		err = fmt.Errorf("ism: receiving %v: %w", m.token, unix.EMFILE)
	case int(m.size) != r.size:
		err = violation("DMB has %d bytes, want %d", m.size, r.size)
	default:
		fd := in.take()
		mem, err = mapReceived(fd, r.size)
		closeForeign(fd)
	}
	if err == nil && r.abandoned {
		unmap(mem)
		err = context.Canceled
	}
	if err != nil {
		r.err = err
		p.dev.mapped.Add(-int64(r.size))
		if m.status == attachOK {
			p.control(&message{kind: kindDrop, token: m.token}, -1)
		}
		if errors.Is(err, ErrProtocol) {
			return err
		}
		return nil
	}
	r.rem = &remote{peer: p, mem: mem, token: m.token, slot: m.slot, busy: true}
	p.remotes[m.token] = r.rem
	p.refs.Add(1)
	return nil
}

// handleRevoke takes a Revoke: a DMB that we have mapped is no more. Of one that we do not have,
// our Drop has crossed it.
func (p *Peer) handleRevoke(m *message) {
	p.mu.Lock()
	rem := p.remotes[m.token]
	if rem == nil {
		p.mu.Unlock()
		return
	}
	rem.revoked = true
	tell, idle := rem.onRevoke, !rem.busy
	rem.onRevoke = nil
	if idle {
		delete(p.remotes, m.token)
		p.idleWindows--
	}
	p.mu.Unlock()
	if idle {
		p.dev.unmapRemote(rem)
	}
	if tell != nil {
		tell() // rule: TestOnRevoke
	}
}
