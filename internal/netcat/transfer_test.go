package netcat

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gosmc/smc"
)

// A chunk that one connection did not take is there for the next. An interrupt ends a transfer
// once, if its input has ended and its peer says nothing.
func TestTransferInterrupted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 20 {
		c, err := smc.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		in := newInput(strings.NewReader("hello"), false)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Millisecond, cancel)
		if err := transfer(ctx, c, in, io.Discard, new(Report)); !errors.Is(err, context.Canceled) {
			t.Fatalf("transfer = %v, want context.Canceled", err)
		}
	}
}

func TestInput(t *testing.T) {
	r, w := io.Pipe()
	in := newInput(r, false)
	stop := make(chan struct{})
	close(stop)
	if n, eof, err := in.copyTo(io.Discard, stop); n != 0 || eof || err != nil {
		t.Errorf("copyTo(stopped) = %d, %v, %v, want nothing", n, eof, err)
	}
	go func() {
		io.WriteString(w, "abc")
		w.Close()
	}()
	var b strings.Builder
	if n, eof, err := in.copyTo(&b, nil); n != 3 || !eof || err != nil || b.String() != "abc" {
		t.Errorf("copyTo = %d, %v, %v and %q, want 3, true, nil, abc", n, eof, err, b.String())
	}
	if n, eof, err := in.copyTo(&b, nil); n != 0 || !eof || err != nil {
		t.Errorf("copyTo after the end = %d, %v, %v, want the end again", n, eof, err)
	}
	broken := newInput(iotestErrReader{}, false)
	if _, eof, err := broken.copyTo(&b, nil); !eof || err != io.ErrClosedPipe {
		t.Errorf("copyTo(broken input) = %v, %v, want its error", eof, err)
	}
}

type iotestErrReader struct{}

func (iotestErrReader) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }
