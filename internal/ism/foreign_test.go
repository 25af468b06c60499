package ism

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lingering returns a TCP socket whose last close takes a minute, because nobody reads the bytes
// that were written.
func (s *script) lingering() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.check(err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	s.check(err)
	defer c.Close()
	other, err := l.Accept()
	s.check(err)
	s.t.Cleanup(func() { other.Close() }) // lets the close return, if there still is one
	f, err := c.(*net.TCPConn).File()
	s.check(err)
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd()))
	s.check(err)
	s.check(unix.SetNonblock(fd, true))
	for b := bytes.Repeat([]byte("x"), 1<<20); err == nil; {
		_, err = unix.Write(fd, b)
	}
	s.check(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60}))
	return fd
}

// giveAway sends n lingering sockets by the socket fd and keeps none.
func (s *script) giveAway(fd, n int, data []byte) {
	var fds []int
	for range n {
		fds = append(fds, s.lingering())
	}
	s.check(again(func() error {
		return unix.Sendmsg(fd, data, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}))
	for _, fd := range fds {
		closeFD(s.t, fd)
	}
}

// Descriptors that a peer sends may be the last ones of sockets whose close takes its time. Nobody waits for that: not Poll, which the
// accept loops of the process call, not the end of the peering, and not Close.
func TestLingeringDescriptors(t *testing.T) {
	signal := message{kind: kindSignal}
	b := signal.append(nil)
	for _, tt := range []struct {
		name string
		send func(s *script)
	}{
		{"one", func(s *script) { s.giveAway(s.fd, 1, b) }},
		{"more than there is room for", func(s *script) { s.giveAway(s.fd, 10, b) }},
		{"behind the end", func(s *script) {
			s.sendMessage(message{kind: kindRefuse})
			s.giveAway(s.fd, 1, b)
			s.giveAway(s.fd, 1, nil)
			s.giveAway(s.fd, 5, b)
		}},
		{"in our chime", func(s *script) { s.giveAway(s.got[1], 2, []byte{1}) }},
		{"in the peer's chime", func(s *script) { s.giveAway(s.owns[len(s.owns)-2], 2, []byte{1}) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, r, p, s := newVictim(t)
			p.conn.recvMu.Lock() // so that ours are not the last ones
			tt.send(s)
			p.conn.recvMu.Unlock()
			finished := make(chan struct{})
			go func() {
				defer close(finished)
				d.Poll()
				p.Close()
				<-r.gone
				d.Close()
			}()
			select {
			case <-finished:
			case <-time.After(patience / 2):
				t.Error("Poll, the end of the peering and Close wait for what a peer has sent to be closed")
			}
			s.close()
		})
	}
}

// TestFullStranger dials a socket of another user whose queue is full, as an announcement of that user may have anybody do: over at once, but where it may be a device that
// is welcome.
func TestFullStranger(t *testing.T) {
	checkLeaks(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: a socket of another user")
	}
	const stranger, soon = 4242, 500 * time.Millisecond
	for _, anyUser := range []bool{false, true} {
		dir := t.TempDir()
		d, err := Open(Config{Dir: dir, AnyUser: anyUser})
		if err != nil {
			t.Fatal(err)
		}
		gid := newGID()
		path := filepath.Join(dir, socketsDir, gid.String())
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0), os.Chown(path, stranger, -1)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		var waiting []int
		for full := false; !full; {
			c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			waiting = append(waiting, c)
			full = unix.Connect(c, &unix.SockaddrUnix{Name: path}) == unix.EAGAIN
		}
		ctx, stop := context.WithTimeout(t.Context(), soon)
		_, err = d.Peer(ctx, gid)
		stop()
		if want := map[bool]error{false: ErrOtherUser, true: context.DeadlineExceeded}[anyUser]; !errors.Is(err, want) {
			t.Errorf("AnyUser %t: Peer = %v, want %v", anyUser, err, want)
		}
		for _, c := range append(waiting, fd) {
			unix.Close(c)
		}
		d.Close()
	}
}

// TestAdmit has a device choose among other users.
func TestAdmit(t *testing.T) {
	const friend, stranger = 4242, 4243
	d, err := Open(Config{Dir: t.TempDir(), AnyUser: true, Admit: func(uid int) bool { return uid == friend }})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if overcommit.isStrict() {
		t.Skip("no other users under vm.overcommit_memory=2")
	}
	for uid, want := range map[int]error{friend: nil, stranger: ErrOtherUser, os.Geteuid(): nil} {
		if err := d.checkUser(Cred{UID: uid}); !errors.Is(err, want) {
			t.Errorf("user %d: %v, want %v", uid, err, want)
		}
	}
}
