package stream

import (
	"sync/atomic"

	"github.com/gosmc/smc/wire/cdc"
)

// A Memory is the [Carrier] of SMC-D: the peer's element, which we write and the peer reads.
type Memory struct {
	prod, cons   *atomic.Uint64 // the halves of our header there
	data         []byte
	readerSleeps *atomic.Uint32
	writerSleeps *atomic.Uint32
	ring         func()
}

// NewMemory returns the carrier for an element of the peer whose header is zero. The element begins on
// an 8-byte boundary, and is longer than the header. The words say that the peer's reader or writer
// sleeps; ring then wakes the peer. It is called with locks held and must not block.
//
// All of it stays the caller's, and must stay mapped until the Conn is detached.
func NewMemory(element []byte, readerSleeps, writerSleeps *atomic.Uint32, ring func()) *Memory {
	word(element, cdc.TypeOffset).Store(cdc.TypeWord)
	return &Memory{
		prod:         word(element, cdc.ProducerOffset),
		cons:         word(element, cdc.ConsumerOffset),
		data:         element[cdc.HeaderLen:len(element):len(element)],
		readerSleeps: readerSleeps,
		writerSleeps: writerSleeps,
		ring:         ring,
	}
}

// NoMemory returns a carrier for a peer that is gone: the bytes that are written go nowhere.
func NoMemory() *Memory {
	element := make([]byte, cdc.HeaderLen+noMemoryLen)
	return NewMemory(element, new(atomic.Uint32), new(atomic.Uint32), func() {})
}

// Buffer implements [Carrier].
func (m *Memory) Buffer() []byte { return m.data }

// PeerBuffer implements [Carrier].
func (m *Memory) PeerBuffer() int { return len(m.data) }

// Room implements [Carrier].
func (m *Memory) Room(window uint32) uint32 { return window }

// Produce implements [Carrier].
func (m *Memory) Produce(to cdc.Cursor) (rang bool) {
	m.prod.Store(cdc.PackProducer(to))
	return m.readerSleeps.Load() != 0 && m.wake(m.readerSleeps)
}

// ProduceUrgent implements [Carrier]. It rings in any case: a goroutine may wait for urgent data
// beside a reader.
func (m *Memory) ProduceUrgent(to cdc.Cursor, flags cdc.ProducerFlags) (rang bool) {
	m.prod.Store(cdc.PackUrgent(to, flags)) // rule: TestUrgentScenario5: PackUrgent(to, flags) -> PackProducer(to)
	m.readerSleeps.Store(0)
	m.ring() // rule: TestReadUrgentAlone
	return true
}

// Consume implements [Carrier].
func (m *Memory) Consume(to cdc.Cursor, prod cdc.ProducerFlags, conn cdc.ConnFlags) {
	m.cons.Store(cdc.PackConsumer(to, prod, conn))
}

// WakeReader implements [Carrier].
func (m *Memory) WakeReader() (rang bool) { return m.wake(m.readerSleeps) }

// WakeWriter implements [Carrier].
func (m *Memory) WakeWriter() (rang bool) { return m.wake(m.writerSleeps) }

// wake rings if the word says that somebody sleeps. The data that the sleeper should see must have
// been stored before.
func (m *Memory) wake(sleeps *atomic.Uint32) bool {
	if sleeps.Load() == 0 || sleeps.Swap(0) == 0 {
		return false
	}
	m.ring()
	return true
}

// Published implements [Carrier]. The peer could have changed it.
func (m *Memory) Published() (h cdc.Header) {
	h.Consumer, h.ProducerFlags, h.ConnFlags = cdc.UnpackConsumer(m.cons.Load())
	var urgent cdc.ProducerFlags
	h.Producer, urgent = cdc.UnpackUrgent(m.prod.Load())
	h.ProducerFlags |= urgent
	return h
}
