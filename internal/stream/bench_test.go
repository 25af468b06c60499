package stream

import (
	"io"
	"testing"
)

func BenchmarkPingPong64(b *testing.B) {
	for _, mode := range []struct {
		name string
		spin bool
	}{{"spin", true}, {"sleep", false}} {
		b.Run(mode.name, func(b *testing.B) {
			spin := DefaultSpin
			if !mode.spin {
				spin = 0
			}
			x, y := newPair(b, 2<<20-32, spin)
			done := make(chan struct{})
			go func() {
				defer close(done)
				buf := make([]byte, 64)
				for {
					if _, err := io.ReadFull(y, buf); err != nil {
						return
					}
					y.Write(buf)
				}
			}()
			buf := make([]byte, 64)
			b.ReportAllocs()
			for b.Loop() {
				x.Write(buf)
				if _, err := io.ReadFull(x, buf); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			y.Close()
			<-done
		})
	}
}

func benchmarkOneWay(b *testing.B, write, read int) {
	x, y := newPair(b, 2<<20-32, DefaultSpin)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, read)
		for {
			if _, err := y.Read(buf); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, write)
	b.SetBytes(int64(write))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	y.Close()
	<-done
}

func BenchmarkBulk64K(b *testing.B)   { benchmarkOneWay(b, 64<<10, 64<<10) }
func BenchmarkBulk1M(b *testing.B)    { benchmarkOneWay(b, 1<<20, 1<<20) }
func BenchmarkStream100(b *testing.B) { benchmarkOneWay(b, 100, 64<<10) }

// benchmarkTurns writes and reads in one goroutine. It measures the cost of the data path itself,
// without waiting.
func benchmarkTurns(b *testing.B, size int) {
	x, y := newPair(b, 2<<20-32, 0)
	buf := make([]byte, size)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		x.Write(buf)
		y.Read(buf)
	}
}

func BenchmarkTurns1(b *testing.B)   { benchmarkTurns(b, 1) }
func BenchmarkTurns100(b *testing.B) { benchmarkTurns(b, 100) }
func BenchmarkTurns64K(b *testing.B) { benchmarkTurns(b, 64<<10) }
