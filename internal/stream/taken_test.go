package stream

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/wire/cdc"
)

// A late blow ends a connection right after the last byte of a write was published.
type lateBlow struct {
	name   string
	strike func(p *puppet)
	err    error // of the next write, or, if that is EPIPE, of the one after that
}

var lateBlows = []lateBlow{
	{"peer closes", func(p *puppet) { p.flag(cdc.Closed) }, syscall.EPIPE},
	{"peer is done and closes", func(p *puppet) { p.flag(cdc.DoneWriting | cdc.Closed) }, syscall.EPIPE},
	{"peer aborts", func(p *puppet) { p.flag(cdc.Abort) }, syscall.ECONNRESET},
	{"deadline", func(p *puppet) { p.conn.SetWriteDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
	{"failure", func(p *puppet) { p.conn.Fail(syscall.ECONNABORTED) }, syscall.ECONNABORTED},
	{"end", func(p *puppet) { p.conn.End() }, syscall.EPIPE},
}

// flag sets connection flags of the peer, beside its cursor.
func (p *puppet) flag(flags cdc.ConnFlags) {
	cursor, _, _ := cdc.UnpackConsumer(word(p.element[0], cdc.ConsumerOffset).Load())
	p.consume(cursor, 0, flags)
}

// TestTaken ends the connection when the last byte of a write was taken: the write has succeeded, and a later
// one fails.
func TestTaken(t *testing.T) {
	const capacity, first = 200_000, 150_000
	second := make([]byte, capacity-1) // in several pieces, and more than is known to be free
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, second, 0o600); err != nil {
		t.Fatal(err)
	}
	openFile := func(t *testing.T) *os.File {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	for _, way := range []struct {
		name  string
		write func(t *testing.T, c *Conn) (int64, error)
	}{
		{"Write", func(t *testing.T, c *Conn) (int64, error) {
			n, err := c.Write(second)
			return int64(n), err
		}},
		{"WriteBuffers", func(t *testing.T, c *Conn) (int64, error) {
			return c.WriteBuffers([][]byte{second[:10], second[10:20], second[20:]})
		}},
		{"WriteBuffers ends small", func(t *testing.T, c *Conn) (int64, error) {
			return c.WriteBuffers([][]byte{second[:len(second)-10], second[:10]})
		}},
		{"ReadFrom", func(t *testing.T, c *Conn) (int64, error) {
			return c.ReadFrom(bytes.NewReader(second))
		}},
		{"ReadFrom file", func(t *testing.T, c *Conn) (int64, error) {
			return c.ReadFrom(openFile(t))
		}},
		{"ReadFrom limited file", func(t *testing.T, c *Conn) (int64, error) {
			return c.ReadFrom(io.LimitReader(openFile(t), capacity-1))
		}},
	} {
		for _, blow := range lateBlows {
			t.Run(way.name+"/"+blow.name, func(t *testing.T) {
				watchdog(t)
				p := newPuppet(1000, capacity)
				all := at(first+uint64(len(second)), capacity)
				p.conn = New(p.puppetConfig(func() {
					if p.produced() == all {
						blow.strike(p)
						return
					}
					p.sleeps[1][0].Store(1) // to hear of the next piece too
				}))
				if _, err := p.conn.Write(make([]byte, first)); err != nil {
					t.Fatal(err)
				}
				p.consume(at(first, capacity), 0, 0)
				p.sleeps[1][0].Store(1)
				n, err := way.write(t, p.conn)
				if n != int64(len(second)) || err != nil || p.produced() != all {
					t.Errorf("%d, %v, want all %d and no error", n, err, len(second))
				}
				if blow.err == syscall.EPIPE {
					if n, err := p.conn.Write([]byte("x")); n != 1 || err != nil || p.produced() != all {
						t.Errorf("one more write: %d, %v, want it taken, and dropped", n, err)
					}
				}
				if n, err := p.conn.Write([]byte("x")); n != 0 || !errors.Is(err, blow.err) {
					t.Errorf("the next write: %d, %v, want %v", n, err, blow.err)
				}
			})
		}
	}
}

// TestWriteNothing writes no bytes: the peer is not rung and nothing is dirty, but a connection that has
// ended says so.
func TestWriteNothing(t *testing.T) {
	p := newPuppet(100, 100)
	p.sleeps[1][0].Store(1)
	for range 2 {
		n, err := p.conn.Write(nil)
		m, berr := p.conn.WriteBuffers([][]byte{nil, {}})
		if n != 0 || m != 0 || err != nil || berr != nil {
			t.Errorf("Write = %d, %v, WriteBuffers = %d, %v", n, err, m, berr)
		}
	}
	if p.ringCount() != 0 || p.dirty != 0 {
		t.Errorf("%d rings, %d times dirty", p.ringCount(), p.dirty)
	}
	p.flag(cdc.Closed)
	for _, want := range []error{nil, syscall.EPIPE} { // before and after the one that is taken
		if _, err := p.conn.Write(nil); err != want {
			t.Errorf("empty Write to a peer that has closed: %v, want %v", err, want)
		}
		if _, err := p.conn.WriteBuffers(nil); err != want && want == nil {
			t.Errorf("empty WriteBuffers to a peer that has closed: %v, want %v", err, want)
		}
		if _, err := p.conn.Write([]byte("x")); err != want {
			t.Errorf("Write to a peer that has closed: %v, want %v", err, want)
		}
	}
}

// TestOneMore writes to a peer that has closed in order. As with TCP, one write is taken and goes
// nowhere, whatever it holds, and the next one fails. After our own CloseWrite all fail.
func TestOneMore(t *testing.T) {
	const capacity = 1000
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, capacity+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct {
		name  string
		write func(c *Conn, f *os.File, size int) (int64, error)
	}{
		{"Write", func(c *Conn, _ *os.File, size int) (int64, error) {
			n, err := c.Write(make([]byte, size))
			return int64(n), err
		}},
		{"WriteBuffers", func(c *Conn, _ *os.File, size int) (int64, error) {
			return c.WriteBuffers([][]byte{{1}, make([]byte, size-2), {2}})
		}},
		{"ReadFrom", func(c *Conn, _ *os.File, size int) (int64, error) {
			return c.ReadFrom(bytes.NewReader(make([]byte, size)))
		}},
		{"ReadFrom file", func(c *Conn, f *os.File, size int) (int64, error) {
			return c.ReadFrom(io.LimitReader(f, int64(size)))
		}},
	} {
		for _, end := range []struct {
			name string
			ends func(p *puppet)
		}{
			{"closed", func(p *puppet) { p.flag(cdc.Closed) }},
			{"done and closed", func(p *puppet) { p.flag(cdc.DoneWriting | cdc.Closed) }},
			{"ended", func(p *puppet) { p.conn.End() }},
		} {
			for _, size := range []int{10, capacity, capacity + 1} {
				f, err := os.Open(file)
				if err != nil {
					t.Fatal(err)
				}
				p := newPuppet(64, capacity)
				end.ends(p)
				n, err := way.write(p.conn, f, size)
				switch {
				case size <= capacity && (n != int64(size) || err != nil):
					t.Errorf("%s of %d bytes, %s: %d, %v, want it taken", way.name, size, end.name, n, err)
				case size > capacity && (n != capacity || err != syscall.EPIPE):
					t.Errorf("%s of %d bytes, %s: %d, %v, want %d, EPIPE", way.name, size, end.name, n, err, capacity)
				}
				if at, err := f.Seek(0, io.SeekCurrent); way.name == "ReadFrom file" && (at != n || err != nil) {
					t.Errorf("%s of %d bytes, %s: the file is at %d, want %d", way.name, size, end.name, at, n)
				}
				if n, err := way.write(p.conn, f, 2); n != 0 || err != syscall.EPIPE {
					t.Errorf("%s, %s, once more: %d, %v, want EPIPE", way.name, end.name, n, err)
				}
				f.Close()
				if p.ringCount() != 0 || p.produced() != (cdc.Cursor{}) || p.conn.Unsent() {
					t.Errorf("%s, %s: the peer was told of something, Unsent %t", way.name, end.name, p.conn.Unsent())
				}

				p = newPuppet(64, capacity)
				p.conn.CloseWrite()
				end.ends(p)
				if n, err := p.conn.Write([]byte("x")); n != 0 || err != syscall.EPIPE {
					t.Errorf("%s after CloseWrite, %s: %d, %v, want EPIPE", way.name, end.name, n, err)
				}
			}
		}
	}
}

// TestReadFromFull sends a file that fills the ring exactly: its end is seen without waiting for room.
func TestReadFromFull(t *testing.T) {
	watchdog(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := newPuppet(100, 5000)
	if n, err := p.conn.ReadFrom(f); n != 5000 || err != nil {
		t.Errorf("ReadFrom = %d, %v", n, err)
	}
}
