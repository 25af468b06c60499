package ring

import (
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
)

// A reader reads one direction. It is the other half of preload/src/send.c.
//
//	none     receives in-band. A descriptor is the first mark and brings a ring; a ring from the
//	         beginning is there when its magic is. It says that it has it: waiting
//	waiting  receives in-band up to the second mark, or, without marks, until the writer has switched
//	         when the socket was empty: joined
//	joined   reads the ring, and sleeps when it has armed it. When one has left, the ring is empty
//	         and the tokens are taken out: none
//	broken   every call fails
type reader struct {
	end      *End
	deadline deadline
	turned   atomic.Bool // something was asked for since the last write

	mu     sync.Mutex // held by the call that reads; all below is its
	state  state
	ring   *memory // not nil when waiting or joined
	gift   *memory // a ring from the beginning that was not used; nil: none
	tail   uint64  // bytes taken out of the ring, modulo 2^40
	taken  uint16  // tokens taken out of the socket, modulo 2^16
	over   bool    // the stream has ended; bytes that were written before are in the ring
	vain   int     // times in a row that a call looked again for nothing
	pays   int     // looks that may find nothing until they are seldom
	looks  int
	failed syscall.Errno // of the socket, to be told behind the bytes in the ring; 0: none

	// A call that the poller makes has its arguments here: a function for each call would be allocated.
	wait, tokenWait, switching func(fd uintptr) bool
	eatNow                     func(fd uintptr)
	parked                     bool
	eats                       uint16 // tokens for eatNow
	switched                   bool
	got                        int
	want                       int
	scratch                    []byte // while waiting for a writer to switch without a mark
	receiver                   receiver
	tokens                     [64]byte
	one                        [1]byte

	control []byte // room for descriptors that come with bytes in-band; nil before the first call
}

func (r *reader) init(e *End) {
	r.end, r.pays = e, spinPays
	r.wait, r.tokenWait, r.switching, r.eatNow = r.onWait, r.onTokenWait, r.onSwitching, r.onEat
}

// Read reads as the socket does.
func (e *End) Read(b []byte) (n int, err error) {
	if len(b) == 0 {
		return e.socket.Read(b)
	}
	r := &e.in
	r.mu.Lock()
	n, err = r.read(b)
	r.mu.Unlock()
	if err != nil && err != io.EOF {
		err = opError("read", err)
	}
	return n, err
}

func (r *reader) read(b []byte) (n int, err error) {
	r.vain = 0
	if !r.turned.Load() {
		r.turned.Store(true)
	}
	for {
		again := false
		switch r.state {
		case stateNone:
			if err := r.failed; err != 0 { // behind a ring that was left
				r.failed = 0
				return 0, err
			}
			if r.gift != nil && r.takeGift() {
				continue
			}
			return r.receive(b)
		case stateWaiting:
			if !r.ring.gift {
				return r.receive(b)
			}
			n, again, err = r.receiveGift(b)
		case stateJoined:
			n, again, err = r.readRing(b)
		case stateBroken:
			return 0, syscall.ECONNRESET
		}
		if !again {
			return n, err
		}
	}
}

// broken resets the connection.
func (r *reader) broken() error {
	r.forget()
	r.end.mu.Lock()
	r.state = stateBroken
	r.end.mu.Unlock()
	return r.end.reset()
}

func (r *reader) forget() {
	e := r.end
	e.mu.Lock()
	if r.ring != nil {
		r.ring.free()
	}
	r.ring, r.state, r.scratch = nil, stateNone, nil
	e.mu.Unlock()
	r.tail, r.taken, r.vain = 0, 0, 0
}

// attach begins the use of a ring, unless its writer waits no more.
func (r *reader) attach(m *memory) bool {
	if !m.attached().CompareAndSwap(attachedNot, attachedYes) {
		m.free()
		return false
	}
	r.end.mu.Lock()
	r.ring, r.state = m, stateWaiting
	r.end.mu.Unlock()
	return true
}

// join is the switch: the next byte of the stream is byte 0 of the ring.
func (r *reader) join() {
	r.end.mu.Lock()
	r.state, r.scratch = stateJoined, nil
	r.end.mu.Unlock()
	r.tail, r.taken, r.vain = 0, 0, 0
}

// receive receives in-band. A peer that knows us offers a ring with a descriptor. Those that come with
// bytes are received in all cases, and closed by others, as the last close of one takes as long as its
// sender wishes.
func (r *reader) receive(b []byte) (int, error) {
	if r.control == nil {
		r.control = make([]byte, dispose.Room)
	}
	withdrawn := r.state == stateWaiting && r.ring.pub().Load()&pubWithdrawn != 0
	// rule: internal/host TestPairDescriptors: r.control -> nil
	n, with, flags, _, err := r.end.socket.ReadMsgUnix(b, r.control)
	if with > 0 || flags&unix.MSG_CTRUNC != 0 {
		r.mark(dispose.Descriptors(r.control[:with]))
	} else if withdrawn {
		r.forget()
	}
	if err == nil {
		return n, nil
	}
	if errors.Is(err, io.EOF) {
		return 0, io.EOF
	}
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		call.Syscall = "read" // as with TCP
	}
	return 0, err
}

// mark sees to descriptors that have come with the bytes just read. There are none if this process had no
// number left for them: then it was a mark all the same.
func (r *reader) mark(fds []int) {
	if len(fds) > 0 {
		defer dispose.Close(fds...)
	}
	switch {
	case r.state == stateWaiting && r.ring.pub().Load()&pubWithdrawn != 0:
		r.forget() // it is the first mark of another ring, which is not taken
	case r.state == stateWaiting:
		r.join()
	case len(fds) == 1:
		if m, err := takeMemory(fds[0]); err == nil {
			r.attach(m)
		}
	}
}

// takeGift begins the use of a ring from the beginning, if its writer wants to use it.
func (r *reader) takeGift() bool {
	if r.gift.word(atMagic).Load() != magic {
		return false
	}
	m := r.gift
	r.gift = nil
	if !r.attach(m) {
		return false
	}
	r.scratch = make([]byte, round)
	return true
}

// receiveGift receives in-band where no mark says where the ring begins. The writer switches when everything
// in the socket was read. So all that is there before it is seen that it has not switched is bytes, and no
// more than that is taken; all that is there afterwards is tokens.
func (r *reader) receiveGift(b []byte) (n int, again bool, err error) {
	r.want, r.got, r.switched, r.failed = min(len(b), len(r.scratch)), 0, false, 0
	if err := r.end.raw.Read(r.switching); err != nil {
		return 0, false, err
	}
	switch {
	case r.switched:
		r.join()
		return 0, true, nil
	case r.failed != 0:
		err, r.failed = r.failed, 0
		return 0, false, err
	case r.got == 0:
		return 0, false, io.EOF
	}
	n = copy(b, r.scratch[:r.got])
	if r.ring.pub().Load()&pubWithdrawn != 0 {
		r.forget()
	}
	return n, false, nil
}

// onSwitching is a try of receiveGift. It reports false to sleep.
func (r *reader) onSwitching(fd uintptr) bool {
	m := r.ring
	for {
		// How much there is, before it is looked whether the writer has switched.
		have, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ)
		n, errno := 1, syscall.Errno(0)
		if err != nil || have <= 0 {
			n, errno = peek(fd, &r.one)
			have = 1
		}
		// rule: TestGift: m.attached().Load() == attachedSwitched -> m.attached().Load() == 99
		if m.attached().Load() == attachedSwitched && m.pub().Load()&pubWithdrawn == 0 {
			r.switched = true
			return true
		}
		if errno == 0 && n > 0 {
			r.got, errno = r.receiver.receive(fd, r.scratch[:min(r.want, have)])
		}
		switch errno {
		case 0:
			return true
		case unix.EAGAIN:
			return false
		case unix.EINTR:
		default:
			r.failed = errno
			return true
		}
	}
}

// readRing reads from the ring. again: there was nothing, and it is to be looked anew.
func (r *reader) readRing(b []byte) (n int, again bool, err error) {
	if err := r.end.check(&r.deadline); err != nil {
		return 0, false, err
	}
	m := r.ring
	pub := m.pub().Load()
	used := (pub - r.tail) & pubHead
	switch {
	case used > m.size: // rule: TestReaderHostile: used > m.size -> false
		return 0, false, r.broken()
	case used == 0:
		again, err = r.empty(pub)
		return 0, again, err
	}
	n = int(min(used, uint64(len(b))))
	m.get(m.place(r.tail), b[:n]) // the base was there before the bytes
	r.tail = (r.tail + uint64(n)) & pubHead
	m.tail().Store(r.tail)
	if m.wanted().Load() != 0 && used-uint64(n) <= m.size/2 {
		m.wanted().Store(0)
		if t := r.outstanding(m.pub().Load()); t > 1 {
			r.eat(t - 1)
		}
	}
	r.vain = 0
	return n, false, nil
}

// outstanding is how many tokens were counted that were not taken out of the socket.
func (r *reader) outstanding(pub uint64) uint16 { return tokens(pub) - r.taken }

// eat takes so many tokens out of the socket, as far as they are there.
func (r *reader) eat(n uint16) {
	if n > 0 {
		r.eats = n
		r.end.raw.Control(r.eatNow)
	}
}

func (r *reader) onEat(fd uintptr) {
	for r.eats > 0 {
		n, errno := r.receiver.receive(fd, r.tokens[:min(int(r.eats), len(r.tokens))])
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || n == 0 {
			return
		}
		r.taken += uint16(n)
		r.eats -= uint16(n)
	}
}

// empty sees to a ring in which nothing is. It reports whether it is to be looked anew.
func (r *reader) empty(pub uint64) (again bool, err error) {
	switch {
	case pub&pubLeft != 0:
		return r.ended(pub)
	case r.failed != 0:
		err, r.failed = r.failed, 0
		return false, err
	case r.over:
		return false, io.EOF
	case r.vain > vain: // rule: TestReaderHostile
		return false, r.broken()
	case r.spin(pub):
		return true, nil
	}
	r.vain++
	r.parked = false
	if err := r.end.raw.Read(r.wait); err != nil {
		return false, err
	}
	return true, nil
}

// onWait arms the ring, so that the next bytes come with a token, and takes the tokens out that came before.
// It reports false to sleep: nothing that came before it was called wakes it.
func (r *reader) onWait(fd uintptr) bool {
	if r.parked {
		return true
	}
	m := r.ring
	pub := m.pub().Load()
	if (pub-r.tail)&pubHead != 0 || pub&pubLeft != 0 {
		return true
	}
	if pub&pubArmed == 0 && !m.pub().CompareAndSwap(pub, pub|pubArmed) {
		return true
	}
	r.eats = r.outstanding(pub)
	r.onEat(fd)
	switch n, errno := peek(fd, &r.one); {
	case errno == unix.EAGAIN:
		r.parked = true
		return false
	case errno != 0:
		r.failed = errno
	case n == 0:
		r.over = true
	}
	return true // also with a token that was not counted, of which vain sees to more than a few
}

// ended ends a ring that was left, when its tokens are taken out: one that stayed would be taken for a byte.
func (r *reader) ended(pub uint64) (again bool, err error) {
	n := r.outstanding(pub)
	r.eat(n)
	if r.eats == 0 || n == 0 || r.over {
		r.forget()
		return true, nil
	}
	r.parked = false
	if err := r.end.raw.Read(r.tokenWait); err != nil {
		return false, err
	}
	return true, nil
}

// onTokenWait waits for a token that was announced.
func (r *reader) onTokenWait(fd uintptr) bool {
	if r.parked {
		return true
	}
	n, errno := peek(fd, &r.one)
	if errno == unix.EAGAIN {
		r.parked = true
		return false
	}
	if errno != 0 || n == 0 {
		r.over, r.failed = true, errno
	}
	return true
}

// spinning says that a reader of the process looks into its ring. One at a time does.
var spinning atomic.Bool

// spin looks into the empty ring for a moment, where that has paid: to be woken takes as long. The ring is
// not armed, so nothing that comes meanwhile costs a token. It reports whether something has changed.
func (r *reader) spin(pub uint64) bool {
	if r.pays == 0 {
		if r.looks++; r.looks%spinSeldom != 0 {
			return false
		}
		r.pays = spinTries
	}
	if pub&pubArmed != 0 || runtime.GOMAXPROCS(0) == 1 {
		return false
	}
	if !spinning.CompareAndSwap(false, true) {
		return false // others want the processor
	}
	defer spinning.Store(false)
	word := r.ring.pub()
	began := time.Now()
	for i := 1; ; i++ {
		if word.Load() != pub {
			r.pays = spinPays
			return true
		}
		for range 8 { // without a load, which would take the word away from its writer
		}
		if i%64 == 0 && time.Since(began) > spinTime {
			break
		}
	}
	r.pays = max(r.pays-1, 0)
	return false
}

// Tidy takes tokens out of the socket behind which there is nothing, for callers that look at the socket
// themselves. It does nothing while a Read sleeps, which has done that.
func (e *End) Tidy() (unread bool) {
	r := &e.in
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	if r.state != stateJoined || e.closed.Load() {
		return false
	}
	m := r.ring
	pub := m.pub().Load()
	if (pub-r.tail)&pubHead != 0 {
		return true
	}
	if pub&(pubArmed|pubLeft) != 0 || m.pub().CompareAndSwap(pub, pub|pubArmed) {
		r.eat(r.outstanding(pub))
		return false
	}
	return true // something has come
}

// close gives the ring back, when no call can be in it any more but one that is about to end. With bytes
// unread the socket has a token, and its last close resets the connection, as with TCP.
func (r *reader) close(socket int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == stateJoined && socket >= 0 {
		pub := r.ring.pub().Load()
		if (pub-r.tail)&pubHead == 0 { // rule: TestCloseTidy
			r.eats = r.outstanding(pub)
			r.onEat(uintptr(socket))
		}
	}
	r.forget()
	r.gift = nil
}
