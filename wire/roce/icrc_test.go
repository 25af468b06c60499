package roce

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatalf("bad vector: %v", err)
	}
	return b
}

var (
	v4Source      = netip.MustParseAddrPort("10.0.0.1:49443")
	v4Destination = netip.MustParseAddrPort("10.0.0.2:4791")
	v6Source      = netip.MustParseAddrPort("[fd00::1]:49443")
	v6Destination = netip.MustParseAddrPort("[fd00::2]:4791")
)

func TestICRCQuick(t *testing.T) {
	b := unhex(t, "4500004400004000401126a70a0000010a000002c12312b7003000000a70ffff00000012800001001122334455667788000012340000000568656c6c6f00000021d79f16")[28:]
	f := NewFlow(v4Source, v4Destination)
	if got, v := f.Verify(0, b); got != 0 || v != Exact {
		t.Errorf("Verify(0) = %d, %v", got, v)
	}
	for range 100 {
		id := uint16(rand.Uint32() | 1)
		if got, v := f.Verify(id, b); got != 0 || v != Solved {
			t.Errorf("Verify(%d) = %d, %v", id, got, v)
		}
	}
	if got, want := f.ICRC(0, b[:len(b)-4]), binary.LittleEndian.Uint32(b[len(b)-4:]); got != want {
		t.Errorf("%x %x", got, want)
	}
	b = unhex(t, "6000000000301140fd000000000000000000000000000001fd000000000000000000000000000002c12312b7003000000a70ffff00000012800001001122334455667788000012340000000568656c6c6f000000a8eda9c8")[48:]
	f = NewFlow(v6Source, v6Destination)
	if got, v := f.Verify(7, b); got != 7 || v != Exact {
		t.Errorf("Verify(7) = %d, %v", got, v)
	}
}
