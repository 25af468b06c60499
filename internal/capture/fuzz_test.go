package capture

import (
	"errors"
	"testing"
)

// FuzzOpen reads any file: it ends, numbers its packets, keeps the limits, and gives no more
// than the file can hold.
func FuzzOpen(f *testing.F) {
	pcap, _ := smallPcap()
	ng, _ := smallNg()
	f.Add(pcap)
	f.Add(ng)
	f.Add(zip(pcap))
	for _, o := range orders {
		b := appendPcapHeader(nil, o, magicModified, 65535, 1)
		f.Add(appendRecord(b, o, testSeconds, 1, 3, make([]byte, 8), []byte{1, 2, 3}))
		b = appendSection(nil, o)
		b = appendInterface(b, o, 1, 2, appendOption(nil, o, 9, []byte{0x8a}))
		b = appendSimple(b, o, 3, []byte{1, 2})
		b = appendBlock(b, o, 2, make([]byte, 20))
		f.Add(appendEnhanced(b, o, 0, 1, 1, []byte{9}))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		s, err := newReader(bytesInput(file))
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("newReader: %v (%T), want an *Error", err, err)
			}
			return
		}
		got := readAll(t, s)
		zipped := len(file) > 1 && file[0] == gzipMagic[0]
		if !zipped && (got.bytes() > len(file) || len(got.packets)+len(got.errs) > len(file)) {
			t.Errorf("%d packets of %d bytes and %d errors from %d bytes", len(got.packets), got.bytes(), len(got.errs), len(file))
		}
	})
}

// FuzzWanted looks at any packet.
func FuzzWanted(f *testing.F) {
	for _, p := range filterPackets {
		ether, b := p.build()
		f.Add(ether, b)
	}
	f.Fuzz(func(t *testing.T, ether uint16, b []byte) {
		flows := newFlows(2)
		flows.wanted(inner(ether, b))
		flows.wanted(inner(ether, b))
		if n := len(flows.young) + len(flows.old); n > 2 {
			t.Errorf("%d flows, at most 2", n)
		}
	})
}
