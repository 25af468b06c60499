package roce

import "fmt"

// An AETH is the header of an acknowledgement.
//
//	offset  size  field
//	     0     1  syndrome  see [Syndrome]
//	     1     3  MSN       messages completed by the responder, modulo 1<<24
//
// IBTA 9.3, Linux drivers/infiniband/sw/rxe/rxe_hdr.h.
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits
}

// A Syndrome is the meaning of an acknowledgement.
//
//	bit 7      reserved
//	bits 6-5   kind, see [SyndromeKind]
//	bits 4-0   value: credits for an ACK, a timer for an RNR NAK, the reason for a NAK
//
// IBTA 9.7.5.
type Syndrome uint8

// Syndromes that are one value. [Ack] and [RNRNak] make the others.
const (
	AckUnlimited       Syndrome = 0x1f // ACK without end-to-end credits
	NakSequence        Syndrome = 0x60 // a packet is missing; its number is the PSN of the NAK
	NakInvalidRequest  Syndrome = 0x61
	NakRemoteAccess    Syndrome = 0x62
	NakRemoteOperation Syndrome = 0x63
)

// A SyndromeKind is the kind of an acknowledgement, 2 bits.
type SyndromeKind uint8

// Kinds of acknowledgement.
const (
	KindAck      SyndromeKind = 0
	KindRNRNak   SyndromeKind = 1 // receiver not ready: nothing was posted to receive a message
	KindReserved SyndromeKind = 2
	KindNak      SyndromeKind = 3
)

const syndromeValue = 0x1f

// credits has the numbers that values 0 to 30 of an ACK stand for: IBTA 9.7.7.2.
var credits = [...]int{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
	1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// rnrTimers has the times that a requester has to wait after an RNR NAK, by its value, in units of
// 10 microseconds: IBTA 9.7.5.2.8.
var rnrTimers = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256,
	384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// Ack returns the syndrome of an ACK that grants n credits, that is, tells how many messages the
// responder is ready to receive: the largest number not above n that has an encoding. Below 0 is 0.
func Ack(n int) Syndrome {
	s := Syndrome(0)
	for i, c := range credits {
		if c <= n {
			s = Syndrome(i)
		}
	}
	return s
}

// RNRNak returns the syndrome of an RNR NAK whose timer has the given code, 0 to 31.
// Higher bits are not used.
func RNRNak(code uint8) Syndrome { return 0x20 | Syndrome(code&syndromeValue) }

// RNRTimer returns the time that a timer code of an RNR NAK stands for, in microseconds: 10 to
// 655,360. Bits above the lower five are not used. Codes do not rise with the time: 0 is the longest.
func RNRTimer(code uint8) uint32 { return 10 * rnrTimers[code&syndromeValue] }

// Kind returns the kind of acknowledgement. The reserved bit is not looked at.
func (s Syndrome) Kind() SyndromeKind { return SyndromeKind(s >> 5 & 3) }

// Value returns the lower five bits, which mean something else for each kind.
func (s Syndrome) Value() uint8 { return uint8(s & syndromeValue) }

// Credits returns how many messages the responder is ready to receive, and whether s says so: it
// is an ACK, and not one without credits.
func (s Syndrome) Credits() (n int, limited bool) {
	if v := s.Value(); s.Kind() == KindAck && int(v) < len(credits) { // rule: TestCredits: s.Kind() == KindAck -> true
		return credits[v], true
	}
	return 0, false
}

// String returns "ACK", "ACK 16 credits", "RNR NAK 0.06 ms", "NAK PSN sequence error" and so on.
func (s Syndrome) String() string {
	switch s.Kind() {
	case KindAck:
		if n, limited := s.Credits(); limited {
			return fmt.Sprintf("ACK %d credits", n)
		}
		return "ACK"
	case KindRNRNak:
		us := RNRTimer(s.Value())
		return fmt.Sprintf("RNR NAK %d.%02d ms", us/1000, us%1000/10)
	case KindNak:
		switch NakSequence&^syndromeValue | Syndrome(s.Value()) {
		case NakSequence:
			return "NAK PSN sequence error"
		case NakInvalidRequest:
			return "NAK invalid request"
		case NakRemoteAccess:
			return "NAK remote access error"
		case NakRemoteOperation:
			return "NAK remote operational error"
		case 0x64:
			return "NAK invalid RD request"
		}
		return fmt.Sprintf("NAK reserved(%d)", s.Value())
	}
	return fmt.Sprintf("reserved(%#02x)", uint8(s))
}
