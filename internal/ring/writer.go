package ring

import (
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// soPassRights is SO_PASSRIGHTS, Linux 6.16: whether a socket takes descriptors.
const soPassRights = 83

// A writer writes one direction. It is the other half of preload/src/receive.c.
//
//	none     sends in-band. Where a ring is worth it, it makes one and sends the first mark, or, where
//	         the sockets take no descriptors, says that it wants to use the one from the beginning:
//	         waiting
//	waiting  sends in-band until the reader has the ring; then it sends the second mark, or, without
//	         marks, switches when the reader has emptied its socket: joined
//	joined   writes into the ring, and sends a token where the reader is armed. When one has left: none
//	broken   every call fails
type writer struct {
	end      *End
	deadline deadline

	never atomic.Bool // all that is written from now on is in-band

	mu    sync.Mutex // held by the call that writes; all below is its
	state state
	ring  *memory // not nil when waiting or joined; changes with End.mu held, too
	gift  *memory // a ring from the beginning that was not used; nil: none
	head  uint64  // bytes put into the ring, modulo 2^40
	tail  uint64  // bytes that the reader had taken when it was last asked
	owed  uint16  // tokens that were counted, and did not find room in the socket

	sent   uint64 // bytes in-band, up to bulkAfter
	streak int    // writes since the last read, up to the bound
	bound  int    // as many are worth a ring; more after rings that their readers have left
	turns  int    // writes that came after a read
	waited int    // writes since the ring was offered
	tries  int    // to join without a mark
	missed int    // times that the reader did not have its ring from the beginning
	seen   time.Time
	cost   int // of the socket's buffer, that a token takes; 0: not known

	// Arguments and results of calls that package net makes.
	tokenNow, joinNow, fillNow, goneNow, outNow func(fd uintptr)
	paysOwed, roomWait                          func(fd uintptr) bool
	errno                                       syscall.Errno
	parked, gone, full                          bool
	unread                                      int
	first                                       [1]byte // goes with a mark
	rights                                      []byte
}

func (w *writer) init(e *End) {
	w.end, w.bound = e, streak
	w.tokenNow, w.joinNow, w.fillNow, w.goneNow, w.outNow = w.onToken, w.onJoin, w.onFill, w.onGone, w.onOut
	w.paysOwed, w.roomWait = w.onOwed, w.onRoom
}

// Write writes as the socket does.
func (e *End) Write(b []byte) (n int, err error) {
	w := &e.out
	w.mu.Lock()
	n, err = w.write(b)
	w.mu.Unlock()
	if err != nil {
		err = opError("write", err)
	}
	return n, err
}

// WriteBuffers writes the buffers one after the other, and drops the bytes that it has written.
func (e *End) WriteBuffers(bufs *net.Buffers) (n int64, err error) {
	w := &e.out
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == stateNone && !w.worth(1) {
		n, err = bufs.WriteTo(e.socket)
		w.note(int(n))
		return n, err
	}
	for len(*bufs) > 0 {
		did, err := w.write((*bufs)[0])
		n += int64(did)
		if err != nil {
			(*bufs)[0] = (*bufs)[0][did:]
			return n, opError("write", err)
		}
		(*bufs)[0] = nil
		*bufs = (*bufs)[1:]
	}
	return n, nil
}

func (w *writer) write(b []byte) (n int, err error) {
	if w.end.in.turned.Load() {
		w.end.in.turned.Store(false)
		w.streak = 0
		w.turns = min(w.turns+1, turns)
	}
	w.streak = min(w.streak+1, w.bound)
	for futile := 0; ; {
		var did int
		switch w.state {
		case stateNone:
			if w.worth(len(b) - n) {
				if did, err = w.offer(b[n:]); did > 0 || err != nil {
					break
				}
			}
			did, err = w.inBand(b[n:])
		case stateWaiting:
			if did, err = w.join(b[n:]); did > 0 || err != nil || w.state != stateWaiting {
				break
			}
			did, err = w.inBand(b[n:min(n+piece, len(b))]) // the reader may have the ring before the rest
		case stateJoined:
			did, err = w.put(b[n:])
		case stateBroken:
			err = syscall.ECONNRESET
		}
		n += did
		if err != nil || n == len(b) {
			return n, err
		}
		if futile++; did > 0 || w.parked {
			futile = 0
		} else if futile > vain { // rule: TestWriterHostile
			return n, w.broken()
		}
	}
}

func (w *writer) inBand(b []byte) (int, error) {
	n, err := w.end.socket.Write(b)
	w.note(n)
	return n, err
}

// note counts bytes that were sent in-band.
func (w *writer) note(n int) { w.sent = min(w.sent+uint64(n), bulkAfter) }

// worth reports whether a direction is to have a ring, where n bytes are to be sent.
func (w *writer) worth(n int) bool {
	if w.never.Load() || n == 0 {
		return false
	}
	much := n >= large && w.bound == streak || w.streak == w.bound
	return w.turns == turns || much && w.sent+uint64(n) >= bulkAfter
}

func (w *writer) set(m *memory, s state) {
	w.end.mu.Lock()
	w.ring, w.state = m, s
	w.end.mu.Unlock()
	w.head, w.tail, w.owed, w.waited, w.tries, w.cost = 0, 0, 0, 0, 0, 0
}

func (w *writer) broken() error {
	w.forget()
	w.end.mu.Lock()
	w.state = stateBroken
	w.end.mu.Unlock()
	return w.end.reset()
}

func (w *writer) forget() {
	e := w.end
	e.mu.Lock()
	if w.ring != nil {
		w.ring.free()
	}
	w.ring, w.state = nil, stateNone
	e.mu.Unlock()
	w.streak, w.turns = 0, 0
}

// left goes on in-band. A reader that has left as nothing came for long may have another ring at once. After
// any other one it takes more writes each time.
func (w *writer) left() {
	if w.ring.attached().Load() != attachedIdle {
		w.bound = min(2*w.bound, 1<<20)
	}
	w.forget()
	if w.bound != streak {
		w.turns = -1 << 30
	}
}

// offer offers a ring. It returns how many bytes went with the first mark.
func (w *writer) offer(b []byte) (int, error) {
	passes := 1
	w.end.raw.Control(func(fd uintptr) {
		if is, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, soPassRights); err == nil {
			passes = is
		}
	})
	if passes == 0 {
		m := w.gift
		switch {
		case m == nil || w.missed == missedMost:
			w.never.Store(true)
		case m.half(atHere).Load() == 0: // the reader's program may not have it yet
			w.missed++
			w.streak, w.turns = 0, 0
		default:
			w.gift = nil
			m.begin()
			w.set(m, stateWaiting)
		}
		return 0, nil
	}
	m, fd, err := newMemory(makeBytes, w.end.ringName())
	if err != nil {
		w.never.Store(true)
		return 0, nil
	}
	defer unix.Close(fd)
	n := 1
	if len(b) <= smallMark {
		n = len(b)
	}
	n, _, err = w.end.socket.WriteMsgUnix(b[:n], unix.UnixRights(fd), nil)
	if err != nil || n == 0 {
		m.free()
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ETOOMANYREFS) {
			w.never.Store(true)
			return 0, nil
		}
		return 0, err
	}
	w.set(m, stateWaiting)
	return n, nil
}

// ringName is the name of the memory of a ring that this end makes, as 'gosmc ss' looks for it: by the
// connection, which one of the two sockets is named for, and the role of the writer.
func (e *End) ringName() string {
	const digits = 16
	name := e.socket.LocalAddr().String()
	if len(name) < digits {
		name = e.socket.RemoteAddr().String()
	}
	if len(name) < digits {
		return "gosmc-ring"
	}
	role := ".s"
	if e.client {
		role = ".c"
	}
	return "gosmc-ring." + name[len(name)-digits:] + role
}

// join switches to the ring if the reader has it. It returns how many bytes went with the second mark.
func (w *writer) join(b []byte) (int, error) {
	m := w.ring
	switch m.attached().Load() {
	case attachedYes:
	case attachedNot:
		if w.waited++; w.waited > patience {
			w.never.Store(true)
			m.attached().CompareAndSwap(attachedNot, attachedTooLate)
			m.pub().Or(pubWithdrawn)
			w.forget()
		}
		return 0, nil
	default:
		w.left()
		return 0, nil
	}
	if w.never.Load() {
		return 0, nil
	}
	if m.gift {
		if !w.drained() || !m.attached().CompareAndSwap(attachedYes, attachedSwitched) {
			return 0, nil
		}
		w.joined()
		return 0, nil
	}
	with, err := unix.MemfdCreate("gosmc-mark", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, nil
	}
	defer unix.Close(with)
	w.first[0], w.rights = b[0], unix.UnixRights(with)
	w.errno = unix.EAGAIN
	err = w.end.raw.Control(w.joinNow)
	w.rights = nil
	switch {
	case err != nil:
		return 0, err
	case w.errno != 0:
		return 0, nil // the next write in-band says it
	}
	w.joined()
	return 1, nil
}

func (w *writer) joined() {
	w.end.mu.Lock()
	w.state = stateJoined
	w.end.mu.Unlock()
	w.seen = time.Now()
}

// onJoin sends the second mark, if the socket has room for it and the first token: the reader has no other
// way
// to hear of the bytes between them.
func (w *writer) onJoin(fd uintptr) {
	room, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	have, err2 := unread(fd)
	if err != nil || err2 != nil || have+markRoom > room {
		return
	}
	m := w.ring
	if !m.attached().CompareAndSwap(attachedYes, attachedSwitched) {
		return
	}
	n, err := unix.SendmsgN(int(fd), w.first[:], w.rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if n == 1 && err == nil {
		w.errno = 0
		return
	}
	m.attached().CompareAndSwap(attachedSwitched, attachedYes)
}

// drained reports whether the reader has read everything. It waits a moment for that, ever more seldom.
func (w *writer) drained() bool {
	left := 0
	if w.tries++; w.tries&(w.tries-1) == 0 {
		left = drainTurns
	}
	for ; ; left-- {
		w.unread = 1
		if w.end.raw.Control(w.outNow) != nil {
			return false
		}
		if w.unread == 0 || left <= 0 {
			return w.unread == 0 // rule: TestGiftUnread: w.unread == 0 -> true
		}
		runtime.Gosched()
		unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

func (w *writer) onOut(fd uintptr) {
	if n, err := unread(fd); err == nil {
		w.unread = n
	}
}

// put writes into the ring as many bytes as there is room for, and returns how many these are.
func (w *writer) put(b []byte) (n int, err error) {
	w.parked = false
	if err := w.end.check(&w.deadline); err != nil {
		return 0, err
	}
	if w.owed > 0 {
		if err := w.pay(); err != nil {
			return 0, err
		}
	}
	m := w.ring
	if m.pub().Load()&pubLeft != 0 || w.never.Load() {
		w.leave()
		return 0, nil
	}
	room := m.size - (w.head-w.tail)&pubHead
	if room < uint64(len(b)) {
		var ok bool
		if room, ok = w.room(); !ok {
			return 0, w.broken()
		}
	}
	if room == 0 {
		return 0, w.fill()
	}
	n = int(min(room, uint64(len(b)), piece))
	place := m.place(w.head)
	// An empty ring begins with its first page again: where the reader keeps up, a connection so has as much
	// memory as its largest write and a round.
	if place != 0 && (place^(place+uint64(n))) >= round {
		if now, ok := w.room(); ok && now == m.size {
			m.word(atBase).Store((0 - w.head) & pubHead)
			place = 0
		}
	}
	m.put(place, b[:n])
	due, ok := w.publish((w.head + uint64(n)) & pubHead)
	if !ok {
		w.leave()
		return 0, nil
	}
	if due {
		err = w.token()
	} else {
		err = w.present()
	}
	if err != nil {
		return 0, err
	}
	return n, nil
}

// room is how much room there is. It reports false if there is more than there can be.
func (w *writer) room() (uint64, bool) {
	m := w.ring
	w.tail = m.tail().Load() & pubHead
	used := (w.head - w.tail) & pubHead
	if used > m.size { // rule: TestWriterHostile: used > m.size -> false
		return 0, false
	}
	return m.size - used, true
}

// publish moves the head. due: a token was counted, and is to be sent. It reports false if the bytes are to
// go
// in-band.
func (w *writer) publish(head uint64) (due, ok bool) {
	m := w.ring
	for {
		pub := m.pub().Load()
		if pub&pubLeft != 0 {
			return false, false
		}
		looks := pub >> pubLookShift
		seen := looks != 0 && (head-m.tail().Load())&pubHead <= 1<<(looks-1)
		want := pub&^pubHead | head
		if !seen {
			want &^= pubArmed | pubLooks
		}
		due = pub&pubArmed != 0 && !seen
		if due {
			want = counted(want)
		}
		if m.pub().CompareAndSwap(pub, want) {
			w.head = head
			return due, true
		}
	}
}

// leave has the bytes from now on be in-band, behind the tokens that were counted.
func (w *writer) leave() {
	if w.ring.pub().Load()&pubReaderLeft == 0 {
		w.ring.pub().Or(pubWriterLeft)
	}
	w.left()
}

// token sends a token that was counted. An error means that the peer has gone, or reads no more.
func (w *writer) token() error {
	if err := w.end.raw.Control(w.tokenNow); err != nil {
		return err
	}
	switch w.errno {
	case 0:
		return nil
	case unix.EAGAIN: // the socket has little room
		w.owed++
		return w.pay()
	}
	return w.errno
}

func (w *writer) onToken(fd uintptr) { w.errno = sendToken(fd) }

// pay waits for room for the tokens that are owed. Nothing may go before them. If it fails, the next write
// begins with that.
func (w *writer) pay() error {
	w.errno = 0
	if err := w.end.raw.Write(w.paysOwed); err != nil {
		return err
	}
	if w.errno != 0 {
		return w.errno
	}
	return nil
}

func (w *writer) onOwed(fd uintptr) bool {
	for w.owed > 0 {
		switch errno := sendToken(fd); errno {
		case 0:
			w.owed--
		case unix.EAGAIN:
			return false
		default:
			w.errno = errno
			return true
		}
	}
	return true
}

// present looks now and then whether the peer is there, where no token finds out.
func (w *writer) present() error {
	now := time.Now()
	if now.Sub(w.seen) < goneTime {
		return nil
	}
	w.seen, w.gone = now, false
	if err := w.end.raw.Control(w.goneNow); err != nil {
		return err
	}
	if !w.gone { // rule: TestWriterPeerGone: !w.gone -> true
		return nil
	}
	w.seen = time.Time{}
	return w.refused()
}

func (w *writer) onGone(fd uintptr) { w.gone = hungUp(fd) }

// refused is the error of a write whose peer has gone.
func (w *writer) refused() error {
	if err := w.end.raw.Control(w.tokenNow); err != nil {
		return err
	}
	if w.errno == 0 || w.errno == unix.EAGAIN {
		return syscall.EPIPE
	}
	return w.errno
}

// fill waits for room in a full ring. The tokens that it sends tell the reader to look; one that has made
// room
// takes all but one out of the socket, which the poller hears of.
func (w *writer) fill() error {
	m := w.ring
	m.wanted().Store(1)
	if room, ok := w.room(); !ok || room != 0 {
		return nil // put looks at it
	}
	for range fullTokens {
		w.full, w.errno = false, 0
		if err := w.end.raw.Control(w.fillNow); err != nil {
			return err
		}
		if w.full {
			break
		}
		switch w.errno {
		case 0:
		case errArmed:
			// a reader that has read everything has said so before: put finds room, or write counts
			return nil
		case unix.EAGAIN:
			w.owed++
			return w.pay()
		default:
			return w.errno
		}
	}
	w.gone = false
	if err := w.end.raw.Write(w.roomWait); err != nil {
		return err
	}
	if w.gone {
		return w.refused()
	}
	return nil
}

// errArmed says that no token was counted: the reader is armed, or one has left.
const errArmed = unix.EALREADY

// onFill sends one token more, unless there are two in the socket.
func (w *writer) onFill(fd uintptr) {
	before, err := unread(fd)
	if err == nil && w.cost > 0 && before >= 2*w.cost {
		w.full = true
		return
	}
	pub := w.ring.pub().Load()
	for {
		if pub&(pubArmed|pubLeft) != 0 {
			w.errno = errArmed
			return
		}
		if w.ring.pub().CompareAndSwap(pub, counted(pub)) {
			break
		}
		pub = w.ring.pub().Load()
	}
	if w.errno = sendToken(fd); w.errno != 0 {
		return
	}
	if after, err := unread(fd); err == nil && after > before {
		w.cost = after - before
	}
}

// onRoom reports false to sleep until the reader has taken tokens.
func (w *writer) onRoom(fd uintptr) bool {
	if w.parked {
		return true
	}
	m := w.ring
	if room, ok := w.room(); !ok || room != 0 || m.wanted().Load() == 0 || m.pub().Load()&pubLeft != 0 {
		return true
	}
	if w.never.Load() {
		return true
	}
	if hungUp(fd) {
		w.gone = true
		return true
	}
	w.parked = true
	return false
}

// leaveOut has all bytes that are written from now on go in-band: before urgent data, and before the end of
// writing. wait: behind those of a Write that is under way; else that leaves the ring by itself. An error
// means that a token is owed, before which nothing may go.
func (e *End) leaveOut(wait bool) error {
	w := &e.out
	w.never.Store(true)
	if wait {
		w.mu.Lock()
	} else if !w.mu.TryLock() {
		return nil
	}
	defer w.mu.Unlock()
	switch w.state {
	case stateWaiting:
		if !w.ring.attached().CompareAndSwap(attachedNot, attachedTooLate) {
			w.ring.pub().Or(pubWithdrawn)
		}
		w.forget()
	case stateJoined:
		if w.owed > 0 {
			if err := w.pay(); err != nil {
				return err
			}
		}
		w.leave()
	}
	return nil
}

func (w *writer) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget()
	w.gift = nil
}
