package ring

import (
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An End is our end of a pair. Several goroutines may call its methods at once.
type End struct {
	socket *net.UnixConn
	raw    syscall.RawConn
	in     reader
	out    writer

	closed atomic.Bool
	client bool      // the end is the client's of its connection
	began  time.Time // deadlines are counted from here

	mu   sync.Mutex // held while a ring comes or goes, by the holder of in.mu or out.mu
	gift []byte     // the mapping of rings from the beginning; nil: none
}

// New returns an end. memory is a file with rings of both directions that has come with it, -1 if there is
// none; New closes it. client: the end is the client's of its connection.
func New(socket *net.UnixConn, memory int, client bool) *End {
	e := &End{socket: socket, client: client, began: time.Now()}
	e.in.init(e)
	e.out.init(e)
	e.raw, _ = socket.SyscallConn() // it fails for none that is open
	if memory >= 0 {
		if mapped, ofClient, ofServer, err := takeGift(memory); err == nil {
			e.gift = mapped
			e.in.gift, e.out.gift = ofServer, ofClient
			if !client {
				e.in.gift, e.out.gift = ofClient, ofServer
			}
			e.in.gift.half(atHere).Store(1)
		}
		unix.Close(memory)
	}
	return e
}

// A deadline is one of the socket, which is asked only where a call waits.
type deadline struct{ at atomic.Int64 } // nanoseconds since the end began, 0: none

func (d *deadline) set(began, t time.Time) {
	switch at := t.Sub(began); {
	case t.IsZero():
		d.at.Store(0)
	default:
		d.at.Store(max(int64(at), 1))
	}
}

// check returns the error of a call that may not go on.
func (e *End) check(d *deadline) error {
	if e.closed.Load() {
		return net.ErrClosed
	}
	if at := d.at.Load(); at != 0 && int64(time.Since(e.began)) >= at {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// opError is an error as the socket's own calls have it.
func opError(op string, err error) error {
	if own, ok := err.(*net.OpError); ok {
		if !strings.HasPrefix(own.Op, "raw-") {
			return err
		}
		err = own.Err
	}
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "unix", Err: err}
}

// reset ends a connection whose peer has broken the rules.
func (e *End) reset() error {
	e.raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	return syscall.ECONNRESET
}

// Queues returns how many bytes of rings wait to be read, here and by the peer. joined says for which
// direction the bytes in the socket are tokens.
func (e *End) Queues() (in, out uint64, inJoined, outJoined bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if m := e.in.ring; m != nil && e.in.state == stateJoined {
		in, inJoined = min((m.pub().Load()-m.tail().Load())&pubHead, m.size), true
	}
	if m := e.out.ring; m != nil && e.out.state == stateJoined {
		out, outJoined = min((m.pub().Load()-m.tail().Load())&pubHead, m.size), true
	}
	return in, out, inJoined, outJoined
}

// A state is how far a direction has come.
type state uint8

const (
	stateNone    state = iota // in-band
	stateWaiting              // in-band still; the reader has the ring, or will get it
	stateJoined               // bytes are in the ring, the socket carries tokens
	stateBroken               // the peer has broken the rules
)
