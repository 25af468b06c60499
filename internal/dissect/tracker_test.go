package dissect

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"os"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/frame"
)

// The captures of real kernels, by the names that tests use. What has a second file is split in two,
// see testdata/README.md.
var captureFiles = map[string][]string{
	"smcd":      {"testdata/linux-6.12-smcdv21-loopback-ism.pcap.gz"},
	"one-link":  {"testdata/linux-6.12-smcrv2-one-link-tcp.pcap.gz", "../../wire/roce/testdata/linux-6.12-smcrv2-one-link.pcap.gz"},
	"two-links": {"testdata/linux-6.12-smcrv2-two-links-tcp.pcap.gz", "../../wire/roce/testdata/linux-6.12-smcrv2-two-links.pcap.gz"},
	"verbs":     {"testdata/linux-6.12-rxe-verbs-tcp.pcap.gz", "../../wire/roce/testdata/linux-6.12-rxe-verbs.pcap.gz"},
}

// capturedPackets returns the packets of a capture, numbered from 1.
func capturedPackets(t testing.TB, name string) []Packet {
	t.Helper()
	var merged []Packet
	for _, file := range captureFiles[name] {
		next := pcapPackets(t, file)
		var both []Packet
		for len(merged) > 0 || len(next) > 0 {
			if len(next) == 0 || len(merged) > 0 && merged[0].Time.Before(next[0].Time) {
				both = append(both, merged[0])
				merged = merged[1:]
			} else {
				both = append(both, next[0])
				next = next[1:]
			}
		}
		merged = both
	}
	for i := range merged {
		merged[i].Number = i + 1
	}
	return merged
}

// pcapPackets reads a compressed, little-endian pcap file: 24 bytes of header, then for each packet 16 bytes,
// seconds, microseconds, length captured and on the wire.
func pcapPackets(t testing.TB, name string) (packets []Packet) {
	t.Helper()
	zipped, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	word := func(i int) int { return int(binary.LittleEndian.Uint32(b[i:])) }
	if len(b) < 24 || word(0) != 0xa1b2c3d4 {
		t.Fatalf("%s is no little-endian pcap file", name)
	}
	link := frame.LinkType(word(20))
	for b = b[24:]; len(b) > 0; b = b[16+word(8):] {
		packets = append(packets, Packet{
			Time: time.Unix(int64(word(0)), int64(word(4))*1000).UTC(),
			Link: link, Data: b[16 : 16+word(8)], OrigLen: word(12),
		})
	}
	return packets
}
