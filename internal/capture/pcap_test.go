package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/frame"
)

const testSeconds = 1_700_000_000

// TestPcap reads both byte orders, both units of time, and the variant with longer records.
func TestPcap(t *testing.T) {
	for _, o := range orders {
		for _, tt := range []struct {
			name  string
			magic uint32
			nanos int64
			extra []byte
		}{
			{"microseconds", 0xa1b2c3d4, 123456000, nil},
			{"nanoseconds", 0xa1b23c4d, 123456, nil},
			{"modified", 0xa1b2cd34, 123456000, []byte{0, 0, 0, 2, 8, 0, 0, 0}},
		} {
			t.Run(tt.name+", "+o.name, func(t *testing.T) {
				// The upper half of the link type says that frames have a check sequence.
				file := appendPcapHeader(nil, o, tt.magic, 65535, 0x24000000|276)
				file = appendRecord(file, o, testSeconds, 123456, 90, tt.extra, counting(60))
				file = appendRecord(file, o, testSeconds+1, 0, 0, tt.extra, nil)
				file = appendRecord(file, o, testSeconds+2, 999999, 65535, tt.extra, counting(65535))
				got := readBytes(t, file)
				if len(got.errs) > 0 || len(got.packets) != 3 {
					t.Fatalf("%d packets and %v, want 3", len(got.packets), got.errs)
				}
				for i, want := range []struct {
					at             time.Time
					bytes, origLen int
				}{
					{time.Unix(testSeconds, tt.nanos), 60, 90},
					{time.Unix(testSeconds+1, 0), 0, 0},
					{time.Unix(testSeconds+2, tt.nanos/123456*999999), 65535, 65535},
				} {
					p := got.packets[i]
					if !p.Time.Equal(want.at) || p.Time.Location() != time.UTC {
						t.Errorf("packet %d at %v, want %v", i+1, p.Time, want.at.UTC())
					}
					if !bytes.Equal(p.Data, counting(want.bytes)) || p.OrigLen != want.origLen || p.Link != frame.Cooked2 {
						t.Errorf("packet %d: %d bytes of %d, %v; want %d of %d, %v", i+1, len(p.Data), p.OrigLen, p.Link,
							want.bytes, want.origLen, frame.Cooked2)
					}
				}
			})
		}
	}
}

// smallPcap has three packets, of 20, 0 and 33 bytes, and the offsets of their records and of its end.
func smallPcap() (file []byte, offsets []int) {
	o := binary.LittleEndian
	file = appendPcapHeader(nil, o, magicMicro, 262144, 1)
	for i, n := range []int{20, 0, 33} {
		offsets = append(offsets, len(file))
		file = appendRecord(file, o, testSeconds+uint32(i), 5, n, nil, counting(n))
	}
	return file, append(offsets, len(file))
}

// TestPcapTruncated cuts a file at every length.
func TestPcapTruncated(t *testing.T) {
	file, offsets := smallPcap()
	for n := range file {
		s, err := newReader(bytesInput(file[:n]))
		if n < pcapFileHeader {
			if want := ErrFormat; n >= 4 {
				want = ErrTruncated
				if !errors.Is(err, want) {
					t.Errorf("newReader of %d bytes: %v, want %v", n, err, want)
				}
			} else if !errors.Is(err, want) {
				t.Errorf("newReader of %d bytes: %v, want %v", n, err, want)
			}
			continue
		}
		if err != nil {
			t.Fatalf("newReader of %d bytes: %v", n, err)
		}
		whole := 0
		for whole < 3 && offsets[whole+1] <= n {
			whole++
		}
		got := readAll(t, s)
		if len(got.packets) != whole {
			t.Errorf("%d bytes: %d packets, want %d", n, len(got.packets), whole)
		}
		if n == offsets[whole] {
			if len(got.errs) > 0 {
				t.Errorf("%d bytes: %v, want no error", n, got.errs)
			}
			continue
		}
		if len(got.errs) != 1 || !errors.Is(got.errs[0], ErrTruncated) ||
			got.errs[0].Packet != whole+1 || got.errs[0].Offset != int64(offsets[whole]) || got.errs[0].Name != "test" {
			t.Errorf("%d bytes: %v, want %v in packet %d at %d", n, got.errs, ErrTruncated, whole+1, offsets[whole])
		}
	}
}

// TestPcapDamaged puts a fault into the middle of a file: it is told once, with its place, and the
// records before and behind it are read.
func TestPcapDamaged(t *testing.T) {
	const packets, size, broken = 20, 100, 7
	record := pcapRecord + size
	for _, tt := range []struct {
		name   string
		damage func(rec []byte) // of the record of packet broken+1 and all that follow
		lost   int
	}{
		{"captured length too large", func(b []byte) { binary.LittleEndian.PutUint32(b[8:], MaxPacket+1) }, 1},
		{"captured length 2^32-1", func(b []byte) { binary.LittleEndian.PutUint32(b[8:], 1<<32-1) }, 1},
		{"captured length past the end", func(b []byte) {
			binary.LittleEndian.PutUint32(b[8:], 100_000)
			binary.LittleEndian.PutUint32(b[12:], 100_000)
		}, 1},
		{"captured more than there was", func(b []byte) { binary.LittleEndian.PutUint32(b[8:], size+3) }, 1},
		{"a fraction above a second", func(b []byte) {
			binary.LittleEndian.PutUint32(b[4:], 1<<31)
			binary.LittleEndian.PutUint32(b[8:], 3)
		}, 1},
		{"nonsense", func(b []byte) { copy(b, bytes.Repeat([]byte{0xe7}, 3*record)) }, 3},
		{"zeros", func(b []byte) { clear(b[:2*record]) }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := appendPcapHeader(nil, binary.LittleEndian, magicMicro, 0, 1)
			for i := range packets {
				file = appendRecord(file, binary.LittleEndian, testSeconds+uint32(i), uint32(i), size, nil,
					bytes.Repeat([]byte{byte(0x80 + i)}, size))
			}
			at := pcapFileHeader + broken*record
			tt.damage(file[at:])
			got := readBytes(t, file)
			if len(got.errs) != 1 {
				t.Fatalf("%d errors, want 1: %v", len(got.errs), got.errs)
			}
			e := got.errs[0]
			if !errors.Is(e, ErrCorrupt) || e.Packet != broken+1 || e.Offset != int64(at) {
				t.Errorf("%v, want %v in packet %d at %d", e, ErrCorrupt, broken+1, at)
			}
			if want := fmt.Sprintf("%d bytes skipped", tt.lost*record); !strings.HasSuffix(e.Error(), want) {
				t.Errorf("Error() = %q, want ... %s", e, want)
			}
			if len(got.packets) != packets-tt.lost {
				t.Fatalf("%d packets, want %d", len(got.packets), packets-tt.lost)
			}
			for i, p := range got.packets {
				if i >= broken {
					i += tt.lost
				}
				if len(p.Data) != size || p.Data[0] != byte(0x80+i) {
					t.Errorf("packet %d is not that of the file", p.Number)
				}
			}
		})
	}
}

// TestPcapSmallLie has a captured length that is too small: the packet is cut, and the reader
// finds the next.
func TestPcapSmallLie(t *testing.T) {
	file := appendPcapHeader(nil, binary.LittleEndian, magicMicro, 0, 1)
	for i := range 10 {
		file = appendRecord(file, binary.LittleEndian, testSeconds+uint32(i), 0, 50, nil, bytes.Repeat([]byte{0xee}, 50))
	}
	binary.LittleEndian.PutUint32(file[pcapFileHeader+8:], 3)
	got := readBytes(t, file)
	if len(got.packets) != 10 || len(got.packets[0].Data) != 3 || len(got.errs) != 1 || got.errs[0].Packet != 2 {
		t.Errorf("%d packets and %v, want 10 and an error in packet 2", len(got.packets), got.errs)
	}
}

// TestPcapNothingFollows has a fault and nothing that can be read behind it.
func TestPcapNothingFollows(t *testing.T) {
	file, offsets := smallPcap()
	file = append(file, bytes.Repeat([]byte{0xff}, 3*firstWindow)...)
	got := readBytes(t, file)
	if len(got.packets) != 3 || len(got.errs) != 1 || !errors.Is(got.errs[0], ErrCorrupt) ||
		got.errs[0].Offset != int64(offsets[3]) || !strings.Contains(got.errs[0].Error(), "no packet found in the 196608 bytes") {
		t.Errorf("%d packets and %v, want 3 and one error at %d", len(got.packets), got.errs, offsets[3])
	}
}

// TestPcapStrange reads files in which every record is strange in the same way.
func TestPcapStrange(t *testing.T) {
	o := binary.LittleEndian
	for _, tt := range []struct {
		name               string
		snapLen            uint32
		fraction, original uint32
		at                 time.Time
		origLen            int
	}{
		{"nanoseconds in a file of microseconds", 65535, 1_500_000, 40, time.Unix(testSeconds+1, 500_000_000), 40},
		{"original length less than the captured", 65535, 7, 0, time.Unix(testSeconds, 7000), 40},
		{"more than the snapshot length", 16, 7, 40, time.Unix(testSeconds, 7000), 40},
		{"original length 2^32-1", 65535, 7, 1<<32 - 1, time.Unix(testSeconds, 7000), 1<<31 - 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := appendPcapHeader(nil, o, magicMicro, tt.snapLen, 1)
			for range 4 {
				file = appendRecord(file, o, testSeconds, tt.fraction, int(tt.original), nil, counting(40))
			}
			got := readBytes(t, file)
			if len(got.packets) != 4 || len(got.errs) > 0 {
				t.Fatalf("%d packets and %v, want 4", len(got.packets), got.errs)
			}
			if p := got.packets[2]; !p.Time.Equal(tt.at) || p.OrigLen != tt.origLen {
				t.Errorf("at %v, %d bytes; want %v, %d", p.Time, p.OrigLen, tt.at.UTC(), tt.origLen)
			}
		})
	}
}

// TestPcapLarge reads the largest packet, and refuses one byte more.
func TestPcapLarge(t *testing.T) {
	file := appendPcapHeader(nil, binary.LittleEndian, magicMicro, 0, 1)
	file = appendRecord(file, binary.LittleEndian, testSeconds, 0, MaxPacket, nil, counting(MaxPacket))
	file = appendRecord(file, binary.LittleEndian, testSeconds, 0, MaxPacket+1, nil, bytes.Repeat([]byte{0xaa}, MaxPacket+1))
	for range 3 {
		file = appendRecord(file, binary.LittleEndian, testSeconds, 0, 1, nil, []byte{1})
	}
	got := readBytes(t, file)
	if len(got.packets) != 4 || len(got.errs) != 1 || got.errs[0].Packet != 2 {
		t.Fatalf("%d packets and %v, want 4 and an error in packet 2", len(got.packets), got.errs)
	}
	if !bytes.Equal(got.packets[0].Data, counting(MaxPacket)) {
		t.Error("the largest packet differs")
	}
}
