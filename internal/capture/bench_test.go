package capture

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/gosmc/smc/internal/frame"
)

// BenchmarkRead reads files of 64 MB from the page cache.
func BenchmarkRead(b *testing.B) {
	for _, tt := range []struct {
		name string
		size int
	}{{"64", 64}, {"1100", 1100}, {"65000", 65000}} {
		const total = 64 << 20
		o := orders[0]
		data := counting(tt.size)
		pcap := appendPcapHeader(nil, o, magicMicro, 0, 1)
		ng := appendInterface(appendSection(nil, o), o, 1, 0, nil)
		packets := total / (tt.size + 32)
		for i := range packets {
			pcap = appendRecord(pcap, o, testSeconds, uint32(i%1e6), tt.size, nil, data)
			ng = appendEnhanced(ng, o, 0, uint64(i), tt.size, data)
		}
		for _, format := range []struct {
			name string
			file []byte
		}{{"pcap", pcap}, {"pcapng", ng}} {
			b.Run(format.name+"/"+tt.name, func(b *testing.B) {
				path := filepath.Join(b.TempDir(), "file")
				if err := os.WriteFile(path, format.file, 0o600); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(format.file)))
				b.ReportAllocs()
				for b.Loop() {
					if n := countPackets(b, path); n != packets {
						b.Fatalf("%d packets, want %d", n, packets)
					}
				}
				b.ReportMetric(float64(packets)*float64(b.N)/b.Elapsed().Seconds(), "packets/s")
			})
		}
	}
}

func countPackets(b *testing.B, paths ...string) (n int) {
	var sources []Source
	for _, path := range paths {
		s, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		sources = append(sources, s)
	}
	s := sources[0]
	if len(sources) > 1 {
		s = Merge(sources...)
	}
	defer s.Close()
	for {
		_, err := s.Next()
		if err == io.EOF {
			return n
		}
		if err != nil {
			b.Fatal(err)
		}
		n++
	}
}

// BenchmarkMerge merges four files, packet by packet.
func BenchmarkMerge(b *testing.B) {
	const files, packets = 4, 100_000
	var paths []string
	for k := range files {
		file := appendPcapHeader(nil, orders[0], magicMicro, 0, 1)
		for i := range packets {
			at := i*files + k
			file = appendRecord(file, orders[0], testSeconds+uint32(at/1e6), uint32(at%1e6), 64, nil, counting(64))
		}
		paths = append(paths, writeTemp(b, "file", file))
	}
	b.ReportAllocs()
	for b.Loop() {
		if n := countPackets(b, paths...); n != files*packets {
			b.Fatalf("%d packets, want %d", n, files*packets)
		}
	}
	b.ReportMetric(float64(files*packets)*float64(b.N)/b.Elapsed().Seconds(), "packets/s")
}

// BenchmarkWanted decides about a RoCEv2 packet of a live capture.
func BenchmarkWanted(b *testing.B) {
	ether, packet := filterPackets[0].build()
	flows := newFlows(maxFlows)
	b.ReportAllocs()
	for b.Loop() {
		if !flows.wanted(inner(ether, packet)) {
			b.Fatal("not wanted")
		}
	}
}

// BenchmarkWrite writes packets of 1,100 bytes.
func BenchmarkWrite(b *testing.B) {
	p := &Packet{Data: counting(1100), OrigLen: 1100, Link: frame.Ethernet}
	w := Create(io.Discard, "test")
	b.SetBytes(1100)
	b.ReportAllocs()
	for b.Loop() {
		if err := w.Write(p); err != nil {
			b.Fatal(err)
		}
	}
}
