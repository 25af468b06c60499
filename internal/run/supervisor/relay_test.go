package supervisor

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/sockdiag"
)

// TestRelay has a server accept that does not know of us, and speak only when it is spoken to. Nothing is lost.
func TestRelay(t *testing.T) {
	s := newTestSupervisor(t)
	c := s.offer(t)
	c.connect()
	const early = "before anybody accepts"
	if _, err := unix.Write(c.end, []byte(early)); err != nil {
		t.Fatal(err)
	}
	conn := c.accept()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	b := make([]byte, len(early))
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != early {
		t.Fatalf("the server has read %q, %v", b, err)
	}
	if _, err := os.Lstat(s.Listeners.Link(c.server.Port())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the listener is still announced, %v: the next connection will be relayed, too", err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() {
		conn.Write(large)
		conn.CloseWrite()
	}()
	end := broker.Stream(c.end)
	c.end = -1
	end.SetDeadline(time.Now().Add(30 * time.Second))
	if got, err := io.ReadAll(end); err != nil || !bytes.Equal(got, large) {
		t.Errorf("the client has read %d bytes, %v; want %d", len(got), err, len(large))
	}
	end.Write([]byte("after the half close"))
	end.Close()
	if got, err := io.ReadAll(conn); err != nil || string(got) != "after the half close" {
		t.Errorf("the server has read %q, %v", got, err)
	}
	if st, _ := s.claimAs(t, c); st != proto.StatusNo {
		t.Errorf("Claim of what is relayed: status %d, want %d", st, proto.StatusNo)
	}
}

// TestRelayWithoutDescriptors joins to TCP where no descriptor is free: both ways, with a half close.
func TestRelayWithoutDescriptors(t *testing.T) {
	s, _ := stillSupervisor(t)
	c := s.sendLetter(t)
	if err := c.dial(); err != nil {
		t.Fatal(err)
	}
	s.readUntil(broker.KeyOf(c.socket, c.server))
	conn := c.accept()
	for _, o := range s.ByKey {
		restore := leaveDescriptors(t, 0)
		end, tcp := broker.Stream(o.End), broker.Stream(o.TCP)
		restore()
		s.Forget(o)
		if end == nil || tcp == nil {
			t.Fatal("the connection is lost")
		}
		go broker.Join(end, tcp)
	}
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := unix.Write(c.end, []byte("there")); err != nil {
		t.Fatal(err)
	}
	unix.Shutdown(c.end, unix.SHUT_WR)
	if got, err := io.ReadAll(conn); err != nil || string(got) != "there" {
		t.Errorf("the server has read %q, %v", got, err)
	}
	io.WriteString(conn, "and back")
	conn.Close()
	end := broker.Stream(c.end)
	c.end = -1
	defer end.Close()
	end.SetDeadline(time.Now().Add(30 * time.Second))
	if got, err := io.ReadAll(end); err != nil || string(got) != "and back" {
		t.Errorf("the client has read %q, %v", got, err)
	}
}

// TestRelayAtOnce has such a server speak first, and close: the client gets it.
func TestRelayAtOnce(t *testing.T) {
	s := newTestSupervisor(t)
	c := s.offer(t)
	c.connect()
	conn := c.accept()
	io.WriteString(conn, "220 hello")
	conn.Close()
	end := broker.Stream(c.end)
	c.end = -1
	defer end.Close()
	end.SetDeadline(time.Now().Add(30 * time.Second))
	if got, err := io.ReadAll(end); err != nil || string(got) != "220 hello" {
		t.Errorf("the client has read %q, %v", got, err)
	}
}

// TestWaitsForAccept has a server that takes long to accept: that is no reason to relay.
func TestWaitsForAccept(t *testing.T) {
	s := newTestSupervisor(t)
	c := s.offer(t)
	c.connect()
	state, err := sockdiag.Connection(c.server, c.socket)
	if err != nil || state.Inode != 0 {
		t.Fatalf("before Accept the kernel says %+v, %v; want inode 0", state, err)
	}
	conn, err := c.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if state, err = sockdiag.Connection(c.server, c.socket); err != nil || state.Inode == 0 {
		t.Errorf("after Accept the kernel says %+v, %v; want an inode", state, err)
	}
}

// TestRelayOutlives has the last program of a supervisor end when another program has its listener: a connection that is joined to TCP goes on, and one that was
// offered is joined, even if nobody has read its letter. The supervisor ends when they have ended.
func TestRelayOutlives(t *testing.T) {
	says := func(t *testing.T, c *connection, what string) {
		t.Helper()
		if _, err := unix.Write(c.end, []byte(what)); err != nil {
			t.Fatal(err)
		}
		conn, b := c.accept(), make([]byte, len(what))
		conn.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.ReadFull(conn, b); err != nil || string(b) != what {
			t.Fatalf("the server has read %q, %v; want %q", b, err, what)
		}
	}
	for name, prepare := range map[string]func(t *testing.T, s *supervisor) (c *connection, last func()){
		"joined": func(t *testing.T, s *supervisor) (*connection, func()) {
			c := s.offer(t)
			c.connect()
			says(t, c, "joined to TCP")
			return c, func() {}
		},
		"offered": func(t *testing.T, s *supervisor) (*connection, func()) {
			c := s.offer(t)
			c.connect()
			return c, func() {}
		},
		"letter": func(t *testing.T, s *supervisor) (*connection, func()) {
			c := s.connectEnd(t)
			return c, func() {
				c.sendLetter()
				if err := c.dial(); err != nil {
					t.Error(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "run")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			s, err := newSupervisor(dir, os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				err := s.serve()
				s.close()
				done <- err
			}()
			c, last := prepare(t, s)
			s.Mu.Lock()
			last()
			for fd := range s.programs.byFD {
				s.programs.ended(fd)
			}
			s.Mu.Unlock()
			s.program(t) // it looks
			select {
			case <-done:
				t.Fatal("the supervisor has ended, and the connection ends with it")
			case <-time.After(200 * time.Millisecond):
			}
			says(t, c, "joined at the end")
			c.accept().Close()
			unix.Close(c.end)
			c.end = -1
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(30 * time.Second):
				t.Error("the supervisor goes on without programs and connections")
				s.Stop()
				<-done
			}
		})
	}
}
