package smc

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/smctest"
)

// fileListener is a listening socket that somebody else has made, as a file.
func fileListener(t *testing.T) *os.File {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// announced returns how many listeners are announced in a run directory.
func announced(tb testing.TB, dir string) int {
	tb.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", "listen", "*", "*"))
	if err != nil {
		tb.Fatal(err)
	}
	return len(found)
}

// A listener that was handed over as a file serves SMC while its application calls Accept, and can be handed over
// again. Clients that come while it does not are not kept waiting.
func TestNewListener(t *testing.T) {
	smctest.CheckLeaks(t)
	config := Config{Dir: t.TempDir()}
	client, server := newHost(t, config), newHost(t, config)
	f := fileListener(t)
	defer f.Close()
	inner, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	lc := ListenConfig{Host: server, ReadBuffer: 32 << 10}
	l, err := lc.NewListener(inner)
	if err != nil {
		t.Fatalf("NewListener = %v", err)
	}
	defer l.Close()
	d := Dialer{Host: client}
	dial := func() State {
		t.Helper()
		c, err := d.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.State()
	}
	accept := func() State {
		t.Helper()
		l.SetDeadline(time.Now().Add(patience))
		s, err := l.AcceptSMC()
		if err != nil {
			t.Error(err)
			return State{}
		}
		defer s.Close()
		return s.State()
	}
	if st := dial(); st.Mode != ModeTCP || st.Reason.Tag != "NO_LISTENER" {
		t.Errorf("connection before the first Accept = %+v, want NO_LISTENER", st)
	}
	accept()
	states := make(chan State, 1)
	for { // until one comes while Accept waits
		go func() { states <- accept() }()
		smctest.Eventually(t, patience, "an announcement while Accept waits", func() bool { return announced(t, config.Dir) == 1 })
		st := dial()
		if st.Mode == ModeSMCD || t.Failed() {
			break
		}
		<-states
	}
	if st := <-states; st.Mode != ModeSMCD || st.ReadBuffer != 32<<10 {
		t.Errorf("connection of a handed-over listener = %+v, want SMC-D with a buffer of %d", st, 32<<10)
	}
	// At once, when it is still announced.
	if st := dial(); st.Mode != ModeTCP || st.Reason.Tag != "NO_LISTENER" {
		t.Errorf("connection after the last Accept = %+v, want NO_LISTENER: nobody has to wait for the next Accept", st)
	}
	smctest.Eventually(t, patience, "no announcement while nobody calls Accept", func() bool { return announced(t, config.Dir) == 0 })
	accept()

	again, err := l.File()
	if err != nil {
		t.Fatalf("File of a listener = %v", err)
	}
	defer again.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	copied, err := net.FileListener(again) // still listens
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	if copied.Addr().String() != l.Addr().String() {
		t.Errorf("File is a listener at %v, want %v", copied.Addr(), l.Addr())
	}
}

// boundFile is a TCP socket that neither listens nor is connected.
func boundFile(t *testing.T) *os.File {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "bound")
	t.Cleanup(func() { f.Close() })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	return f
}

// A value that is no TCP listener is refused, and stays as it is.
func TestNewListenerRefuses(t *testing.T) {
	smctest.CheckLeaks(t)
	inner, err := net.Listen("unix", filepath.Join(t.TempDir(), "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	host := newHost(t, Config{})
	lc := ListenConfig{Host: host}
	var opErr *net.OpError
	if l, err := lc.NewListener(inner); !errors.As(err, &opErr) {
		t.Errorf("NewListener(unix) = %v, %v, want a *net.OpError", l, err)
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if l, err := lc.NewListener(struct{ net.Listener }{plain}); !errors.As(err, &opErr) {
		t.Errorf("NewListener(something around a TCP listener) = %v, %v, want a *net.OpError", l, err)
	}
	deaf, err := net.FileListener(boundFile(t)) // package net does not look
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	if l, err := lc.NewListener(deaf); !errors.Is(err, syscall.EINVAL) || !errors.As(err, &opErr) {
		t.Errorf("NewListener(not listening) = %v, %v, want a *net.OpError around EINVAL", l, err)
	}
	if c, err := FileConn(boundFile(t)); !errors.Is(err, syscall.ENOTCONN) || !errors.As(err, &opErr) {
		t.Errorf("FileConn(not connected) = %v, %v, want a *net.OpError around ENOTCONN", c, err)
	}
	host.Close()
	if l, err := lc.NewListener(plain); !errors.As(err, &opErr) {
		t.Errorf("NewListener on a closed host = %v, %v, want a *net.OpError", l, err)
	}
	c, err := net.Dial("tcp", plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if s, err := plain.Accept(); err != nil {
		t.Errorf("Accept of a listener that was refused = %v", err)
	} else {
		s.Close()
	}
}

// The file of a plain TCP connection is its socket; one over shared memory has none.
func TestConnFile(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server := newHost(t, Config{Dir: dir})
	c, s := connect(t, newHost(t, Config{Dir: dir, Disabled: true}), server, ModeTCP)
	defer s.Close()
	f, err := c.File()
	if err != nil {
		t.Fatalf("File of a TCP connection = %v", err)
	}
	c.Close()
	if _, err := f.Write([]byte("by file")); err != nil {
		t.Error(err)
	}
	f.Close()
	s.SetDeadline(time.Now().Add(patience))
	if b, err := io.ReadAll(s); string(b) != "by file" || err != nil {
		t.Errorf("ReadAll = %q, %v, want what was written to the file", b, err)
	}

	c, s = connect(t, newHost(t, Config{Dir: dir}), server, ModeSMCD)
	defer s.Close()
	defer c.Close()
	var opErr *net.OpError
	if f, err := c.File(); !errors.Is(err, errors.ErrUnsupported) || !errors.As(err, &opErr) {
		t.Errorf("File of an SMC-D connection = %v, %v, want a *net.OpError around ErrUnsupported", f, err)
	}
}

// The socket of a connection over shared memory can be looked at, and written to only by programs
// that insist.
func TestRawConn(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	c, s := connect(t, newHost(t, Config{Dir: dir}), newHost(t, Config{Dir: dir}), ModeSMCD)
	defer c.Close()
	defer s.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var opErr *net.OpError
	err = raw.Write(func(fd uintptr) bool {
		unix.Write(int(fd), []byte("stray"))
		return true
	})
	if !errors.Is(err, errors.ErrUnsupported) || !errors.As(err, &opErr) || opErr.Op != "raw-write" {
		t.Errorf("Write of the socket = %v, want a *net.OpError of raw-write around ErrUnsupported", err)
	}
	var peeked error
	err = raw.Read(func(fd uintptr) bool { // as drivers of databases do to see whether a connection is alive
		_, _, peeked = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	})
	if err != nil || peeked != unix.EAGAIN {
		t.Errorf("Read of the socket = %v, and recv %v, want EAGAIN", err, peeked)
	}
	if err := raw.Read(func(uintptr) bool { return false }); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Read of the socket that waits = %v, want ErrUnsupported", err)
	}
	if err := raw.Control(func(uintptr) {}); err != nil {
		t.Errorf("Control of the socket = %v", err)
	}
	s.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 4)
	if _, err := c.Write([]byte("data")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(s, b); string(b) != "data" || err != nil {
		t.Errorf("ReadFull after that = %q, %v", b, err)
	}
}
