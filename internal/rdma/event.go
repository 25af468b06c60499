package rdma

import (
	"slices"
	"sync"

	"github.com/gosmc/smc/internal/rdma/netdev"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// events holds the news that a device has for its owner. It is always bounded: of the interface it
// has the present state and the state that the owner knows, of refused packets a number, and of
// failures one for each queue pair. So nothing is lost and nobody waits. A change that was undone
// before the owner asked is not told.
type events struct {
	news chan struct{}

	mu      sync.Mutex
	port    netdev.State
	told    netdev.State
	others  bool // have changed
	failed  []Event
	refused Event
}

func (e *events) init(port netdev.State) {
	e.news = make(chan struct{}, 1)
	e.port, e.told = port, port
}

// Events returns a channel that has a value if something has happened since the last one was taken out of
// it. Take the value, then call [Device.PollEvents] until there is nothing.
func (d *Device) Events() <-chan struct{} { return d.events.news }

// PollEvents moves up to len(dst) events to dst and returns how many. Events about the interface
// tell how it is now, where that differs from the last events: one that went down and came up again
// before anyone asked is not told. They are told only while [Device.Unwatched] is nil. After
// [Device.Close] there are no new ones, nor any of a queue pair that is closed.
func (d *Device) PollEvents(dst []Event) int { return d.events.poll(dst) }

func (e *events) poll(dst []Event) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n < len(dst) && e.next(&dst[n]) {
		n++
	}
	return n
}

// next takes out one event. The caller holds mu.
func (e *events) next(to *Event) bool {
	switch {
	case e.port.Up != e.told.Up:
		e.told.Up = e.port.Up
		*to = Event{Kind: EventInterfaceDown}
		if e.port.Up {
			to.Kind = EventInterfaceUp
		}
	case e.port.Address != e.told.Address:
		e.told.Address = e.port.Address
		*to = Event{Kind: EventAddressGone}
		if e.port.Address {
			to.Kind = EventAddressBack
		}
	case e.port.MTU != e.told.MTU:
		e.told.MTU = e.port.MTU
		*to = Event{Kind: EventMTUChanged, MTU: e.port.MTU}
	case e.others:
		e.others = false
		*to = Event{Kind: EventOthersChanged}
	case len(e.failed) > 0:
		*to = e.failed[0]
		to.QP.(*QP).inEvents = false
		e.failed[0] = Event{}
		if e.failed = e.failed[1:]; len(e.failed) == 0 {
			e.failed = nil
		}
	case e.refused.Count > 0:
		*to = e.refused
		e.refused = Event{}
	default:
		return false
	}
	return true
}

// ring says that there is news.
func (e *events) ring() {
	select {
	case e.news <- struct{}{}:
	default:
	}
}

// setPort takes the present state of the interface.
func (e *events) setPort(p netdev.State) {
	e.mu.Lock()
	e.port = p
	news := e.port != e.told
	e.mu.Unlock()
	if news {
		e.ring()
	}
}

// othersChanged takes that other interfaces have changed.
func (e *events) othersChanged() {
	e.mu.Lock()
	e.others = true
	e.mu.Unlock()
	e.ring()
}

// mtu returns the interface's present MTU.
func (e *events) mtu() wire.MTU {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.port.MTU
}

// qpFailed takes that a queue pair has failed. Its lock is held.
func (e *events) qpFailed(q *QP, why failure) {
	e.drop(q) // of an earlier life
	e.mu.Lock()
	q.inEvents = true
	e.failed = append(e.failed, Event{Kind: EventQPFailed, QP: q, Status: why.status, Nak: why.nak})
	e.mu.Unlock()
	e.ring()
}

// drop forgets the news of a queue pair.
func (e *events) drop(q *QP) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !q.inEvents { // thousands may fail at once
		return
	}
	q.inEvents = false
	e.failed = slices.DeleteFunc(e.failed, func(old Event) bool { return old.QP == q })
}

// sendsRefused takes that the kernel would not send packets.
func (e *events) sendsRefused(reason error, packets int) {
	e.mu.Lock()
	e.refused = Event{Kind: EventSendsRefused, Err: reason, Count: e.refused.Count + uint64(packets)}
	e.mu.Unlock()
	e.ring()
}

// A failure is why a queue pair has gone to ERR by itself, until it is told.
type failure struct {
	happened bool
	status   Status
	nak      roce.Syndrome
}
