package wire

import "fmt"

// A CHID names an internal fabric: ISM devices with the same CHID may reach each other.
type CHID uint16

// CHIDs of Emulated-ISM devices, which software provides and which have GIDs of 128 bits (SMCv2,
// "Emulated-ISM", items 9 and 10). No platform firmware uses this range.
const (
	CHIDEmulatedFirst CHID = 0xff00 // first of the range for devices between virtual machines
	CHIDEmulatedLast  CHID = 0xfffe // last of that range
	CHIDLoopback      CHID = 0xffff // both ends in one operating system instance
)

// IsEmulated reports whether c belongs to Emulated-ISM devices, loopback included.
func (c CHID) IsEmulated() bool { return c >= CHIDEmulatedFirst } // rule: TestISMGID: c >= CHIDEmulatedFirst -> c > CHIDEmulatedFirst

// String returns four hexadecimal digits.
func (c CHID) String() string { return fmt.Sprintf("%04x", uint16(c)) }

// An ISMGID is the address of an ISM device. A native device has 64 bits, in Hi, and Lo is zero.
// An Emulated-ISM device has an Extended GID, a UUID. Its bytes are the bytes of Hi and then of Lo,
// highest first; that is also their order on the wire.
type ISMGID struct {
	Hi, Lo uint64
}

// ISMGIDFromUUID returns the Extended GID with the bytes of a UUID.
func ISMGIDFromUUID(u [16]byte) ISMGID {
	var g ISMGID
	for i := range 8 {
		g.Hi = g.Hi<<8 | uint64(u[i])
		g.Lo = g.Lo<<8 | uint64(u[8+i])
	}
	return g
}

// UUID returns the 16 bytes of g in wire order.
func (g ISMGID) UUID() [16]byte {
	var u [16]byte
	for i := range 8 {
		u[i] = byte(g.Hi >> (56 - 8*i))
		u[8+i] = byte(g.Lo >> (56 - 8*i))
	}
	return u
}

// IsZero reports whether g is not set.
func (g ISMGID) IsZero() bool { return g == ISMGID{} }

// String returns 16 hexadecimal digits for a native GID, the UUID form for an Extended GID.
func (g ISMGID) String() string {
	if g.Lo == 0 {
		return fmt.Sprintf("%016x", g.Hi)
	}
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x",
		g.Hi>>32, g.Hi>>16&0xffff, g.Hi&0xffff, g.Lo>>48, g.Lo&(1<<48-1))
}
