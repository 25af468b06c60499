package supervisor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
)

// A servant is a program with the library, testdata/peer.c, that does one call after the other as
// it is told. None of them may take long, whatever its peer has written. Besides the connection to
// a liar it has one to an honest peer, which sends back the bytes that it gets.
type servant struct {
	t        testing.TB
	d        *broker.Broker
	l        *net.TCPListener
	cmd      *exec.Cmd
	orders   *os.File
	answers  *os.File
	text     bytes.Buffer
	honest   chan error
	honestFD int
}

// servantPatience is how long a call may take that does not wait, on a busy machine.
const servantPatience = 30 * time.Second

func newServant(t testing.TB, program, library string, environ ...string) *servant {
	t.Helper()
	s := &servant{t: t, d: newTestDesk(t), honest: make(chan error, 1)}
	s.l, _ = announced(t, s.d)
	s.cmd = exec.Command(program, "obey", strconv.Itoa(s.l.Addr().(*net.TCPAddr).Port))
	s.cmd.Env = append(append(os.Environ(), "LD_PRELOAD="+library, proto.EnvSocket+"="+s.d.Path), environ...)
	s.cmd.Stderr = &s.text
	in, orders, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.orders, s.answers, s.cmd.Stdin, s.cmd.Stdout = orders, answers, in, out
	err = s.cmd.Start()
	in.Close()
	out.Close()
	if err != nil {
		t.Fatal(err)
	}
	s.honestFD, err = claimEnd(s.d, s.l)
	if err != nil {
		t.Fatal(err)
	}
	go func() { s.honest <- echo(s.honestFD) }()
	t.Cleanup(s.close)
	return s
}

// echo sends back the bytes that come, over rings as far as the other end wishes.
func echo(fd int) error {
	w := &ringWriter{fd: fd, rand: rand.New(rand.NewPCG(1, 1))}
	r := &ringReader{fd: fd, rand: rand.New(rand.NewPCG(1, 2)), leaves: 1 << 30, idle: time.Hour}
	defer w.close()
	defer r.close()
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, 64<<10))
	return err
}

// close has the program end, with all that it had.
func (s *servant) close() {
	s.orders.Close()
	timer := time.AfterFunc(servantPatience, func() { s.cmd.Process.Kill() })
	err := s.cmd.Wait()
	timer.Stop()
	s.answers.Close()
	if err != nil && !s.t.Failed() {
		s.t.Errorf("the program: %v\n%s", err, &s.text)
	}
	if err := <-s.honest; err != nil && !s.t.Failed() {
		s.t.Errorf("the honest peer: %v", err)
	}
	unix.Close(s.honestFD)
}

// order has the program make a call, and does not wait for it.
func (s *servant) order(what byte, n int) {
	s.t.Helper()
	b := binary.NativeEndian.AppendUint32(nil, uint32(what))
	if _, err := s.orders.Write(binary.NativeEndian.AppendUint32(b, uint32(n))); err != nil {
		s.lost(what, err)
	}
}

// answer is the result of the last call.
func (s *servant) answer(what byte) (n int, errno syscall.Errno) {
	s.t.Helper()
	var b [8]byte
	s.answers.SetReadDeadline(time.Now().Add(servantPatience))
	if _, err := io.ReadFull(s.answers, b[:]); err != nil {
		s.lost(what, err)
	}
	return int(int32(binary.NativeEndian.Uint32(b[:]))), syscall.Errno(binary.NativeEndian.Uint32(b[4:]))
}

func (s *servant) lost(what byte, err error) {
	s.t.Helper()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.cmd.Process.Kill()
		s.t.Fatalf("call %c did not return", what)
	}
	err = s.cmd.Wait()
	s.t.Fatalf("call %c: the program: %v\n%s", what, err, &s.text)
}

func (s *servant) do(what byte, n int) (int, syscall.Errno) {
	s.t.Helper()
	s.order(what, n)
	return s.answer(what)
}

// A liar of rings is the peer of one connection of a servant. It writes any bytes, wherever it can.
type ringLiar struct {
	*servant
	fd    int
	out   *ring // that we write
	in    *ring // that the program writes; nil until it came
	rings []*ring
	marks int // read so far
	taken uint16
	flips []*flip
}

// connect has the program make a connection.
func (s *servant) connect() *ringLiar {
	s.t.Helper()
	s.order('c', 0)
	fd, err := claimEnd(s.d, s.l)
	if err != nil {
		s.answer('c')
		s.t.Fatal(err)
	}
	s.answer('c')
	return &ringLiar{servant: s, fd: fd}
}

// end has the program wait on the connection while that is closed, and close it then: it must have all descriptors that it had, and no ring.
func (l *ringLiar) end() {
	l.t.Helper()
	l.stop()
	l.order('w', 0)
	unix.Close(l.fd)
	l.answer('w')
	l.do('x', 0)
	for _, r := range append(l.rings, l.in) {
		if r != nil {
			r.close()
		}
	}
}

// send sends as much in-band as there is room for, with descriptors.
func (l *ringLiar) send(b []byte, fds ...int) {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	unix.SendmsgN(l.fd, b, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// drain receives the bytes in the socket, and keeps the program's ring.
func (l *ringLiar) drain(n int) {
	b, control := make([]byte, n), make([]byte, unix.CmsgLen(4))
	for n > 0 {
		got, cn, _, _, err := unix.Recvmsg(l.fd, b[:n], control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if err != nil || got == 0 {
			return
		}
		n -= got
		if l.marks >= 2 {
			l.taken += uint16(got)
		}
		list, _ := unix.ParseSocketControlMessage(control[:cn])
		for _, m := range list {
			fds, _ := unix.ParseUnixRights(&m)
			for _, fd := range fds {
				l.marks++
				if r, err := takeRing(fd); err == nil && l.in == nil {
					l.in, l.marks, l.taken = r, 1, 0
				} else if err == nil {
					r.close()
				}
				unix.Close(fd)
			}
		}
	}
}

// offer sends the first mark of a ring, which may be no ring: the last argument names the kind.
func (l *ringLiar) offer(size int, what string) {
	seals := ringSeals
	switch what {
	case "may shrink":
		seals = unix.F_SEAL_GROW
	case "no seals":
		seals = 0
	case "cannot be written":
		seals |= unix.F_SEAL_FUTURE_WRITE
	}
	r, fd, err := newRing(ringLeast, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	switch what {
	case "magic":
		r.word(ringAtMagic).Add(1)
	case "version":
		r.word(ringAtMagic).Add(1 << 56)
	case "size":
		size *= 2
	}
	r.word32(ringAtSize).Store(uint32(size))
	switch what {
	case "size":
		size /= 2
	case "attached":
		r.word32(ringAtAttached).Store(attachedYes)
	case "a byte more":
		size++
	case "empty":
		size = -ringAtData
	}
	if unix.Ftruncate(fd, ringAtData+int64(size)) != nil {
		return
	}
	unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	r.close()
	if r, err = mapRing(fd, size); size < 0 || err != nil {
		r = nil
	}
	fds := []int{fd}
	switch what {
	case "null":
		null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		defer unix.Close(null)
		fds = []int{null}
	case "itself":
		fds = []int{l.fd}
	case "two":
		fds = []int{fd, fd}
	case "many":
		for range 50 {
			fds = append(fds, fd)
		}
	}
	l.send([]byte{'1'}, fds...)
	l.rings = append(l.rings, r)
	l.out = r
}

// offers are all that a first mark may come with.
var offers = []string{"a ring", "may shrink", "no seals", "cannot be written", "magic", "version", "size", "attached", "a byte more", "empty", "null", "itself", "two", "many"}

// publish puts so many bytes into our ring, whatever is there, and sends the token if one is due.
func (l *ringLiar) publish(n int64) {
	if l.out == nil {
		return
	}
	pub := l.out.pub()
	want := pub&^(pubHead|pubArmed|pubLooks) | (pub+uint64(n))&pubHead
	if pub&pubArmed != 0 {
		want = counted(want)
	}
	if l.out.swap(pub, want) && pub&pubArmed != 0 {
		l.send([]byte{0})
	}
}

// read takes all that is in the program's ring, with its tokens, and arms.
func (l *ringLiar) read() {
	if l.in == nil {
		return
	}
	l.drain(int(tokens(l.in.pub()) - l.taken))
	pub := l.in.pub()
	l.in.word(ringAtTail).Store(pub & pubHead)
	l.in.word32(ringAtWanted).Store(0)
	l.in.swap(pub, pub|pubArmed)
}

// joinOut has our direction on a ring, of which the program has read everything.
func (l *ringLiar) joinOut(size int) {
	l.t.Helper()
	l.offer(size, "a ring")
	if n, errno := l.do('r', 10); n != 1 || errno != 0 {
		l.t.Fatalf("recv of the first mark = %d, %v", n, errno)
	}
	if !l.out.attach(attachedYes, attachedSwitched) {
		l.t.Fatal("the program has not taken a ring")
	}
	l.send([]byte{'2'}, l.fd)
	if n, errno := l.do('r', 10); n != 1 || errno != 0 {
		l.t.Fatalf("recv of the second mark = %d, %v", n, errno)
	}
}

// joinIn has the program's direction on a ring, of which we have read everything.
func (l *ringLiar) joinIn() {
	l.t.Helper()
	const large = 20000
	l.do('s', large)
	l.drain(large)
	if l.in == nil || !l.in.attach(attachedNot, attachedYes) {
		l.t.Fatal("the program has made no ring")
	}
	l.do('s', large)
	l.drain(1)
	if l.marks != 2 {
		l.t.Fatal("the program has not switched")
	}
	l.read()
}

// A flip is a word that changes all the time.
type flip struct {
	over atomic.Bool
	done chan struct{}
}

// change has a word be a and b in turn until stop.
func (l *ringLiar) change(word *atomic.Uint64, a, b uint64) {
	f := &flip{done: make(chan struct{})}
	l.flips = append(l.flips, f)
	go func() {
		defer close(f.done)
		for !f.over.Load() {
			for range 50 {
				word.Store(a)
				word.Store(b)
			}
		}
	}()
}

func (l *ringLiar) stop() {
	for _, f := range l.flips {
		f.over.Store(true)
		<-f.done
	}
	l.flips = nil
}

// plain reports whether the result of a call is one that calls return on TCP.
func plain(n int, errno syscall.Errno) error {
	if n >= 0 || errno == unix.EAGAIN || errno == unix.ECONNRESET || errno == unix.EPIPE || errno == unix.EINVAL {
		return nil
	}
	return fmt.Errorf("%d, %v", n, errno)
}
