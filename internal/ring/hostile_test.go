package ring

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A peer is the other end of an End, and keeps to no rule that a test does not have it keep to.
type peer struct {
	t      testing.TB
	end    *End
	socket *net.UnixConn
	ring   *memory // of the direction that the test is about
}

func (p *peer) send(b []byte, fds ...int) {
	p.t.Helper()
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := p.socket.WriteMsgUnix(b, rights, nil); err != nil {
		p.t.Fatal(err)
	}
}

// attach has the End write until it offers a ring, takes that, and has the End join it. Nothing is in the
// socket then, and the ring is armed but for the byte behind the mark.
func (p *peer) attach(e *End) {
	p.t.Helper()
	e.out.sent = bulkAfter
	var control [100]byte
	b := make([]byte, 2*large)
	for step := 0; ; step++ {
		if step > 10 {
			p.t.Fatalf("the writer is in state %d", e.out.state)
		}
		if _, err := e.Write(b[:large]); err != nil {
			p.t.Fatal(err)
		}
		if e.out.state == stateJoined {
			break
		}
		for left := large; left > 0; {
			n, with, _, _, err := p.socket.ReadMsgUnix(b[:left], control[:])
			if err != nil {
				p.t.Fatal(err)
			}
			left -= n
			if with > 0 {
				p.take(control[:with])
			}
		}
	}
	p.t.Cleanup(p.ring.free)
	// The mark, and the token of the bytes behind it.
	if n, with, _, _, err := p.socket.ReadMsgUnix(b[:1], control[:]); n != 1 || with == 0 || err != nil {
		p.t.Fatalf("the second mark: %d bytes, %d of control data, %v", n, with, err)
	}
	if n, err := io.ReadFull(p.socket, b[:1]); n != 1 || err != nil {
		p.t.Fatalf("the token: %v", err)
	}
	p.ring.tail().Store(p.ring.pub().Load() & pubHead)
	p.ring.pub().Or(pubArmed)
}

func (p *peer) take(control []byte) {
	p.t.Helper()
	list, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(list) != 1 {
		p.t.Fatalf("control data: %v", err)
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) != 1 {
		p.t.Fatalf("descriptors %v, %v", fds, err)
	}
	defer unix.Close(fds[0])
	if p.ring, err = takeMemory(fds[0]); err != nil {
		p.t.Fatal(err)
	}
	p.ring.attached().Store(attachedYes)
}

// offer has the End's reader join a ring of the peer's, in which nothing is. The byte of the mark was read.
func (p *peer) offer(e *End, size uint64) {
	p.t.Helper()
	m, fd, err := newMemory(size, "peer")
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(m.free)
	p.ring = m
	p.send([]byte{1}, fd)
	p.reads(e, 1)
	if !m.attached().CompareAndSwap(attachedYes, attachedSwitched) {
		p.t.Fatalf("attached is %d", m.attached().Load())
	}
	p.send([]byte{2}, fd)
	p.reads(e, 1)
	unix.Close(fd)
	if e.in.state != stateJoined {
		p.t.Fatalf("the reader is in state %d", e.in.state)
	}
}

func (p *peer) reads(e *End, n int) {
	p.t.Helper()
	if _, err := io.ReadFull(e, make([]byte, n)); err != nil {
		p.t.Fatal(err)
	}
}

// newPeer returns an end, and its peer.
func newPeer(t testing.TB) (*End, *peer) {
	t.Helper()
	a, b := newPair(t)
	e := New(a, -1, true)
	e.SetDeadline(time.Now().Add(waitMost))
	t.Cleanup(func() { e.Close() })
	return e, &peer{t: t, end: e, socket: b}
}

// TestReaderHostile has writers break the rules, in each way: the connection is reset, and stays so.
func TestReaderHostile(t *testing.T) {
	for name, lie := range map[string]func(p *peer){
		"a head beyond the ring": func(p *peer) {
			p.ring.pub().Store(p.ring.size + 1)
		},
		"a head behind the tail": func(p *peer) {
			p.ring.pub().Store(pubHead)
		},
		"a head beyond the ring, all bits": func(p *peer) {
			p.ring.pub().Store(pubHead &^ 0xffff)
		},
		"a token that was not counted": func(p *peer) {
			p.send([]byte{0})
		},
		"tokens without bytes, for ever": func(p *peer) {
			ended := make(chan struct{})
			p.t.Cleanup(func() { // before the ring is unmapped
				p.socket.Close()
				<-ended
			})
			go func() {
				defer close(ended)
				for {
					p.ring.pub().Store(counted(p.ring.pub().Load()))
					if _, err := p.socket.Write([]byte{0}); err != nil {
						return
					}
				}
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := newPeer(t)
			p.offer(e, leastBytes)
			lie(p)
			for range 2 {
				n, err := e.Read(make([]byte, 100))
				if n != 0 || !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("Read = %d, %v; want %v", n, err, syscall.ECONNRESET)
				}
			}
			p.socket.SetReadDeadline(time.Now().Add(waitMost))
			if _, err := io.ReadAll(p.socket); errors.Is(err, syscall.EAGAIN) {
				t.Errorf("the peer does not hear of it: %v", err)
			}
		})
	}
}

// TestReaderBase has a writer change the base at any time: the bytes are others, and nothing else happens.
func TestReaderBase(t *testing.T) {
	e, p := newPeer(t)
	p.offer(e, leastBytes)
	for _, base := range []uint64{1, leastBytes - 1, leastBytes, 1 << 40, ^uint64(0), 1 << 63} {
		p.ring.word(atBase).Store(base)
		head := (p.ring.tail().Load() + leastBytes) & pubHead
		p.ring.pub().Store(p.ring.pub().Load()&^uint64(pubHead|pubArmed) | head)
		p.reads(e, leastBytes)
	}
}

// TestWriterHostile has readers break the rules, in each way: the connection is reset, and stays so.
func TestWriterHostile(t *testing.T) {
	for name, lie := range map[string]func(p *peer){
		"a tail before the head": func(p *peer) {
			p.ring.tail().Store((p.ring.pub().Load() + 1) & pubHead)
		},
		"a tail far behind": func(p *peer) {
			p.ring.tail().Store((p.ring.pub().Load() - makeBytes - 1) & pubHead)
		},
		"armed, and full": func(p *peer) {
			if _, err := p.end.Write(make([]byte, makeBytes)); err != nil {
				p.t.Error(err)
			}
			p.ring.pub().Or(pubArmed)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := newPeer(t)
			p.attach(e)
			lie(p)
			var err error
			for i := 0; err == nil && i < 10; i++ {
				_, err = e.Write(make([]byte, makeBytes))
			}
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("Write: %v, want %v", err, syscall.ECONNRESET)
			}
			if _, err = e.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the next Write: %v, want %v", err, syscall.ECONNRESET)
			}
		})
	}
}

// TestWriterDescriptors has a peer send descriptors where tokens are expected: they are closed.
func TestWriterDescriptors(t *testing.T) {
	e, p := newPeer(t)
	p.offer(e, leastBytes)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	p.ring.pub().Store(counted(p.ring.pub().Load()&^uint64(pubArmed)) | 5)
	p.send([]byte{0}, pipe[1])
	unix.Close(pipe[1])
	p.reads(e, 5)
	e.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	e.Read(make([]byte, 1)) // takes the token
	fds := []unix.PollFd{{Fd: int32(pipe[0]), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, int(waitMost.Milliseconds())); n != 1 || fds[0].Revents&unix.POLLHUP == 0 {
		t.Errorf("the descriptor stays open: %d, %v, %#x", n, err, fds[0].Revents)
	}
}

// TestReaderMarks has a writer withdraw its ring before it switches, offer another one instead, and offer one
// in the middle of a small write that is read in parts.
func TestReaderMarks(t *testing.T) {
	e, p := newPeer(t)
	m, fd, err := newMemory(leastBytes, "peer")
	if err != nil {
		t.Fatal(err)
	}
	defer m.free()
	defer unix.Close(fd)
	p.send([]byte("abcdef"), fd)
	p.reads(e, 2)
	p.reads(e, 4)
	if e.in.state != stateWaiting {
		t.Fatalf("after the first mark the reader is in state %d", e.in.state)
	}
	m.pub().Or(pubWithdrawn)
	p.send([]byte("gh"))
	p.reads(e, 2)
	if e.in.state != stateNone {
		t.Fatalf("without its ring the reader is in state %d", e.in.state)
	}
	p.offer(e, leastBytes)
	m.attached().Store(attachedNot)
	p.ring.pub().Or(pubWriterLeft)
	p.send([]byte("in-band"))
	p.reads(e, 7)
	if e.in.state != stateNone {
		t.Fatalf("after its writer has left the reader is in state %d", e.in.state)
	}
	m.attached().Store(attachedTooLate)
	p.send([]byte("x"), fd)
	p.reads(e, 1)
	if e.in.state != stateNone {
		t.Errorf("with a ring whose writer waits no more the reader is in state %d", e.in.state)
	}
}

// TestRandom has a peer write anything into the memory of both rings while the end reads and writes: no call
// panics or waits behind its deadline.
func TestRandom(t *testing.T) {
	for seed := range uint64(30) {
		e, p := newPeer(t)
		p.attach(e)
		out := p.ring
		p.offer(e, leastBytes)
		in := p.ring
		r := rand.New(rand.NewPCG(seed, 7))
		done := make(chan bool)
		go func() {
			defer close(done)
			for range 2000 {
				m := []*memory{in, out}[r.IntN(2)]
				at := []int{atPub, atBase, atTail, atWanted, atAttached}[r.IntN(5)]
				switch r.IntN(4) {
				case 0:
					m.word(at).Store(r.Uint64())
				case 1:
					m.word(at).Add(uint64(r.IntN(leastBytes)))
				case 2:
					m.word(at).Or(1 << r.IntN(64))
				case 3:
					p.socket.SetDeadline(time.Now().Add(time.Millisecond))
					if r.IntN(2) == 0 {
						p.socket.Write(make([]byte, 1+r.IntN(3)))
					} else {
						p.socket.Read(make([]byte, 1+r.IntN(3)))
					}
				}
			}
			p.socket.Close()
		}()
		e.SetDeadline(time.Now().Add(waitMost))
		wrote := make(chan bool)
		go func() {
			defer close(wrote)
			for i := 0; ; i++ {
				if _, err := e.Write(make([]byte, 1+i%5000)); err != nil {
					return
				}
			}
		}()
		for b := make([]byte, 1000); ; {
			if _, err := e.Read(b); err != nil {
				if errors.Is(err, unix.ETIMEDOUT) || time.Now().After(e.began.Add(waitMost)) {
					t.Errorf("seed %d: %v", seed, err)
				}
				break
			}
		}
		<-done
		<-wrote
		e.Close()
	}
}
