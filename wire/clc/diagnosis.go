package clc

import (
	"fmt"
	"slices"
)

// A Diagnosis is the reason why a connection does not use SMC: the number in a [Decline], and the
// number that tools show for a connection that fell back to TCP.
//
// The specifications leave the numbers to each operating system (RFC 7609 p.106, SMCv2 pp.78-79,
// note 5). We use those of Linux, and for reasons that never leave this host numbers of our own,
// see [Diagnosis.IsLocal]. [Lookup] explains a number.
type Diagnosis uint32

// DiagNone means that no reason was given.
const DiagNone Diagnosis = 0

// Reasons that Linux net/smc knows.
const (
	DiagMemory             Diagnosis = 0x01010000
	DiagTimeoutConfirmLink Diagnosis = 0x02010000
	DiagTimeoutAddLink     Diagnosis = 0x02020000
	DiagConfig             Diagnosis = 0x03000000
	DiagPeerNoSMC          Diagnosis = 0x03010000
	DiagIPsec              Diagnosis = 0x03020000
	DiagNoDevice           Diagnosis = 0x03030000
	DiagNoSMCDDevice       Diagnosis = 0x03030001
	DiagNoSMCRDevice       Diagnosis = 0x03030002
	DiagNoISMv2            Diagnosis = 0x03030003
	DiagNoV2Extension      Diagnosis = 0x03030004
	DiagNoDv2Extension     Diagnosis = 0x03030005
	DiagNoSEID             Diagnosis = 0x03030006
	DiagNoSMCDv2Device     Diagnosis = 0x03030007
	DiagNoUEID             Diagnosis = 0x03030008
	DiagRelease            Diagnosis = 0x03030009
	DiagMaxConns           Diagnosis = 0x0303000a
	DiagMaxLinks           Diagnosis = 0x0303000b
	DiagMode               Diagnosis = 0x03040000
	DiagRMBEEyecatcher     Diagnosis = 0x03050000
	DiagFastOpen           Diagnosis = 0x03060000
	DiagPrefix             Diagnosis = 0x03070000
	DiagVLAN               Diagnosis = 0x03080000
	DiagISMVLAN            Diagnosis = 0x03090000
	DiagNoActiveLink       Diagnosis = 0x030a0000
	DiagNoServerLink       Diagnosis = 0x030b0000
	DiagVersion            Diagnosis = 0x030c0000
	DiagMaxDMB             Diagnosis = 0x030d0000
	DiagNoRoute            Diagnosis = 0x030e0000
	DiagIndirect           Diagnosis = 0x030f0000
	DiagSync               Diagnosis = 0x04000000
	DiagPeerDeclined       Diagnosis = 0x05000000 // kept at the receiver of a Decline, not sent
	DiagInternal           Diagnosis = 0x09990000
	DiagRToken             Diagnosis = 0x09990001
	DiagLink               Diagnosis = 0x09990002
	DiagBufferRegistration Diagnosis = 0x09990003
	DiagInternalOld        Diagnosis = 0x99990000 // Linux 4.x
)

// Reasons of our own. They are shown to users and never sent: [Diagnosis.WireCode] is.
const (
	DiagNotLocal          Diagnosis = localSpace + 0x00
	DiagNoListener        Diagnosis = localSpace + 0x01
	DiagStale             Diagnosis = localSpace + 0x02
	DiagForeign           Diagnosis = localSpace + 0x03
	DiagOtherUser         Diagnosis = localSpace + 0x04
	DiagRefused           Diagnosis = localSpace + 0x05
	DiagNoRunDir          Diagnosis = localSpace + 0x06
	DiagRendezvousTimeout Diagnosis = localSpace + 0x07
	DiagNotAccepted       Diagnosis = localSpace + 0x08
	DiagIncompatible      Diagnosis = localSpace + 0x09
	DiagCrowded           Diagnosis = localSpace + 0x0a
	DiagNoSockDiag        Diagnosis = localSpace + 0x0b
	DiagNoAgent           Diagnosis = localSpace + 0x0c
	DiagOldAgent          Diagnosis = localSpace + 0x0d
	DiagNoToken           Diagnosis = localSpace + 0x0e
	DiagOtherKernel       Diagnosis = localSpace + 0x0f
	DiagNetwork           Diagnosis = localSpace + 0x10
	DiagDisabled          Diagnosis = localSpace + 0x11
	DiagPolicy            Diagnosis = localSpace + 0x12
	DiagClosing           Diagnosis = localSpace + 0x13
	DiagInherited         Diagnosis = localSpace + 0x14
	DiagBubble            Diagnosis = localSpace + 0x15
	DiagNotAllowed        Diagnosis = localSpace + 0x16
	DiagNotSupported      Diagnosis = localSpace + 0x17
	DiagShort             Diagnosis = localSpace + 0x18
	DiagBudget            Diagnosis = localSpace + 0x20
	DiagNoFile            Diagnosis = localSpace + 0x21
	DiagLimit             Diagnosis = localSpace + 0x22
	DiagBusy              Diagnosis = localSpace + 0x23
	DiagMappings          Diagnosis = localSpace + 0x24
	DiagDenied            Diagnosis = localSpace + 0x25
	DiagPortInUse         Diagnosis = localSpace + 0x26
	DiagUnreachable       Diagnosis = localSpace + 0x30
	DiagFabric            Diagnosis = localSpace + 0x31
	DiagRNICDown          Diagnosis = localSpace + 0x32
	DiagFiltered          Diagnosis = localSpace + 0x33
)

// The space of local reasons: the upper 16 bits are 7e01. No operating system is known to send
// such numbers; a peer's Decline that has one is shown as unknown, see [Decline.Reason].
const (
	localSpace     Diagnosis = 0x7e010000
	localSpaceMask Diagnosis = 0xffff0000
)

// IsLocal reports whether d is in the space of our own reasons, which are never sent.
func (d Diagnosis) IsLocal() bool { return d&localSpaceMask == localSpace }

// WireCode returns the number that tells a peer about d in a Decline: d itself, or for a local
// reason the number of Linux that comes closest. [DiagPeerDeclined] has one too, though a Decline
// is never answered with a Decline.
func (d Diagnosis) WireCode() Diagnosis {
	if r, ok := find(d); ok && r.wire != 0 { // rule: TestLocalReasons
		return r.wire
	}
	if d.IsLocal() {
		return DiagInternal
	}
	return d
}

// String returns the tag and the number, such as "NOSMCDEV (0x03030000)", in the terms of Linux
// and of this project. For a peer's number use [Decline.Reason].
func (d Diagnosis) String() string { return Lookup(d, OSUnspecified).String() }

// A Reason explains a [Diagnosis] to people.
type Reason struct {
	Code     Diagnosis
	Tag      string // short, in capitals; where smcss and smcr stats have one, it is theirs
	Sentence string // the problem
	Cause    string // the likely cause of that
	Advice   string // the steps to take
	Local    bool   // found by this host and never sent in a Decline

	wire Diagnosis // sent in place of Code, if not zero
}

// String returns "TAG (0x01234567)".
func (r Reason) String() string { return fmt.Sprintf("%s (0x%08x)", r.Tag, uint32(r.Code)) }

// Lookup explains d. os is the operating system that has chosen the number: for a number of this
// host OSUnspecified or OSLinux; for a peer's number the OS in its Decline. Numbers of z/OS, AIX
// and systems that we do not know are vendor codes: that system's documentation gives their
// meaning. Every number has an answer; the tag of one that is in no catalogue is "UNKNOWN".
func Lookup(d Diagnosis, os OS) Reason {
	switch os {
	case OSUnspecified, OSLinux:
	default:
		if d != DiagNone {
			return vendorReason(d, os)
		}
	}
	if r, ok := find(d); ok {
		return r
	}
	return unknownReason(d)
}

// LookupTag returns the reason with a tag of the catalogue, in capitals.
func LookupTag(tag string) (Reason, bool) {
	for _, r := range reasons {
		if r.Tag == tag {
			return r, true
		}
	}
	return Reason{}, false
}

// Reasons returns the whole catalogue in the order of the numbers. The caller owns the slice.
func Reasons() []Reason { return slices.Clone(reasons) }

// find returns the catalogue's entry for d.
func find(d Diagnosis) (Reason, bool) {
	i, ok := slices.BinarySearchFunc(reasons, d, func(r Reason, d Diagnosis) int {
		switch {
		case r.Code < d:
			return -1
		case r.Code > d:
			return 1
		}
		return 0
	})
	if !ok {
		return Reason{}, false
	}
	return reasons[i], true
}

func unknownReason(d Diagnosis) Reason {
	return Reason{
		Code:     d,
		Tag:      "UNKNOWN",
		Sentence: "The reason code is in no list we know.",
		Cause:    "A later version of the peer's software, or a peer that does not say which system it is.",
		Advice:   "Look the number up in the documentation of the peer's operating system.",
	}
}

func vendorReason(d Diagnosis, os OS) Reason {
	return Reason{
		Code:     d,
		Tag:      "VENDOR",
		Sentence: fmt.Sprintf("The peer declined with a reason code of its own operating system (%v).", os),
		Cause:    "Reason codes are defined by each operating system.",
		Advice:   fmt.Sprintf("Look the number up in the documentation of the peer's operating system (%v).", os),
	}
}
