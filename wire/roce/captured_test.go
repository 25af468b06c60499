package roce

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"os"
	"testing"
)

// captures has the files in testdata and how many packets there are of each opcode.
var captures = map[string]map[Opcode]int{
	"linux-6.12-rxe-verbs.pcap.gz": {
		SendFirst: 16, SendMiddle: 261, SendLast: 15, WriteFirst: 3, WriteMiddle: 145, WriteLast: 3, Acknowledge: 21,
	},
	"linux-6.12-smcrv2-one-link.pcap.gz": {SendOnly: 120, WriteOnly: 116, Acknowledge: 236},
	"linux-6.12-smcrv2-two-links.pcap.gz": {
		SendOnly: 241, WriteFirst: 25, WriteMiddle: 103, WriteLast: 24, WriteOnly: 44, Acknowledge: 210,
	},
}

// readCapture returns the IP packets in a compressed pcap file of Ethernet frames: 24 bytes of
// header, then for each frame 16 bytes, the third word of which is the length.
func readCapture(t testing.TB, name string) (packets [][]byte) {
	t.Helper()
	file, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	const etherLen = 14
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 || binary.LittleEndian.Uint32(b[20:]) != 1 {
		t.Fatalf("%s is no little-endian pcap file of Ethernet frames", name)
	}
	for b = b[24:]; len(b) > 0; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		packets = append(packets, b[16+etherLen:16+n])
		b = b[16+n:]
	}
	return packets
}

// TestCaptured decodes and encodes every RoCEv2 packet of the captures, and checks its ICRC, with the
// identification known and not known.
func TestCaptured(t *testing.T) {
	for name, want := range captures {
		got := make(map[Opcode]int)
		solved := 0
		for i, ip := range readCapture(t, name) {
			checkICRC(t, name, ip)
			f, id, b := split(t, ip)
			if n, v := f.Verify(0, b); n != id || (v == Exact) != (id == 0) || v == Bad {
				t.Errorf("%s, packet %d: Verify(0) = %#x, %v; want %#x", name, i+1, n, v, id)
			} else if v == Solved {
				solved++
			}
			var p Packet
			if err := p.Parse(b); err != nil {
				t.Errorf("%s, packet %d: Parse(%x): %v", name, i+1, b, err)
				continue
			}
			got[p.Opcode]++
			encoded := append(p.Append(nil), 0, 0, 0, 0)
			f.Seal(id, encoded)
			if !bytes.Equal(encoded, b) {
				t.Errorf("%s, packet %d: Append and Seal:\n got %x\nwant %x", name, i+1, encoded, b)
			}
		}
		for op, n := range want {
			if got[op] != n {
				t.Errorf("%s: %d packets of %v, want %d", name, got[op], op, n)
			}
			delete(got, op)
		}
		if len(got) > 0 || solved == 0 {
			t.Errorf("%s: other packets %v, %d solved", name, got, solved)
		}
	}
}
