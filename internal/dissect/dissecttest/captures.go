package dissecttest

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/frame"
)

// Captures are captures of real kernels, by the names that tests use: files, named from the root of
// the module. A capture with a second file is split in two, see
// internal/dissect/testdata/README.md.
var Captures = map[string][]string{
	"smcd": {"internal/dissect/testdata/linux-6.12-smcdv21-loopback-ism.pcap.gz"},
	"one-link": {"internal/dissect/testdata/linux-6.12-smcrv2-one-link-tcp.pcap.gz",
		"wire/roce/testdata/linux-6.12-smcrv2-one-link.pcap.gz"},
	"two-links": {"internal/dissect/testdata/linux-6.12-smcrv2-two-links-tcp.pcap.gz",
		"wire/roce/testdata/linux-6.12-smcrv2-two-links.pcap.gz"},
	"verbs": {"internal/dissect/testdata/linux-6.12-rxe-verbs-tcp.pcap.gz",
		"wire/roce/testdata/linux-6.12-rxe-verbs.pcap.gz"},
}

// Captured returns the packets of a capture, numbered from 1.
func Captured(t testing.TB, name string) []frame.Packet {
	t.Helper()
	var merged []frame.Packet
	for _, file := range Captures[name] {
		next := ReadPcap(t, file)
		var both []frame.Packet
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

// ReadPcap reads a compressed, little-endian pcap file, named from the root of the module: 24 bytes
// of header, then for each packet 16 bytes, seconds, microseconds, length captured and on the wire.
func ReadPcap(t testing.TB, name string) (packets []frame.Packet) {
	t.Helper()
	zipped, err := os.ReadFile(File(t, name))
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
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 {
		t.Fatalf("%s is no little-endian pcap file", name)
	}
	link := frame.LinkType(word(20))
	for b = b[24:]; len(b) > 0; b = b[16+word(8):] {
		packets = append(packets, frame.Packet{
			Time: time.Unix(int64(word(0)), int64(word(4))*1000).UTC(),
			Link: link, Data: b[16 : 16+word(8)], OrigLen: word(12),
		})
	}
	return packets
}

// File returns the path of a file that is named from the root of the module, in which the test's package is.
func File(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, filepath.FromSlash(name))
		}
		up := filepath.Dir(dir)
		if up == dir {
			err = os.ErrNotExist
		}
		dir = up
	}
	t.Fatalf("looking for %s: there is no go.mod in any directory above: %v", name, err)
	return ""
}
