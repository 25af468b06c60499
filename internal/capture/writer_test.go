package capture

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/gosmc/smc/internal/frame"
)

// TestWriter writes packets of several sources and link types, and reads them back, here and with pcapgo.
func TestWriter(t *testing.T) {
	var file bytes.Buffer
	w := Create(&file, "one.pcap", "", "eth0")
	packets := []Packet{
		{Number: 1, Time: time.Unix(testSeconds, 123456789).UTC(), Link: frame.Ethernet, Data: counting(61), OrigLen: 61, Source: 0},
		{Number: 2, Time: time.Unix(testSeconds, 1).UTC(), Link: frame.Cooked2, Data: counting(62), OrigLen: 1500, Source: 2},
		{Number: 3, Time: time.Unix(testSeconds, 2).UTC(), Link: frame.Cooked2, Data: []byte{}, OrigLen: 0, Source: 0},
		{Number: 4, Time: time.Unix(testSeconds, 3).UTC(), Link: frame.Ethernet, Data: counting(65535), OrigLen: 65535, Source: 0},
		{Number: 5, Time: time.Unix(0, 0).UTC(), Link: frame.Raw, Data: counting(MaxPacket), OrigLen: MaxPacket, Source: 1},
		{Number: 6, Time: time.Unix(testSeconds, 3).UTC(), Link: frame.Raw, Data: counting(3), OrigLen: 3, Source: 7},
	}
	for i := range packets {
		p := packets[i]
		if i == 4 {
			p.Time = time.Time{}
		}
		if err := w.Write(&p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got := readBytes(t, file.Bytes())
	if len(got.errs) > 0 {
		t.Error(got.errs)
	}
	for i := range packets {
		packets[i].Source, packets[i].Interface = 0, []int{0, 1, 2, 0, 3, 4}[i] // all are of one file now
	}
	if diff := cmp.Diff(packets, got.packets); diff != "" {
		t.Errorf("read back (-written +read):\n%s", diff)
	}

	r, err := pcapgo.NewNgReader(&file, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	var indexes []int
	for {
		_, ci, err := r.ReadPacketData()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		indexes = append(indexes, ci.InterfaceIndex)
	}
	if want := []int{0, 1, 2, 0, 3, 4}; !cmp.Equal(indexes, want) {
		t.Errorf("interfaces of the packets: %v, want %v", indexes, want)
	}
	for i, want := range []string{"one.pcap", "eth0", "one.pcap", "source 1", "source 7"} {
		f, err := r.Interface(i)
		if err != nil || f.Name != want || f.TimestampResolution != 9 {
			t.Errorf("Interface(%d) = %q, resolution %d, %v; want %q, 9", i, f.Name, f.TimestampResolution, err, want)
		}
	}
}

// TestWriterEmpty makes a file without packets, which is a capture all the same.
func TestWriterEmpty(t *testing.T) {
	var file bytes.Buffer
	w := Create(&file)
	if err := w.Flush(); err != nil || file.Len() != 0 {
		t.Errorf("Flush() = %v and wrote %d bytes, want 0", err, file.Len())
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got := readBytes(t, file.Bytes()); len(got.packets)+len(got.errs) != 0 {
		t.Errorf("%d packets and %v, want none", len(got.packets), got.errs)
	}
}

type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriterFull(t *testing.T) {
	if err := Create(full{}).Close(); !errors.Is(err, errFull) {
		t.Errorf("Close() = %v, want %v", err, errFull)
	}
	w := Create(full{})
	if err := w.Write(&Packet{Data: counting(MaxPacket)}); !errors.Is(err, errFull) {
		t.Errorf("Write() = %v, want %v", err, errFull)
	}
}
