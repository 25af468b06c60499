package sockdiag

import (
	"encoding/binary"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// attr is an attribute: numbers of 1, 2, 4 and 8 bytes, or others in it.
func attr(kind uint16, value any) []byte {
	var v []byte
	switch value := value.(type) {
	case []byte:
		v, kind = value, kind|unix.NLA_F_NESTED
	default:
		v, _ = binary.Append(nil, binary.NativeEndian, value)
	}
	b := make([]byte, unix.SizeofNlAttr, align(unix.SizeofNlAttr+len(v)))
	binary.NativeEndian.PutUint16(b, uint16(unix.SizeofNlAttr+len(v)))
	binary.NativeEndian.PutUint16(b[2:], kind)
	b = append(b, v...)
	return b[:cap(b)]
}

func join(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// smcStatsMessages are messages with counters, laid out by hand from linux/smc.h.
func smcStatsMessages() [][]byte {
	head := []byte{smcGetStats, 1, 0, 0}
	tech := func(by uint64) []byte {
		return join(
			attr(1, attr(1, by)), // sizes of buffers
			attr(smcTechSendBuffers, join(attr(1, by), attr(smcBuffersPeerFull, by+9))),
			attr(smcTechClientV1, by+1), attr(smcTechClientV2, by+2), attr(smcTechServerV1, by+3), attr(smcTechServerV2, by+4),
			attr(smcTechIn, by+5), attr(smcTechOut, by+6), attr(18, by),
		)
	}
	return [][]byte{
		join(head, attr(smcGenStats, join(
			attr(smcStatsD, tech(100)), attr(smcStatsR, tech(200)), attr(smcStatsClientErrors, uint64(7)), attr(smcStatsServerErrors, uint64(8)),
		))),
		join(head, attr(smcGenFallbacks, join(
			attr(smcFallbackServer, uint8(1)), attr(smcFallbackServers, uint64(11)), attr(smcFallbackClients, uint64(12)),
			attr(smcFallbackCode, uint32(0x03010000)), attr(smcFallbackCount, uint16(5)),
		))),
		join(head, attr(smcGenFallbacks, join(
			attr(smcFallbackServer, uint8(0)), attr(smcFallbackCode, uint32(0x03030000)), attr(smcFallbackCount, uint16(6)),
		))),
	}
}

// TestParseSMCStats reads counters, and those that are cut off anywhere.
func TestParseSMCStats(t *testing.T) {
	list := smcStatsMessages()
	var s SMCStats
	for _, msg := range list {
		s.parse(msg)
	}
	want := SMCStats{
		SMCD:         SMCTech{Client: 203, Server: 207, In: 105, Out: 106, PeerFull: 109},
		SMCR:         SMCTech{Client: 403, Server: 407, In: 205, Out: 206, PeerFull: 209},
		ClientErrors: 7, ServerErrors: 8, ServerFallbacks: 11, ClientFallbacks: 12,
		Reasons: []SMCReason{{true, 0x03010000, 5}, {false, 0x03030000, 6}},
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("the counters are %+v, want %+v", s, want)
	}
	for _, msg := range list {
		for n := range msg {
			var s SMCStats
			s.parse(msg[:n])
			if !reflect.DeepEqual(s, SMCStats{}) {
				t.Errorf("%d of %d bytes have counters: %+v", n, len(msg), s)
			}
		}
	}
	var many SMCStats
	for range 2 * maxSMCReasons {
		many.parse(list[1])
	}
	if len(many.Reasons) != maxSMCReasons {
		t.Errorf("there are %d reasons, want %d", len(many.Reasons), maxSMCReasons)
	}
	if s, err := Stats(); err != nil || s != nil && !smcLoaded("/proc/net/protocols") {
		t.Errorf("Stats = %+v, %v", s, err)
	}
	if family, err := genericFamily("nlctrl"); err != nil || family != unix.GENL_ID_CTRL {
		t.Errorf("the family nlctrl has the number %d, %v", family, err)
	}
	if family, err := genericFamily("GOSMC_NONE"); err != nil || family != 0 {
		t.Errorf("a family that is not there has the number %d, %v", family, err)
	}
}

// FuzzParseSMCStats has any message read without a panic.
func FuzzParseSMCStats(f *testing.F) {
	for _, msg := range smcStatsMessages() {
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		var s SMCStats
		s.parse(msg)
		if len(s.Reasons) > 1 {
			t.Errorf("one message has %d reasons", len(s.Reasons))
		}
	})
}
