package supervisor

import (
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

// ringPatience is how long one end waits for the other.
const ringPatience = time.Minute

// awaitFD waits until a descriptor is ready for events, or its peer has gone.
func awaitFD(fd int, events int16) error { return awaitFor(fd, events, ringPatience) }

// awaitFor is awaitFD with a limit of its own.
func awaitFor(fd int, events int16, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; {
		fds := []unix.PollFd{{Fd: int32(fd), Events: events}}
		switch n, err := unix.Poll(fds, int(time.Until(deadline).Milliseconds())); {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("descriptor %d was not ready (%#x) for %v", fd, events, patience)
		default:
			return nil
		}
	}
}

// deeds counts the steps of an end, so that a test knows that it has tested something.
type deeds struct {
	offered, joined, left, refused, withdrawn, full, looked int
}

// A ringWriter writes one direction of a connection, and has it join rings and leave them at random. It is the other half of preload/src/receive.c.
type ringWriter struct {
	fd   int
	rand *rand.Rand
	out  *ring  // nil: there is none
	head uint64 // bytes that were put there, modulo 2^40
	on   bool   // the second mark was sent
	tiny bool   // the socket's buffer is
	deeds
}

// Write writes all, in parts. It joins rings and leaves them in between.
func (w *ringWriter) Write(b []byte) (n int, err error) {
	for n < len(b) {
		part := b[n:]
		if len(part) > 1 {
			part = part[:1+w.rand.IntN(len(part))]
		}
		var did int
		switch {
		case w.out == nil && w.rand.IntN(8) == 0:
			did, err = w.offer(part)
		case w.out == nil, !w.on && w.rand.IntN(3) != 0:
			did, err = w.inBand(part)
		case !w.on && w.rand.IntN(20) == 0:
			w.withdraw()
		case !w.on:
			did, err = w.join(part)
		case w.rand.IntN(100) == 0:
			w.leave()
		default:
			did, err = w.joined(part)
		}
		n += did
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

func (w *ringWriter) close() {
	if w.out != nil {
		w.forget()
	}
}

func (w *ringWriter) forget() {
	if w.tiny {
		unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 100<<10)
	}
	w.out.close()
	w.out, w.on, w.tiny, w.head = nil, false, false, 0
}

// send sends bytes in-band, with descriptors, and waits for room if it must.
func (w *ringWriter) send(b []byte, fds ...int) (int, error) {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for {
		n, err := unix.SendmsgN(w.fd, b, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err != unix.EAGAIN {
			return n, err
		}
		if err := awaitFD(w.fd, unix.POLLOUT); err != nil {
			return 0, err
		}
	}
}

func (w *ringWriter) inBand(b []byte) (int, error) {
	if w.out != nil && w.out.word32(ringAtAttached).Load() == attachedNoMore {
		w.refused++
		w.forget()
	}
	return w.send(b)
}

// offer sends the first mark.
func (w *ringWriter) offer(b []byte) (int, error) {
	r, fd, err := newRing(ringLeast<<w.rand.IntN(9), ringSeals)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	w.out = r
	w.offered++
	return w.send(b[:1], fd)
}

// withdraw has the reader forget a ring that was not joined.
func (w *ringWriter) withdraw() {
	if !w.out.attach(attachedNot, attachedTooLate) {
		w.out.word(ringAtPub).Or(pubWithdrawn)
	}
	w.withdrawn++
	w.forget()
}

// join sends the second mark if the reader has attached.
func (w *ringWriter) join(b []byte) (int, error) {
	if !w.out.attach(attachedYes, attachedSwitched) {
		return w.inBand(b)
	}
	w.on = true
	w.deeds.joined++
	return w.send(b[:1], w.fd)
}

// leave goes on in-band.
func (w *ringWriter) leave() {
	if w.out.word(ringAtPub).Or(pubWriterLeft)&pubReaderLeft == 0 {
		w.left++
	}
	w.forget()
}

func (w *ringWriter) room() (uint64, error) {
	used := (w.head - w.out.word(ringAtTail).Load()) & pubHead
	if used > w.out.size {
		return 0, fmt.Errorf("the reader has taken %d bytes more than there are", w.out.size-used)
	}
	return w.out.size - used, nil
}

// joined writes into the ring as many bytes as there is room for.
func (w *ringWriter) joined(b []byte) (int, error) {
	room, err := w.room()
	if err != nil {
		return 0, err
	}
	if room == 0 {
		return 0, w.fill()
	}
	n := min(room, uint64(len(b)))
	if room == w.out.size && w.rand.IntN(2) == 0 {
		w.out.begin(w.head, w.rand.Uint64())
	}
	w.out.put(w.head, b[:n])
	head := (w.head + n) & pubHead
	for {
		pub := w.out.pub()
		if pub&pubReaderLeft != 0 {
			w.refused++
			w.forget()
			return 0, nil
		}
		unread := (head - w.out.word(ringAtTail).Load()) & pubHead
		seen := pub&pubLooks != 0 && unread <= 1<<(pub/pubLook-1)
		want := pub&^pubHead | head
		if !seen {
			want &^= pubArmed | pubLooks
		}
		due := pub&pubArmed != 0 && !seen
		if due {
			want = counted(want)
		}
		if !w.out.swap(pub, want) {
			continue
		}
		w.head = head
		if seen {
			w.looked++
		}
		if due {
			_, err = w.send([]byte{0})
		}
		return int(n), err
	}
}

// fill makes the socket not writable, and waits until the reader makes it so again.
func (w *ringWriter) fill() error {
	w.full++
	if !w.tiny {
		unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1)
		w.tiny = true
	}
	w.out.word32(ringAtWanted).Store(1)
	if room, err := w.room(); room != 0 || err != nil {
		return err
	}
	for range 64 {
		pub := w.out.pub()
		if pub&(pubArmed|pubReaderLeft) != 0 {
			return nil // it has read all
		}
		fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLOUT}}
		if n, err := unix.Poll(fds, 0); err != nil || n == 0 {
			break
		}
		if !w.out.swap(pub, counted(pub)) {
			continue
		}
		if _, err := w.send([]byte{0}); err != nil {
			return err
		}
	}
	if w.out.word32(ringAtWanted).Load() == 0 {
		return nil
	}
	return awaitFD(w.fd, unix.POLLOUT)
}
