package verbs

import (
	"bytes"
	"sync/atomic"
	"testing"
)

// TestGuard places every piece there can be into small rings of which every part is guarded in
// turn, and compares each byte with the result of a look at that byte alone.
func TestGuard(t *testing.T) {
	for _, base := range []int{0, 3} {
		for size := 1; size <= 7; size++ {
			mem := make([]byte, base+size)
			for r := range 2*size + 1 {
				for n := -1; n <= size+1; n++ {
					if r+n < 0 {
						continue
					}
					for at := range len(mem) {
						for length := 1; length <= len(mem)-at; length++ {
							// All that was read has been seen, or none or some of it.
							for seen := range r + 1 {
								clear(mem)
								var read atomic.Uint64
								g := &Guard{Base: base, Read: &read}
								read.Store(uint64(r))
								g.Written.Store(uint64(r + n))
								g.seen.Store(uint64(seen))
								g.Place(mem, at, bytes.Repeat([]byte{1}, length))
								for i, got := range mem {
									want := byte(0)
									if i >= at && i < at+length && !isGuarded(i-base, size, r, r+n) {
										want = 1
									}
									if got != want {
										t.Fatalf("%d bytes at %d of %d+%d, with [%d, %d) guarded: byte %d is %d, want %d",
											length, at, base, size, r, r+n, i, got, want)
									}
								}
							}
						}
					}
				}
			}
		}
	}
}

// isGuarded reports whether a place in a ring has a byte of the stream that is written and not read.
func isGuarded(place, size, read, written int) bool {
	for n := read; n < written && written-read <= size; n++ {
		if n%size == place {
			return true
		}
	}
	return false
}
