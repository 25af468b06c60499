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

// TestPcapng reads every kind of block in both byte orders.
func TestPcapng(t *testing.T) {
	for _, o := range orders {
		t.Run(o.name, func(t *testing.T) {
			options := appendOption(nil, o, 2, []byte("eth0"))
			options = appendOption(options, o, 9, []byte{9})
			options = appendOption(options, o, 14, o.AppendUint64(nil, 100))
			options = append(options, 0, 0, 0, 0)
			file := appendSection(nil, o)
			file = appendInterface(file, o, 1, 48, nil) // microseconds
			file = appendInterface(file, o, 276, 0, options)
			file = appendBlock(file, o, 4, []byte{0, 0, 0, 0}) // names
			file = appendEnhanced(file, o, 0, testSeconds*1e6+123456, 1500, counting(61))
			file = appendEnhanced(file, o, 1, testSeconds*1e9+123456789, 62, counting(62))
			file = appendSimple(file, o, 90, counting(48))
			file = appendSimple(file, o, 0, nil)
			obsolete := o.AppendUint16(nil, 1)
			obsolete = o.AppendUint16(obsolete, 0xffff) // drops
			obsolete = o.AppendUint32(obsolete, (testSeconds*1_000_000_000)>>32)
			obsolete = o.AppendUint32(obsolete, (testSeconds*1_000_000_000)&0xffffffff)
			obsolete = o.AppendUint32(obsolete, 5)
			obsolete = o.AppendUint32(obsolete, 5)
			file = appendBlock(file, o, 2, append(obsolete, counting(5)...))
			file = appendBlock(file, o, 5, make([]byte, 12))                   // statistics
			file = appendBlock(file, o, 0x00000bad, []byte{1, 2, 3, 4})        // custom
			file = appendBlock(file, o, 0x80000001, make([]byte, 3*maxWindow)) // of a local kind, long
			file = appendEnhanced(file, o, 0, 0, 65535, counting(65535))
			got := readBytes(t, file)
			if len(got.errs) > 0 || len(got.packets) != 6 {
				t.Fatalf("%d packets and %v, want 6", len(got.packets), got.errs)
			}
			for i, want := range []struct {
				link           frame.LinkType
				at             time.Time
				bytes, origLen int
			}{
				{frame.Ethernet, time.Unix(testSeconds, 123456000), 61, 1500},
				{frame.Cooked2, time.Unix(testSeconds+100, 123456789), 62, 62},
				{frame.Ethernet, time.Time{}, 48, 90},
				{frame.Ethernet, time.Time{}, 0, 0},
				{frame.Cooked2, time.Unix(testSeconds+100, 0), 5, 5},
				{frame.Ethernet, time.Unix(0, 0), 65535, 65535},
			} {
				p := got.packets[i]
				if p.Link != want.link || !p.Time.Equal(want.at) || !bytes.Equal(p.Data, counting(want.bytes)) || p.OrigLen != want.origLen {
					t.Errorf("packet %d: %v at %v, %d bytes of %d; want %v at %v, %d of %d", i+1, p.Link, p.Time, len(p.Data), p.OrigLen,
						want.link, want.at.UTC(), want.bytes, want.origLen)
				}
			}
		})
	}
}

// TestPcapngSections reads a file of two sections in different byte orders: each has its own interfaces.
func TestPcapngSections(t *testing.T) {
	var file []byte
	for i, o := range orders {
		file = appendSection(file, o)
		if i == 1 {
			file = appendEnhanced(file, o, 0, 0, 1, []byte{9}) // of an interface of the other section
		}
		file = appendInterface(file, o, uint16(100+i), 0, nil)
		file = appendEnhanced(file, o, 0, 1e6, 1, []byte{byte(i)})
	}
	got := readBytes(t, file)
	if len(got.packets) != 2 || got.packets[0].Link != 100 || got.packets[1].Link != 101 || got.packets[1].Data[0] != 1 {
		t.Errorf("packets %v, want one of link type 100 and one of 101", got.packets)
	}
	if len(got.errs) != 1 || got.errs[0].Packet != 2 || !strings.Contains(got.errs[0].Error(), "a packet of interface 0, and there are 0") {
		t.Errorf("errors %v, want one about interface 0", got.errs)
	}
}

// smallNg has three packets, of 20, 0 and 33 bytes, and the offsets of all blocks and of its end.
func smallNg() (file []byte, offsets []int) {
	o := binary.BigEndian
	file = appendSection(nil, o)
	offsets = append(offsets, 0, len(file))
	file = appendInterface(file, o, 1, 0, nil)
	for i, n := range []int{20, 0, 33} {
		offsets = append(offsets, len(file))
		file = appendEnhanced(file, o, 0, uint64(testSeconds+i)*1e6, n, counting(n))
	}
	return file, append(offsets, len(file))
}

// TestPcapngTruncated cuts a file at every length.
func TestPcapngTruncated(t *testing.T) {
	file, offsets := smallNg()
	for n := range file {
		s, err := newReader(bytesInput(file[:n]))
		if n < probeLen {
			if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrTruncated) {
				t.Errorf("newReader of %d bytes: %v, want %v or %v", n, err, ErrFormat, ErrTruncated)
			}
			continue
		}
		if err != nil {
			t.Fatalf("newReader of %d bytes: %v", n, err)
		}
		blocks := 0
		for blocks < 5 && offsets[blocks+1] <= n {
			blocks++
		}
		got := readAll(t, s)
		if want := max(blocks-2, 0); len(got.packets) != want {
			t.Errorf("%d bytes: %d packets, want %d", n, len(got.packets), want)
		}
		if n == offsets[blocks] {
			if len(got.errs) > 0 {
				t.Errorf("%d bytes: %v, want no error", n, got.errs)
			}
			continue
		}
		if len(got.errs) != 1 || !errors.Is(got.errs[0], ErrTruncated) || got.errs[0].Offset != int64(offsets[blocks]) {
			t.Errorf("%d bytes: %v, want %v at %d", n, got.errs, ErrTruncated, offsets[blocks])
		}
	}
}

// TestPcapngDamaged puts a fault into a block in the middle of a file: it is told once, with its place, and
// the blocks around it are read.
func TestPcapngDamaged(t *testing.T) {
	const packets, size, broken = 20, 100, 7
	const block = blockOverhead + enhancedFixed + size
	o := binary.LittleEndian
	put := func(at int, v uint32) func([]byte) {
		return func(b []byte) { o.PutUint32(b[at:], v) }
	}
	for _, tt := range []struct {
		name   string
		damage func(b []byte) // of the block of packet broken+1 and all that follow
		lost   int
	}{
		{"length 0", put(4, 0), 1},
		{"length 3", put(4, 3), 1},
		{"length 8", put(4, 8), 1},
		{"length 12", put(4, 12), 1},
		{"length one less", put(4, block-1), 1},
		{"length 4 more", put(4, block+4), 1},
		{"length past the end", put(4, maxWindow), 1},
		{"length skipped past the end", put(4, maxBlock), 1},
		{"length 2^32-4", put(4, 1<<32-4), 1},
		{"second length 0", put(block-4, 0), 1},
		{"type of a section", put(0, magicNg), 1},
		{"interface 1", put(8, 1), 1},
		{"interface 2^32-1", put(8, 1<<32-1), 1},
		{"captured length 1 more", put(20, size+1), 1},
		{"captured length 2^32-1", put(20, 1<<32-1), 1},
		{"nonsense", func(b []byte) { copy(b, bytes.Repeat([]byte{0xe7}, 3*block)) }, 3},
		{"zeros", func(b []byte) { clear(b[:2*block]) }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := appendSection(nil, o)
			file = appendInterface(file, o, 1, 0, nil)
			first := len(file)
			for i := range packets {
				file = appendEnhanced(file, o, 0, uint64(i), size, bytes.Repeat([]byte{byte(0x80 + i)}, size))
			}
			at := first + broken*block
			tt.damage(file[at:])
			got := readBytes(t, file)
			if len(got.errs) != 1 {
				t.Fatalf("%d errors, want 1: %v", len(got.errs), got.errs)
			}
			if e := got.errs[0]; e.Packet != broken+1 || e.Offset != int64(at) || !errors.Is(e, ErrCorrupt) {
				t.Errorf("%v, want %v in packet %d at %d", e, ErrCorrupt, broken+1, at)
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

// TestPcapngBodies has blocks with impossible values in their bodies. The blocks around them are
// read.
func TestPcapngBodies(t *testing.T) {
	o := binary.LittleEndian
	lyingOption := appendOption(nil, o, 9, []byte{6})
	o.PutUint16(lyingOption[2:], 65535)
	for _, tt := range []struct {
		name string
		kind uint32
		body []byte
		want string
	}{
		{"empty interface", 1, nil, "an interface described in 0 bytes"},
		{"short interface", 1, make([]byte, 4), "an interface described in 4 bytes"},
		{"lying option", 1, append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, lyingOption...), "option 9 of interface 1 has 65535 bytes"},
		{"empty enhanced packet", 6, nil, "a packet in a block with 0 bytes"},
		{"short enhanced packet", 6, make([]byte, 16), "a packet in a block with 16 bytes"},
		{"short obsolete packet", 2, make([]byte, 16), "a packet in a block with 16 bytes"},
		{"empty simple packet", 3, nil, "a packet in a block with 0 bytes"},
		{"lying simple packet", 3, []byte{5, 0, 0, 0, 1, 2, 3, 4}, "a packet of 5 bytes in a block with 4"},
		{"packet too large", 6, append(o.AppendUint32(make([]byte, 12), MaxPacket+1), make([]byte, MaxPacket+8)...), "at most 1048576 are read"},
		{"packet much too large", 6, make([]byte, 2*maxWindow), "a packet in a block of"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := appendSection(nil, o)
			file = appendInterface(file, o, 1, 0, nil)
			file = appendEnhanced(file, o, 0, 1, 1, []byte{1})
			at := len(file)
			file = appendBlock(file, o, tt.kind, tt.body)
			if tt.kind == 1 && len(tt.body) < 8 { // packets of an interface that cannot be read
				file = appendEnhanced(file, o, 1, 1, 1, []byte{9})
			}
			file = appendEnhanced(file, o, 0, 1, 1, []byte{2})
			got := readBytes(t, file)
			if len(got.packets) != 2 || got.packets[1].Data[0] != 2 {
				t.Errorf("%d packets, want 2", len(got.packets))
			}
			if len(got.errs) == 0 || got.errs[0].Offset != int64(at) || got.errs[0].Packet != 2 ||
				!strings.Contains(got.errs[0].Error(), tt.want) {
				t.Fatalf("errors %v, want %q at %d", got.errs, tt.want, at)
			}
			if tt.kind == 1 && len(tt.body) < 8 {
				if len(got.errs) != 2 || !strings.Contains(got.errs[1].Error(), "of which the description is broken") {
					t.Errorf("errors %v, want one for the packet, too", got.errs)
				}
			} else if len(got.errs) != 1 {
				t.Errorf("errors %v, want 1", got.errs)
			}
		})
	}
}

// TestPcapngVersion refuses a section of another version, and reads the next.
func TestPcapngVersion(t *testing.T) {
	o := binary.LittleEndian
	file := appendSection(nil, o)
	o.PutUint16(file[12:], 2)
	file = appendSection(file, o)
	file = appendInterface(file, o, 1, 0, nil)
	file = appendSimple(file, o, 1, []byte{1})
	got := readBytes(t, file)
	if len(got.packets) != 1 || len(got.errs) != 1 || !strings.Contains(got.errs[0].Error(), "pcapng of version 2") {
		t.Errorf("%d packets and %v, want 1 and an error about version 2", len(got.packets), got.errs)
	}
}

// TestPcapngInterfaces describes more interfaces than there may be.
func TestPcapngInterfaces(t *testing.T) {
	o := binary.LittleEndian
	file := appendSection(nil, o)
	for range MaxInterfaces + 2 {
		file = appendInterface(file, o, 1, 0, nil)
	}
	file = appendEnhanced(file, o, MaxInterfaces-1, 1, 1, []byte{1})
	got := readBytes(t, file)
	if len(got.packets) != 1 || len(got.errs) != 2 {
		t.Errorf("%d packets and %d errors, want 1 and 2", len(got.packets), len(got.errs))
	}
}

// TestTime converts times of every unit: pcapng §4.2, option if_tsresol.
func TestTime(t *testing.T) {
	for _, tt := range []struct {
		binary bool
		power  uint8
		offset int64
		units  uint64
		want   time.Time
	}{
		{false, 0, 0, 7, time.Unix(7, 0)},
		{false, 3, 0, 7123, time.Unix(7, 123e6)},
		{false, 6, 0, 7123456, time.Unix(7, 123456e3)},
		{false, 6, -7, 7123456, time.Unix(0, 123456e3)},
		{false, 9, 0, 7123456789, time.Unix(7, 123456789)},
		{false, 9, 0, 1<<64 - 1, time.Unix(18446744073, 709551615)},
		{false, 12, 0, 7123456789999, time.Unix(7, 123456789)},
		{false, 19, 0, 1<<64 - 1, time.Unix(1, 844674407)},
		{false, 20, 0, 1<<64 - 1, time.Unix(0, 184467440)},
		{false, 28, 0, 1<<64 - 1, time.Unix(0, 1)},
		{false, 29, 0, 1<<64 - 1, time.Unix(0, 0)},
		{false, 127, 0, 1<<64 - 1, time.Unix(0, 0)},
		{true, 0, 0, 7, time.Unix(7, 0)},
		{true, 1, 0, 7, time.Unix(3, 5e8)},
		{true, 32, 0, 7<<32 | 1<<30, time.Unix(7, 25e7)},
		{true, 63, 0, 1<<64 - 1, time.Unix(1, 999999999)},
		{true, 64, 0, 1 << 63, time.Unix(0, 5e8)},
		{true, 65, 0, 1 << 63, time.Unix(0, 25e7)},
		{true, 127, 0, 1<<64 - 1, time.Unix(0, 0)},
		{false, 0, 0, 1<<64 - 1, time.Time{}},
		{false, 0, 0, maxSeconds + 1, time.Time{}},
		{false, 6, 1<<63 - 1, 1, time.Time{}},
		{false, 6, -1 << 63, 1, time.Time{}},
	} {
		t.Run(fmt.Sprint(tt.binary, tt.power, tt.offset, tt.units), func(t *testing.T) {
			f := ngInterface{binary: tt.binary, power: tt.power, offset: tt.offset}
			if got := f.time(tt.units); !got.Equal(tt.want) {
				t.Errorf("time(%d) = %v, want %v", tt.units, got, tt.want.UTC())
			}
		})
	}
}
