package capture

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"
)

// An order is a byte order that tests write files in.
type order interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

// orders are both.
var orders = []struct {
	name string
	order
}{{"little-endian", binary.LittleEndian}, {"big-endian", binary.BigEndian}}

// appendPcapHeader appends the header of a pcap file: pcap §4.
func appendPcapHeader(b []byte, o order, magic, snapLen, link uint32) []byte {
	b = o.AppendUint32(b, magic)
	b = o.AppendUint16(b, 2)
	b = o.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = o.AppendUint32(b, snapLen)
	return o.AppendUint32(b, link)
}

// appendRecord appends a packet: pcap §5. extra has the additional header bytes of the modified
// variant.
func appendRecord(b []byte, o order, seconds, fraction uint32, original int, extra, data []byte) []byte {
	b = o.AppendUint32(b, seconds)
	b = o.AppendUint32(b, fraction)
	b = o.AppendUint32(b, uint32(len(data)))
	b = o.AppendUint32(b, uint32(original))
	b = append(b, extra...)
	return append(b, data...)
}

// appendBlock appends a block: pcapng §3.1. The body is padded.
func appendBlock(b []byte, o order, kind uint32, body []byte) []byte {
	padded := (len(body) + 3) &^ 3
	b = o.AppendUint32(b, kind)
	b = o.AppendUint32(b, uint32(blockOverhead+padded))
	b = append(b, body...)
	b = append(b, make([]byte, padded-len(body))...)
	return o.AppendUint32(b, uint32(blockOverhead+padded))
}

// appendSection appends a section header: pcapng §4.1.
func appendSection(b []byte, o order) []byte {
	body := o.AppendUint32(nil, 0x1a2b3c4d)
	body = o.AppendUint16(body, 1)
	body = o.AppendUint16(body, 0)
	body = o.AppendUint64(body, 1<<64-1)
	return appendBlock(b, o, 0x0a0d0d0a, body)
}

// appendInterface appends an interface: pcapng §4.2.
func appendInterface(b []byte, o order, link uint16, snapLen uint32, options []byte) []byte {
	body := o.AppendUint16(nil, link)
	body = o.AppendUint16(body, 0)
	body = o.AppendUint32(body, snapLen)
	return appendBlock(b, o, 1, append(body, options...))
}

// appendOption appends an option: pcapng §3.5.
func appendOption(b []byte, o order, code uint16, value []byte) []byte {
	b = o.AppendUint16(b, code)
	b = o.AppendUint16(b, uint16(len(value)))
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// appendEnhanced appends a packet: pcapng §4.3.
func appendEnhanced(b []byte, o order, index uint32, units uint64, original int, data []byte) []byte {
	body := o.AppendUint32(nil, index)
	body = o.AppendUint32(body, uint32(units>>32))
	body = o.AppendUint32(body, uint32(units))
	body = o.AppendUint32(body, uint32(len(data)))
	body = o.AppendUint32(body, uint32(original))
	return appendBlock(b, o, 6, append(body, data...))
}

// appendSimple appends a packet: pcapng §4.4.
func appendSimple(b []byte, o order, original int, data []byte) []byte {
	return appendBlock(b, o, 3, append(o.AppendUint32(nil, uint32(original)), data...))
}

// readBytes reads a file with those contents.
func readBytes(t testing.TB, file []byte) contents {
	t.Helper()
	s, err := newReader(bytesInput(file))
	if err != nil {
		t.Fatalf("reading % x...: %v", file[:min(len(file), 32)], err)
	}
	return readAll(t, s)
}

// counting is a payload of n bytes that differ from place to place.
func counting(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func writeTemp(t testing.TB, name string, b []byte) string {
	t.Helper()
	path := t.TempDir() + "/" + name
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func bytesInput(file []byte) *input {
	return &input{name: "test", file: bytes.NewReader(file), closeFile: func() error { return nil }}
}
