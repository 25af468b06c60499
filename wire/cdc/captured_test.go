package cdc

import (
	"bytes"
	_ "embed"
	"strings"
	"testing"

	"github.com/gosmc/smc/wire"
)

//go:embed testdata/captured.txt
var capturedText string

// TestCaptured decodes and encodes messages from Linux, and follows the cursors of one connection.
func TestCaptured(t *testing.T) {
	const (
		one      = "linux-6.12-smcrv2-one-link.pcap"
		two      = "linux-6.12-smcrv2-two-links.pcap"
		capacity = 64 << 10
	)
	want := map[string]Message{
		one + " 19":  {Seq: 1, AlertToken: 1, Producer: Cursor{0, 100}},
		one + " 23":  {Seq: 1, AlertToken: 1, Producer: Cursor{0, 100}, Consumer: Cursor{0, 100}},
		two + " 182": {Seq: 21, AlertToken: 1, Producer: Cursor{0, 2000}, Consumer: Cursor{0, 2000}, ConnFlags: Closed},
		two + " 286": {Seq: 2, AlertToken: 3, Producer: Cursor{0, 3500}, ProducerFlags: UrgentPending | UrgentPresent},
		two + " 306": {Seq: 4, AlertToken: 3, Producer: Cursor{0, 4500}, Consumer: Cursor{0, 4096}, ConnFlags: Abort},
		two + " 342": {Seq: 2, AlertToken: 4, Producer: Cursor{0, 3000}, ConnFlags: DoneWriting},
		two + " 354": {Seq: 3, AlertToken: 4, Producer: Cursor{0, 3000}, Consumer: Cursor{0, 3000}, ConnFlags: DoneWriting | Closed},
		two + " 590": {Seq: 301, AlertToken: 7, Producer: Cursor{22, 58208}, Consumer: Cursor{22, 58208}, ConnFlags: Closed},
		two + " 620": {Seq: 3, AlertToken: 5, Producer: Cursor{0, 3000}, ConnFlags: Closed | Abort},
	}
	type direction struct {
		sender string
		token  wire.AlertToken
	}
	last := map[direction]Message{} // of the first capture
	count := 0
	for line := range strings.Lines(capturedText) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		count++
		key, sender, encoded := f[0]+" "+f[1], f[2], unhex(t, f[3])
		m, err := ParseMessage(encoded)
		if err != nil {
			t.Errorf("%s: ParseMessage(%x): %v", key, encoded, err)
			continue
		}
		if got := m.Append(nil); !bytes.Equal(got, encoded) {
			t.Errorf("%s: Append = %x, want %x", key, got, encoded)
		}
		if w, ok := want[key]; ok {
			delete(want, key)
			if m != w {
				t.Errorf("%s: ParseMessage = %v, want %v", key, m, w)
			}
		}
		if f[0] != one {
			continue
		}
		d := direction{sender, m.AlertToken}
		before := last[d]
		if m.IsStale(before.Seq) || m.Seq != before.Seq+1 {
			t.Errorf("%s: %v follows %v", key, m, before)
		}
		if _, err := Check(before.Producer, m.Producer, capacity, capacity); err != nil {
			t.Errorf("%s: Check(%v, %v): %v", key, before.Producer, m.Producer, err)
		}
		if _, err := Check(before.Consumer, m.Consumer, capacity, capacity); err != nil {
			t.Errorf("%s: Check(%v, %v): %v", key, before.Consumer, m.Consumer, err)
		}
		last[d] = m
	}
	if count < 100 || len(last) != 2 {
		t.Errorf("captured.txt has %d messages, %d directions in the first capture; want more than 100, and 2", count, len(last))
	}
	for key := range want {
		t.Errorf("captured.txt has no %s", key)
	}
}
