package capture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/frame"
)

// TestLiveTags sends packets without VLAN tags, with one and with two over a cable. It captures
// them at both ends on the interface and on all, writes the captured packets to a file, and reads
// them again. The kernel tells of tags in several ways. Tags of sent packets are in the data, and
// new kernels tell of them a second time. Of the tags of received packets the outer one is beside
// the data, and new kernels tell the EtherType behind the inner one. Each packet is there, once,
// and its tags are stripped.
func TestLiveTags(t *testing.T) {
	w := newWire(t)
	inputs := []struct {
		what   string
		source LiveSource
	}{
		{"sender's interface", w.live(t, 0, "wire", LiveOptions{})},
		{"receiver's interface", w.live(t, 1, "wire", LiveOptions{Promiscuous: true})},
		{"all of the sender", w.live(t, 0, AnyInterface, LiveOptions{})},
		{"all of the receiver", w.live(t, 1, AnyInterface, LiveOptions{})},
	}
	send := w.sender(t, 0, "wire")
	for i, tags := range [][]uint32{
		nil,
		{0x8100_0005},
		{0x8100_4500}, // which begins as an IPv4 header does
		{0x88a8_0007},
		{0x88a8_0007, 0x8100_0008},
		{0x88a8_0009, 0x8100_0009},
		{0x8100_0005, 0x8100_0006},
	} {
		p := filterPackets[0]
		p.tags = nil
		p.payload = fmt.Appendf(nil, "packet %d", i)
		ether, ip := p.build()
		sent := append(bytes.Clone(macB), macA...)
		for _, tag := range tags {
			sent = binary.BigEndian.AppendUint32(sent, tag)
		}
		send(append(binary.BigEndian.AppendUint16(sent, ether), ip...))
		for j, in := range inputs {
			told := tags
			if j == 2 { // of the tags of a whole frame that is sent, the kernel tells the outer one
				told = tags[:min(len(tags), 1)]
			}
			checkTagged(t, fmt.Sprintf("tags %#x, %s", tags, in.what), again(t, next(t, in.source)), told, ip)
		}
	}
}

// again writes a packet to a file and reads it.
func again(t *testing.T, p *Packet) *Packet {
	t.Helper()
	var file bytes.Buffer
	w := Create(&file)
	if err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "tags.pcapng")
	if err := os.WriteFile(name, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	read, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(read.Data, p.Data) || read.Link != p.Link || read.OrigLen != p.OrigLen {
		t.Fatalf("read %+v, written %+v", read, p)
	}
	return read
}

// checkTagged checks the tags of a packet, and that the IP packet comes behind them.
func checkTagged(t *testing.T, what string, p *Packet, tags []uint32, want []byte) {
	t.Helper()
	var got []uint32
	at, ether := 12, uint16(0)
	rest := p.Data[14:]
	if p.Link == frame.Cooked2 {
		at, rest = 0, p.Data[20:]
	}
	for ether = binary.BigEndian.Uint16(p.Data[at:]); frame.IsTag(ether); rest = rest[4:] {
		got = append(got, uint32(ether)<<16|uint32(binary.BigEndian.Uint16(rest)))
		ether = binary.BigEndian.Uint16(rest[2:])
	}
	if !slices.Equal(got, tags) {
		t.Errorf("%s: tags %#x in %x", what, got, p.Data)
	}
	if ether, ip, whole := frame.Strip(p.Link, p.Data); ether != frame.TypeIPv4 || !whole || !bytes.Equal(ip, want) {
		t.Errorf("%s: Strip = %#x, %x, %v; want %x", what, ether, ip, whole, want)
	}
}

// TestSettle has all ways in which kernels tell of tags to a cooked socket.
func TestSettle(t *testing.T) {
	p := filterPackets[0]
	_, ip := p.build()
	one := append([]byte{0, 5, 8, 0}, ip...)
	two := append([]byte{0, 5, 0x81, 0, 0, 6, 8, 0}, ip...)
	for _, tt := range []struct {
		name string
		slot slot
		want []uint32
	}{
		{"no tag", slot{ether: frame.TypeIPv4, data: ip}, nil},
		{"taken out", slot{ether: frame.TypeIPv4, data: ip, tag: 0x88a8_0005}, []uint32{0x88a8_0005}},
		{"left in, old kernel", slot{ether: frame.TypeVLAN, data: one, kind: unix.PACKET_OUTGOING}, []uint32{0x8100_0005}},
		{"left in, new kernel", slot{ether: frame.TypeIPv4, data: one, tag: 0x88a8_0005, kind: unix.PACKET_OUTGOING}, []uint32{0x88a8_0005}},
		{"both left in, new kernel", slot{ether: frame.TypeIPv4, data: two, tag: 0x88a8_0005, kind: unix.PACKET_OUTGOING}, []uint32{0x88a8_0005, 0x8100_0006}},
		{"outer taken out, old kernel", slot{ether: frame.TypeVLAN, data: one, tag: 0x88a8_0004}, []uint32{0x88a8_0004, 0x8100_0005}},
		{"outer taken out, new kernel", slot{ether: frame.TypeIPv4, data: one, tag: 0x88a8_0004}, []uint32{0x88a8_0004, 0x8100_0005}},
		{"same number, new kernel", slot{ether: frame.TypeIPv4, data: one, tag: 0x88a8_0005}, []uint32{0x88a8_0005, 0x8100_0005}},
		{"put in while sent, old kernel", slot{ether: frame.TypeVLAN, data: ip, kind: unix.PACKET_OUTGOING}, nil},
		{"put in while sent, new kernel", slot{ether: frame.TypeIPv4, data: ip, tag: 0x8100_0005, kind: unix.PACKET_OUTGOING}, []uint32{0x8100_0005}},
	} {
		s := tt.slot
		s.link, s.length = make([]byte, 20), uint32(len(s.data))
		s.settle()
		checkTagged(t, tt.name, &Packet{Link: frame.Cooked2, Data: s.appendTo(nil, true)}, tt.want, ip)
		if !newFlows(10).wanted(s.network(true)) {
			t.Errorf("%s: not wanted", tt.name)
		}
	}
}
