package verbs

import "sync/atomic"

// A Guard protects bytes of a region that a peer has said to be written, and that the region's
// reader has not read yet, from being written again.
//
// The region has a ring, from Base to its end. It carries a stream of bytes, each at its number
// modulo the ring's size. A peer that keeps to the rules of a ring writes those from Written on,
// and never those from Read to Written. The guard leaves these out of any WRITE, such as one that
// is late or sent again, and says something else. The WRITE is acknowledged like any other. Where
// Written is not ahead of Read, or by more than the ring has room for, nothing is guarded.
//
// Both only grow, and may do so at any time and on any goroutine: Read before a peer is told of the
// room, and Written once the owner has taken note of the bytes. Base and Read do not change once
// the guard is set.
type Guard struct {
	Base    int            // bytes
	Read    *atomic.Uint64 // looked at once a lap or so, as it is a reader's, on another processor
	Written atomic.Uint64

	seen atomic.Uint64 // a value that Read had
}

// Place copies b to offset at of mem, which has room for it, except to guarded places.
func (g *Guard) Place(mem []byte, at int, b []byte) {
	written := g.Written.Load() // first: a read meanwhile guards fewer bytes, and never more
	size := uint64(len(mem) - g.Base)
	if g.clear(g.seen.Load(), written, size, at, len(b)) { // as most are
		copy(mem[at:], b)
		return
	}
	read := g.Read.Load()
	g.seen.Store(read)
	if n := written - read; n == 0 || n > size { // also where read has gone past it
		copy(mem[at:], b)
		return
	}
	// The free part is one piece of the ring, or two around its end, and all that comes before the
	// ring.
	from, to := g.Base+int(read%size), g.Base+int(written%size)
	if from < to {
		copyWithin(mem, at, b, 0, from)
		copyWithin(mem, at, b, to, len(mem))
	} else {
		copyWithin(mem, at, b, 0, g.Base)
		copyWithin(mem, at, b, to, from)
	}
}

// clear reports whether n bytes at offset at are in the ring, and in none of its places from read to written.
func (g *Guard) clear(read, written, size uint64, at, n int) bool {
	guarded := written - read
	if guarded > size || at < g.Base {
		return false
	}
	next := written & (size - 1)
	// A division takes as long as the rest, and rings without an eyecatcher need none.
	if size&(size-1) != 0 {
		next = written % size
	}
	place := uint64(at - g.Base)
	if place < next {
		place += size
	}
	return place-next+uint64(n) <= size-guarded // its end's lead over Written, and the free bytes
}

// copyWithin copies the part of b, which belongs to offset at of mem, that is between two other
// offsets.
func copyWithin(mem []byte, at int, b []byte, from, to int) {
	first, end := max(at, from), min(at+len(b), to)
	if first < end {
		copy(mem[first:end], b[first-at:])
	}
}
