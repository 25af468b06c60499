package supervisor

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

// A ringReader reads one direction of a connection. It is the other half of preload/src/send.c, and does not trust it.
type ringReader struct {
	fd     int
	rand   *rand.Rand
	in     *ring
	tail   uint64
	taken  uint16        // tokens
	on     bool          // the second mark was read
	leaves int           // once in so many reads, if it can
	idle   time.Duration // how long nothing may come
	deeds
}

// errOver has the reader look at its direction anew.
var errOver = errors.New("the ring has ended")

// Read reads at most len(b) bytes, which is more than none, or returns io.EOF.
func (r *ringReader) Read(b []byte) (n int, err error) {
	b = b[:1+r.rand.IntN(len(b))]
	for n == 0 && err == nil {
		switch {
		case !r.on:
			n, err = r.inBand(b)
		case r.rand.IntN(r.leaves) == 0 && r.leave():
		default:
			n, err = r.joined(b)
		}
		if err == errOver {
			r.forget()
			err = nil
		}
	}
	return n, err
}

func (r *ringReader) close() {
	if r.in != nil {
		r.forget()
	}
}

func (r *ringReader) forget() {
	r.in.close()
	r.in, r.on, r.tail, r.taken = nil, false, 0, 0
}

// receive receives the bytes that there are, in-band. A mark has a descriptor, or none where it was
// not wanted.
func (r *ringReader) receive(b []byte) (n, with int, err error) {
	control := make([]byte, unix.CmsgLen(4))
	n, cn, _, _, err := unix.Recvmsg(r.fd, b, control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return 0, -1, err
	}
	if n == 0 {
		return 0, -1, io.EOF
	}
	list, err := unix.ParseSocketControlMessage(control[:cn])
	if err != nil || len(list) == 0 {
		return n, -1, err
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) != 1 {
		return n, -1, fmt.Errorf("descriptors %v, %w", fds, err)
	}
	return n, fds[0], nil
}

// inBand reads up to a mark.
func (r *ringReader) inBand(b []byte) (int, error) {
	if r.in != nil && r.rand.IntN(8) == 0 && r.in.attach(attachedYes, attachedNoMore) {
		r.refused++
		r.forget()
	}
	withdrawn := r.in != nil && r.in.pub()&pubWithdrawn != 0
	n, with, err := r.receive(b)
	switch {
	case err == unix.EAGAIN && withdrawn:
		return 0, errOver
	case err == unix.EAGAIN:
		return 0, awaitFor(r.fd, unix.POLLIN, r.idle)
	case err != nil || with < 0:
		return n, err
	}
	defer unix.Close(with)
	if r.in != nil && r.in.pub()&pubWithdrawn != 0 {
		r.withdrawn++
		r.forget() // it is the first mark of another one
	}
	if r.in != nil {
		r.on = true
		r.deeds.joined++
		return n, nil
	}
	r.offered++
	if r.rand.IntN(8) == 0 {
		return n, nil // we know nothing of rings
	}
	in, err := takeRing(with)
	if err != nil {
		return n, err
	}
	r.in = in
	if !in.attach(attachedNot, attachedYes) {
		r.forget()
	}
	return n, nil
}

func (r *ringReader) outstanding(pub uint64) uint16 { return tokens(pub) - r.taken }

// eat takes so many tokens, as far as they are there.
func (r *ringReader) eat(n uint16) error {
	for n > 0 {
		b := make([]byte, min(int(n), 64))
		got, err := unix.Read(r.fd, b)
		switch {
		case err == unix.EAGAIN:
			return nil
		case err != nil:
			return err
		case got == 0:
			return io.ErrUnexpectedEOF
		}
		for _, c := range b[:got] {
			if c != 0 {
				return fmt.Errorf("a token of %#x", c)
			}
		}
		r.taken += uint16(got)
		n -= uint16(got)
	}
	return nil
}

// joined reads from the ring.
func (r *ringReader) joined(b []byte) (int, error) {
	pub := r.in.pub()
	used := (pub - r.tail) & pubHead
	switch {
	case used > r.in.size:
		return 0, fmt.Errorf("%d bytes in a ring of %d", used, r.in.size)
	case used == 0:
		return 0, r.empty(pub)
	}
	n := min(used, uint64(len(b)))
	r.in.get(r.tail, b[:n])
	r.tail = (r.tail + n) & pubHead
	r.in.word(ringAtTail).Store(r.tail)
	pub = r.in.pub()
	if r.in.word32(ringAtWanted).Load() != 0 && (pub-r.tail)&pubHead <= r.in.size/2 {
		r.full++
		r.in.word32(ringAtWanted).Store(0)
		if t := r.outstanding(r.in.pub()); t > 1 {
			return int(n), r.eat(t - 1)
		}
	}
	return int(n), nil
}

// empty arms, looks for a while, and waits.
func (r *ringReader) empty(pub uint64) error {
	if pub&pubWriterLeft != 0 {
		if err := r.eat(r.outstanding(pub)); err != nil {
			return err
		}
		if r.outstanding(pub) == 0 {
			r.left++
			return errOver
		}
		return awaitFor(r.fd, unix.POLLIN, r.idle)
	}
	if pub&pubArmed == 0 && !r.in.swap(pub, pub|pubArmed) {
		return nil
	}
	pub |= pubArmed
	if err := r.eat(r.outstanding(pub)); err != nil {
		return err
	}
	if r.rand.IntN(2) == 0 && r.look(pub) {
		return nil
	}
	if err := awaitFor(r.fd, unix.POLLIN, r.idle); err != nil {
		return err
	}
	// The token that has woken us was counted, with bytes or without, or it is the end.
	n, _, err := unix.Recvfrom(r.fd, make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	switch {
	case err != nil && err != unix.EAGAIN:
		return err
	case n > 0 && r.outstanding(pub) == 0 && r.in.pub() == pub:
		return errors.New("a token that was not counted")
	case err == nil && n == 0 && r.in.pub() == pub:
		return io.EOF
	}
	return nil
}

// look looks into the empty ring for a moment, and reports whether something came without a token.
func (r *ringReader) look(pub uint64) bool {
	code := uint64(1 + r.rand.IntN(15))
	for 1<<(code-1) > r.in.size/2 {
		code--
	}
	if r.outstanding(pub) != 0 || pub&pubLooks != 0 || !r.in.swap(pub, pub|code*pubLook) {
		return false
	}
	pub |= code * pubLook
	for range r.rand.IntN(20000) {
		if r.in.pub() != pub {
			break
		}
	}
	if r.in.word(ringAtPub).And(^uint64(pubLooks))&pubHead == pub&pubHead {
		return false
	}
	r.looked++
	return true
}

// leave has the writer go on in-band. It reports false if the ring is not empty.
func (r *ringReader) leave() bool {
	pub := r.in.pub()
	if (pub-r.tail)&pubHead != 0 || r.eat(r.outstanding(pub)) != nil || r.outstanding(pub) != 0 || pub&pubWriterLeft != 0 ||
		!r.in.swap(pub, pub&^(pubArmed|pubLooks)|pubReaderLeft) {
		return false
	}
	r.refused++
	r.forget()
	return true
}
