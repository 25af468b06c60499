package capture

import (
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/frame"
)

// roceTestdata has captures of real kernels.
const roceTestdata = "../../wire/roce/testdata"

// TestKernelCaptures reads captures of Linux, as they are stored and unpacked.
func TestKernelCaptures(t *testing.T) {
	for _, tt := range []struct {
		name           string
		packets, bytes int
		first, last    string
	}{
		{"linux-6.12-smcrv2-one-link.pcap", 472, 47100, "2026-11-20T22:11:03.233735Z", "2026-11-20T22:11:05.909749Z"},
		{"linux-6.12-smcrv2-two-links.pcap", 647, 210354, "2026-11-20T22:34:01.117247Z", "2026-11-20T22:34:37.912523Z"},
		{"linux-6.12-rxe-verbs.pcap", 464, 479268, "2026-11-20T23:11:02.700858Z", "2026-11-20T23:11:08.577032Z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			packed := filepath.Join(roceTestdata, tt.name+".gz")
			unpacked := filepath.Join(t.TempDir(), tt.name)
			unpack(t, packed, unpacked)
			for _, name := range []string{packed, unpacked} {
				got := readFile(t, name)
				if len(got.errs) > 0 {
					t.Errorf("%s: %v", name, got.errs)
				}
				if len(got.packets) != tt.packets || got.bytes() != tt.bytes {
					t.Fatalf("%s: %d packets of %d bytes, want %d of %d", name, len(got.packets), got.bytes(), tt.packets, tt.bytes)
				}
				first, last := got.packets[0], got.packets[tt.packets-1]
				if a, b := first.Time.Format(time.RFC3339Nano), last.Time.Format(time.RFC3339Nano); a != tt.first || b != tt.last {
					t.Errorf("%s: from %s to %s, want %s to %s", name, a, b, tt.first, tt.last)
				}
				if first.Link != frame.Ethernet || first.OrigLen != len(first.Data) {
					t.Errorf("%s: packet 1 is %v of %d bytes, want Ethernet of %d", name, first.Link, first.OrigLen, len(first.Data))
				}
			}
		})
	}
}

func unpack(t testing.TB, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	z, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// contents has the packets and errors that a Source gave up to its end.
type contents struct {
	packets []Packet // with copies of the data
	errs    []*Error
}

func (c contents) bytes() (n int) {
	for _, p := range c.packets {
		n += len(p.Data)
	}
	return n
}

func readFile(t testing.TB, name string) contents {
	t.Helper()
	s, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return readAll(t, s)
}

// readAll reads s to its end and checks the rules that hold for every Source.
func readAll(t testing.TB, s Source) (c contents) {
	t.Helper()
	for {
		p, err := s.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || p != nil {
				t.Fatalf("Next() = %v, %v (%T); want nil and an *Error", p, err, err)
			}
			c.errs = append(c.errs, e)
			continue
		}
		if p.Number != len(c.packets)+1 {
			t.Fatalf("packet %d has the number %d", len(c.packets)+1, p.Number)
		}
		if p.OrigLen < len(p.Data) || len(p.Data) > MaxPacket {
			t.Fatalf("packet %d: %d bytes of %d", p.Number, len(p.Data), p.OrigLen)
		}
		c.packets = append(c.packets, *p)
		last := &c.packets[len(c.packets)-1]
		last.Data = append([]byte{}, p.Data...)
	}
	if p, err := s.Next(); p != nil || err != io.EOF {
		t.Fatalf("Next() after the end = %v, %v; want EOF", p, err)
	}
	return c
}
