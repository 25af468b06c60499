package engine

import (
	"bytes"
	"testing"
)

// TestDeclineLen has what a client sends first, whole and every part of it.
func TestDeclineLen(t *testing.T) {
	v1 := append([]byte("\xe2\xd4\xc3\xd9\x04\x00\x1c\x10"), make([]byte, 20)...)
	v2 := append([]byte("\xe2\xd4\xc3\xc4\x04\x00\x2c\x20"), make([]byte, 36)...)
	for _, m := range [][]byte{v1, v2} {
		if n, whole := declineLen(append(bytes.Clone(m), "rest"...)); n != len(m) || !whole {
			t.Errorf("declineLen(% x...) = %d, %t", m[:8], n, whole)
		}
		for n := range m {
			if _, whole := declineLen(m[:n]); whole {
				t.Errorf("%d bytes of % x... are whole", n, m[:8])
			}
		}
	}
	for _, b := range []string{"x", "\xe2\x82\xac", "\xe2\xd4\xc3\xd9\x01", "\xe2\xd4\xc3\xd9\x04\x00\x1d\x10"} {
		if n, whole := declineLen([]byte(b)); n != 0 || !whole {
			t.Errorf("declineLen(%q) = %d, %t, want that it is none", b, n, whole)
		}
	}
}
