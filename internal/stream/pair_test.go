package stream

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/gosmc/smc/wire/cdc"
)

// memory is what two connections share, in ordinary memory: so the race detector sees
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

// config is that of side i (0 or 1), without Ring.
func (m *memory) config(i int) Config {
	j := 1 - i
	return Config{
		Local: m.element[i], Remote: m.element[j],
		ReaderSleeps: &m.sleeps[i][0], WriterSleeps: &m.sleeps[i][1],
		PeerReaderSleeps: &m.sleeps[j][0], PeerWriterSleeps: &m.sleeps[j][1],
		Read: &m.read[i], PeerRead: &m.read[j],
		Spin: DefaultSpin,
	}
}

// newPair returns two connected ends whose rings hold capacity bytes each.
func newPair(tb testing.TB, capacity int, spin time.Duration) (a, b *Conn) {
	tb.Helper()
	m := newMemory(capacity+cdc.HeaderLen, capacity+cdc.HeaderLen)
	ca, cb := m.config(0), m.config(1)
	ca.Spin, cb.Spin = spin, spin
	ca.Ring = func() { b.Wake() }
	cb.Ring = func() { a.Wake() }
	a, b = New(ca), New(cb)
	return a, b
}
