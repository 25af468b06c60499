package stream

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/gosmc/smc/wire/cdc"
)

// memory is the memory that two connections share, as ordinary memory: so the race detector sees
// every access, and checks the order of cursor and data that shared mappings hide.
type memory struct {
	element [2][]byte
	sleeps  [2][2]atomic.Uint32 // of side i: reader, writer
	read    [2]atomic.Uint64    // by side i
}

// alignedBytes returns n bytes on an 8-byte boundary.
func alignedBytes(n int) []byte {
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// newMemory makes elements of the given sizes, which include the header.
func newMemory(size0, size1 int) *memory {
	return &memory{element: [2][]byte{alignedBytes(size0), alignedBytes(size1)}}
}

// config returns the configuration of side i (0 or 1), which rings the other one by ring.
func (m *memory) config(i int, ring func()) Config {
	j := 1 - i
	return Config{
		In:           ElementInbox(m.element[i]),
		Out:          NewMemory(m.element[j], &m.sleeps[j][0], &m.sleeps[j][1], ring),
		ReaderSleeps: &m.sleeps[i][0], WriterSleeps: &m.sleeps[i][1],
		Read: &m.read[i], PeerRead: &m.read[j],
		Spin: DefaultSpin,
	}
}

// newPair returns two connected ends whose rings hold capacity bytes each.
func newPair(tb testing.TB, capacity int, spin time.Duration) (a, b *Conn) {
	tb.Helper()
	return newUnequalPair(tb, capacity, capacity, spin)
}

// newUnequalPair returns two ends; ringA holds the bytes that b writes, and ringB the bytes that a
// writes.
func newUnequalPair(tb testing.TB, ringA, ringB int, spin time.Duration) (a, b *Conn) {
	tb.Helper()
	if joined != byMemory {
		return newMessagePair(tb, ringA, ringB, spin)
	}
	m := newMemory(ringA+cdc.HeaderLen, ringB+cdc.HeaderLen)
	ca := m.config(0, func() { b.Wake() })
	cb := m.config(1, func() { a.Wake() })
	ca.Spin, cb.Spin = spin, spin
	a, b = New(ca), New(cb)
	return a, b
}
