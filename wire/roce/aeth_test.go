package roce

import (
	"fmt"
	"testing"
)

func TestSyndrome(t *testing.T) {
	for s, want := range map[Syndrome]string{
		AckUnlimited: "ACK", 0x00: "ACK 0 credits", 0x0a: "ACK 32 credits", 0x1e: "ACK 32768 credits", 0x9f: "ACK",
		0x20: "RNR NAK 655.36 ms", 0x21: "RNR NAK 0.01 ms", 0x25: "RNR NAK 0.06 ms", 0x3f: "RNR NAK 491.52 ms",
		NakSequence: "NAK PSN sequence error", NakInvalidRequest: "NAK invalid request",
		NakRemoteAccess: "NAK remote access error", NakRemoteOperation: "NAK remote operational error",
		0x64: "NAK invalid RD request", 0x65: "NAK reserved(5)", 0x7f: "NAK reserved(31)", 0xe0: "NAK PSN sequence error",
		0x40: "reserved(0x40)", 0x5f: "reserved(0x5f)", 0xc0: "reserved(0xc0)",
	} {
		if got := s.String(); got != want {
			t.Errorf("Syndrome(%#x).String() = %q, want %q", uint8(s), got, want)
		}
	}
	for i := range 256 {
		s := Syndrome(i)
		kind, value := SyndromeKind(i/32%4), uint8(i%32)
		if s.Kind() != kind || s.Value() != value {
			t.Errorf("Syndrome(%#x): kind %d, value %d; want %d, %d", i, s.Kind(), s.Value(), kind, value)
		}
		if _, limited := s.Credits(); limited != (kind == KindAck && value != 31) {
			t.Errorf("Syndrome(%#x).Credits() says limited %t", i, limited)
		}
		if got, want := RNRNak(uint8(i)), Syndrome(0x20+i%32); got != want || got.Kind() != KindRNRNak {
			t.Errorf("RNRNak(%d) = %#x, want %#x", i, uint8(got), uint8(want))
		}
	}
}

func TestCredits(t *testing.T) {
	for v, n := range []int{
		0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
		4096, 6144, 8192, 12288, 16384, 24576, 32768,
	} {
		if got, limited := Syndrome(v).Credits(); got != n || !limited {
			t.Errorf("Syndrome(%#x).Credits() = %d, %t; want %d, true", v, got, limited, n)
		}
		if got := Ack(n); got != Syndrome(v) {
			t.Errorf("Ack(%d) = %#x, want %#x", n, uint8(got), v)
		}
	}
	for _, s := range []Syndrome{0x1f, RNRNak(5), NakSequence, NakInvalidRequest} {
		if got, limited := s.Credits(); got != 0 || limited {
			t.Errorf("%v.Credits() = %d, %t; want none", s, got, limited)
		}
	}
	for n, want := range map[int]Syndrome{-1: 0, 5: 4, 7: 5, 47: 10, 32767: 29, 32769: 30, 1 << 30: 30} {
		if got := Ack(n); got != want {
			t.Errorf("Ack(%d) = %#x, want %#x", n, uint8(got), uint8(want))
		}
	}
}

func TestRNRTimer(t *testing.T) {
	for code, want := range []string{
		"655.36", "0.01", "0.02", "0.03", "0.04", "0.06", "0.08", "0.12", "0.16", "0.24", "0.32", "0.48", "0.64", "0.96",
		"1.28", "1.92", "2.56", "3.84", "5.12", "7.68", "10.24", "15.36", "20.48", "30.72", "40.96", "61.44", "81.92",
		"122.88", "163.84", "245.76", "327.68", "491.52",
	} { // milliseconds
		us := RNRTimer(uint8(code))
		if got := fmt.Sprintf("%.2f", float64(us)/1000); got != want || us%10 != 0 {
			t.Errorf("RNRTimer(%d) = %d us, want %s ms", code, us, want)
		}
		if got := RNRTimer(uint8(code) | 0xe0); got != us {
			t.Errorf("RNRTimer(%d) = %d, want %d", code|0xe0, got, us)
		}
	}
}
