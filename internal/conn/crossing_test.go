package conn

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

var someDecline = clc.Decline{Version: clc.V2, PeerID: wire.PeerID{9}, Diagnosis: clc.DiagTimeoutConfirmLink, OS: clc.OSLinux}

// TestCrossing looks for a Decline at the beginning of an application's input, which comes in
// pieces of every length.
func TestCrossing(t *testing.T) {
	v1 := clc.Decline{Version: clc.V1, Diagnosis: clc.DiagMemory}.Append(nil)
	v2 := someDecline.Append(nil)
	other := append([]byte(nil), v1...)
	other[4] = byte(clc.TypeConfirm)
	long := append([]byte(nil), v2...)
	long[5], long[6] = 1, 0
	for _, tt := range []struct {
		name     string
		in, want string
	}{
		{"nothing", "", ""},
		{"text", "hello", "hello"},
		{"Decline", string(v2), ""},
		{"Decline of version 1 and text", string(v1) + "hello", "hello"},
		{"two Declines", string(v2) + string(v2), string(v2)}, // an application may well send bytes like one
		{"another message", string(other), string(other)},
		{"a long one", string(long), string(long)},
		{"part of a Decline", string(v2[:11]), string(v2[:11])},
		{"eyecatcher", string(v2[:4]), string(v2[:4])},
		{"like one at first", string(v2[:6]) + "hello", string(v2[:6]) + "hello"},
	} {
		for already := 0; already <= min(len(tt.in), len(v1)-1); already++ { // never more than the first message
			for name, pieces := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "half": iotest.HalfReader} {
				x := newCrossing([]byte(tt.in)[:already])
				tcp := pieces(strings.NewReader(tt.in[already:]))
				got, err := io.ReadAll(readerFunc(func(b []byte) (int, error) {
					if n, err, ok := x.read(tcp, b[:1]); ok {
						return n, err
					}
					return tcp.Read(b)
				}))
				if err != nil || string(got) != tt.want {
					t.Errorf("%s, %d read before, %s: read %q, %v; want %q", tt.name, already, name, got, err, tt.want)
				}
				x = newCrossing([]byte(tt.in)[:already])
				tcp = pieces(strings.NewReader(tt.in[already:]))
				var all bytes.Buffer
				n, err := x.writeTo(tcp, &all)
				rest, err2 := io.Copy(&all, tcp)
				if err != nil || err2 != nil || all.String() != tt.want || n+rest != int64(len(tt.want)) {
					t.Errorf("%s, %d read before, %s: copied %d and %d bytes, %q, %v, %v; want %q", tt.name, already, name, n, rest, all.String(), err, err2, tt.want)
				}
			}
		}
	}
	// Bytes that are no Decline at first sight are left where they are.
	text := peekReader{bufio.NewReader(strings.NewReader("hello"))}
	if n, err, ok := newCrossing(nil).read(text, make([]byte, 10)); n != 0 || err != nil || ok || text.Buffered() != len("hello") {
		t.Errorf("read = %d, %v, %v, and %d bytes are left, want all", n, err, ok, text.Buffered())
	}
	// A deadline in the middle changes nothing.
	x, rest := newCrossing(v2[:9]), iotest.OneByteReader(strings.NewReader(string(v2[9:])+"hello"))
	late := readerFunc(func([]byte) (int, error) { return 0, os.ErrDeadlineExceeded })
	for range 20 {
		if _, err, ok := x.read(late, make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) || !ok {
			t.Fatalf("a read that timed out = %v, %v", err, ok)
		}
	}
	if n, err, ok := x.read(rest, make([]byte, 10)); n != 0 || err != nil || ok {
		t.Fatalf("the next = %d, %v, %v", n, err, ok)
	}
	if got, err := io.ReadAll(rest); string(got) != "hello" || err != nil {
		t.Errorf("left is %q, %v", got, err)
	}
}

// TestCrossingSocket looks past the connection at its socket, of which a Decline may be the first thing that comes.
func TestCrossingSocket(t *testing.T) {
	decline := someDecline.Append(nil)
	for _, tt := range []struct {
		name   string
		held   string   // was read in the handshake
		pieces []string // come one after the other
		want   string   // is on the socket then
		err    bool     // something was read that is the application's
	}{
		{name: "text", pieces: []string{"hello"}, want: "hello"},
		{name: "Decline", pieces: []string{string(decline)}},
		{name: "Decline and text", pieces: []string{string(decline) + "hello"}, want: "hello"},
		{name: "Decline in pieces", pieces: []string{string(decline[:3]), string(decline[3:20]), string(decline[20:]), "hello"}, want: "hello"},
		{name: "rest of a Decline", held: string(decline[:9]), pieces: []string{string(decline[9:]), "hello"}, want: "hello"},
		{name: "like one at first", pieces: []string{string(decline[:6]), "hello"}, err: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ours, peers := newTCPPair(t)
			c := NewTCP(newPending(ours), Fallback{Held: []byte(tt.held), Crossing: true})
			raw, err := c.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			look := func(b []byte) (n int, err error) { // as programs do to learn whether a connection is alive
				failed := raw.Read(func(fd uintptr) bool {
					n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
					return true
				})
				if failed != nil {
					return 0, failed
				}
				return n, err
			}
			if n, err := look(make([]byte, 100)); err != unix.EAGAIN {
				t.Fatalf("at first = %d, %v, want nothing", n, err)
			}
			if f, err := c.File(); !errors.Is(err, errors.ErrUnsupported) {
				t.Fatalf("File before it is known what comes = %v, %v", f, err)
			}
			var got []byte
			sent := 0
			for _, p := range tt.pieces {
				if _, err := peers.Write([]byte(p)); err != nil {
					t.Fatal(err)
				}
				sent += len(p)
				buf := make([]byte, 100)
				// All of it is there when the kernel says that nothing of ours is under way.
				smctest.Eventually(t, soon, "the bytes arrive", func() bool {
					n, err := unackedBytes(peers)
					return err == nil && n == 0
				})
				if n, err := look(buf); err == nil {
					got = append(got, buf[:n]...)
				} else if tt.err && errors.Is(err, errors.ErrUnsupported) {
					if f, err := c.File(); !errors.Is(err, errors.ErrUnsupported) {
						t.Errorf("File = %v, %v", f, err)
					}
					whole := make([]byte, sent)
					if _, err := io.ReadFull(c, whole); err != nil || string(whole) != strings.Join(tt.pieces, "") {
						t.Errorf("read %q, %v", whole, err)
					}
				} else if err != unix.EAGAIN {
					t.Errorf("after %q: %v", p, err)
				}
			}
			if string(got) != tt.want {
				t.Errorf("on the socket was %q, want %q", got, tt.want)
			}
			f, err := c.File()
			if err != nil {
				t.Fatalf("File when it is known what came: %v", err)
			}
			f.Close()
		})
	}
}

// unackedBytes returns how many bytes of a connection have not arrived at its peer.
func unackedBytes(c *net.TCPConn) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) })
	return n, errors.Join(failed, err)
}

type peekReader struct{ *bufio.Reader }

func (r peekReader) peek(b []byte) (int, error) {
	_, err := r.Reader.Peek(1)
	if err != nil {
		return 0, err
	}
	ahead, err := r.Reader.Peek(min(len(b), r.Buffered()))
	return copy(b, ahead), err
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
