package supervisor

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const endOfFile = syscall.Errno(1)

// ringLies has all lies of a liar by name, and the errors that the program sees: of its next
// receive, and of its next send of 20,000 bytes, which follows a send of one more byte. 0 is bytes,
// EAGAIN none or no room for any.
var ringLies = []struct {
	name       string
	lie        func(l *ringLiar)
	recv, send syscall.Errno
}{
	{"nothing", func(l *ringLiar) { l.joinBoth() }, unix.EAGAIN, 0},
	// Our ring, which the program reads.
	{"head beyond the ring", func(l *ringLiar) { l.joinBoth(); l.publish(ringLeast + 1) }, unix.ECONNRESET, unix.EPIPE},
	{"head far beyond the ring", func(l *ringLiar) { l.joinBoth(); l.publish(1 << 39) }, unix.ECONNRESET, unix.EPIPE},
	{"head backwards", func(l *ringLiar) { l.joinBoth(); l.publish(-1) }, unix.ECONNRESET, unix.EPIPE},
	{"head backwards by one byte of many", func(l *ringLiar) { l.joinBoth(); l.publish(100); l.do('r', 100); l.publish(-1) }, unix.ECONNRESET, unix.EPIPE},
	{"head beyond what was read", func(l *ringLiar) { l.joinBoth(); l.publish(100); l.do('r', 50); l.publish(ringLeast - 49) }, unix.ECONNRESET, unix.EPIPE},
	{"a full ring", func(l *ringLiar) { l.joinBoth(); l.publish(ringLeast) }, 0, 0},
	{"bytes without a token", func(l *ringLiar) { l.joinBoth(); l.out.word(ringAtPub).Add(100) }, 0, 0},
	{"a token that was not counted", func(l *ringLiar) { l.joinBoth(); l.send([]byte{0}) }, unix.ECONNRESET, unix.EPIPE},
	{"more in-band than the takeover says", func(l *ringLiar) { l.joinBoth(); l.send(make([]byte, 1000)) }, unix.ECONNRESET, unix.EPIPE},
	{"tokens that are counted and do not come", func(l *ringLiar) { l.joinBoth(); l.out.word(ringAtPub).Add(1000 * pubCount) }, unix.EAGAIN, 0},
	{"tokens that nothing is behind", func(l *ringLiar) { l.joinBoth(); l.flood(1000, 1000) }, unix.EAGAIN, 0},
	{"fewer tokens than were taken", func(l *ringLiar) { l.joinBoth(); l.flood(10, 10); l.do('r', 1); l.flood(-5, 0) }, unix.EAGAIN, 0},
	{"the writer has left, with a token to come", func(l *ringLiar) { l.joinBoth(); l.out.word(ringAtPub).Or(pubWriterLeft); l.flood(1, 0) }, unix.EAGAIN, 0},
	{"the writer has left, and comes back", func(l *ringLiar) {
		l.joinBoth()
		l.out.word(ringAtPub).Or(pubWriterLeft)
		l.do('r', 1)
		l.out.word(ringAtPub).And(^uint64(pubWriterLeft))
		l.publish(100)
		l.send(make([]byte, 10))
	}, 0, 0},
	{"the reader has left, says its writer", func(l *ringLiar) { l.joinBoth(); l.out.word(ringAtPub).Or(pubReaderLeft) }, unix.EAGAIN, 0},
	{"withdrawn after the switch", func(l *ringLiar) { l.joinBoth(); l.out.word(ringAtPub).Or(pubWithdrawn) }, unix.EAGAIN, 0},
	{"withdrawn, and switched", func(l *ringLiar) {
		l.offer(ringLeast, "a ring")
		l.do('r', 1)
		l.out.word(ringAtPub).Or(pubWithdrawn)
		l.send([]byte("2"), l.fd)
	}, 0, 0},
	{"the reader looks, says its writer", func(l *ringLiar) { l.joinBoth(); l.out.word(ringAtPub).Or(pubLooks) }, unix.EAGAIN, 0},
	{"the size in the header, later", func(l *ringLiar) { l.joinBoth(); l.out.word32(ringAtSize).Store(1 << 30); l.publish(1 << 20) }, unix.ECONNRESET, unix.EPIPE},
	{"tail of its own ring", func(l *ringLiar) { l.joinBoth(); l.out.word(ringAtTail).Store(1 << 39); l.publish(10) }, 0, 0},
	{"wanted of its own ring", func(l *ringLiar) { l.joinBoth(); l.out.word32(ringAtWanted).Store(77); l.publish(10) }, 0, 0},
	{"attached of its own ring", func(l *ringLiar) { l.joinBoth(); l.out.word32(ringAtAttached).Store(77); l.publish(10) }, 0, 0},
	{"a switch nobody has asked for", func(l *ringLiar) { l.send([]byte("2"), l.fd) }, 0, 0},
	{"three marks", func(l *ringLiar) { l.joinBoth(); l.send([]byte{0}, l.fd) }, unix.ECONNRESET, unix.EPIPE},
	{"a ring in a ring", func(l *ringLiar) { l.joinBoth(); l.offer(ringLeast, "a ring") }, unix.ECONNRESET, unix.EPIPE},
	// The program's ring.
	{"tail a little beyond the head", func(l *ringLiar) { l.joinBoth(); l.in.word(ringAtTail).Add(1); l.overflow() }, unix.EAGAIN, unix.EAGAIN},
	{"tail far behind the head", func(l *ringLiar) { l.joinBoth(); l.in.word(ringAtTail).Add(^uint64(2<<20 - 1)); l.overflow() }, endOfFile, unix.ECONNRESET},
	{"tail far beyond the head", func(l *ringLiar) { l.joinBoth(); l.in.word(ringAtTail).Add(1 << 39); l.overflow() }, endOfFile, unix.ECONNRESET},
	{"armed, with a full ring", func(l *ringLiar) { l.joinBoth(); l.overflow(); l.drain(100); l.in.word(ringAtPub).Or(pubArmed) }, unix.EAGAIN, unix.ECONNRESET},
	{"head of its reader's ring", func(l *ringLiar) { l.joinBoth(); l.in.word(ringAtPub).Store(l.in.pub() ^ pubHead) }, unix.EAGAIN, 0},
	{"the writer has left, says its reader", func(l *ringLiar) { l.joinBoth(); l.in.word(ringAtPub).Or(pubWriterLeft) }, unix.EAGAIN, 0},
	{"the reader has left, with bytes in the ring", func(l *ringLiar) {
		l.joinBoth()
		l.do('s', 1000)
		l.in.word(ringAtPub).Or(pubReaderLeft)
	}, unix.EAGAIN, 0},
	{"the reader has left, and comes back", func(l *ringLiar) {
		l.joinBoth()
		l.in.word(ringAtPub).Or(pubReaderLeft)
		l.do('s', 1)
		l.in.word(ringAtPub).And(^uint64(pubReaderLeft))
	}, unix.EAGAIN, 0},
	{"withdrawn, says its reader", func(l *ringLiar) { l.joinBoth(); l.in.word(ringAtPub).Or(pubWithdrawn) }, unix.EAGAIN, 0},
	{"it looks for more than there is room", func(l *ringLiar) { l.joinBoth(); l.in.word(ringAtPub).Or(pubLooks) }, unix.EAGAIN, 0},
	{"wanted", func(l *ringLiar) { l.joinBoth(); l.in.word32(ringAtWanted).Store(77) }, unix.EAGAIN, 0},
	{"the size of its reader's ring", func(l *ringLiar) { l.joinBoth(); l.in.word32(ringAtSize).Store(1 << 30) }, unix.EAGAIN, 0},
	{"attached that means nothing", func(l *ringLiar) { l.do('s', 20000); l.drain(20000); l.in.word32(ringAtAttached).Store(77) }, unix.EAGAIN, 0},
	{"attached before anybody has switched", func(l *ringLiar) {
		l.do('s', 20000)
		l.drain(20000)
		l.in.word32(ringAtAttached).Store(attachedSwitched)
	}, unix.EAGAIN, 0},
	{"attached too late", func(l *ringLiar) {
		l.do('s', 20000)
		l.drain(20000)
		l.in.word32(ringAtAttached).Store(attachedTooLate)
	}, unix.EAGAIN, 0},
	{"attached, after the switch no more", func(l *ringLiar) { l.joinBoth(); l.in.word32(ringAtAttached).Store(attachedNoMore) }, unix.EAGAIN, 0},
	// The end in the middle of a takeover.
	{"the end behind the first mark", func(l *ringLiar) { l.offer(ringLeast, "a ring"); unix.Shutdown(l.fd, unix.SHUT_RDWR); l.do('r', 1) }, endOfFile, unix.EPIPE},
	{"the end behind the second mark", func(l *ringLiar) { l.joinBoth(); unix.Shutdown(l.fd, unix.SHUT_RDWR) }, endOfFile, unix.EPIPE},
}

// joinBoth has both directions on rings.
func (l *ringLiar) joinBoth() {
	l.t.Helper()
	l.joinOut(ringLeast)
	l.joinIn()
}

// flood counts so many tokens, and sends others.
func (l *ringLiar) flood(count, send int) {
	pub := l.out.pub()
	l.out.word(ringAtPub).Store(pub&^pubCounts | (pub+uint64(count)*pubCount)&pubCounts)
	l.send(make([]byte, send))
}

// overflow has the program send until it cannot.
func (l *ringLiar) overflow() {
	l.t.Helper()
	for range 100 {
		if n, _ := l.do('s', 100000); n < 100000 {
			return
		}
	}
}

// TestRingLies has a peer lie in each field of the memory that both have, and in the messages that
// it sends besides. The program sees bytes or a reset, never waits where it must not, touches
// nothing but the rings, and keeps no descriptor. Another connection of it goes on.
func TestRingLies(t *testing.T) {
	program := peerProgram(t)
	t.Run("committed", func(t *testing.T) { tellRingLies(newServant(t, program, committedLibrary(t))) })
	t.Run("sanitized", func(t *testing.T) {
		tellRingLies(newServant(t, program, sanitizedLibrary(t), "ASAN_OPTIONS=detect_leaks=0"))
	})
}

func tellRingLies(s *servant) {
	t := s.t.(*testing.T)
	for _, tt := range ringLies {
		l := s.connect()
		tt.lie(l)
		n, recv := l.do('r', 10)
		if recv == 0 && n == 0 {
			recv = endOfFile
		}
		l.do('s', 1)
		_, send := l.do('s', 20000)
		if recv != tt.recv || send != tt.send {
			t.Errorf("%s: receive = %d (%v), send = %d (%v); want %d, %d", tt.name, recv, recv, send, send, tt.recv, tt.send)
		}
		l.end()
		s.do('e', 50000)
	}
	// Descriptors that come with a first mark, and are no ring that the program takes.
	for _, what := range offers {
		for _, size := range []int{ringLeast, ringLeast / 2, 5000, 3 * ringLeast, ringMost, 2 * ringMost} {
			good := what == "a ring" || what == "attached" || what == "two" || what == "many"
			l := s.connect()
			l.offer(size, what)
			l.send([]byte("plain"))
			n, errno := l.do('a', 6)
			if n < 1 || errno != 0 {
				t.Errorf("%s, %d bytes: receive = %d, %v", what, size, n, errno)
			}
			valid := good && size != 5000 && size&(size-1) == 0 && size >= ringLeast && size <= ringMost
			if l.out != nil && what != "attached" {
				if got := l.out.word32(ringAtAttached).Load(); got != attachedYes && valid || got != attachedNot && !valid {
					t.Errorf("%s, %d bytes: attached %d", what, size, got)
				}
			}
			l.end()
		}
		s.do('e', 50000)
	}
}

// TestRingFlips has words change all the time while the program looks at them. Each call returns.
func TestRingFlips(t *testing.T) {
	program := peerProgram(t)
	t.Run("committed", func(t *testing.T) { flipRings(newServant(t, program, committedLibrary(t)), 2*time.Second) })
	t.Run("sanitized", func(t *testing.T) {
		flipRings(newServant(t, program, sanitizedLibrary(t), "ASAN_OPTIONS=detect_leaks=0"), 2*time.Second)
	})
}

// ringFlips are words that matter to a call in the moment in which it looks at them.
var ringFlips = []struct {
	name string
	call byte
	full bool // the program's ring is
	flip func(l *ringLiar)
}{
	{"head beyond the ring", 'P', false, func(l *ringLiar) {
		l.publish(100)
		l.change(l.out.word(ringAtPub), l.out.pub(), l.out.pub()+2*ringLeast)
	}},
	{"head, armed and not", 'r', false, func(l *ringLiar) { l.change(l.out.word(ringAtPub), l.out.pub(), l.out.pub()^pubArmed) }},
	{"looks and does not", 's', false, func(l *ringLiar) { l.change(l.in.word(ringAtPub), l.in.pub(), l.in.pub()^pubLooks) }},
	{"wanted, and at once not", 's', true, func(l *ringLiar) { l.change(l.in.word(ringAtWanted), 0, 0) }},
	{"armed and not, with a full ring", 's', true, func(l *ringLiar) { l.change(l.in.word(ringAtPub), l.in.pub(), l.in.pub()^pubArmed) }},
	{"room for a byte and none", 's', true, func(l *ringLiar) {
		tail := l.in.word(ringAtTail).Load()
		l.change(l.in.word(ringAtTail), tail, tail+1)
	}},
}

func flipRings(s *servant, forTime time.Duration) {
	if runtime.NumCPU() == 1 {
		s.t.Skip("needs two processors")
	}
	for _, tt := range ringFlips {
		some := forTime / 10
		if tt.call == 'P' {
			some = forTime // it is seldom seen
		}
		for begun := time.Now(); time.Since(begun) < some; {
			l := s.connect()
			l.joinBoth()
			if tt.full {
				l.overflow()
			}
			tt.flip(l)
			if tt.call == 'P' {
				l.do('P', 50)
				l.end()
				continue
			}
			l.flipped(tt.name, func() byte { return tt.call }, 10)
		}
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	defer func() {
		if s.t.Failed() {
			s.t.Logf("seed %d", seed)
		}
	}()
	for begun := time.Now(); time.Since(begun) < forTime; {
		l := s.connect()
		l.joinBoth()
		if random.IntN(2) == 0 {
			l.overflow()
		}
		l.publish(random.Int64N(ringLeast))
		word := l.word(random.IntN(2), random.IntN(3))
		l.change(word, word.Load(), value(random.IntN(4*len(values)), word.Load()))
		l.flipped("at random", func() byte { return "sSrRpati"[random.IntN(8)] }, 30)
	}
	s.do('e', 50000)
}

// flipped has the program make calls while words change, and ends the connection.
func (l *ringLiar) flipped(name string, call func() byte, times int) {
	l.t.Helper()
	for range times {
		what := call()
		n, errno := l.do(what, 20000)
		if err := plain(n, errno); err != nil {
			l.t.Fatalf("%s: call %c = %v", name, what, err)
		}
	}
	l.end()
}

// word is a word of one of the rings, nil if there is none.
func (l *ringLiar) word(which, place int) *atomic.Uint64 {
	r := l.out
	if which%2 == 1 {
		r = l.in
	}
	if r == nil {
		return nil
	}
	return r.word([]int{ringAtPub, ringAtTail, ringAtWanted, ringAtAttached, ringAtSize, ringAtMagic, ringAtProcessor, ringAtBase}[place%8])
}

// values are the words that a liar writes: each of them is added, or'ed, or put in the place of the
// old word.
var values = []uint64{
	0, 1, 2, 3, 4, 77, ringLeast - 1, ringLeast, ringLeast + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 1 << 31, 1<<32 - 1, 1 << 39, pubHead, pubArmed, pubCount, 5 * pubCount, pubCounts,
	pubWriterLeft, pubReaderLeft, pubWithdrawn, pubLook, 5 * pubLook, pubLooks, pubWriterLeft | pubReaderLeft | pubWithdrawn, 1<<64 - 1,
}

// value is one of them, of the word as it was.
func value(which int, old uint64) uint64 {
	v := values[which%len(values)]
	switch which / len(values) % 4 {
	case 0:
		return old + v
	case 1:
		return old ^ v
	case 2:
		return old - v
	}
	return v
}

// FuzzRing has a peer follow its input, a byte for the deed and two for its arguments, while the
// program makes calls.
func FuzzRing(f *testing.F) {
	library, environ := fuzzedLibrary(f)
	s := newServant(f, peerProgram(f), library, environ...)
	for _, script := range ringScripts {
		f.Add([]byte(script))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		s.t = t
		defer func() { s.t = f }()
		l := s.connect()
		for i := 0; i+2 < len(script) && i < 300; i += 3 {
			l.step(script[i], script[i+1], script[i+2])
		}
		l.end()
		s.do('e', 3000)
	})
}

// fuzzedLibrary is the sanitized library, or, where there are no sanitizers, the committed one.
func fuzzedLibrary(f *testing.F) (string, []string) {
	if sanitizer(f) != "" {
		return sanitizedLibrary(f), []string{"ASAN_OPTIONS=detect_leaks=0"}
	}
	return committedLibrary(f), nil
}

// ringScripts are takeovers of both directions, a full ring, leavings, and inputs that were found.
var ringScripts = []string{
	"", "o\x00\x00", "o\x00\x00cr\x01cr\x01", "J\x00\x00", "J\x00\x00p\x10\x00cr\x05", "I\x00\x00cs\x06R\x00\x00cs\x06",
	"J\x00\x00I\x00\x00" + strings.Repeat("cs\x06", 8) + "w\x01\x0a", "J\x00\x00w\x00\x14cr\x04I\x00\x00w\x01\x15cs\x04",
	"J\x00\x00f\x00\x09cp\x04cp\x04cp\x04s\x00\x00", "I\x00\x00f\x01\x09" + strings.Repeat("cs\x06", 4),
	"J\x00\x00k\x05\x00cr\x01cr\x01", "J\x00\x00x\x05\x00cr\x01cr\x01", "J\x00\x00I\x00\x00h\x02\x00cr\x01cs\x03",
}

// sizes of calls, in a script.
var sizes = []int{1, 2, 10, 1000, 4096, 20000, 100000, 200000}

// step does one step of a script.
func (l *ringLiar) step(what, a, b byte) {
	l.t.Helper()
	switch what {
	case 'c': // the program makes a call
		call := a
		if !strings.ContainsRune("sSrRpatid", rune(a)) {
			call = "sSrRpatid"[int(a)%9]
		}
		n, errno := l.do(call, sizes[int(b)%len(sizes)])
		if err := plain(n, errno); err != nil {
			l.t.Fatalf("call %c = %v", call, err)
		}
	case 'b': // in-band
		l.send(make([]byte, sizes[int(a)%len(sizes)]))
	case 'o': // a first mark
		l.offer(ringLeast<<(b%5), offers[int(a)%len(offers)])
	case 'm': // a second one
		l.send([]byte{'m'}, l.fd)
	case 'J':
		if l.out == nil {
			l.offer(ringLeast, "a ring")
			l.do('r', 200000)
			l.out.attach(attachedYes, attachedSwitched)
			l.send([]byte{'2'}, l.fd)
			l.do('r', 10)
		}
	case 'I':
		for i := 0; i < 3 && l.in == nil; i++ {
			l.do('s', 20000)
			l.drain(1 << 20)
		}
		if l.in != nil && l.in.attach(attachedNot, attachedYes) {
			l.do('s', 20000)
			l.drain(20000)
			l.read()
		}
	case 'p':
		l.publish(int64(int8(a)) << (b % 16))
	case 'P': // bytes without a token
		if l.out != nil {
			l.out.word(ringAtPub).Add(uint64(a) << (b % 40))
		}
	case 'w': // a word
		if word := l.word(int(a), int(a)/2); word != nil {
			word.Store(value(int(b), word.Load()))
		}
	case 'f': // a word that changes
		if word := l.word(int(a), int(a)/2); word != nil && len(l.flips) == 0 {
			old := word.Load()
			l.change(word, old, value(int(b), old))
		}
	case 's':
		l.stop()
	case 'k': // tokens that were counted
		if l.out != nil {
			l.flood(int(int8(a)), int(b))
		}
	case 'x': // tokens that were not
		l.send(make([]byte, a))
	case 'd':
		l.drain(sizes[int(a)%len(sizes)])
	case 'R':
		l.read()
	case 'A':
		if l.in != nil {
			l.in.word32(ringAtAttached).Store(uint32(a))
		}
	case 'h':
		unix.Shutdown(l.fd, []int{unix.SHUT_RD, unix.SHUT_WR, unix.SHUT_RDWR}[a%3])
	}
}
