package talk

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
)

// Every script works over TCP, on both sides.
func TestScripts(t *testing.T) {
	for name, kind := range names {
		if kind == Gone {
			continue // needs a process to die
		}
		t.Run(name, func(t *testing.T) {
			client, server := pair(t)
			served := make(chan error, 1)
			go func() {
				_, err := Serve(server)
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

// A server is not made to take what nobody sends.
func TestBadScript(t *testing.T) {
	for _, s := range []Script{{Kind: 99}, {Kind: Echo, N: -1}, {Kind: Duplex, N: maxN + 1}} {
		client, server := pair(t)
		go func() {
			client.Write(s.append(nil))
			client.CloseWrite()
			io.Copy(io.Discard, client)
		}()
		if _, err := Serve(server); err == nil {
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
