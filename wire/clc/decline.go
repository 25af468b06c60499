package clc

import (
	"encoding/binary"
	"fmt"

	"github.com/gosmc/smc/wire"
)

// A Decline ends the CLC handshake: both peers go on over plain TCP.
//
//	offset  size  field
//	     0     4  eyecatcher  "SMCR" in EBCDIC: e2 d4 c3 d9
//	     4     1  type        0x04
//	     5     2  length      28 in version 1, 44 in version 2
//	     7     1  flags       version (4 bits), out of sync (1), reserved (3)
//	     8     8  peer ID     of the sender, zero if it has no RNIC
//	    16     4  diagnosis   why, see [Diagnosis]
//	    20     1  OS          of the sender (4 bits), reserved (4)
//	    21     3  reserved
//	    24    16  diagnoses by SMC type, version 2 only: SMC-Dv2, SMC-Dv1, SMC-Rv2, SMC-Rv1
//	   end     4  eyecatcher  as at offset 0
//
// Linux before 5.16 sends 28 bytes in version 2 too, and the specification wants that tolerated,
// so it is read; Linux takes it for a broken message, so it is never sent. The specification also
// has the long form with version 1 in it, which is read too.
//
// Layout: RFC 7609 p.105, SMCv2 p.78.
type Decline struct {
	Version   Version
	OutOfSync bool // the sender no longer knows the link group; the receiver drops it too
	PeerID    wire.PeerID
	Diagnosis Diagnosis
	OS        OS
	ByType    DiagnosisByType // version 2 only; Linux sends zeros
}

// DiagnosisByType says for each SMC type why it was not used. Zero means that the type was not
// offered, or that the sender does not say: SMCv2 pp.78-79, note 3.
type DiagnosisByType struct {
	SMCDv2, SMCDv1, SMCRv2, SMCRv1 Diagnosis
}

const (
	declineV1Len  = 28
	declineV2Len  = 44
	flagOutOfSync = 1 << 3
)

// Type returns [TypeDecline].
func (d Decline) Type() Type { return TypeDecline }

// Reason explains the diagnosis as one that a peer sent: in the terms of the peer's operating
// system, and never as one of our own local reasons, which no peer can send.
func (d Decline) Reason() Reason {
	if d.Diagnosis.IsLocal() {
		return unknownReason(d.Diagnosis)
	}
	return Lookup(d.Diagnosis, d.OS)
}

// Validate implements [Message].
func (d Decline) Validate() error {
	switch {
	case d.Version != V1 && d.Version != V2:
		return invalid("Decline", "version %d", d.Version)
	case d.OS > 15:
		return invalid("Decline", "OS %d has more than 4 bits", d.OS)
	}
	for _, c := range []Diagnosis{d.Diagnosis, d.ByType.SMCDv2, d.ByType.SMCDv1, d.ByType.SMCRv2,
		d.ByType.SMCRv1} {
		if c.IsLocal() { // rule: TestValidate
			return invalid("Decline", "%v is local, send its WireCode", c)
		}
	}
	return nil
}

// Append implements [Message]. The encoding has 28 bytes in version 1, 44 in version 2.
func (d Decline) Append(b []byte) []byte {
	mustValidate(d)
	var flags byte
	if d.OutOfSync {
		flags |= flagOutOfSync
	}
	start := len(b)
	b = begin(b, eyecatcherSMCR, TypeDecline, d.Version, flags)
	b = append(b, d.PeerID[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(d.Diagnosis))
	b = append(b, byte(d.OS)<<4, 0, 0, 0)
	if d.Version > V1 {
		b = binary.BigEndian.AppendUint32(b, uint32(d.ByType.SMCDv2))
		b = binary.BigEndian.AppendUint32(b, uint32(d.ByType.SMCDv1))
		b = binary.BigEndian.AppendUint32(b, uint32(d.ByType.SMCRv2))
		b = binary.BigEndian.AppendUint32(b, uint32(d.ByType.SMCRv1))
	}
	return end(b, start, eyecatcherSMCR)
}

// ParseDecline decodes the Decline at the start of b.
// Errors are of type [*wire.DecodeError].
func ParseDecline(b []byte) (Decline, error) {
	const message = "clc.Decline"
	h, b, err := frame(message, TypeDecline, b)
	if err != nil {
		return Decline{}, err
	}
	// A longer version 2 message may come from a later release; its tail is not known here.
	if h.Len != declineV1Len && h.Len != declineV2Len && (h.Version == V1 || h.Len < declineV2Len) { // rule: TestLengths
		return Decline{}, &wire.DecodeError{Message: message, Field: "length", Offset: 5, Err: wire.ErrLength}
	}
	d := Decline{
		Version:   h.Version,
		OutOfSync: h.flags&flagOutOfSync != 0,
		PeerID:    wire.PeerID(b[8:16]),
		Diagnosis: Diagnosis(binary.BigEndian.Uint32(b[16:])),
		OS:        OS(b[20] >> 4),
	}
	if h.Len >= declineV2Len {
		d.ByType = DiagnosisByType{
			SMCDv2: Diagnosis(binary.BigEndian.Uint32(b[24:])),
			SMCDv1: Diagnosis(binary.BigEndian.Uint32(b[28:])),
			SMCRv2: Diagnosis(binary.BigEndian.Uint32(b[32:])),
			SMCRv1: Diagnosis(binary.BigEndian.Uint32(b[36:])),
		}
	}
	return d, nil
}

// String implements [Message].
func (d Decline) String() string {
	s := fmt.Sprintf("Decline v%d %v os=%v peer=%v", d.Version, d.Reason(), d.OS, d.PeerID)
	if d.OutOfSync {
		s += " out-of-sync"
	}
	if d.ByType != (DiagnosisByType{}) {
		s += fmt.Sprintf(" dv2=%#08x dv1=%#08x rv2=%#08x rv1=%#08x", uint32(d.ByType.SMCDv2),
			uint32(d.ByType.SMCDv1), uint32(d.ByType.SMCRv2), uint32(d.ByType.SMCRv1))
	}
	return s
}

// invalid is the error of a message that has no encoding.
func invalid(message, format string, args ...any) error {
	return fmt.Errorf("clc: impossible %s: %w", message, fmt.Errorf(format, args...))
}
