package roce

import (
	"bytes"
	"testing"

	"github.com/gosmc/smc/wire"
)

func TestPacketICRCErrors(t *testing.T) {
	v4, v6 := unhex(t, icrcVectors[3].hex), unhex(t, icrcVectors[4].hex)
	for _, ip := range [][]byte{v4, v6} {
		for n := range ip {
			computed, carried, err := PacketICRC(ip[:n:n])
			wantDecodeError(t, "truncated", err, wire.ErrTruncated)
			if computed != 0 || carried != 0 {
				t.Errorf("PacketICRC of %d bytes = %#x, %#x, %v", n, computed, carried, err)
			}
		}
		padded := append(bytes.Clone(ip), 1, 2, 3)
		if computed, carried, err := PacketICRC(padded); err != nil || computed != carried {
			t.Errorf("PacketICRC with Ethernet padding = %#x, %#x, %v; want the same twice", computed, carried, err)
		}
	}
	for _, lie := range []struct {
		ip     []byte
		offset int
		value  byte
		want   error
	}{
		{v4, 0, 0x05, wire.ErrVersion}, {v4, 0, 0x55, wire.ErrVersion}, {v4, 0, 0xf5, wire.ErrVersion},
		{v4, 0, 0x44, wire.ErrLength}, {v4, 0, 0x46, wire.ErrLength}, {v4, 0, 0x4f, wire.ErrLength},
		{v4, 2, 0x01, wire.ErrLength}, {v4, 3, 0x43, wire.ErrLength}, {v4, 3, 0x45, wire.ErrLength}, {v4, 3, 0, wire.ErrLength},
		{v4, 6, 0x60, wire.ErrValue}, {v4, 6, 0x20, wire.ErrValue}, {v4, 6, 0x41, wire.ErrValue}, {v4, 7, 1, wire.ErrValue},
		{v4, 9, 6, wire.ErrType}, {v4, 9, 0, wire.ErrType},
		{v4, 24, 0x01, wire.ErrLength}, {v4, 25, 0x2f, wire.ErrLength}, {v4, 25, 0x31, wire.ErrLength}, {v4, 25, 0, wire.ErrLength},
		{v6, 0, 0x50, wire.ErrVersion}, {v6, 0, 0x70, wire.ErrVersion},
		{v6, 4, 0x01, wire.ErrLength}, {v6, 5, 0x2f, wire.ErrLength}, {v6, 5, 0x31, wire.ErrLength}, {v6, 5, 0, wire.ErrLength},
		{v6, 6, 0, wire.ErrType}, {v6, 6, 44, wire.ErrType}, // hop-by-hop options, fragment
		{v6, 44, 0x01, wire.ErrLength}, {v6, 45, 0, wire.ErrLength},
	} {
		b := bytes.Clone(lie.ip)
		b[lie.offset] = lie.value
		_, _, err := PacketICRC(b)
		wantDecodeError(t, "lie", err, lie.want)
	}
	// Both lengths agree, but there is no room for a packet.
	b := bytes.Clone(v4)
	b[3], b[25] = 28+15, 8+15
	_, _, err := PacketICRC(b)
	wantDecodeError(t, "short", err, wire.ErrLength)
	// Both lengths agree, but there is less.
	b[3], b[25] = 28+0x80, 8+0x80
	_, _, err = PacketICRC(b)
	wantDecodeError(t, "long", err, wire.ErrTruncated)
}
