package ism

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A conn is one end of a peering: a connected Unix socket that keeps message boundaries. Sending
// never waits: a message that does not fit is refused or, if it is a control message, queued within
// bounds.
type conn struct {
	file *os.File // owns the descriptor
	raw  syscall.RawConn
	wg   *sync.WaitGroup

	recvMu sync.Mutex // held while a message is received and handled, so they stay in order
	recvFD int        // -1 when the conn is closed
	in     inbox

	sendMu   sync.Mutex // may be taken with Peer.mu held
	sendFD   int        // -1 when the conn is closed
	queue    []outgoing // in order, only while the socket buffer is full
	replies  int        // answers in queue
	flushing bool       // a goroutine empties the queue
	tray     *tray      // the peer's; nil if it has none. Not to be used when the conn is closed
	put      uint32     // letters in it so far
}

// An outgoing is a control message that awaits room in the socket buffer.
type outgoing struct {
	fd  int // sent along and then closed; -1 for none
	len int
	buf [attachReplyLen]byte
}

// An inbox is the memory that a message is received into.
type inbox struct {
	hdr unix.Msghdr
	iov unix.Iovec
	oob [4]uint64            // more than a control message with maxFDs descriptors, aligned
	buf [maxMessage + 1]byte // one more, to see that a message is too long
	fds [maxFDs]int
	n   int // descriptors in fds, which belong to the inbox until they are taken
}

// newConn takes over a connected, non-blocking socket. The goroutines that it starts are counted in
// wg.
func newConn(fd int, wg *sync.WaitGroup) (*conn, error) {
	c := &conn{file: os.NewFile(uintptr(fd), "ism"), wg: wg, recvFD: fd, sendFD: fd}
	raw, err := c.file.SyscallConn()
	if err != nil {
		c.file.Close()
		return nil, err
	}
	c.raw = raw
	return c, nil
}

// close closes the socket and all descriptors that were to be sent. Nothing is received or sent
// after it has returned. It must not be called with recvMu or sendMu held.
func (c *conn) close() {
	c.recvMu.Lock()
	c.recvFD = -1
	c.in.discard()
	c.recvMu.Unlock()

	c.sendMu.Lock()
	c.sendFD = -1
	for i := range c.queue {
		c.queue[i].close()
	}
	c.queue = nil
	c.sendMu.Unlock()
	c.raw.Control(func(fd uintptr) { empty(int(fd)) })
	c.file.Close()
}

// shutdown makes both sides see the end of the stream. Messages on the way to the peer still arrive.
// It may be called with any lock held.
func (c *conn) shutdown() {
	c.raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

// cred returns the credentials of the process that has connected, or that has called listen(2), at
// the other end.
func (c *conn) cred() (Cred, error) {
	var u *unix.Ucred
	var err error
	if cerr := c.raw.Control(func(fd uintptr) {
		u, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); cerr != nil {
		return Cred{}, cerr
	}
	if err != nil {
		return Cred{}, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return Cred{PID: int(u.Pid), UID: int(u.Uid), GID: int(u.Gid)}, nil
}

var errAgain = errors.New("ism: nothing to receive")

// receive receives one message without waiting, with recvMu held. The message stays valid until
// the next call; descriptors are in c.in until they are taken. Errors are errAgain, io.EOF, or
// match ErrProtocol, or are the kernel's.
//
// short is set when descriptors came that could not be installed, because the process has too many.
func (c *conn) receive() (m message, short bool, err error) {
	if c.recvFD < 0 {
		return m, false, io.EOF
	}
	n, flags, err := c.in.recvmsg(c.recvFD)
	switch {
	case err == unix.EAGAIN:
		return m, false, errAgain
	case err == unix.ECONNRESET:
		// The peer has closed without reading all we have sent. Linux says so before it hands out
		// the messages that the peer had sent before; the next call goes on with them.
		return c.receive()
	case err != nil:
		return m, false, os.NewSyscallError("recvmsg", err)
	case n == 0 && c.in.n == 0:
		// An empty message looks the same; no peer of ours sends one.
		return m, false, io.EOF
	case flags&unix.MSG_TRUNC != 0 || n > maxMessage:
		return m, false, violation("message of more than %d bytes", maxMessage)
	}
	m, err = parse(c.in.buf[:n])
	if err != nil {
		return m, false, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	want := m.fdCount()
	switch {
	case c.in.n == want && flags&unix.MSG_CTRUNC == 0:
		return m, false, nil
	case c.in.n < want && flags&unix.MSG_CTRUNC != 0:
		return m, true, nil
	}
	return m, false, violation("%v with %d descriptors, want %d", m.kind, c.in.n, want)
}

// recvmsg receives into b. It closes descriptors of the previous message that nobody took.
func (b *inbox) recvmsg(fd int) (n int, flags int32, err error) {
	b.discard()
	b.iov.Base = &b.buf[0]
	b.iov.SetLen(len(b.buf))
	b.hdr = unix.Msghdr{Iov: &b.iov, Control: (*byte)(unsafe.Pointer(&b.oob))}
	b.hdr.SetIovlen(1)
	b.hdr.SetControllen(unix.CmsgLen(4 * maxFDs))
	for {
		// Raw, because of the way the kernel treats descriptors that do not fit: see foreign.go.
		r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.hdr)),
			unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, 0, errno
		}
		n = int(r)
		break
	}
	// Only SCM_RIGHTS can be here: no option is set that would bring another kind.
	oob := (*[unsafe.Sizeof(b.oob)]byte)(unsafe.Pointer(&b.oob))[:b.hdr.Controllen]
	for len(oob) >= unix.CmsgLen(0) {
		h, data, rest, perr := unix.ParseOneSocketControlMessage(oob)
		if perr != nil {
			break
		}
		oob = rest
		if h.Level != unix.SOL_SOCKET || h.Type != unix.SCM_RIGHTS {
			continue
		}
		for ; len(data) >= 4 && b.n < len(b.fds); data = data[4:] {
			b.fds[b.n] = int(binary.NativeEndian.Uint32(data))
			b.n++
		}
	}
	return n, b.hdr.Flags, nil
}

// take hands over the first descriptor.
func (b *inbox) take() int {
	fd := b.fds[0]
	copy(b.fds[:], b.fds[1:b.n])
	b.n--
	return fd
}

// discard closes the descriptors that nobody took.
func (b *inbox) discard() {
	if b.n > 0 {
		closeForeign(b.fds[:b.n]...)
		b.n = 0
	}
}

// sendSignal sends a Signal, or returns ErrCongested, ErrPeerGone or the kernel's error.
func (c *conn) sendSignal(payload []byte) error {
	var buf [maxMessage]byte
	m := message{kind: kindSignal, payload: payload}
	b := m.append(buf[:0])
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.sendFD < 0 {
		return ErrPeerGone
	}
	if len(c.queue) > 0 { // messages stay in order
		return ErrCongested
	}
	if c.tray != nil {
		c.tray.sent.Add(1) // first: a goroutine that polls must not miss it
	}
	err := sendNow(c.sendFD, b)
	if err != 0 && c.tray != nil {
		c.tray.sent.Add(^uint32(0))
	}
	switch {
	case err == 0:
		return nil
	case err == unix.EAGAIN:
		return ErrCongested
	case isGone(err):
		return ErrPeerGone
	default:
		return os.NewSyscallError("send", err)
	}
}

// sendNow sends one message without a descriptor and does not wait.
func sendNow(fd int, b []byte) unix.Errno {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
			uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// sendWithFDs sends one message with descriptors, which stay the caller's, and does not wait.
func sendWithFDs(fd int, b []byte, fds ...int) error {
	for {
		_, err := unix.SendmsgN(fd, b, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return err
		}
	}
}

// sendControl sends m, which is not a Signal, or queues it if the socket buffer is full. It takes
// over fd, if that is not negative, unless it returns an error. A peer that has gone is no error:
// the receiver will notice.
//
// errFull means that the peer does not read and has to be dropped; other errors are the kernel's,
// and mean that it will not carry the message now.
func (c *conn) sendControl(m *message, fd int) error {
	o := outgoing{fd: fd}
	o.len = len(m.append(o.buf[:0]))
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	if c.sendFD < 0 {
		o.close()
		return nil
	}
	if len(c.queue) == 0 {
		err := o.send(c.sendFD)
		if err == nil || isGone(err) {
			o.close()
			return nil
		}
		if err != unix.EAGAIN {
			return os.NewSyscallError("sendmsg", err)
		}
	}
	if len(c.queue) >= maxQueued || o.isReply() && c.replies >= maxQueuedReplies {
		return errFull
	}
	c.queue = append(c.queue, o)
	if o.isReply() {
		c.replies++
	}
	if !c.flushing {
		c.flushing = true
		c.wg.Go(c.flush) // ends when the queue is empty or the conn is closed
	}
	return nil
}

var errFull = fmt.Errorf("%w: it does not read its answers", ErrProtocol)

// isReply reports whether the peer can ask for such messages, as many as it likes.
func (o *outgoing) isReply() bool { return kind(o.buf[0]) == kindAttachReply }

func (o *outgoing) send(fd int) error {
	if o.fd >= 0 {
		return sendWithFDs(fd, o.buf[:o.len], o.fd)
	}
	if errno := sendNow(fd, o.buf[:o.len]); errno != 0 {
		return errno
	}
	return nil
}

func (o *outgoing) close() {
	if o.fd >= 0 {
		unix.Close(o.fd)
		o.fd = -1
	}
}

// flush sends the queued messages as the peer makes room.
func (c *conn) flush() {
	c.raw.Write(func(uintptr) bool { return c.sendQueued() })
}

// sendQueued reports whether the queue is empty now.
func (c *conn) sendQueued() bool {
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	for i := range c.queue {
		o := &c.queue[i]
		if o.send(c.sendFD) == unix.EAGAIN {
			c.queue = append(c.queue[:0], c.queue[i:]...)
			return false
		}
		// With any other error the peer has gone, or an answer is lost whose descriptor the
		// kernel will not carry; the peer then waits for as long as its caller says.
		if o.isReply() {
			c.replies--
		}
		o.close()
	}
	c.queue = nil
	c.flushing = false
	return true
}
