package netns

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseAck(t *testing.T) {
	ack := func(kind uint16, seq uint32, errno int32) []byte {
		var b []byte
		b = binary.NativeEndian.AppendUint32(b, 20)
		b = binary.NativeEndian.AppendUint16(b, kind)
		b = binary.NativeEndian.AppendUint16(b, 0)
		b = binary.NativeEndian.AppendUint32(b, seq)
		b = binary.NativeEndian.AppendUint32(b, 4711)
		return binary.NativeEndian.AppendUint32(b, uint32(-errno))
	}
	for _, tt := range []struct {
		name string
		m    []byte
		want unix.Errno
	}{
		{"success", ack(unix.NLMSG_ERROR, 7, 0), 0},
		{"refusal", ack(unix.NLMSG_ERROR, 7, int32(unix.EPERM)), unix.EPERM},
		{"to another request", ack(unix.NLMSG_ERROR, 6, int32(unix.EPERM)), notOurAck},
		{"no answer", ack(unix.RTM_NEWLINK, 7, 0), notOurAck},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := parseAck(tt.m, 7); err != nil || got != tt.want {
				t.Errorf("parseAck(%x) = %v, %v, want %v", tt.m, got, err, tt.want)
			}
			for n := range tt.m {
				if _, err := parseAck(tt.m[:n], 7); err == nil {
					t.Errorf("parseAck of %d bytes: no error", n)
				}
			}
		})
	}
}

func TestAppendAttr(t *testing.T) {
	got := appendAttr([]byte{9}, 3, []byte("abcde"))
	want := binary.NativeEndian.AppendUint16([]byte{9}, 9)
	want = append(binary.NativeEndian.AppendUint16(want, 3), "abcde\x00\x00\x00"...)
	if string(got) != string(want) {
		t.Errorf("appendAttr = %x, want %x", got, want)
	}
}
