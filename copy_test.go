package smc

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/smctest"
)

// copyPairs runs a test on a connection of each kind.
func copyPairs(t *testing.T, test func(t *testing.T, c, s *Conn)) {
	t.Helper()
	for _, config := range []Config{{}, {ReadBuffer: 16 << 10}, {Disabled: true}} {
		want := ModeSMCD
		name := "SMC-D"
		if config.ReadBuffer != 0 {
			name = "SMC-D with small buffers"
		}
		if config.Disabled {
			want, name = ModeTCP, "TCP"
		}
		t.Run(name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			config.Dir = t.TempDir()
			c, s := connect(t, newHost(t, config), newHost(t, config), want)
			defer c.Close()
			defer s.Close()
			c.SetDeadline(time.Now().Add(patience))
			s.SetDeadline(time.Now().Add(patience))
			test(t, c, s)
		})
	}
}

const copySize = 5<<20 + 4321

// patternFile makes a file of copySize bytes.
func patternFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := io.Copy(f, patternReader(copySize)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestCopyFile copies a file into a connection and out of it into another file, as sendfile and
// splice do on TCP.
func TestCopyFile(t *testing.T) {
	copyPairs(t, func(t *testing.T, c, s *Conn) {
		from := patternFile(t)
		sent := make(chan error, 1)
		go func() {
			n, err := io.Copy(c, from)
			if err == nil && n != copySize {
				err = io.ErrShortWrite
			}
			c.CloseWrite()
			sent <- err
		}()
		to, err := os.Create(filepath.Join(t.TempDir(), "copy"))
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		if n, err := io.Copy(to, s); n != copySize || err != nil {
			t.Errorf("io.Copy(file, conn) = %d, %v; want %d", n, err, copySize)
		}
		if err := <-sent; err != nil {
			t.Errorf("io.Copy(conn, file): %v", err)
		}
		if !sameAsPattern(t, to.Name()) {
			t.Error("the copy differs")
		}
	})
}

func sameAsPattern(t *testing.T, name string) bool {
	t.Helper()
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return len(got) == copySize && smctest.CheckPattern(got, 0) == nil
}

// TestCopyPart copies a part of a file, from its middle: the file's position is moved by the number
// of copied bytes, and not more.
func TestCopyPart(t *testing.T) {
	copyPairs(t, func(t *testing.T, c, s *Conn) {
		const from, size = 4097, 70_001
		f := patternFile(t)
		f.Seek(from, io.SeekStart)
		sent := make(chan error, 1)
		go func() {
			_, err := io.CopyN(c, f, size)
			c.CloseWrite()
			sent <- err
		}()
		got, err := io.ReadAll(s)
		if err != nil || len(got) != size {
			t.Fatalf("ReadAll = %d bytes, %v; want %d", len(got), err, size)
		}
		if err := smctest.CheckPattern(got, from); err != nil {
			t.Error(err)
		}
		if err := <-sent; err != nil {
			t.Errorf("CopyN: %v", err)
		}
		if at, _ := f.Seek(0, io.SeekCurrent); at != from+size {
			t.Errorf("the file is at %d, want %d", at, from+size)
		}
	})
}

// TestCopyThrough copies from one connection to another, and back, with a proxy in between.
func TestCopyThrough(t *testing.T) {
	copyPairs(t, func(t *testing.T, c, s *Conn) {
		config := Config{Dir: t.TempDir()}
		c2, s2 := connect(t, newHost(t, config), newHost(t, config), ModeSMCD)
		defer c2.Close()
		defer s2.Close()
		s2.SetDeadline(time.Now().Add(patience))
		// c -> (s, c2) -> s2, which echoes.
		done := make(chan error, 3)
		go func() { _, err := io.Copy(c2, s); c2.CloseWrite(); done <- err }()
		go func() { _, err := io.Copy(s, c2); s.CloseWrite(); done <- err }()
		go func() { _, err := io.Copy(s2, s2); s2.CloseWrite(); done <- err }()
		go func() { io.Copy(c, patternReader(copySize)); c.CloseWrite() }()
		got, err := io.ReadAll(c)
		if err != nil || len(got) != copySize {
			t.Fatalf("ReadAll = %d bytes, %v; want %d", len(got), err, copySize)
		}
		if err := smctest.CheckPattern(got, 0); err != nil {
			t.Error(err)
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestWriteBuffers writes many slices, empty ones among them, through net.Buffers and as a whole.
func TestWriteBuffers(t *testing.T) {
	copyPairs(t, func(t *testing.T, c, s *Conn) {
		all := make([]byte, copySize)
		smctest.Pattern(all, 0)
		for _, write := range []func(*net.Buffers) (int64, error){
			c.WriteBuffers,
			func(b *net.Buffers) (int64, error) { return b.WriteTo(c) },
		} {
			var bufs net.Buffers
			for rest, n := all, 0; len(rest) > 0; n++ {
				size := min(len(rest), n*n%7919)
				bufs = append(bufs, rest[:size])
				rest = rest[size:]
			}
			sent := make(chan error, 1)
			go func() {
				n, err := write(&bufs)
				if err == nil && (n != copySize || len(bufs) != 0) {
					err = io.ErrShortWrite
				}
				sent <- err
			}()
			got := make([]byte, copySize)
			if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, all) {
				t.Errorf("what was read differs, %v", err)
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestOptions sets every option and reads it back.
func TestOptions(t *testing.T) {
	copyPairs(t, func(t *testing.T, c, s *Conn) {
		plain := c.State().Mode == ModeTCP
		if got := c.Options(); !got.NoDelay || got.Linger >= 0 {
			t.Errorf("Options() = %+v before anything was set", got)
		}
		want := Options{
			Linger:    7,
			KeepAlive: net.KeepAliveConfig{Enable: true, Idle: 11 * time.Second, Interval: 3 * time.Second, Count: 4},
		}
		for name, err := range map[string]error{
			"SetNoDelay":         c.SetNoDelay(false),
			"SetKeepAliveConfig": c.SetKeepAliveConfig(want.KeepAlive),
			"SetLinger":          c.SetLinger(7),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		err1, err2 := c.SetReadBuffer(100_000), c.SetWriteBuffer(200_000)
		if plain {
			want.ReadBuffer, want.WriteBuffer = 100_000, 200_000
		}
		if (err1 == nil) != plain || (err2 == nil) != plain {
			t.Errorf("SetReadBuffer, SetWriteBuffer = %v, %v; want an error only on SMC", err1, err2)
		}
		if got := c.Options(); got != want {
			t.Errorf("Options() = %+v, want %+v", got, want)
		}
		c.SetKeepAlive(false)
		c.SetKeepAlivePeriod(5 * time.Second)
		want.KeepAlive.Enable = false
		want.KeepAlive.Idle, want.KeepAlive.Interval = 5*time.Second, 5*time.Second
		if got := c.Options(); got != want {
			t.Errorf("Options() = %+v, want %+v", got, want)
		}
		c.Close()
		if err := c.SetLinger(3); !errors.Is(err, net.ErrClosed) {
			t.Errorf("SetLinger on a closed connection = %v, want %v", err, net.ErrClosed)
		}
		if got := c.Options(); got != want {
			t.Errorf("Options() = %+v after an error, want %+v", got, want)
		}
	})
}

// A brokenStream fails on every call.
type brokenStream struct{ err error }

func (b brokenStream) Read([]byte) (int, error)  { return 0, b.err }
func (b brokenStream) Write([]byte) (int, error) { return 0, b.err }

// Errors of copies have the type that they have in package net, whichever end they are from.
func TestCopyErrors(t *testing.T) {
	type copier interface {
		testConn
		io.ReaderFrom
		io.WriterTo
	}
	dir := t.TempDir()
	hosts := [2]*Host{newHost(t, Config{Dir: dir}), newHost(t, Config{Dir: dir})}
	plain := newHost(t, Config{Dir: dir, Disabled: true})
	errBroken := errors.New("broken")
	for _, kind := range []struct {
		name string
		pair func() (a, b copier)
	}{
		{"net", func() (a, b copier) { return netPair(t) }},
		{"TCP", func() (a, b copier) { return connect(t, plain, hosts[1], ModeTCP) }},
		{"SMC-D", func() (a, b copier) { return connect(t, hosts[0], hosts[1], ModeSMCD) }},
	} {
		t.Run(kind.name, func(t *testing.T) {
			check := func(call, op string, err, want error) {
				t.Helper()
				var opErr *net.OpError
				var netErr net.Error
				if !errors.As(err, &opErr) || opErr.Op != op || opErr.Net != "tcp" || !errors.As(err, &netErr) || !errors.Is(err, want) {
					t.Errorf("%s = %#v, want a *net.OpError of %s around %v", call, err, op, want)
				}
			}
			a, b := kind.pair()
			defer a.Close()
			a.SetDeadline(time.Now().Add(patience))
			_, err := a.ReadFrom(brokenStream{errBroken})
			check("ReadFrom(broken)", "readfrom", err, errBroken)
			if _, err := b.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			_, err = a.WriteTo(brokenStream{errBroken})
			check("WriteTo(broken)", "writeto", err, errBroken)

			b.SetLinger(0)
			b.Close()
			smctest.Eventually(t, patience, "the reset arrives", func() bool {
				_, err = a.ReadFrom(strings.NewReader("y"))
				return err != nil
			})
			want := error(syscall.ECONNRESET)
			if errors.Is(err, syscall.EPIPE) { // from a second write
				want = syscall.EPIPE
			}
			check("ReadFrom after a reset", "readfrom", err, want)
		})
	}
}
