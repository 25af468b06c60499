package roce

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gosmc/smc/wire"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatalf("bad vector: %v", err)
	}
	return b
}

func wantDecodeError(t *testing.T, what string, err, want error) {
	t.Helper()
	var d *wire.DecodeError
	if !errors.As(err, &d) || !errors.Is(err, want) {
		t.Errorf("%s: %v, want a DecodeError: %v", what, err, want)
	}
}

func header(op Opcode) BTH { return BTH{Opcode: op, PKey: 0xffff, DestQPN: 0x12, PSN: 0x000100} }

var (
	testRETH   = RETH{VA: 0x1122334455667788, RKey: 0x1234, Length: 5}
	testAtomic = AtomicETH{VA: 0x1122334455667788, RKey: 0x1234, SwapAdd: 0x0102030405060708, Compare: 0x1112131415161718}
	hello      = []byte("hello")
)

// Laid out by hand from the layout tables and the order of extension headers; spaces follow them.
// The last 4 bytes stand for an ICRC. There is one for each opcode.
var packetVectors = []struct {
	hex    string
	packet Packet
	text   string
}{
	{
		"00 00 ffff 00 000012 00 000100 61626364 cccccccc",
		Packet{BTH: header(SendFirst), Payload: []byte("abcd")},
		"RC SEND FIRST qpn=0x12 psn=0x100 payload=4",
	}, {
		"01 00 ffff 00 000012 00 000100 61626364 cccccccc",
		Packet{BTH: header(SendMiddle), Payload: []byte("abcd")},
		"RC SEND MIDDLE qpn=0x12 psn=0x100 payload=4",
	}, {
		"02 10 ffff 00 000012 00 000100 616263 00 cccccccc",
		Packet{BTH: header(SendLast), Payload: []byte("abc")},
		"RC SEND LAST qpn=0x12 psn=0x100 payload=3",
	}, {
		"03 20 ffff 00 000012 00 000100 01020304 6162 0000 cccccccc",
		Packet{BTH: header(SendLastImm), Imm: 0x01020304, Payload: []byte("ab")},
		"RC SEND LAST with immediate qpn=0x12 psn=0x100 imm=0x1020304 payload=2",
	}, {
		"04 c0 ffff 00 000012 80 000100 fe2c0000 cccccccc", // all of it but FECN, BECN
		Packet{
			BTH:     BTH{Opcode: SendOnly, Solicited: true, MigReq: true, AckReq: true, PKey: 0xffff, DestQPN: 0x12, PSN: 0x100},
			Payload: []byte{0xfe, 0x2c, 0, 0},
		},
		"RC SEND ONLY qpn=0x12 psn=0x100 ack-request solicited payload=4",
	}, {
		"05 00 7fff c0 fffffe 00 ffffff 01020304 cccccccc", // no payload
		Packet{
			BTH: BTH{Opcode: SendOnlyImm, FECN: true, BECN: true, PKey: 0x7fff, DestQPN: 0xfffffe, PSN: 0xffffff},
			Imm: 0x01020304, Payload: []byte{},
		},
		"RC SEND ONLY with immediate qpn=0xfffffe psn=0xffffff fecn becn pkey=0x7fff imm=0x1020304",
	}, {
		"06 00 ffff 00 000012 00 000100 1122334455667788 00001234 00000005 61626364 cccccccc",
		Packet{BTH: header(WriteFirst), RETH: testRETH, Payload: []byte("abcd")},
		"RC WRITE FIRST qpn=0x12 psn=0x100 va=0x1122334455667788 rkey=0x1234 length=5 payload=4",
	}, {
		"07 00 ffff 00 000012 00 000100 61626364 cccccccc",
		Packet{BTH: header(WriteMiddle), Payload: []byte("abcd")},
		"RC WRITE MIDDLE qpn=0x12 psn=0x100 payload=4",
	}, {
		"08 30 ffff 00 000012 00 000100 61 000000 cccccccc",
		Packet{BTH: header(WriteLast), Payload: []byte("a")},
		"RC WRITE LAST qpn=0x12 psn=0x100 payload=1",
	}, {
		"09 30 ffff 00 000012 00 000100 01020304 61 000000 cccccccc",
		Packet{BTH: header(WriteLastImm), Imm: 0x01020304, Payload: []byte("a")},
		"RC WRITE LAST with immediate qpn=0x12 psn=0x100 imm=0x1020304 payload=1",
	}, {
		"0a 30 ffff 00 000012 00 000100 1122334455667788 00001234 00000005 68656c6c6f 000000 cccccccc",
		Packet{BTH: header(WriteOnly), RETH: testRETH, Payload: hello},
		"RC WRITE ONLY qpn=0x12 psn=0x100 va=0x1122334455667788 rkey=0x1234 length=5 payload=5",
	}, {
		"0b 30 ffff 00 000012 00 000100 1122334455667788 00001234 00000005 01020304 68656c6c6f 000000 cccccccc",
		Packet{BTH: header(WriteOnlyImm), RETH: testRETH, Imm: 0x01020304, Payload: hello},
		"RC WRITE ONLY with immediate qpn=0x12 psn=0x100 va=0x1122334455667788 rkey=0x1234 length=5 imm=0x1020304 payload=5",
	}, {
		"0c 00 ffff 00 000012 00 000100 1122334455667788 00001234 00000005 cccccccc",
		Packet{BTH: header(ReadRequest), RETH: testRETH, Payload: []byte{}},
		"RC READ REQUEST qpn=0x12 psn=0x100 va=0x1122334455667788 rkey=0x1234 length=5",
	}, {
		"0d 00 ffff 00 000012 00 000100 1f 000001 61626364 cccccccc",
		Packet{BTH: header(ReadResponseFirst), AETH: AETH{AckUnlimited, 1}, Payload: []byte("abcd")},
		"RC READ RESPONSE FIRST qpn=0x12 psn=0x100 ACK msn=1 payload=4",
	}, {
		"0e 00 ffff 00 000012 00 000100 61626364 cccccccc",
		Packet{BTH: header(ReadResponseMiddle), Payload: []byte("abcd")},
		"RC READ RESPONSE MIDDLE qpn=0x12 psn=0x100 payload=4",
	}, {
		"0f 10 ffff 00 000012 00 000100 1f 000001 616263 00 cccccccc",
		Packet{BTH: header(ReadResponseLast), AETH: AETH{AckUnlimited, 1}, Payload: []byte("abc")},
		"RC READ RESPONSE LAST qpn=0x12 psn=0x100 ACK msn=1 payload=3",
	}, {
		"10 10 ffff 00 000012 00 000100 1f 000001 616263 00 cccccccc",
		Packet{BTH: header(ReadResponseOnly), AETH: AETH{AckUnlimited, 1}, Payload: []byte("abc")},
		"RC READ RESPONSE ONLY qpn=0x12 psn=0x100 ACK msn=1 payload=3",
	}, {
		"11 00 ffff 00 000012 00 000100 60 fffffe cccccccc",
		Packet{BTH: header(Acknowledge), AETH: AETH{NakSequence, 0xfffffe}, Payload: []byte{}},
		"RC ACKNOWLEDGE qpn=0x12 psn=0x100 NAK PSN sequence error msn=16777214",
	}, {
		"12 00 ffff 00 000012 00 000100 1f 000001 0102030405060708 cccccccc",
		Packet{BTH: header(AtomicAcknowledge), AETH: AETH{AckUnlimited, 1}, AtomicAck: 0x0102030405060708, Payload: []byte{}},
		"RC ATOMIC ACKNOWLEDGE qpn=0x12 psn=0x100 ACK msn=1 found=0x102030405060708",
	}, {
		"13 00 ffff 00 000012 00 000100 1122334455667788 00001234 0102030405060708 1112131415161718 cccccccc",
		Packet{BTH: header(CompareSwap), Atomic: testAtomic, Payload: []byte{}},
		"RC COMPARE SWAP qpn=0x12 psn=0x100 va=0x1122334455667788 rkey=0x1234 swap-add=0x102030405060708 compare=0x1112131415161718",
	}, {
		"14 00 ffff 00 000012 00 000100 1122334455667788 00001234 0102030405060708 1112131415161718 cccccccc",
		Packet{BTH: header(FetchAdd), Atomic: testAtomic, Payload: []byte{}},
		"RC FETCH ADD qpn=0x12 psn=0x100 va=0x1122334455667788 rkey=0x1234 swap-add=0x102030405060708 compare=0x1112131415161718",
	}, {
		"16 20 ffff 00 000012 00 000100 00001234 6162 0000 cccccccc",
		Packet{BTH: header(SendLastInvalidate), InvalidateRKey: 0x1234, Payload: []byte("ab")},
		"RC SEND LAST with invalidate qpn=0x12 psn=0x100 invalidate=0x1234 payload=2",
	}, {
		"17 20 ffff 00 000012 00 000100 00001234 6162 0000 cccccccc",
		Packet{BTH: header(SendOnlyInvalidate), InvalidateRKey: 0x1234, Payload: []byte("ab")},
		"RC SEND ONLY with invalidate qpn=0x12 psn=0x100 invalidate=0x1234 payload=2",
	}, {
		"81 00 ffff 40 000118 00 000000 00000000000000000000000000000000 cccccccc", // as an adapter sent it
		Packet{BTH: BTH{Opcode: CNP, BECN: true, PKey: 0xffff, DestQPN: 0x118}, Payload: make([]byte, 16)},
		"CNP qpn=0x118 psn=0x0 becn payload=16",
	},
}

func TestPacket(t *testing.T) {
	seen := make(map[Opcode]bool)
	for _, tt := range packetVectors {
		seen[tt.packet.Opcode] = true
		name := tt.packet.Opcode.String()
		encoded := unhex(t, tt.hex)
		withoutICRC := encoded[:len(encoded)-ICRCLen]
		if got := tt.packet.Append([]byte{1}); got[0] != 1 || !bytes.Equal(got[1:], withoutICRC) {
			t.Errorf("%s: Append:\n got %x\nwant %x", name, got[1:], withoutICRC)
		}
		got := tt.packet.AppendHeader([]byte{1}, len(tt.packet.Payload))
		if want := withoutICRC[:tt.packet.Opcode.HeaderLen()]; got[0] != 1 || !bytes.Equal(got[1:], want) {
			t.Errorf("%s: AppendHeader:\n got %x\nwant %x", name, got[1:], want)
		}
		var p Packet
		if err := p.Parse(encoded); err != nil {
			t.Errorf("%s: Parse(%x) = %v", name, encoded, err)
		}
		if diff := cmp.Diff(tt.packet, p); diff != "" {
			t.Errorf("%s: Parse(%x): -want +got:\n%s", name, encoded, diff)
		}
		if got := p.String(); got != tt.text {
			t.Errorf("String() = %q, want %q", got, tt.text)
		}
		if len(p.Payload) > 0 && &p.Payload[0] != &encoded[p.Opcode.HeaderLen()] {
			t.Errorf("%s: Payload is a copy", name)
		}

		// Reserved bits.
		b := bytes.Clone(encoded)
		b[4] |= 0x3f
		b[8] |= 0x7f
		var q Packet
		if err := q.Parse(b); err != nil || cmp.Diff(p, q) != "" {
			t.Errorf("%s with reserved bits: Parse(%x) = %v, %v; want %v", name, b, &q, err, &p)
		}
	}
	for o := range 256 {
		if o := Opcode(o); o.Known() != seen[o] {
			t.Errorf("%v: known %t, has a vector %t", o, o.Known(), seen[o])
		}
	}
}

// TestPacketTruncated cuts every packet everywhere, and gives it every pad count and version.
func TestPacketTruncated(t *testing.T) {
	for _, tt := range packetVectors {
		encoded := unhex(t, tt.hex)
		op := tt.packet.Opcode
		headerLen := op.HeaderLen()
		before := Packet{Imm: 7}
		for n := range len(encoded) + 1 {
			for flags := range 256 {
				b := bytes.Clone(encoded[:n:n])
				if n > 1 {
					b[1] = byte(flags)
				}
				pad := flags >> 4 & 3
				p := before
				err := p.Parse(b)
				var want error
				switch {
				case n < MinPacketLen:
					want = wire.ErrTruncated
				case flags&0x0f != 0:
					want = wire.ErrVersion
				case n < headerLen+ICRCLen:
					want = wire.ErrTruncated
				case n%4 != 0, n < headerLen+ICRCLen+pad:
					want = wire.ErrLength
				default:
					if err != nil || len(p.Payload) != n-headerLen-ICRCLen-pad || cap(p.Payload) < len(p.Payload) {
						t.Errorf("Parse(%x) = %v, payload of %d bytes; want %d", b, err, len(p.Payload), n-headerLen-ICRCLen-pad)
					}
					continue
				}
				wantDecodeError(t, op.String(), err, want)
				if diff := cmp.Diff(before, p); diff != "" {
					t.Errorf("Parse(%x) = %v, and it changed:\n%s", b, err, diff)
				}
			}
		}
	}
}

// TestPacketOpcodes gives every opcode a packet that is long enough for all headers.
func TestPacketOpcodes(t *testing.T) {
	for o := range 256 {
		b := make([]byte, MaxHeaderLen+ICRCLen)
		b[0] = byte(o)
		var p Packet
		if err := p.Parse(b); Opcode(o).Known() {
			if err != nil || p.Opcode != Opcode(o) || len(p.Payload) != MaxHeaderLen-Opcode(o).HeaderLen() {
				t.Errorf("Parse(%x) = %v, %v", b, &p, err)
			}
		} else {
			wantDecodeError(t, Opcode(o).String(), err, wire.ErrType)
		}

		h, pad, err := ParseBTH([]byte{byte(o), 0xf5, 1, 2, 0xff, 3, 4, 5, 0xff, 6, 7, 8})
		want := BTH{
			Opcode: Opcode(o), Solicited: true, MigReq: true, AckReq: true, FECN: true, BECN: true,
			Version: 5, PKey: 0x0102, DestQPN: 0x030405, PSN: 0x060708,
		}
		if err != nil || h != want || pad != 3 {
			t.Errorf("ParseBTH = %+v, %d, %v; want %+v, 3", h, pad, err, want)
		}
	}
	for n := range BTHLen {
		h, _, err := ParseBTH(make([]byte, n, BTHLen))
		wantDecodeError(t, "ParseBTH", err, wire.ErrTruncated)
		if h != (BTH{}) {
			t.Errorf("ParseBTH of %d bytes = %+v", n, h)
		}
	}
}

// TestPacketTooLarge gives numbers more bits than they have on the wire.
func TestPacketTooLarge(t *testing.T) {
	p := Packet{
		BTH:  BTH{Opcode: Acknowledge, Version: 0xf0, DestQPN: 0xff000001, PSN: 0xff000002},
		AETH: AETH{Syndrome: AckUnlimited, MSN: 0xff000003},
	}
	if got, want := p.Append(nil), unhex(t, "11 00 0000 00 000001 00 000002 1f 000003"); !bytes.Equal(got, want) {
		t.Errorf("Append = %x, want %x", got, want)
	}
	defer func() {
		if recover() == nil {
			t.Error("Append with a reserved opcode does not panic")
		}
	}()
	p.Opcode = 0x15
	p.Append(nil)
}

func TestPad(t *testing.T) {
	for n, want := range []int{0, 3, 2, 1, 0, 3} {
		if got := Pad(n); got != want {
			t.Errorf("Pad(%d) = %d, want %d", n, got, want)
		}
	}
}

// TestOpcodes checks the properties against the names of opcodes.
func TestOpcodes(t *testing.T) {
	for i := range 256 {
		o := Opcode(i)
		name := o.String()
		if !o.Known() {
			if o.HeaderLen() != 0 || o.IsRequest() || o.IsResponse() || o.Starts() || o.Ends() || !strings.HasPrefix(name, "opcode 0x") {
				t.Errorf("%v is not known and has properties", o)
			}
			continue
		}
		words := " " + name + " "
		has := func(s string) bool { return strings.Contains(words, " "+s+" ") }
		first := has("FIRST") || has("ONLY")
		last := has("LAST") || has("ONLY")
		for _, tt := range []struct {
			property  string
			got, want bool
		}{
			{"Starts", o.Starts(), first},
			{"Ends", o.Ends(), last},
			{"IsSend", o.IsSend(), has("SEND")},
			{"IsWrite", o.IsWrite(), has("WRITE")},
			{"HasImm", o.HasImm(), has("immediate")},
			{"HasIETH", o.HasIETH(), has("invalidate")},
			{"HasRETH", o.HasRETH(), has("WRITE") && first || has("REQUEST")},
			{"HasAETH", o.HasAETH(), has("ACKNOWLEDGE") || has("RESPONSE") && !has("MIDDLE")},
			{"HasAtomicETH", o.HasAtomicETH(), has("SWAP") || has("ADD")},
			{"HasAtomicAckETH", o.HasAtomicAckETH(), has("ATOMIC")},
			{"IsRequest", o.IsRequest(), !has("RESPONSE") && !has("ACKNOWLEDGE") && !has("CNP")},
			{"IsResponse", o.IsResponse(), has("RESPONSE") || has("ACKNOWLEDGE")},
		} {
			if tt.got != tt.want {
				t.Errorf("%v.%s() = %t, want %t", o, tt.property, tt.got, tt.want)
			}
		}
		want := BTHLen
		for _, h := range []struct {
			has bool
			n   int
		}{
			{o.HasRETH(), 16}, {o.HasAETH(), 4}, {o.HasImm(), 4}, {o.HasIETH(), 4}, {o.HasAtomicETH(), 28}, {o.HasAtomicAckETH(), 8},
		} {
			if h.has {
				want += h.n
			}
		}
		if got := o.HeaderLen(); got != want || got > MaxHeaderLen {
			t.Errorf("%v.HeaderLen() = %d, want %d", o, got, want)
		}
	}
	if got, want := Opcode(0x24).String(), "opcode 0x24"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
	if got, want := Opcode(0x15).String(), "opcode 0x15"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}

func FuzzPacket(f *testing.F) {
	for _, tt := range packetVectors {
		f.Add(unhex(f, tt.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		var p Packet
		if err := p.Parse(b); err != nil {
			wantDecodeError(t, "fuzz", err, errors.Unwrap(err))
			if diff := cmp.Diff(Packet{}, p); diff != "" {
				t.Fatalf("Parse(%x) = %v, and it changed:\n%s", b, err, diff)
			}
			return
		}
		encoded := append(p.Append(nil), b[len(b)-ICRCLen:]...)
		var again Packet
		if err := again.Parse(encoded); err != nil {
			t.Fatalf("Parse(%x) = %v, %v", encoded, &again, err)
		}
		if diff := cmp.Diff(p, again); diff != "" {
			t.Fatalf("Parse(%x): -want +got:\n%s", encoded, diff)
		}
		// Only reserved bits and pad may differ.
		b[4] &= flagFECN | flagBECN
		b[8] &= flagAckReq
		clear(b[len(b)-ICRCLen-Pad(len(p.Payload)) : len(b)-ICRCLen])
		if !bytes.Equal(encoded, b) {
			t.Fatalf("Parse and Append of %x:\n got %x\nwant %x", before, encoded, b)
		}
	})
}
