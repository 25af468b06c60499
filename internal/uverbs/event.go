package uverbs

import (
	"errors"
	"os"
	"strconv"
	"time"
)

// An EventKind is the kind of news in an [Event]. The values are the kernel's, enum ib_event_type,
// but for EventRemoved.
type EventKind uint32

// The kinds that concern SMC.
const (
	EventCQError     EventKind = 0 // a completion queue has lost completions
	EventQPFatal     EventKind = 1 // a queue pair has gone to ERR by an error of the device
	EventQPRequest   EventKind = 2 // the same, by an invalid request of the peer
	EventQPAccess    EventKind = 3 // the same, by a request that the peer had no right to
	EventEstablished EventKind = 4 // a first packet has come to a queue pair in RTR
	EventPathMoved   EventKind = 6 // a connection has changed to its alternate path
	EventDeviceFatal EventKind = 8 // the device has failed
	EventPortActive  EventKind = 9
	EventPortDown    EventKind = 10
	EventGIDChange   EventKind = 18

	// EventRemoved: the device was removed. The kernel waits with the rest until the context is
	// closed.
	EventRemoved EventKind = 1<<32 - 1
)

// String returns "port down", "device removed" and so on.
func (k EventKind) String() string {
	switch k {
	case EventCQError:
		return "completion queue error"
	case EventQPFatal:
		return "queue pair fatal error"
	case EventQPRequest:
		return "queue pair invalid request"
	case EventQPAccess:
		return "queue pair access violation"
	case EventEstablished:
		return "communication established"
	case EventPathMoved:
		return "path moved"
	case EventDeviceFatal:
		return "device fatal error"
	case EventPortActive:
		return "port active"
	case EventPortDown:
		return "port down"
	case EventGIDChange:
		return "GID change"
	case EventRemoved:
		return "device removed"
	}
	return "event(" + strconv.FormatUint(uint64(k), 10) + ")"
}

func (k EventKind) ofQP() bool {
	switch k {
	case EventQPFatal, EventQPRequest, EventQPAccess, EventEstablished, EventPathMoved:
		return true
	}
	return false
}

// An Event is asynchronous news of a device: IBTA 11.6.3.
type Event struct {
	Kind EventKind
	QP   *QP   // of events of a queue pair; nil if it is closed
	Port uint8 // of events of a port
}

// An event as read(2) returns it.
//
//	offset  size  field
//	     0     8  handle of the queue pair or completion queue, or number of the port
//	     8     4  kind
//	    12     4  reserved
const asyncEventLen = 16

func parseAsyncEvent(b []byte) (element uint64, kind EventKind, err error) {
	if err := needs("asynchronous event", b, asyncEventLen); err != nil {
		return 0, 0, err
	}
	kind = EventKind(host.Uint32(b[8:]))
	if kind == EventRemoved {
		return 0, 0, kernelError("an event of kind %#x", uint32(kind))
	}
	return host.Uint64(b), kind, nil
}

// NextEvent waits for an event. deadline bounds the wait unless it is zero; then the error is
// [os.ErrDeadlineExceeded]. After [Context.Close] it is [ErrClosed]. One goroutine waits at a time.
//
// The removal of the device is noticed within a second. The removal waits for the owner to close
// the context.
func (c *Context) NextEvent(deadline time.Time) (Event, error) {
	var b [asyncEventLen]byte
	for {
		until := time.Now().Add(removalCheck)
		last := !deadline.IsZero() && !deadline.After(until)
		if last {
			until = deadline
		}
		if err := setDeadline(c.events, until); err != nil {
			return Event{}, err
		}
		n, err := c.events.Read(b[:])
		switch {
		case err == nil:
			element, kind, err := parseAsyncEvent(b[:n])
			if err != nil {
				return Event{}, err
			}
			return c.event(element, kind), nil
		case errors.Is(err, os.ErrClosed):
			return Event{}, ErrClosed
		case c.Removed(), errors.Is(fileError(err), ErrRemoved):
			return Event{Kind: EventRemoved}, nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return Event{}, fileError(err)
		case last:
			return Event{}, os.ErrDeadlineExceeded
		}
	}
}

// event resolves the element of an event. A handle that is unknown gives an event without a queue
// pair.
func (c *Context) event(element uint64, kind EventKind) Event {
	e := Event{Kind: kind}
	switch {
	case kind.ofQP():
		c.mu.Lock()
		e.QP = c.qps[element]
		c.mu.Unlock()
	case kind == EventPortActive, kind == EventPortDown, kind == EventGIDChange:
		if element <= maxPorts {
			e.Port = uint8(element)
		}
	}
	return e
}
