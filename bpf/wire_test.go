package bpf

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire/clc"
)

// A segment is a TCP segment that a packet socket has seen.
type segment struct {
	from, to uint16
	flags    byte
	options  []byte
	data     int
}

const (
	flagSYN = 0x02
	flagACK = 0x10
)

// A tap is a packet socket that sees all of a namespace.
type tap struct {
	t  *testing.T
	fd int
}

func (p *place) tap(t *testing.T) *tap {
	t.Helper()
	fd, err := -1, error(nil)
	p.run(func() {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	tv := unix.NsecToTimeval(int64(10 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		t.Fatal(err)
	}
	return &tap{t, fd}
}

// segments returns the segments of the connection from a port to another, and back, up to the first
// one with data.
func (p *tap) segments(client, server uint16) (list []segment) {
	p.t.Helper()
	for {
		s, ok := p.next()
		if !ok || !(s.from == client && s.to == server || s.from == server && s.to == client) {
			continue
		}
		list = append(list, s)
		if s.data > 0 && s.flags&flagSYN == 0 {
			return list
		}
	}
}

// next waits for a packet, and reports whether it is a segment. A packet that is sent over lo is
// seen once, as it is received.
func (p *tap) next() (s segment, ok bool) {
	p.t.Helper()
	b := make([]byte, 65536)
	n, from, err := unix.Recvfrom(p.fd, b, 0)
	for err == unix.EINTR { // the runtime interrupts threads
		n, from, err = unix.Recvfrom(p.fd, b, 0)
	}
	if err != nil {
		p.t.Fatalf("packet socket: %v", err)
	}
	if ll, is := from.(*unix.SockaddrLinklayer); is && ll.Pkttype == unix.PACKET_OUTGOING {
		return s, false
	}
	return parseSegment(b[:n])
}

func parseSegment(b []byte) (s segment, ok bool) {
	switch {
	case len(b) >= 40 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_TCP:
		b = b[int(b[0]&15)*4 : binary.BigEndian.Uint16(b[2:])]
	case len(b) >= 60 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_TCP:
		b = b[40 : 40+binary.BigEndian.Uint16(b[4:])]
	default:
		return s, false
	}
	header := int(b[12]>>4) * 4
	return segment{
		from: binary.BigEndian.Uint16(b), to: binary.BigEndian.Uint16(b[2:]),
		flags: b[13], options: bytes.Clone(b[20:header]), data: len(b) - header,
	}, true
}

// smc reports whether the segment has the SMC option.
func (s segment) smc() bool { return clc.HasOption(s.options) }

// handshake checks which of the first two segments have the SMC option, that no later one has, and that those
// with it are longer by its 8 bytes and no others.
func checkWire(t *testing.T, list []segment, syn, synack bool) {
	t.Helper()
	for i, s := range list {
		want := false
		switch s.flags & (flagSYN | flagACK) {
		case flagSYN:
			want = syn
		case flagSYN | flagACK:
			want = synack
		}
		if s.smc() != want {
			t.Errorf("segment %d, flags %#x, options %x: SMC option %v, want %v", i, s.flags, s.options, s.smc(), want)
		}
		// Three bytes of "SMCR" in EBCDIC: times and tokens have each two bytes now and then.
		if !want && bytes.Contains(s.options, []byte{clc.OptionKind}) && bytes.Contains(s.options, []byte{0xe2, 0xd4, 0xc3}) {
			t.Errorf("segment %d, flags %#x: a trace of the option in %x", i, s.flags, s.options)
		}
	}
	if len(list) < 3 || list[0].flags != flagSYN && list[0].flags != flagSYN|0xc0 {
		t.Errorf("%d segments, the first with flags %#x", len(list), list[0].flags)
	}
}
