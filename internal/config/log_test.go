package config

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLogsToStderr(t *testing.T) {
	for value, want := range map[string]bool{"": false, "stderr": true, "syslog": false, "STDERR": false} {
		t.Setenv(EnvLog, value)
		if got := LogsToStderr(); got != want {
			t.Errorf("LogsToStderr with %q = %t, want %t", value, got, want)
		}
	}
}

// A line is lost if nobody reads, and is cut so that a pipe takes it at once.
func TestStderr(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fd := int(w.Fd()) // once: each call has the file block
	l := lossy(fd)
	write := func(b []byte) {
		t.Helper()
		if n, err := l.Write(b); n != len(b) || err != nil {
			t.Errorf("Write of %d bytes = %d, %v", len(b), n, err)
		}
	}
	write([]byte("one\n"))
	write([]byte(strings.Repeat("x", 2*maxLogLine)))
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := unix.Write(fd, make([]byte, maxLogLine)); err != nil {
			break // it is full
		}
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	write([]byte("lost\n")) // and does not wait
	w.Close()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.HasPrefix(got, []byte("one\nxxx")) || got[4+maxLogLine-1] != '\n' || got[4+maxLogLine] != 0 || bytes.Contains(got, []byte("lost")) {
		t.Errorf("read %d bytes, %v, beginning with %q; want one, a line of %d, and not the lost one", len(got), err, got[:10], maxLogLine)
	}

	r, w, err = os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.Close()
	l = lossy(w.Fd())
	write([]byte("to nobody\n"))
}
