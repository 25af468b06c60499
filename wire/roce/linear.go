package roce

import "hash/crc32"

// Arithmetic of CRC registers. A register is a polynomial over GF(2) modulo the CRC's polynomial,
// with the coefficient of x^31 in bit 0 and the coefficient of x^0 in bit 31. A byte is xored into
// the lower eight bits; then 8 steps multiply the register by x^8. Four bytes are the same as a
// register whose low byte is the first of them, multiplied by x^32.

// hashedWhole is the length from which hash/crc32 takes 16 bytes at a time, on amd64.
const hashedWhole = 64

// maxDatagram is the longest payload of a UDP datagram, over IPv6.
const maxDatagram = 0xffff - udpHeaderLen

// A fieldTable has the values that the two bytes of a field add to the register after the headers.
type fieldTable struct{ high, low [256]uint32 }

func (t *fieldTable) of(v uint16) uint32 { return t.high[v>>8] ^ t.low[v&0xff] }

// headerTables has the values that header fields add to the register after the headers, for the
// fields that differ from packet to packet.
type headerTables struct {
	ipLen, udpLen, id fieldTable // IPv6 has no identification: it adds 0
	ipLenExtra        uint16     // the IP header's length field minus the UDP header's
}

var (
	headersIPv4 = headerTables{
		ipLen:      newFieldTable(ipv4TotalLength, ipv4HeaderLen+udpHeaderLen),
		udpLen:     newFieldTable(udpLength, udpHeaderLen),
		id:         newFieldTable(ipv4ID, ipv4HeaderLen+udpHeaderLen),
		ipLenExtra: ipv4HeaderLen,
	}
	headersIPv6 = headerTables{
		ipLen:  newFieldTable(ipv6PayloadLength, ipv6HeaderLen+udpHeaderLen),
		udpLen: newFieldTable(udpLength, udpHeaderLen),
	}

	// fourBytes has, for each of four bytes that are xored into a register, the value that it adds
	// to the register after them.
	fourBytes = newFourBytes()

	// maskCongestion has, for every value of byte 4 of a packet, the register before the packet
	// that adds to the one after it the same value as 0xff in its place.
	maskCongestion = newMaskCongestion()
)

// newFieldTable returns the table for a field at offset in headers of n bytes.
func newFieldTable(offset, n int) (t fieldTable) {
	spread(&t.high, func(v uint32) uint32 { return forward(v, n-offset) })
	spread(&t.low, func(v uint32) uint32 { return forward(v, n-offset-1) })
	return t
}

func newFourBytes() (t [4][256]uint32) {
	for i := range t {
		spread(&t[i], func(v uint32) uint32 { return forward(v, 4-i) })
	}
	return t
}

func newMaskCongestion() (t [256]uint32) {
	spread(&t, func(v uint32) uint32 { return stepBack(v, 4) })
	for i := range 128 {
		t[i], t[0xff^i] = t[0xff^i], t[i]
	}
	return t
}

// spread fills t with the values of a linear function, which is called for single bits.
func spread(t *[256]uint32, f func(uint32) uint32) {
	for bit := 1; bit < 256; bit <<= 1 {
		v := f(uint32(bit))
		for i := range bit {
			t[bit|i] = t[i] ^ v
		}
	}
}

// forward returns register r after n zero bytes, one by one.
func forward(r uint32, n int) uint32 {
	for range n {
		r = r>>8 ^ crc32.IEEETable[byte(r)]
	}
	return r
}

// hash returns register r after the bytes of p. Unlike crc32.Update it leaves arrays of the caller on its
// stack, and it is slow.
func hash(r uint32, p []byte) uint32 {
	for _, b := range p {
		r = r>>8 ^ crc32.IEEETable[byte(r)^b]
	}
	return r
}

// stepBack returns the register that r was before n zero bytes, one by one.
func stepBack(r uint32, n int) uint32 {
	for range n {
		i := lastIndex[r>>24]
		r = (r^crc32.IEEETable[i])<<8 | uint32(i)
	}
	return r
}

// lastIndex has the index of the entry of the CRC table with a given high byte.
var lastIndex = func() (t [256]byte) {
	for i, v := range crc32.IEEETable {
		t[v>>24] = byte(i)
	}
	return t
}()

// Powers of x by which back multiplies: to the -32 for each four bytes.
const (
	nearWords = 1 << 11 // 8 KiB in one multiplication: more than a packet with a payload of 4,096 bytes
	farWords  = (maxDatagram+ipv4HeaderLen+udpHeaderLen)/4/nearWords + 1
)

var (
	near [nearWords]uint32 // near[i] is x^(-32*i)
	far  [farWords]uint32  // far[i] is x^(-32*nearWords*i)

	// fold has the register that the four bytes of a register become after four zero bytes.
	fold [4][256]uint32
)

func init() {
	for i := range fold {
		spread(&fold[i], func(v uint32) uint32 { return forward(v<<(8*i), 4) })
	}
	r := uint32(1 << 31) // x^0
	for i := range near {
		near[i] = r
		r = stepBack(r, 4)
	}
	step := r
	r = 1 << 31
	for i := range far {
		far[i] = r
		r = multiply(r, step)
	}
}

// back returns the register that r was before n zero bytes; n is a multiple of four, and at most
// the length of the longest datagram with its headers.
func back(r uint32, n int) uint32 {
	words := uint(n) / 4
	r = multiply(r, near[words%nearWords])
	if words >= nearWords {
		r = multiply(r, far[words/nearWords])
	}
	return r
}

// multiply returns the product of two registers.
//
// Integer multiplication has carries, which polynomials have not. With only every fourth bit of the
// factors set, no more than 8 bits add up in a column of the product: the sum fits in the four
// columns before the next that counts, and its lowest bit is the one without carries.
func multiply(a, b uint32) uint32 {
	const m0, m1, m2, m3 = 0x1111111111111111, 0x2222222222222222, 0x4444444444444444, 0x8888888888888888
	a0, a1, a2, a3 := uint64(a)&m0, uint64(a)&m1, uint64(a)&m2, uint64(a)&m3
	b0, b1, b2, b3 := uint64(b)&m0, uint64(b)&m1, uint64(b)&m2, uint64(b)&m3
	p := (a0*b0^a1*b3^a2*b2^a3*b1)&m0 |
		(a0*b1^a1*b0^a2*b3^a3*b2)&m1 |
		(a0*b2^a1*b1^a2*b0^a3*b3)&m2 |
		(a0*b3^a1*b2^a2*b1^a3*b0)&m3
	// Bit k of the product is x^(62-k). Degrees from 32 are in the lower half of p<<1, as a
	// register would be 32 steps ago.
	p <<= 1
	low := uint32(p)
	return uint32(p>>32) ^ fold[0][byte(low)] ^ fold[1][byte(low>>8)] ^ fold[2][byte(low>>16)] ^ fold[3][low>>24]
}
