package main

import (
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// To measure a file of 2 GB:
//
//	go test ./cmd/gosmc -run '^$' -bench DumpFile -benchtime 1x -dump.size 2GB
var dumpSize = byteSize(64 << 20)

func init() { flag.Var(&dumpSize, "dump.size", "size of the capture of BenchmarkDumpFile") }

// writeTraffic makes a capture of at least size bytes, and returns its name and the packets and
// bytes that it has.
func writeTraffic(tb testing.TB, size int64) (name string, packets int, bytes int64) {
	tb.Helper()
	name = filepath.Join(tb.TempDir(), "traffic.pcap")
	f, err := os.Create(name)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	packets, bytes, err = newTraffic(f, 7).until(size)
	if err != nil {
		tb.Fatal(err)
	}
	return name, packets, bytes
}

// BenchmarkDumpFile reads a capture of SMC-R traffic and writes a line for each message to a file: the
// whole way, on one processor at GOMAXPROCS=1. It reports packets per second and the most memory
// that the process has had.
func BenchmarkDumpFile(b *testing.B) {
	name, packets, bytes := writeTraffic(b, int64(dumpSize))
	out, err := os.Create(filepath.Join(b.TempDir(), "lines.txt"))
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	b.SetBytes(bytes)
	for b.Loop() {
		if _, err := out.Seek(0, io.SeekStart); err != nil {
			b.Fatal(err)
		}
		var stderr strings.Builder
		if code := run(b.Context(), []string{"dump", name}, strings.NewReader(""), out, &stderr); code != exitOK {
			b.Fatalf("gosmc dump = %d, %s", code, stderr.String())
		}
	}
	b.ReportMetric(float64(packets)*float64(b.N)/b.Elapsed().Seconds(), "packets/s")
	if peak, ok := peakMemory(); ok {
		b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
	}
}

// BenchmarkDumpBesideTshark has gosmc and then tshark make a line of each packet of the same
// capture, which is a quarter as large as the capture of BenchmarkDumpFile. It reports how many
// times faster gosmc is. The rates are gosmc's.
func BenchmarkDumpBesideTshark(b *testing.B) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		b.Skip("needs tshark")
	}
	name, packets, bytes := writeTraffic(b, int64(dumpSize)/4)
	out, err := os.Create(filepath.Join(b.TempDir(), "lines.txt"))
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	b.SetBytes(bytes)
	var ours, theirs time.Duration
	for b.Loop() {
		start := time.Now()
		if code := run(b.Context(), []string{"dump", name}, strings.NewReader(""), out, io.Discard); code != exitOK {
			b.Fatalf("gosmc dump = %d", code)
		}
		ours += time.Since(start)
		b.StopTimer()
		start = time.Now()
		cmd := exec.CommandContext(b.Context(), tshark, "-n", "-r", name)
		cmd.Stdout = out
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
		theirs += time.Since(start)
		b.StartTimer()
	}
	b.ReportMetric(float64(packets)*float64(b.N)/ours.Seconds(), "packets/s")
	b.ReportMetric(theirs.Seconds()/ours.Seconds(), "x-tshark")
}

// peakMemory returns the most resident memory that this process has had, in bytes.
func peakMemory() (int64, bool) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}
