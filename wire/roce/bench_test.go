package roce

import (
	"fmt"
	"hash/crc32"
	"testing"
)

// benchmarkLengths are the lengths of an ACKNOWLEDGE, of a short WRITE, and of full packets for
// MTUs of 1024 and 4096.
var benchmarkLengths = []int{20, 108, 1040, 4112}

// BenchmarkICRC compares the ICRC with the one pass of hash/crc32 that it takes. Both are called through a
// function value.
func BenchmarkICRC(b *testing.B) {
	f := NewFlow(v4Source, v4Destination)
	f6 := NewFlow(v6Source, v6Destination)
	for _, n := range benchmarkLengths {
		packet := make([]byte, n)
		run := func(name string, body func()) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					body()
				}
			})
		}
		run("crc32", func() { crc32.Update(0, crc32.IEEETable, packet[:n-ICRCLen]) })
		id := uint16(0)
		run("Seal", func() { f.Seal(id, packet); id++ })
		f.Seal(7, packet)
		run("VerifyExact", func() {
			if got, v := f.Verify(7, packet); got != 7 || v != Exact {
				b.Fatalf("Verify(7) = %d, %v; want 7, exact", got, v)
			}
		})
		run("VerifySolved", func() {
			if got, v := f.Verify(0, packet); got != 7 || v != Solved {
				b.Fatalf("Verify(0) = %d, %v; want 7, solved", got, v)
			}
		})
		f6.Seal(0, packet)
		run("VerifyIPv6", func() {
			if got, v := f6.Verify(0, packet); got != 0 || v != Exact {
				b.Fatalf("Verify(0) = %d, %v; want 0, exact", got, v)
			}
		})
	}
}

func BenchmarkPacket(b *testing.B) {
	for _, op := range []Opcode{SendOnly, WriteFirst, WriteMiddle, WriteOnlyImm, Acknowledge} {
		out := Packet{BTH: BTH{Opcode: op, PKey: DefaultPKey, DestQPN: 17, PSN: 5}, Payload: make([]byte, 44)}
		encoded := append(out.Append(nil), 0, 0, 0, 0)
		b.Run("Parse/"+op.String(), func(b *testing.B) {
			b.ReportAllocs()
			var p Packet
			for b.Loop() {
				if err := p.Parse(encoded); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("AppendHeader/"+op.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				encoded = out.AppendHeader(encoded[:0], len(out.Payload))
			}
		})
	}
}
