package verbs

import (
	"strconv"

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
	// EventMTUChanged: the MTU of the device has changed. Queue pairs with a larger path MTU cannot send.
	EventMTUChanged
	// EventQPFailed: a queue pair has gone to [StateError] other than by its owner.
	EventQPFailed
	// EventSendsRefused: the kernel would not send packets, for a firewall's rule, a route, or their size.
	// They are lost. Being short of memory is not told, as it goes by.
	EventSendsRefused
	// EventOthersChanged: other interfaces of the network namespace have changed, or their
	// addresses: there may be one for another device, or one less.
	EventOthersChanged
	// EventDeviceRemoved: the device is gone for good, or has failed. Its queue pairs do no more work.
	EventDeviceRemoved
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
	case EventDeviceRemoved:
		return "device removed"
	}
	return "event(" + strconv.Itoa(int(k)) + ")"
}

// An Event is news of a device that the owner has not asked for, as the asynchronous events of verbs are.
type Event struct {
	Kind EventKind

	MTU wire.MTU // of EventMTUChanged: the present one

	// Of EventQPFailed. Status is the result of a request of ours, StatusOK if it was a request of
	// the peer that could not be done; then Nak is our answer to the peer.
	QP     QP
	Status Status
	Nak    roce.Syndrome

	// Of EventSendsRefused: the newest reason, a [unix.Errno], and how many packets since it was told last.
	Err   error
	Count uint64
}
