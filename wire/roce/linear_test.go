package roce

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// multiplyPlain multiplies two registers bit by bit.
func multiplyPlain(a, b uint32) (product uint32) {
	for bit := uint32(1 << 31); bit != 0; bit >>= 1 { // x^0 first
		if a&bit != 0 {
			product ^= b
		}
		if odd := b & 1; odd != 0 { // x^31 becomes x^32
			b = b>>1 ^ crc32.IEEE
		} else {
			b >>= 1
		}
	}
	return product
}

func TestMultiply(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	check := func(a, b uint32) {
		if got, want := multiply(a, b), multiplyPlain(a, b); got != want {
			t.Errorf("multiply(%#x, %#x) = %#x, want %#x", a, b, got, want)
		}
	}
	special := []uint32{0, 1, 1 << 31, 0xffffffff, 0x11111111, 0x88888888, 0x7fffffff}
	for _, a := range special {
		for _, b := range special {
			check(a, b)
		}
		check(a, r.Uint32())
	}
	for range 10000 {
		check(r.Uint32(), r.Uint32())
	}
}

func TestBack(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for n := 0; n <= maxDatagram+ipv4HeaderLen+udpHeaderLen-ICRCLen; n += 4 {
		if n > 9000 && n%1024 != 0 {
			continue
		}
		before := r.Uint32()
		after := forward(before, n)
		if got := back(after, n); got != before {
			t.Errorf("back(%#x, %d) = %#x, want %#x", after, n, got, before)
		}
		if got := stepBack(after, n); got != before {
			t.Errorf("stepBack(%#x, %d) = %#x, want %#x", after, n, got, before)
		}
	}
	for range 100 {
		v := r.Uint32()
		if got, want := fold[0][byte(v)]^fold[1][byte(v>>8)]^fold[2][byte(v>>16)]^fold[3][v>>24], forward(v, 4); got != want {
			t.Errorf("fold of %#x = %#x, want %#x", v, got, want)
		}
	}
}

// TestICRCStart checks the constant against its definition.
func TestICRCStart(t *testing.T) {
	if got := crc32.ChecksumIEEE([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}); got != ^uint32(icrcStart) {
		t.Errorf("ChecksumIEEE of 8 bytes of 0xff = %#x, want %#x", got, ^uint32(icrcStart))
	}
}
