package stream

import (
	"sync/atomic"

	"github.com/gosmc/smc/wire/cdc"
)

// A Carrier takes the bytes and cursors that a [Conn] has for its peer. [Memory] is the carrier of
// SMC-D: the peer sees memory as it is written. A carrier for SMC-R keeps the bytes that were put
// in a ring of its own, writes them into the peer's buffer, and sends CDC messages.
//
// A Conn calls these methods with locks held. They must neither block nor call the Conn, except for
// Wake, Receive and Fail. The methods of one direction are called by one goroutine at a time, Room
// and Produce with the writer's lock, Consume with another one; the Wake methods with either. After
// [Conn.SendLast] or [Conn.Detach] none is called any more.
type Carrier interface {
	// Buffer is the ring into which Write copies, round and round from its beginning. It is always the same.
	Buffer() []byte

	// PeerBuffer is the size of the peer's buffer in bytes, round which the cursors go.
	PeerBuffer() int

	// Room returns how many bytes can be put into Buffer now, at most window, which is the peer's
	// room. Everything that was put before has been produced. A carrier that makes room later calls
	// [Conn.Wake].
	Room(window uint32) uint32

	// Produce lets the peer see everything that was put, which ends at to in its buffer, and wakes
	// its reader. It reports whether that took a ring. It takes all bytes that Room has allowed, in
	// as many pieces as the Conn likes. Bytes that cannot be sent at once go with the following
	// ones.
	Produce(to cdc.Cursor) (rang bool)

	// ProduceUrgent is Produce with flags about urgent data: [cdc.UrgentPending] while its last
	// byte has still to be put, both once that is the last byte that was put, none where it will
	// not come after all. The flags belong to this cursor: the next Produce takes them back. It
	// wakes the peer also where no goroutine sleeps by a sleep word.
	ProduceUrgent(to cdc.Cursor, flags cdc.ProducerFlags) (rang bool)

	// Consume publishes how far we have read, and our flags. It does not wake a goroutine that
	// sleeps by its sleep word.
	Consume(to cdc.Cursor, prod cdc.ProducerFlags, conn cdc.ConnFlags)

	// WakeReader and WakeWriter wake the peer's reader or writer if it sleeps, and report whether that took
	// a ring. Where a message wakes by its arrival they do nothing.
	WakeReader() (rang bool)
	WakeWriter() (rang bool)

	// Published is the header as the peer will have it when everything has arrived. Any goroutine
	// may call it until the Conn is detached.
	Published() cdc.Header
}

// An Inbox is where the peer's data for us arrives: bytes in a ring, and the two halves of its
// header, as package cdc packs them.
type Inbox struct {
	Data     []byte
	Producer *atomic.Uint64
	Consumer *atomic.Uint64
}

// ElementInbox is an inbox in an element of SMC-D, header first, which the peer writes.
func ElementInbox(element []byte) Inbox {
	return Inbox{
		Data:     element[cdc.HeaderLen:len(element):len(element)],
		Producer: word(element, cdc.ProducerOffset),
		Consumer: word(element, cdc.ConsumerOffset),
	}
}

// MessageInbox is an inbox for data that is placed by the fabric, and headers that come as messages, for
// [Conn.Receive].
func MessageInbox(data []byte) Inbox {
	return Inbox{Data: data, Producer: new(atomic.Uint64), Consumer: new(atomic.Uint64)}
}

// Receive takes the peer's header out of a message, which came after the data that it speaks of,
// and wakes the goroutines that wait for it. Messages have to be given in their order, by one
// goroutine at a time.
func (c *Conn) Receive(h cdc.Header) {
	read := at(c.r.total.Load(), len(c.rdata))
	// Before the flags, so that bytes written before the end are not missed.
	c.inProd.Store(ProducerWord(c.inProd.Load(), h.Producer, h.ProducerFlags, read))
	c.inCons.Store(cdc.PackConsumer(h.Consumer, h.ProducerFlags, h.ConnFlags))
	c.Wake()
}

// ProducerWord returns the producer half of an inbox after a message. That urgent data is there
// must not be lost with the next message, which comes without new data then, before anybody has
// looked: so it stays until read, which is how far we have read, is there.
func ProducerWord(old uint64, next cdc.Cursor, flags cdc.ProducerFlags, read cdc.Cursor) uint64 {
	was, kept := cdc.UnpackUrgent(old)
	if was == next && was != read {
		flags |= kept & cdc.UrgentPresent // rule: TestUrgentKept
	}
	return cdc.PackUrgent(next, flags)
}

// at is the place of byte number n of a stream in a ring of a size.
func at(n uint64, size int) cdc.Cursor {
	return cdc.Cursor{Wrap: uint16(n / uint64(size)), Count: uint32(n % uint64(size))}
}
