package clc

import (
	"encoding/binary"
	"strings"
)

// An FCE (first contact extension) is the part of a version 2 [Accept] and [Confirm] in which two
// hosts introduce themselves when they make a link group.
//
//	offset  size  field
//	     0     1  direct (1 bit), reserved (7)   SMC-R only
//	     1     1  OS (4 bits), release (4)
//	     2     2  reserved
//	     4    32  host name                      ASCII, padded with blanks
//	    36     1  max conns                      SMC-R only; release 1, as all that follows
//	    37     1  max links                      SMC-R only
//	    38     2  features
//	    40     4  vendor options
//	    44     8  reserved
//
// It is sent with 36 bytes in release 0 and with 52 in release 1. Both are read in any release,
// because Linux since 6.6 always sends 52 for SMC-R; fields of release 1 stay zero where the
// release is 0 or the bytes are missing.
//
// Layout: SMCv2 pp.61, 63, 66.
type FCE struct {
	Direct  bool // SMC-R: no IP router between the two RNICs
	OS      OS
	Release Release

	// HostName has at most 32 bytes on the wire, more are cut off when it is sent; it ends at
	// the first blank. A received name with bytes that are not printable ASCII is dropped
	// ("the invalid field might not be used but a connection failure is not warranted").
	HostName string

	MaxConns      uint8 // SMC-R: connections per link group, 16 to 255
	MaxLinks      uint8 // SMC-R: links per link group, 1 or 2
	Features      Features
	VendorOptions [4]byte
}

// HostNameLen is the length of the host name in an [FCE], in bytes.
const HostNameLen = 32

const (
	fceLen    = 36 // release 0
	fceV21Len = 52 // release 1
	fceDirect = 1 << 7
)

// append appends the FCE in the form for SMC-R or SMC-D.
func (f *FCE) append(b []byte, smcr bool) []byte {
	var flags byte
	if f.Direct && smcr {
		flags |= fceDirect
	}
	b = append(b, flags, byte(f.OS)<<4|byte(f.Release), 0, 0)
	name := f.HostName[:min(len(f.HostName), HostNameLen)]
	b = append(b, name...)
	b = append(b, strings.Repeat(" ", HostNameLen-len(name))...)
	if f.Release == Release0 {
		return b
	}
	if smcr {
		b = append(b, f.MaxConns, f.MaxLinks)
	} else {
		b = append(b, 0, 0)
	}
	b = binary.BigEndian.AppendUint16(b, uint16(f.Features))
	b = append(b, f.VendorOptions[:]...)
	return appendZeros(b, 8)
}

// parseFCE decodes the FCE at the start of b, which has at least 36 bytes and ends where the
// message's final eyecatcher starts.
func parseFCE(b []byte, smcr bool) *FCE {
	f := &FCE{
		Direct:   smcr && b[0]&fceDirect != 0,
		OS:       OS(b[1] >> 4),
		Release:  Release(b[1] & 0x0f),
		HostName: parseHostName(b[4:fceLen]),
	}
	if f.Release == Release0 || len(b) < fceV21Len { // rule: TestVectors: f.Release == Release0 -> false
		return f
	}
	if smcr {
		f.MaxConns, f.MaxLinks = b[36], b[37]
	}
	f.Features = Features(binary.BigEndian.Uint16(b[38:]))
	f.VendorOptions = [4]byte(b[40:44])
	return f
}

// parseHostName returns the name up to the first blank or zero byte, or nothing if it has bytes
// that could do harm in a terminal or a log.
func parseHostName(b []byte) string {
	for i, c := range b {
		if c == ' ' || c == 0 {
			return string(b[:i])
		}
		if c < ' ' || c > '~' { // rule: TestHostName
			return ""
		}
	}
	return string(b)
}

func (f *FCE) validate(message string) error {
	switch {
	case f.OS > 15:
		return invalid(message, "OS %d has more than 4 bits", f.OS)
	case f.Release > 15:
		return invalid(message, "release %d has more than 4 bits", f.Release)
	}
	return nil
}
