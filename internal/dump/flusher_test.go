package dump

import (
	"bufio"
	"errors"
	"io"
	"syscall"
	"testing"
)

// A live flusher hands on its bytes though nothing more comes.
func TestFlusher(t *testing.T) {
	r, w := io.Pipe()
	f := newFlusher(w, true)
	if _, err := f.Write([]byte("one\n")); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || line != "one\n" {
		t.Errorf("read %q, %v, want the line", line, err)
	}
	r.CloseWithError(syscall.EPIPE)
	for err = nil; err == nil; { // the timer meets the error, or the close does
		if _, err = f.Write([]byte("two\n")); err == nil {
			err = f.close()
		}
	}
	if !errors.Is(err, syscall.EPIPE) {
		t.Errorf("writing when nobody reads = %v, want EPIPE", err)
	}
}
