package wire

import (
	"math/bits"
	"strconv"
)

// A SizeCode is the size of a receive buffer (an RMB element or a DMB element) as messages carry
// it, in 4 bits: 16 KiB << code.
//
// RFC 7609 p.100 ends at 512 KiB (code 5); Linux net/smc accepts every code and since 6.11
// also sends them, up to 512 MiB.
type SizeCode uint8

// MaxSizeCode is the largest code that 4 bits hold: 512 MiB.
const MaxSizeCode SizeCode = 15

// MaxRFCSizeCode is the largest code that RFC 7609 knows: 512 KiB. A host that keeps to it may take
// a larger one for a reserved value.
const MaxRFCSizeCode SizeCode = 5

const minBufferLen = 16 << 10

// Bytes returns the size in bytes. Codes above [MaxSizeCode] count as MaxSizeCode.
func (c SizeCode) Bytes() int { return minBufferLen << min(c, MaxSizeCode) }

// SizeCodeFor returns the code of the smallest size that is at least n bytes, and [MaxSizeCode]
// if there is none.
func SizeCodeFor(n int) SizeCode {
	if n <= minBufferLen {
		return 0
	}
	return min(SizeCode(bits.Len(uint(n-1)/minBufferLen)), MaxSizeCode)
}

// String returns the size, such as "64K" or "1M".
func (c SizeCode) String() string {
	if n := c.Bytes() >> 10; n < 1024 {
		return strconv.Itoa(n) + "K"
	}
	return strconv.Itoa(c.Bytes()>>20) + "M"
}

// An MTU is the path MTU of a queue pair as an enumeration: RFC 7609 p.100. Zero and values
// above MTU4096 are reserved.
type MTU uint8

// All values that are defined.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Valid reports whether m is one of the defined values.
func (m MTU) Valid() bool { return MTU256 <= m && m <= MTU4096 } // rule: TestMTU: MTU256 <= m -> true

// Bytes returns the payload bytes of a packet, 0 for a reserved value.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

// String returns the number of bytes, or "reserved(7)".
func (m MTU) String() string {
	if !m.Valid() {
		return "reserved(" + strconv.Itoa(int(m)) + ")"
	}
	return strconv.Itoa(m.Bytes())
}
