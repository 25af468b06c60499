package ism

import (
	"fmt"
	"io"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// A script is a process that plays the other end of a peering with bytes of its own choice. Its
// waits are bounded by patience; errors end the test.
type script struct {
	t    testing.TB
	fd   int
	gid  wire.ISMGID // of the device at the other end
	owns []int       // descriptors to be closed at the end
	got  []int       // those that came with the last message
}

// dialScript connects to a device as another process would.
func dialScript(t testing.TB, d *Device) *script {
	t.Helper()
	s := &script{t: t, gid: d.GID()}
	s.check(again(func() (err error) {
		s.fd, err = d.dir.Connect(d.GID())
		return err
	}))
	s.check(unix.SetNonblock(s.fd, false))
	s.bound()
	return s
}

// listenScript makes a socket that others take for a device.
func listenScript(t testing.TB, dir string, gid wire.ISMGID) *script {
	t.Helper()
	l := &script{t: t, gid: gid}
	var err error
	l.fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	l.check(err)
	l.bound()
	l.check(unix.Bind(l.fd, &unix.SockaddrUnix{Name: filepath.Join(dir, socketsDir, gid.String())}))
	l.check(unix.Listen(l.fd, 10))
	return l
}

func (s *script) accept() *script {
	var fd int
	s.check(again(func() (err error) { fd, _, err = unix.Accept4(s.fd, unix.SOCK_CLOEXEC); return err }))
	a := &script{t: s.t, fd: fd}
	a.bound()
	return a
}

// again makes a system call until no signal interrupts it. The runtime's signals do, because a socket with
// a time limit is not waited for again by the kernel itself (signal(7)).
func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// bound limits the waits of the socket.
func (s *script) bound() {
	tv := unix.NsecToTimeval(patience.Nanoseconds())
	s.check(unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	s.check(unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv))
}

func (s *script) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Errorf("script: %v", err)
		panic(fmt.Sprintf("script: %v", err))
	}
}

func (s *script) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
	for _, fd := range append(s.owns, s.got...) {
		unix.Close(fd)
	}
	s.owns, s.got = nil, nil
}

// own makes close close fd.
func (s *script) own(fd int) int {
	s.owns = append(s.owns, fd)
	return fd
}

// memory returns a sealed memfd, as an honest peer makes it.
func (s *script) memory(size int) int {
	fd, mem, err := newMemory("gosmc-test", size)
	s.check(err)
	unmap(mem)
	return s.own(fd)
}

// bellMemory returns a bell with a good header.
func (s *script) bellMemory(nonce [16]byte) int {
	fd, mem, err := newMemory("gosmc-test", bellSize)
	s.check(err)
	seg := (*bellSegment)(unsafe.Pointer(unsafe.SliceData(mem)))
	copy(seg.magic[:], bellMagic)
	seg.version, seg.slotCount, seg.nonce = version, SlotCount, nonce
	unmap(mem)
	return s.own(fd)
}

func (s *script) chime() int {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	s.check(err)
	s.own(fds[0])
	return s.own(fds[1])
}

// send sends bytes; it reports nothing, since the device may have closed.
func (s *script) send(b []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	err := again(func() error { _, err := unix.SendmsgN(s.fd, b, oob, nil, unix.MSG_NOSIGNAL); return err })
	return err
}

func (s *script) sendMessage(m message, fds ...int) error { return s.send(m.append(nil), fds...) }

// sendHello sends m with a bell that has the nonce testNonce.
func (s *script) sendHello(m message) { s.sendMessage(m, s.bellMemory(testNonce), s.chime()) }

// hello makes a good peering with the device that the script has dialled.
func (s *script) hello() {
	s.t.Helper()
	s.sendHello(message{kind: kindHello, gid: otherGID, peerGID: s.gid, nonce: testNonce, slots: SlotCount})
	if m, err := s.recv(); err != nil || m.kind != kindHello || m.gid != s.gid || m.peerGID != otherGID || len(s.got) != 2 {
		s.t.Fatalf("received %+v with %d descriptors, %v; want a Hello with 2", m, len(s.got), err)
	}
}

// recv receives one message, its descriptors into s.got. At the end of the stream the error is
// io.EOF.
func (s *script) recv() (message, error) {
	for _, fd := range s.got {
		unix.Close(fd)
	}
	s.got = nil
	b := make([]byte, 1000)
	oob := make([]byte, unix.CmsgSpace(4*10))
	var n, oobn int
	err := again(func() (err error) {
		n, oobn, _, _, err = unix.Recvmsg(s.fd, b, oob, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err == unix.ECONNRESET {
		return s.recv()
	}
	if err != nil {
		return message{}, err
	}
	if n == 0 {
		return message{}, io.EOF
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	s.check(err)
	for _, c := range cmsgs {
		fds, err := unix.ParseUnixRights(&c)
		s.check(err)
		s.got = append(s.got, fds...)
	}
	return parse(b[:n])
}

func closeFD(t testing.TB, fd int) {
	t.Helper()
	if err := unix.Close(fd); err != nil {
		t.Fatalf("close(%d): %v", fd, err)
	}
}
