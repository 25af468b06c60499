package supervisor

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
)

// ringNothings have a peer that goes on and on waking the program up for nothing, which over TCP would wait for nothing, or be told at once that there is nothing.
var ringNothings = []struct {
	name  string
	call  byte
	n     int // bytes; of a call with a time limit, that in ms
	begin func(l *ringLiar)
	lie   func(l *ringLiar)
	pause time.Duration // between two lies
}{
	{"tokens that nothing is behind", 'r', 10, func(l *ringLiar) {}, func(l *ringLiar) { l.flood(64, 64) }, 0},
	{"armed, and tokens that nothing is behind", 'r', 10, func(l *ringLiar) {}, func(l *ringLiar) { l.out.word(ringAtPub).Or(pubArmed); l.flood(64, 64) }, 0},
	{"not armed, and tokens that nothing is behind", 'a', 10, func(l *ringLiar) {}, func(l *ringLiar) { l.out.word(ringAtPub).And(^uint64(pubArmed)); l.flood(64, 64) }, 0},
	{"more tokens than can be taken", 'r', 10, func(l *ringLiar) {}, func(l *ringLiar) { l.crowd(2048) }, 0},
	{"more tokens than can be taken, with a time limit", 'l', 300, func(l *ringLiar) {}, func(l *ringLiar) { l.crowd(2048) }, 0},
	{"tokens now and then", 'l', 300, func(l *ringLiar) {}, func(l *ringLiar) { l.flood(1, 1) }, 100 * time.Millisecond},
	{"wanted, and at once not", 's', 100, (*ringLiar).overflow, func(l *ringLiar) { l.in.word32(ringAtWanted).Store(0) }, 0},
	{"tokens are taken, and bytes are not", 's', 100, (*ringLiar).overflow, func(l *ringLiar) { l.drain(64) }, 0},
	{"tokens are taken now and then, and bytes are not", 'L', 300, (*ringLiar).overflow, func(l *ringLiar) { l.drain(64) }, 100 * time.Millisecond},
	{"room for a byte now and then", 'L', 300, (*ringLiar).overflow, func(l *ringLiar) { l.drain(64); l.in.word(ringAtTail).Add(1) }, 100 * time.Millisecond},
}

// TestRingForNothing has each call return in time.
func TestRingForNothing(t *testing.T) {
	s := newServant(t, peerProgram(t), committedLibrary(t))
	const soon, long = 3 * time.Second, 10 * time.Second
	for _, tt := range ringNothings {
		l := s.connect()
		l.joinBoth()
		tt.begin(l)
		over, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for end := time.Now().Add(long); time.Now().Before(end) && !wait(over, tt.pause); {
				tt.lie(l)
			}
		}()
		began := time.Now()
		n, errno := l.do(tt.call, tt.n)
		took := time.Since(began)
		close(over)
		<-done
		if took > soon || n < 0 && errno != unix.EAGAIN && errno != unix.ECONNRESET {
			t.Errorf("%s: %c = %d, %v after %v", tt.name, tt.call, n, errno, took)
		}
		l.end()
	}
	s.do('e', 50000)
}

// crowd counts so many tokens, and sends all of them, unless nobody takes them any more.
func (l *ringLiar) crowd(n int) {
	l.flood(n, 0)
	for end := time.Now().Add(time.Second); n > 0 && time.Now().Before(end); {
		sent, err := unix.SendmsgN(l.fd, make([]byte, n), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != nil && err != unix.EAGAIN {
			return
		}
		n -= max(sent, 0)
	}
}

// TestRingInVain has a peer lie at each system call that a call makes which is not to wait, so that it looks again every time.
func TestRingInVain(t *testing.T) {
	program := filepath.Join(t.TempDir(), "vain")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/vain.c")
	s := newTestSupervisor(t)
	runRings(t, program, []string{"tokens", "wanted"}, 1, "LD_PRELOAD="+committedLibrary(t), proto.EnvSocket+"="+s.Path)
}
