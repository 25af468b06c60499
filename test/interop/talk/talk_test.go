package talk

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Every script works over TCP, on both sides.
func TestScripts(t *testing.T) {
	for name, kind := range names {
		if kind == Gone {
			continue // needs a process to die
		}
		t.Run(name, func(t *testing.T) {
			var client, server Conn = pair(t)
			if kind >= Urgent {
				client, server = oobConn{client.(*net.TCPConn)}, oobConn{server.(*net.TCPConn)}
			}
			served := make(chan error, 1)
			go func() {
				_, err := Serve(server, nil)
				served <- err
			}()
			if err := Client(client, Script{Kind: kind, N: 100_000, Rounds: 3, Seed: 7}); err != nil {
				t.Errorf("client: %v", err)
			}
			if err := <-served; err != nil {
				t.Errorf("server: %v", err)
			}
		})
	}
}

// A wrong byte is found, wherever it is.
func TestWrongByte(t *testing.T) {
	for _, at := range []int{0, 1, 7, 8, piece - 1, piece, 2*piece + 5} {
		client, server := pair(t)
		go func() {
			spoil := &spoiler{Conn: client, at: at}
			send(spoil, 3*piece, 7)
		}()
		if err := receive(server, 3*piece, 7); err == nil {
			t.Errorf("byte %d is wrong, and nobody sees it", at)
		}
		server.Close()
	}
}

// A script cannot make a server wait for bytes that nobody sends.
func TestBadScript(t *testing.T) {
	for _, s := range []Script{{Kind: 99}, {Kind: Echo, N: -1}, {Kind: Duplex, N: maxN + 1}} {
		client, server := pair(t)
		go func() {
			client.Write(s.append(nil))
			client.CloseWrite()
			io.Copy(io.Discard, client)
		}()
		if _, err := Serve(server, nil); err == nil {
			t.Errorf("%+v is served", s)
		}
	}
	if err := expectReset("read", io.EOF); err == nil {
		t.Error("an EOF passes for a reset")
	}
	if err := expectReset("read", &net.OpError{Err: syscall.ECONNRESET}); err != nil {
		t.Error(err)
	}
}

type spoiler struct {
	Conn
	at int
}

func (s *spoiler) Write(b []byte) (int, error) {
	if s.at >= 0 && s.at < len(b) {
		b = bytes.Clone(b)
		b[s.at] ^= 1
	}
	s.at -= len(b)
	return s.Conn.Write(b)
}

func pair(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(errors.Join(err, c.Close()))
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// An oobConn is a TCP connection with MSG_OOB. It waits by trying again.
type oobConn struct{ *net.TCPConn }

func (c oobConn) control(f func(fd int) error) (err error) {
	raw, err := c.SyscallConn()
	if err == nil {
		raw.Control(func(fd uintptr) { err = f(int(fd)) })
	}
	return err
}

func (c oobConn) WriteUrgent(b []byte) (int, error) {
	last := len(b) - 1
	if n, err := c.Write(b[:last]); err != nil {
		return n, err
	}
	return len(b), c.control(func(fd int) error {
		for {
			if _, err := unix.SendmsgN(fd, b[last:], nil, nil, unix.MSG_OOB); err != unix.EAGAIN {
				return err
			}
			runtime.Gosched()
		}
	})
}

func (c oobConn) WaitUrgent() error {
	return c.control(func(fd int) error {
		for {
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}, -1); n > 0 || err != unix.EINTR {
				return err
			}
		}
	})
}

func (c oobConn) ReadUrgent() (value byte, err error) {
	b := make([]byte, 1)
	err = c.control(func(fd int) error {
		_, _, err := unix.Recvfrom(fd, b, unix.MSG_OOB)
		return err
	})
	return b[0], err
}

func (c oobConn) AtUrgentMark() (at bool, err error) {
	err = c.control(func(fd int) error {
		n, err := unix.IoctlGetInt(fd, unix.SIOCATMARK)
		at = n != 0
		return err
	})
	return at, err
}

func (c oobConn) SetUrgentInline(bool) error {
	return c.control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
}

// Where a connection has no urgent data, a script with some says so.
func TestNoUrgentData(t *testing.T) {
	client, server := pair(t)
	defer server.Close()
	if err := Client(client, Script{Kind: Urgent, N: 1}); err == nil {
		t.Error("a net.TCPConn has urgent data")
	}
}
