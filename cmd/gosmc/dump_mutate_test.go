package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/capture"
	"github.com/gosmc/smc/internal/dump"
	"github.com/gosmc/smc/internal/frame"
)

// mutate damages a file: bytes, numbers, pieces lost, repeated or moved.
func mutate(rng *rand.Rand, b []byte) []byte {
	b = bytes.Clone(b)
	for range 1 + rng.IntN(20) {
		if len(b) < 8 {
			return b
		}
		at := rng.IntN(len(b) - 4)
		n := min(1+rng.IntN(200), len(b)-at)
		switch rng.IntN(6) {
		case 0:
			b[at] ^= 1 << rng.IntN(8)
		case 1:
			b[at] = byte(rng.Uint32())
		case 2:
			copy(b[at:], [][]byte{{0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 0x80}, {1, 0, 0, 0}}[rng.IntN(4)])
		case 3:
			b = slices.Delete(b, at, at+n)
		case 4:
			b = slices.Insert(b, at, bytes.Clone(b[at:at+n])...)
		case 5:
			copy(b[rng.IntN(len(b)):], bytes.Clone(b[at:at+n]))
		}
	}
	return b
}

// Each output comes to its end with any content of the file, with the exit codes of a file that has
// been read, and is well-formed.
func TestDumpMutations(t *testing.T) {
	var made bytes.Buffer
	if _, _, err := newTrafficOf(&made, 3, 2).until(20 << 10); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(oneFile(t))
	if err != nil {
		t.Fatal(err)
	}
	seeds := [][]byte{made.Bytes(), whole[:24<<10]}
	outputs := []string{"-v -x", "--json", "--flow", "--stats", "--html -", "-w - --conn 1", "--problems --linkgroup 1 --ascii --flow"}
	file := filepath.Join(t.TempDir(), "in.pcap")
	for seed := range uint64(140) {
		rng := rand.New(rand.NewPCG(seed, 2))
		if err := os.WriteFile(file, mutate(rng, seeds[seed%2]), 0o644); err != nil {
			t.Fatal(err)
		}
		args := outputs[seed/2%uint64(len(outputs))]
		got := gosmc(t, "", append(append([]string{"dump"}, strings.Fields(args)...), file)...)
		if err := checkOutput(args, got); err != nil {
			t.Errorf("seed %d: gosmc dump %s = %d: %v", seed, args, got.code, err)
		}
	}
}

// checkOutput checks the output of dump for a file that may have anything in it.
func checkOutput(args string, got outcome) error {
	switch {
	case got.code != exitOK && got.code != exitFailure && got.code != exitProblems:
		return fmt.Errorf("unexpected exit code, %s", got.stderr)
	case got.code == exitFailure && !strings.Contains(got.stderr, "offset"):
		return fmt.Errorf("the error does not say where: %s", got.stderr)
	case strings.Count(got.stderr, "\n") > dump.MaxShownFaults+2:
		return fmt.Errorf("too many complaints: %s", got.stderr)
	case got.stdout == "":
		return nil
	case args == "--json":
		for line := range strings.Lines(got.stdout) {
			if !json.Valid([]byte(line)) {
				return fmt.Errorf("not JSON: %s", line)
			}
		}
	case args == "--html -":
		if n := strings.Count(got.stdout, "</script"); n != 2 || !strings.HasSuffix(got.stdout, "</html>\n") {
			return fmt.Errorf("the page has %d ends of scripts", n)
		}
	case strings.HasPrefix(args, "-w"):
		if !strings.HasPrefix(got.stdout, "\x0a\x0d\x0d\x0a") {
			return fmt.Errorf("not pcapng: %.20q", got.stdout)
		}
	default:
		if i := strings.IndexFunc(got.stdout, func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }); i >= 0 {
			return fmt.Errorf("a control character at %d: %.20q", i, got.stdout[i:])
		}
	}
	return nil
}

// A packet of the largest size, and of none, pass through every output.
func TestDumpSizes(t *testing.T) {
	var b bytes.Buffer
	w := capture.Create(&b, "sizes")
	for _, n := range []int{0, 1, 13, 14, 64 << 10, capture.MaxPacket} {
		data := make([]byte, n)
		if n > 14 {
			data[12], data[14], data[14+9] = 8, 0x45, 17 // IPv4, UDP
		}
		if err := w.Write(&capture.Packet{Number: 1, Link: frame.Ethernet, Data: data, OrigLen: n + 7}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sizes.pcapng")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"-v -x", "--json", "--flow", "--stats", "--html -", "-w -"} {
		got := gosmc(t, "", append(append([]string{"dump"}, strings.Fields(args)...), file)...)
		if got.code != exitOK || got.stderr != "" {
			t.Errorf("gosmc dump %s of odd sizes = %d, %s", args, got.code, got.stderr)
		}
	}
}
