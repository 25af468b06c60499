package rdma

import (
	"slices"
	"strconv"
	"sync"

	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/roce"
)

// An EventKind is the kind of news in an [Event].
type EventKind uint8

// All kinds of events.
const (
	// EventInterfaceDown: the interface is down, has no carrier, or is gone. Nothing is sent or received.
	EventInterfaceDown EventKind = iota + 1
	// EventInterfaceUp: it is up again.
	EventInterfaceUp
	// EventAddressGone: the interface does not have the device's address any more. If another one has
	// it, that makes another device: this one is of no more use.
	EventAddressGone
	// EventAddressBack: it has it again.
	EventAddressBack
	// EventMTUChanged: [Device.MTU] has changed. Queue pairs with a larger path MTU cannot send.
	EventMTUChanged
	// EventQPFailed: a queue pair has gone to [StateError] other than by its owner.
	EventQPFailed
	// EventSendsRefused: the kernel would not send packets, for a firewall's rule, a route, or their size.
	// They are lost. Being short of memory is not told, as it goes by.
	EventSendsRefused
	// EventOthersChanged: other interfaces of the network namespace have changed, or their
	// addresses: there may be one for another device, or one less.
	EventOthersChanged
)

// String returns "interface down", "queue pair failed" and so on.
func (k EventKind) String() string {
	switch k {
	case EventInterfaceDown:
		return "interface down"
	case EventInterfaceUp:
		return "interface up"
	case EventAddressGone:
		return "address gone"
	case EventAddressBack:
		return "address back"
	case EventMTUChanged:
		return "MTU changed"
	case EventQPFailed:
		return "queue pair failed"
	case EventSendsRefused:
		return "sends refused"
	case EventOthersChanged:
		return "other interfaces changed"
	}
	return "event(" + strconv.Itoa(int(k)) + ")"
}

// An Event is news of a device that the owner has not asked for, as the asynchronous events of verbs are.
type Event struct {
	Kind EventKind

	MTU wire.MTU // of EventMTUChanged: the present one

	// Of EventQPFailed. Status is the result of a request of ours, StatusOK if it was a request of
	// the peer that could not be done; then Nak is our answer to the peer.
	QP     *QP
	Status Status
	Nak    roce.Syndrome

	// Of EventSendsRefused: the newest reason, a [unix.Errno], and how many packets since it was told last.
	Err   error
	Count uint64
}

// portState is the state of a device's interface.
type portState struct {
	up      bool // and has a carrier
	address bool // the interface has the device's address
	mtu     wire.MTU
}

// events holds the news that a device has for its owner. It is always bounded: of the interface it
// has the present state and the state that the owner knows, of refused packets a number, and of
// failures one for each queue pair. So nothing is lost and nobody waits. A change that was undone
// before the owner asked is not told.
type events struct {
	news chan struct{}

	mu      sync.Mutex
	port    portState
	told    portState
	others  bool // have changed
	failed  []Event
	refused Event
}

func (e *events) init(port portState) {
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
	case e.port.up != e.told.up:
		e.told.up = e.port.up
		*to = Event{Kind: EventInterfaceDown}
		if e.port.up {
			to.Kind = EventInterfaceUp
		}
	case e.port.address != e.told.address:
		e.told.address = e.port.address
		*to = Event{Kind: EventAddressGone}
		if e.port.address {
			to.Kind = EventAddressBack
		}
	case e.port.mtu != e.told.mtu:
		e.told.mtu = e.port.mtu
		*to = Event{Kind: EventMTUChanged, MTU: e.port.mtu}
	case e.others:
		e.others = false
		*to = Event{Kind: EventOthersChanged}
	case len(e.failed) > 0:
		*to = e.failed[0]
		to.QP.inEvents = false
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
func (e *events) setPort(p portState) {
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
	return e.port.mtu
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
