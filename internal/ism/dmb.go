package ism

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// A DMB is a receive buffer: memory of ours that one peer writes. It is one use of that memory,
// by one connection; after [DMB.Release] the memory may serve another DMB of the same peer.
//
// The methods that return something do not change anything and may be called from any goroutine
// until Release.
type DMB struct {
	seg      *segment
	ring     func()
	released atomic.Bool
}

// A segment is the memory of a DMB, on the side that owns it. Peer.mu guards the fields that
// change.
type segment struct {
	peer     *Peer
	mem      []byte
	token    wire.Token
	idleFrom time.Duration // since the device was opened; while in the cache
	slot     uint32
	fd       int32 // -1 once it was handed to the peer
	code     wire.SizeCode
	dropped  bool // the peer cannot use the memory again
	reserved bool // all pages are there: see overcommit.go
}

// NewDMB returns a buffer of size bytes, 16 KiB << 0..15, for this peer to write.
//
// A fresh buffer is zero. Of one that was used before, with the same peer, the first [HeaderLen]
// bytes are zero and the rest is as it was.
//
// ring, which may be nil, is called each time the peer rings, from a goroutine that serves all
// DMBs of the peer: it must not block, and must be ready to be called for nothing. One call that
// has begun before Release may still run after it.
//
// Errors match ErrSize, ErrBudget, ErrLimit, ErrMappings, ErrPeerGone, or are the kernel's. They also
// come when there is room for the DMB and none for the peer's, which every connection needs as well.
func (p *Peer) NewDMB(size int, ring func()) (*DMB, error) {
	code, ok := elementSize(size)
	if !ok {
		return nil, fmt.Errorf("%w: no DMB has %d bytes", ErrSize, size)
	}
	if d, err := p.reuse(code, ring); d != nil || err != nil {
		return d, err
	}
	if err := p.dev.room(size); err != nil {
		return nil, err
	}
	if err := strangerRoom(p.dev, p, size); err != nil {
		return nil, err
	}
	if !p.dev.reserve(int64(size)) { // rule: TestBudget
		return nil, fmt.Errorf("%w: %d bytes more", ErrBudget, size)
	}
	seg, err := p.newSegment(code)
	if err != nil {
		p.dev.budget.Add(-int64(size))
		return nil, err
	}
	d := &DMB{seg: seg, ring: ring}
	p.bell.setUser(seg.slot, d)
	p.dev.stats.dmbs.Add(1)
	return d, nil
}

// newSegment makes a segment whose bytes are already counted, enters it into the peer's table and
// takes a reference on the peer.
func (p *Peer) newSegment(code wire.SizeCode) (*segment, error) {
	slot, err := p.claimSlot()
	if err != nil {
		return nil, err
	}
	strict := overcommit.isStrict()
	fd, mem, err := newMemory("gosmc-dmb", code.Bytes()) // takes long, so without the lock
	p.mu.Lock()
	if err == nil && p.gone {
		unix.Close(fd)
		unmap(mem)
		err = ErrPeerGone
	}
	if err != nil {
		p.unattached--
		p.bell.giveSlot(slot)
		p.mu.Unlock()
		p.unref()
		return nil, err
	}
	defer p.mu.Unlock()
	seg := &segment{peer: p, mem: mem, fd: int32(fd), slot: slot, code: code, token: newToken(), reserved: strict}
	for p.segments[seg.token] != nil {
		seg.token = newToken()
	}
	p.segments[seg.token] = seg
	return seg, nil
}

// claimSlot takes a slot, a place among the DMBs not yet attached, and a reference on the peer.
func (p *Peer) claimSlot() (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return 0, ErrPeerGone
	}
	if p.unattached >= maxUnattached { // rule: TestUnattachedLimit
		return 0, fmt.Errorf("%w: %d DMBs of this peer wait to be attached", ErrLimit, maxUnattached)
	}
	slot, ok := p.bell.takeSlot()
	if !ok {
		return 0, fmt.Errorf("%w: %d DMBs with this peer", ErrLimit, SlotCount)
	}
	p.unattached++
	p.refs.Add(1)
	return slot, nil
}

// reuse takes a DMB from the cache; nil if there is none of the size.
func (p *Peer) reuse(code wire.SizeCode, ring func()) (*DMB, error) {
	p.mu.Lock()
	if p.gone {
		p.mu.Unlock()
		return nil, ErrPeerGone
	}
	seg := p.idle.pop(code)
	if seg != nil && !seg.reserved && overcommit.isStrict() { // it was made before that
		p.forget(seg)
		p.dev.stats.cached.Add(-1)
		p.dev.stats.evicted.Add(1)
		p.mu.Unlock()
		p.destroy([]*segment{seg})
		return nil, nil
	}
	if seg == nil {
		p.mu.Unlock()
		return nil, nil
	}
	p.refs.Add(1)
	p.mu.Unlock()

	p.dev.stats.dmbs.Add(1)
	p.dev.stats.cached.Add(-1)
	p.dev.stats.reused.Add(1)
	clear(seg.mem[:HeaderLen])  // rule: TestReuse
	p.bell.clearFlags(seg.slot) // rule: TestReuse
	d := &DMB{seg: seg, ring: ring}
	p.bell.setUser(seg.slot, d)
	return d, nil
}

// Peer returns the only peer that can attach the DMB.
func (d *DMB) Peer() *Peer { return d.seg.peer }

// Token returns the token that the peer needs to attach the DMB. It is not zero.
func (d *DMB) Token() wire.Token { return d.seg.token }

// Slot returns the number, below [SlotCount], by which the peer rings. It is the DMB's own until
// Release.
func (d *DMB) Slot() int { return int(d.seg.slot) }

// Mem returns the element: page-aligned memory that the peer may write at any time. It must not be
// touched after Release.
func (d *DMB) Mem() []byte { return d.seg.mem }

// ReaderSleeps returns the word by which we say that we wait for data in this DMB: we store 1,
// the peer swaps it to 0 and rings. The peer may write anything there at any time. It must not be
// touched after Release.
func (d *DMB) ReaderSleeps() *atomic.Uint32 { return &d.seg.peer.bell.seg.slots[d.seg.slot].reader }

// WriterSleeps returns the word by which we say that we wait for space in the peer's DMB. Otherwise
// it is as ReaderSleeps.
func (d *DMB) WriterSleeps() *atomic.Uint32 { return &d.seg.peer.bell.seg.slots[d.seg.slot].writer }

// Read returns the word in which we keep how many bytes of this DMB were read, so that a peer that outlives
// us knows. The peer may write anything there at any time. It must not be touched after Release.
func (d *DMB) Read() *atomic.Uint64 { return &d.seg.peer.bell.seg.slots[d.seg.slot].read }

// Release ends the use of the DMB. The second call and later ones do nothing.
//
// clean says that the connection has ended in order: the peer has made its last access to the
// element, or will make none that matters to the next connection. Such memory is kept for a
// while, so that [Peer.NewDMB] can use it again, without a system call on either side. Other
// memory is destroyed; the peer unmaps it when it has released it, too.
//
// The caller must make sure that no goroutine uses Mem or the sleep words when it calls Release.
func (d *DMB) Release(clean bool) {
	if d.released.Swap(true) {
		return
	}
	seg, p := d.seg, d.seg.peer
	p.bell.setUser(seg.slot, nil)
	p.dev.stats.dmbs.Add(-1)

	p.mu.Lock()
	var dead []*segment
	switch {
	case p.gone:
		dead = append(dead, seg)
	case clean && seg.fd < 0 && !seg.dropped && seg.code.Bytes() <= p.dev.lim.idleBytes:
		seg.idleFrom = p.dev.now()
		p.idle.push(seg)
		p.dev.stats.cached.Add(1)
		for p.idle.count > p.dev.lim.idleDMBs || p.idle.bytes > p.dev.lim.idleBytes {
			dead = append(dead, p.evictOldest())
		}
		p.armEviction()
	default:
		p.forget(seg)
		dead = append(dead, seg)
	}
	p.mu.Unlock()
	p.destroy(dead)
	p.unref()
}

// forget takes a segment out of the peer's table, with p.mu held, and tells the peer if it has
// the memory. The caller then destroys it.
func (p *Peer) forget(seg *segment) {
	delete(p.segments, seg.token)
	p.retire(seg.token)
	if seg.fd >= 0 {
		unix.Close(int(seg.fd))
		seg.fd = -1
		p.unattached--
	} else if !seg.dropped {
		p.control(&message{kind: kindRevoke, token: seg.token}, -1)
		p.dev.stats.revoked.Add(1)
	}
	p.bell.giveSlot(seg.slot)
}

// destroy unmaps segments that are in no table any more. It needs no lock.
func (p *Peer) destroy(segs []*segment) {
	for _, seg := range segs {
		unmap(seg.mem)
		p.dev.budget.Add(-int64(len(seg.mem)))
		seg.mem = nil
	}
}

// retire remembers the token of a destroyed DMB, with p.mu held.
func (p *Peer) retire(t wire.Token) {
	if len(p.retired) < maxRetired {
		p.retired = append(p.retired, t)
		return
	}
	p.retired[p.retiredNext] = t
	p.retiredNext = (p.retiredNext + 1) % maxRetired
}

// An idleCache has the segments that were released in order, by size, each list with the oldest
// first.
type idleCache struct {
	bySize [wire.MaxSizeCode + 1][]*segment
	count  int
	bytes  int
}

func (c *idleCache) push(seg *segment) {
	c.bySize[seg.code] = append(c.bySize[seg.code], seg)
	c.count++
	c.bytes += len(seg.mem)
}

// pop takes the newest segment of a size, whose pages are most likely still in a processor's cache.
func (c *idleCache) pop(code wire.SizeCode) *segment {
	list := c.bySize[code]
	if len(list) == 0 {
		return nil
	}
	return c.remove(code, len(list)-1)
}

func (c *idleCache) remove(code wire.SizeCode, i int) *segment {
	list := c.bySize[code]
	seg := list[i]
	copy(list[i:], list[i+1:])
	list[len(list)-1] = nil
	c.bySize[code] = list[:len(list)-1]
	c.count--
	c.bytes -= len(seg.mem)
	return seg
}

// oldest returns the segment that has been here longest, nil if there is none.
func (c *idleCache) oldest() *segment {
	var oldest *segment
	for _, list := range &c.bySize {
		if len(list) > 0 && (oldest == nil || list[0].idleFrom < oldest.idleFrom) {
			oldest = list[0]
		}
	}
	return oldest
}

// drop takes seg out if it is here.
func (c *idleCache) drop(seg *segment) bool {
	for i, s := range c.bySize[seg.code] {
		if s == seg {
			c.remove(seg.code, i)
			return true
		}
	}
	return false
}

// evictOldest takes the oldest segment out of the cache, which is not empty, and out of the
// peer's table. p.mu is held; the caller destroys the segment.
func (p *Peer) evictOldest() *segment {
	seg := p.idle.oldest()
	p.idle.remove(seg.code, 0)
	p.forget(seg)
	p.dev.stats.cached.Add(-1)
	p.dev.stats.evicted.Add(1)
	return seg
}

// armEviction starts the timer that empties the cache, if there is something in it and none runs.
// p.mu is held.
func (p *Peer) armEviction() {
	if p.evicting || p.idle.count == 0 {
		return
	}
	p.evicting = true
	wait := p.idle.oldest().idleFrom + p.dev.lim.idleTime - p.dev.now()
	if p.evictTimer == nil {
		p.evictTimer = time.AfterFunc(wait, p.evictIdle)
	} else {
		p.evictTimer.Reset(wait)
	}
}

// evictIdle is the function of the timer.
func (p *Peer) evictIdle() {
	var dead []*segment
	p.mu.Lock()
	p.evicting = false
	if !p.gone {
		limit := p.dev.now() - p.dev.lim.idleTime
		for p.idle.count > 0 && p.idle.oldest().idleFrom <= limit {
			dead = append(dead, p.evictOldest())
		}
		p.armEviction()
	}
	p.mu.Unlock()
	p.destroy(dead)
}

// evictFor takes up to size bytes out of the cache and returns how many it has taken.
func (p *Peer) evictFor(size int64) int64 {
	var dead []*segment
	var taken int64
	p.mu.Lock()
	for taken < size && !p.gone && p.idle.count > 0 {
		seg := p.evictOldest()
		taken += int64(len(seg.mem))
		dead = append(dead, seg)
	}
	p.mu.Unlock()
	p.destroy(dead)
	return taken
}

// handleAttach takes an Attach: the peer wants the memory of a DMB of ours.
func (p *Peer) handleAttach(m *message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := message{kind: kindAttachReply, token: m.token}
	seg := p.segments[m.token]
	guess := false
	switch {
	case seg == nil:
		answer.status = attachUnknown
		guess = !p.isRetired(m.token)
	case seg.fd < 0: // rule: TestHostileAttach
		answer.status = attachTaken
		guess = !seg.dropped // a peer that has dropped it may have asked before it knew
	case int(m.size) != len(seg.mem): // rule: TestHostileAttach
		answer.status = attachSize
		guess = true
	default:
		return p.handOver(seg)
	}
	p.dev.stats.badTokens.Add(1)
	if guess {
		if p.badTokens++; p.badTokens > maxBadTokens { // rule: TestHostileMessages: p.badTokens > maxBadTokens -> false
			return violation("more than %d attach requests for DMBs that are not to be had", maxBadTokens)
		}
	}
	return p.control(&answer, -1)
}

// handOver sends the memory of a segment to the peer, with p.mu held.
func (p *Peer) handOver(seg *segment) error {
	answer := message{kind: kindAttachReply, token: seg.token, size: uint32(len(seg.mem)), slot: seg.slot}
	err := p.control(&answer, int(seg.fd))
	if err != nil && !errors.Is(err, ErrProtocol) {
		// The kernel will not carry the descriptor now; it stays ours, the DMB can be asked for
		// again.
		return p.control(&message{kind: kindAttachReply, token: seg.token, status: attachResources}, -1)
	}
	if err != nil {
		return err
	}
	seg.fd = -1
	p.unattached--
	return nil
}

// handleDrop takes a Drop: the peer has unmapped a DMB of ours and cannot use it again.
func (p *Peer) handleDrop(m *message) error {
	p.mu.Lock()
	seg := p.segments[m.token]
	if seg == nil { // our Revoke has crossed it
		p.mu.Unlock()
		return nil
	}
	if seg.fd >= 0 { // rule: TestHostileDrop
		p.mu.Unlock()
		return violation("Drop of a DMB that was not attached")
	}
	seg.dropped = true
	var dead []*segment
	if p.idle.drop(seg) {
		p.dev.stats.cached.Add(-1)
		p.forget(seg)
		dead = append(dead, seg)
	}
	p.mu.Unlock()
	p.destroy(dead)
	return nil
}

// isRetired reports whether t was the token of a DMB that was destroyed not long ago. p.mu is held.
func (p *Peer) isRetired(t wire.Token) bool { return slices.Contains(p.retired, t) }
