package capture

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Merge makes one [Source] of several: their packets in the order of time, numbered through.
// Packets of the same time come in the order of the arguments. Packet.Source is the index of the
// argument. The packets of one source stay in its order; a packet without a time has the time of
// the packet before it.
//
// The result owns the sources and closes them. It holds one packet of each. There may be at most
// [MaxSources]; Merge panics if there are more. Errors of a source are passed on when they are met.
// It waits for every source that has not ended: of interfaces, merge none.
func Merge(sources ...Source) Source {
	if len(sources) > MaxSources {
		panic(fmt.Sprintf("capture: Merge of %d sources, at most %d", len(sources), MaxSources))
	}
	m := &merged{}
	for i, s := range sources {
		m.heads = append(m.heads, &head{source: s, index: i})
	}
	m.unread = slices.Clone(m.heads)
	slices.Reverse(m.unread) // it is a stack: the first is asked first
	return m
}

// A merged is the Source that Merge makes.
type merged struct {
	heads  []*head // all
	unread []*head // their packets have been returned
	queue  headQueue
	packet Packet
}

// A head is a source and the packet that it gave last.
type head struct {
	source Source
	index  int
	packet *Packet
	at     time.Time // its place in the order
}

// Next implements [Source].
func (m *merged) Next() (*Packet, error) {
	for len(m.unread) > 0 {
		h := m.unread[len(m.unread)-1]
		p, err := h.source.Next()
		if err != nil && err != io.EOF {
			return nil, err // its next packet is asked for next time
		}
		m.unread = m.unread[:len(m.unread)-1]
		if err == io.EOF {
			continue
		}
		h.packet = p
		if !p.Time.IsZero() {
			h.at = p.Time
		}
		heap.Push(&m.queue, h)
	}
	if len(m.queue) == 0 {
		return nil, io.EOF
	}
	h := heap.Pop(&m.queue).(*head)
	m.unread = append(m.unread, h)
	number := m.packet.Number + 1
	m.packet = *h.packet
	m.packet.Number, m.packet.Source = number, h.index
	return &m.packet, nil
}

// Close implements [Source].
func (m *merged) Close() error {
	var errs []error
	for _, h := range m.heads {
		errs = append(errs, h.source.Close())
	}
	return errors.Join(errs...)
}

// Name implements [Source].
func (m *merged) Name() string {
	names := make([]string, len(m.heads))
	for i, h := range m.heads {
		names[i] = h.source.Name()
	}
	return strings.Join(names, ", ")
}

// Progress implements [Progresser]. The size is known if the size of every source is known.
func (m *merged) Progress() (read, size int64, ok bool) {
	ok = true
	for _, h := range m.heads {
		p, has := h.source.(Progresser)
		if !has {
			ok = false
			continue
		}
		r, s, known := p.Progress()
		read, size, ok = read+r, size+s, ok && known
	}
	return read, size, ok
}

// A headQueue has the head with the earliest packet first.
type headQueue []*head

func (q headQueue) Len() int { return len(q) }
func (q headQueue) Less(i, j int) bool {
	if c := q[i].at.Compare(q[j].at); c != 0 {
		return c < 0
	}
	return q[i].index < q[j].index
}
func (q headQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *headQueue) Push(h any)   { *q = append(*q, h.(*head)) }
func (q *headQueue) Pop() any {
	last := len(*q) - 1
	h := (*q)[last]
	*q = (*q)[:last]
	return h
}
