package broker

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Relay joins an end that nobody claims to the client's TCP connection. The server has accepted
// that without us: it is a program that was started in another way, and has the listener by
// inheritance. It is slower than TCP, and it is right.
func (t *Offers) Relay(o *Offer) {
	select {
	case t.Relays <- struct{}{}:
	default:
		t.relayLater(o)
		return
	}
	if !o.Right() { // rule: internal/run/supervisor TestLetterRelayed
		<-t.Relays
		t.Drop(o)
		return
	}
	t.Forget(o)
	if t.owner != nil {
		t.owner.Relaying(o)
	}
	t.Listeners.relayed(time.Now(), o.Server.Port(), o.Letter)
	t.hurry(o.Server.Port())
	go func() {
		defer t.relayed()
		end, tcp := Stream(o.End), Stream(o.TCP)
		if end == nil || tcp == nil {
			CloseStreams(end, tcp)
			return
		}
		Join(end, tcp)
	}()
}

// relayed gives the place of a relay back.
func (t *Offers) relayed() {
	<-t.Relays
	if t.owner != nil {
		t.owner.Relayed()
	}
}

// relayLater has an offer looked at again when it may be that another relay has ended: there are as
// many as there may be.
func (t *Offers) relayLater(o *Offer) {
	t.Poll.Remove(o.TCP)
	o.Watched, o.seen = false, true
	o.Due = time.Now().Add(o.Wait)
}

// A Half is one side of a relay.
type Half interface {
	net.Conn
	CloseWrite() error
}

// Stream makes a net.Conn of a descriptor, which it closes, or goes on with that where no other one
// is free. It returns nil if it cannot.
func Stream(fd int) Half {
	unix.SetNonblock(fd, true)
	f := os.NewFile(uintptr(fd), "socket") // with which the poller of the runtime can wait
	c, err := net.FileConn(f)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) { // rule: internal/run/supervisor TestRelayWithoutDescriptors
		return fileHalf{f}
	}
	defer f.Close()
	if err != nil {
		return nil
	}
	h, ok := c.(Half)
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
		LingerNot(fd) // which a Unix socket minds not
		return nil
	})
}

// CloseStreams closes streams, but for nil.
func CloseStreams(list ...Half) {
	for _, h := range list {
		if h != nil {
			h.Close()
		}
	}
}

// Join copies in both directions until both have ended.
func Join(a, b Half) {
	done := make(chan error, 2)
	pump := func(to, from Half) {
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
	CloseStreams(a, b)
}

// reset ends both sides as a program's reset would.
func reset(list ...Half) {
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
