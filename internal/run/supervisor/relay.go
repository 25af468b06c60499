package supervisor

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire/clc"
)

// relay joins an end that nobody claims to the client's TCP connection. The server has accepted
// that without us: it is a program that was started in another way, and has the listener by
// inheritance. It is slower than TCP, and it is right.
func (s *supervisor) relay(o *offer) {
	select {
	case s.relays <- struct{}{}:
	default:
		s.relayLater(o)
		return
	}
	if !o.right() { // rule: TestLetterRelayed
		<-s.relays
		s.drop(o)
		return
	}
	s.forget(o)
	s.readNotes()
	s.listeners.relayed(time.Now(), o.server.Port(), o.letter)
	s.hurry(o.server.Port())
	s.letters.joined = time.Now() // rule: TestLettersJoined
	s.record.stayed(o.server, o.client, clc.DiagNotAccepted)
	go func() {
		defer func() { <-s.relays }()
		end, tcp := stream(o.end), stream(o.tcp)
		if end == nil || tcp == nil {
			closeStreams(end, tcp)
			return
		}
		join(end, tcp)
	}()
}

// relayLater has an offer looked at again when it may be that another relay has ended: there are as
// many as there may be.
func (s *supervisor) relayLater(o *offer) {
	s.poll.remove(o.tcp)
	o.watched, o.seen = false, true
	o.due = time.Now().Add(o.wait)
}

// A half is one side of a relay.
type half interface {
	net.Conn
	CloseWrite() error
}

// stream makes a net.Conn of a descriptor, which it closes, or goes on with that where no other one
// is free. It returns nil if it cannot.
func stream(fd int) half {
	unix.SetNonblock(fd, true)
	f := os.NewFile(uintptr(fd), "socket") // with which the poller of the runtime can wait
	c, err := net.FileConn(f)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) { // rule: TestRelayWithoutDescriptors
		return fileHalf{f}
	}
	defer f.Close()
	if err != nil {
		return nil
	}
	h, ok := c.(half)
	if !ok {
		c.Close()
		return nil
	}
	return h
}

// A fileHalf is a socket of which package net has no copy. It has no addresses.
type fileHalf struct{ *os.File }

func (f fileHalf) LocalAddr() net.Addr  { return nil }
func (f fileHalf) RemoteAddr() net.Addr { return nil }

func (f fileHalf) control(do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	err = raw.Control(func(fd uintptr) { doErr = do(int(fd)) })
	return errors.Join(err, doErr)
}

func (f fileHalf) CloseWrite() error {
	return f.control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
}

// reset has the close that follows be a reset, as [net.TCPConn.SetLinger] does.
func (f fileHalf) reset() {
	f.control(func(fd int) error {
		lingerNot(fd) // which a Unix socket minds not
		return nil
	})
}

func closeStreams(list ...half) {
	for _, h := range list {
		if h != nil {
			h.Close()
		}
	}
}

// join copies in both directions until both have ended.
func join(a, b half) {
	done := make(chan error, 2)
	pump := func(to, from half) {
		_, err := io.Copy(to, from)
		if err == nil {
			err = to.CloseWrite()
		}
		done <- err
	}
	go pump(a, b)
	go pump(b, a)
	if err := <-done; err != nil {
		reset(a, b) // the other direction has no future
	}
	<-done
	closeStreams(a, b)
}

// reset ends both sides as a program's reset would.
func reset(list ...half) {
	for _, h := range list {
		switch h := h.(type) {
		case *net.TCPConn:
			h.SetLinger(0)
		case fileHalf:
			h.reset()
		}
		h.Close()
	}
}
