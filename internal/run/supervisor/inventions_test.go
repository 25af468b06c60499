package supervisor

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
)

// inventions are replies made of bytes, which are used up; then they are honest. Its methods may be called from several goroutines.
type inventions struct {
	mu    sync.Mutex
	bytes []byte
}

func (in *inventions) next() byte {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.bytes) == 0 {
		return 0
	}
	b := in.bytes[0]
	in.bytes = in.bytes[1:]
	return b
}

// invent makes a reply to a message: one that is honest, but for as many bytes as the next one says, cut or prolonged, with any descriptors.
func (in *inventions) invent(k proto.Kind) (text []byte, fds []int) {
	what := in.next()
	r := proto.Reply{Kind: k}
	if k != proto.KindBoard && k != proto.KindAnnounce && what&0x80 == 0 {
		r.Status = proto.StatusNo
	}
	text = r.Append(nil)
	for range what & 3 {
		at, value := in.next(), in.next()
		text[int(at)%len(text)] = value
	}
	switch what >> 2 & 7 {
	case 1:
		text = text[:int(in.next())%len(text)]
	case 2:
		text = append(text, make([]byte, in.next())...)
	}
	if k == proto.KindBoard {
		fds = append(fds, in.board())
	}
	if what&0x20 != 0 {
		for range in.next() % 4 {
			fds = append(fds, in.descriptor())
		}
	}
	return text, opened(fds)
}

// opened leaves out descriptors that there are none of.
func opened(fds []int) (ok []int) {
	for _, fd := range fds {
		if fd >= 0 {
			ok = append(ok, fd)
		}
	}
	return ok
}

// board is one in which something waits, with any words in it. It names descriptors of the test as
// descriptors of a supervisor.
func (in *inventions) board() int {
	fd, err := unix.MemfdCreate("liar", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1
	}
	b := make([]byte, boardSize)
	b[0] = 1
	binary.NativeEndian.PutUint32(b[4:], uint32(os.Getpid()))
	for range in.next() % 64 {
		at := int(in.next()) % 68 * 4
		if at != 4 { // no process of others
			binary.NativeEndian.PutUint32(b[at:], uint32(in.next()))
		}
	}
	unix.Pwrite(fd, b, 0)
	unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	return fd
}

// descriptor is one of any kind, -1 if it could not be made.
func (in *inventions) descriptor() int {
	switch kind := in.next(); kind % 6 {
	case 0:
		fd, _ := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
		return fd
	case 1:
		fd, _ := unix.MemfdCreate("liar", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		unix.Ftruncate(fd, int64(kind)<<6)
		unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, int(in.next()&0x1f))
		return fd
	case 2, 3:
		types := []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET}
		pair, err := unix.Socketpair(unix.AF_UNIX, types[int(in.next())%3]|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return -1
		}
		unix.Close(pair[1])
		return pair[0]
	case 4:
		fd, _ := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return fd
	}
	fd, _ := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	return fd
}

// believe has a program make connections to itself under a supervisor that gives the answers of a
// script.
func believe(t *testing.T, program, library string, script []byte, times int, environ ...string) {
	t.Helper()
	l := newLiar(t, nil, (&inventions{bytes: script}).invent)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, program, "believe", strconv.Itoa(times))
	cmd.Env = append(append(os.Environ(), "LD_PRELOAD="+library, proto.EnvSocket+"="+l.path), environ...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%x: %v\n%s", script, err, out)
	}
}

// TestInventions has a supervisor reply at random, with any descriptors and any board. A connection carries its bytes or ends, and no descriptor is left.
func TestInventions(t *testing.T) {
	program := peerProgram(t)
	try := func(t *testing.T, rounds int, library string, environ ...string) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for range rounds {
			script := make([]byte, 400)
			for i := range script {
				script[i] = byte(random.Uint32())
			}
			believe(t, program, library, script, 20, environ...)
		}
	}
	t.Run("committed", func(t *testing.T) { try(t, 40, committedLibrary(t)) })
	t.Run("sanitized", func(t *testing.T) { try(t, 10, sanitizedLibrary(t), "ASAN_OPTIONS=detect_leaks=0") })
}

// FuzzReply has a supervisor reply with the messages of the input.
func FuzzReply(f *testing.F) {
	program := peerProgram(f)
	library := committedLibrary(f)
	f.Add([]byte{})
	f.Add([]byte{0xff, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte{0xa0, 3, 2, 0, 1, 7, 5})
	f.Fuzz(func(t *testing.T, script []byte) { believe(t, program, library, script, 5) })
}
