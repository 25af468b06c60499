package bench

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// openRings maps one ring twice, as two processes do.
func openRings(t *testing.T, size int) (writer, reader *ringConn) {
	t.Helper()
	f, err := newRingFile(size)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if writer, err = openRing(f); err != nil {
		t.Fatal(err)
	}
	if reader, err = openRing(f); err != nil {
		t.Fatal(err)
	}
	return writer, reader
}

func TestRing(t *testing.T) {
	writer, reader := openRings(t, 1)
	if len(writer.data) != ringMinimum {
		t.Fatalf("ring for 1 byte has %d, want %d", len(writer.data), ringMinimum)
	}
	random := rand.New(rand.NewPCG(1, 2))
	sent := make([]byte, 10*ringMinimum+123)
	for i := range sent {
		sent[i] = byte(random.Uint32())
	}
	go func() {
		for rest := sent; len(rest) > 0; {
			n, err := writer.Write(rest[:min(1+random.IntN(2*ringMinimum), len(rest))])
			if err != nil {
				break
			}
			rest = rest[n:]
		}
		writer.Close()
	}()
	var got []byte
	b := make([]byte, 50_001)
	for {
		n, err := reader.Read(b)
		got = append(got, b[:n]...)
		if err == io.EOF {
			break
		}
	}
	if !bytes.Equal(got, sent) {
		t.Errorf("ring delivered %d bytes, not the %d that were sent", len(got), len(sent))
	}
	if n, err := reader.Read(nil); n != 0 || err != nil {
		t.Errorf("Read(nothing) = %d, %v, want 0 and nil", n, err)
	}
}

func TestRingSize(t *testing.T) {
	for _, tt := range []struct{ size, want int }{{0, ringMinimum}, {ringMinimum, ringMinimum}, {ringMinimum + 1, 2 * ringMinimum}, {3 << 20, 4 << 20}} {
		w, _ := openRings(t, tt.size)
		if len(w.data) != tt.want {
			t.Errorf("ring for %d bytes has %d, want %d", tt.size, len(w.data), tt.want)
		}
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "short"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := openRing(f); err == nil {
		t.Error("openRing(empty file) = nil, want an error")
	}
}

func TestRingListener(t *testing.T) {
	conn, _ := openRings(t, 1)
	l := &ringListener{conn: conn, closed: make(chan struct{})}
	if c, err := l.Accept(); err != nil || c != net.Conn(conn) {
		t.Errorf("Accept = %v, %v, want the ring", c, err)
	}
	l.Close()
	if c, err := l.Accept(); err == nil {
		t.Errorf("second Accept = %v, want an error", c)
	}
}

func BenchmarkRing(b *testing.B) {
	f, err := newRingFile(ringDefault)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	writer, err := openRing(f)
	if err != nil {
		b.Fatal(err)
	}
	reader, err := openRing(f)
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64<<10)
		for {
			if _, err := reader.Read(buf); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		writer.Write(buf)
	}
	writer.Close()
	<-done
}
