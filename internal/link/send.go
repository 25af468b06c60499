package link

import (
	"slices"

	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire/cdc"
)

// workPerPost is the most work requests of a post: two WRITEs and a CDC message.
const workPerPost = 3

// Work requests are told apart by their IDs: the kind of place, and its index.
const (
	idKind = 0xff00
	idCDC  = 1 << 8
	idLLC  = 2 << 8
)

// A place is room for one CDC message on its way, and the WRITEs before it.
type place struct {
	carrier *Carrier // nil: not on its way
	gen     uint32   // of the carrier's, when it got the place
	end     uint64   // of the connection's stream, once it has arrived
	done    progress // likewise
	work    [workPerPost]verbs.SendWR
	count   int // of work
}

// message is the memory of a place's CDC message.
func (l *Link) message(i int) []byte { return l.area[cdcAt+i*cdcLen:][:cdc.MessageLen] }

// A queue has connections that wait for a place, in the order of their turns. The link's lock guards it, and
// Carrier.next.
type queue struct{ first, last *Carrier }

func (q *queue) push(c *Carrier) {
	c.next = nil
	if q.last == nil {
		q.first = c
	} else {
		q.last.next = c
	}
	q.last = c
}

func (q *queue) pop() *Carrier {
	c := q.first
	if c == nil {
		return nil
	}
	if q.first = c.next; q.first == nil {
		q.last = nil
	}
	c.next = nil
	return c
}

// take gives c a place if there is one and nobody waits for it. Otherwise c is put into the queue, or, if
// the link is gone, told that it will not get one.
func (l *Link) take(c *Carrier) (index int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return 0, false
	}
	if l.waiting.first == nil {
		if index, ok = l.takePlace(c); ok {
			return index, true
		}
	}
	c.queued = true
	l.waiting.push(c)
	return 0, false
}

// takePlace gives c a place if there is one. l.mu is held.
func (l *Link) takePlace(c *Carrier) (int, bool) {
	n := len(l.free)
	if n == 0 || cdcSends-n+l.llcOut >= sends {
		return 0, false
	}
	i := int(l.free[n-1])
	l.free = l.free[:n-1]
	l.places[i].carrier, l.places[i].gen = c, c.gen.Load()
	return i, true
}

// A round is the work that pump posts at a time. Only the completion handler uses it.
type round struct {
	carriers [cdcSends]*Carrier
	indexes  [cdcSends]int
	writes   []verbs.SendWR
	messages []verbs.SendWR
}

// pump gives places to the carriers that wait, and posts for all of them at once: the WRITEs first
// and then the messages, so that packets of one size follow each other. Those are cheap to send.
func (l *Link) pump() {
	r := &l.round
	for more := true; more; {
		n, size := 0, uint32(0)
		r.writes, r.messages = r.writes[:0], r.messages[:0]
		for more && n < len(r.carriers) && size < maxPost { // no message waits for more WRITEs than that
			c, i := l.next()
			if more = c != nil; more && c.prepare(i) {
				work := l.places[i].work[:]
				k := l.places[i].count - 1
				for _, w := range work[:k] {
					size += w.Local[0].Len + w.Local[1].Len
				}
				r.writes = append(r.writes, work[:k]...)
				r.messages = append(r.messages, work[k])
				r.carriers[n], r.indexes[n] = c, i
				n++
			}
		}
		if n == 0 {
			return
		}
		err := l.qp.PostSend(r.writes...)
		if err == nil {
			err = l.qp.PostSend(r.messages...)
		}
		if err != nil {
			l.Fail(l.error(err))
		}
		for k, c := range r.carriers[:n] {
			if err != nil {
				l.completed(r.indexes[k], false)
			}
			c.postedAll()
			r.carriers[k] = nil
		}
	}
}

// next gives a place to the first that waits.
func (l *Link) next() (*Carrier, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.waiting.first
	if c == nil || l.gone {
		return nil, 0
	}
	i, ok := l.takePlace(c)
	if !ok {
		return nil, 0
	}
	return l.waiting.pop(), i
}

// giveBack returns a place that was not used.
func (l *Link) giveBack(i int) {
	l.mu.Lock()
	l.places[i].carrier = nil
	l.free = append(l.free, uint8(i))
	l.mu.Unlock()
}

// post posts the work of a place. No lock is held.
func (l *Link) post(i int) {
	p := &l.places[i]
	if err := l.qp.PostSend(p.work[:p.count]...); err != nil {
		l.Fail(l.error(err))
		l.completed(i, false)
	}
}

// completed takes that the message of a place has arrived, or never will.
func (l *Link) completed(i int, ok bool) {
	l.mu.Lock()
	p := &l.places[i]
	c := p.carrier
	if c == nil {
		l.mu.Unlock()
		return // it was given up before
	}
	var end uint64
	var done progress
	if ok { // else somebody may still be about to fill it
		end, done = p.end, p.done
	}
	gen := p.gen
	p.carrier = nil
	l.free = append(l.free, uint8(i))
	l.mu.Unlock()
	c.completed(gen, end, done, ok)
}

// An llcPlace is room for one LLC message on its way.
type llcPlace struct {
	used  bool
	tag   uint64
	large bool
}

// An llcMessage waits to be sent.
type llcMessage struct {
	bytes []byte
	tag   uint64
}

// SendLLC sends a message, of at most 8 KiB, after the messages of earlier calls. It is copied, and
// waits if too many are on their way. If tag is not zero an EventSent with it tells that it has
// arrived at the peer's device. The error is [ErrNotReady], [ErrTooMany], [ErrArgument], or why the
// link has failed; then it is not sent.
func (l *Link) SendLLC(message []byte, tag uint64) error {
	if len(message) == 0 || len(message) > receiveLen {
		return l.error(ErrArgument)
	}
	l.mu.Lock()
	switch {
	case l.gone:
		l.mu.Unlock()
		<-l.failed
		return l.error(l.err)
	case !l.ready:
		l.mu.Unlock()
		return l.error(ErrNotReady)
	case len(l.llcQueue) >= maxLLCQueue:
		l.mu.Unlock()
		return l.error(ErrTooMany)
	}
	l.llcQueue = append(l.llcQueue, llcMessage{slices.Clone(message), tag})
	l.mu.Unlock()
	l.pumpLLC()
	return nil
}

// pumpLLC posts LLC messages as long as there are places. One goroutine at a time does, so that they stay in
// order; others leave it to that one.
func (l *Link) pumpLLC() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.llcPosting {
		return
	}
	l.llcPosting = true
	for len(l.llcQueue) > 0 && !l.gone {
		i := slices.IndexFunc(l.llc[:], func(p llcPlace) bool { return !p.used })
		m := l.llcQueue[0]
		// Linux has one buffer for the long messages of all links.
		large := len(m.bytes) > cdc.MessageLen
		if i < 0 || cdcSends-len(l.free)+l.llcOut >= sends || large && l.large {
			break
		}
		l.llcQueue[0] = llcMessage{}
		l.llcQueue = l.llcQueue[1:]
		l.llc[i] = llcPlace{used: true, tag: m.tag, large: large}
		l.llcOut++
		l.large = l.large || large
		l.mu.Unlock()
		at := llcAt + i*receiveLen
		copy(l.area[at:], m.bytes)
		l.stats.sentLLC.Add(1)
		err := l.qp.PostSend(verbs.SendWR{
			ID: idLLC | uint64(i), Op: verbs.OpSend, Signaled: true, Solicited: true,
			Local: [2]verbs.SGE{{MR: l.mr, Addr: l.at + uint64(at), Len: uint32(len(m.bytes))}},
		})
		if err != nil {
			l.Fail(l.error(err))
		}
		l.mu.Lock()
	}
	l.llcPosting = false
}

// completedLLC takes that a message has arrived, or never will.
func (l *Link) completedLLC(i int, ok bool) {
	l.mu.Lock()
	p := l.llc[i]
	l.llc[i] = llcPlace{}
	l.llcOut--
	if p.large {
		l.large = false
	}
	l.mu.Unlock()
	if ok && p.tag != 0 {
		l.group.tell(Event{Kind: EventSent, Link: l, Tag: p.tag})
	}
}
