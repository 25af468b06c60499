package supervisor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
)

// A liar stands where a supervisor should, and answers each kind of message in its own way.
type liar struct {
	dir, path string
	fd        int
	answers   map[proto.Kind]string
	// the answer if this is not nil, and its descriptors, which are closed then
	invent func(k proto.Kind) (text []byte, fds []int)
	give   func(m proto.Message) int // the end for a Claim, a Reach or a Meet if this is not nil
	gave   func()                    // called when it was sent if this is not nil
}

// The lies, but for "honest" and "no".
var lies = []string{"hang up", "short", "long", "kind", "version", "status", "no descriptor", "null", "empty", "shrinks", "many", "pair", "honest", "no"}

func newLiar(t *testing.T, answers map[proto.Kind]string, invent func(proto.Kind) ([]byte, []int)) *liar {
	t.Helper()
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	l := &liar{dir: dir, path: filepath.Join(dir, "liar"), fd: fd, answers: answers, invent: invent}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: l.path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 100); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var served sync.WaitGroup
		defer served.Wait()
		for {
			c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err != nil {
				return
			}
			served.Go(func() {
				l.serve(c)
				unix.Close(c)
			})
		}
	}()
	t.Cleanup(func() {
		unix.Shutdown(fd, unix.SHUT_RDWR) // accept ends
		<-done
		unix.Close(fd)
	})
	return l
}

func (l *liar) serve(c int) {
	b, control := make([]byte, 200), make([]byte, 200)
	for {
		n, cn, _, _, err := unix.Recvmsg(c, b, control, unix.MSG_CMSG_CLOEXEC)
		if err != nil || n == 0 {
			return
		}
		if list, err := unix.ParseSocketControlMessage(control[:cn]); err == nil {
			for _, m := range list {
				fds, _ := unix.ParseUnixRights(&m)
				for _, fd := range fds {
					unix.Close(fd)
				}
			}
		}
		m, err := proto.ParseMessage(b[:n])
		if err != nil {
			return
		}
		if m.Kind == proto.KindAnnounce { // so that clients come here
			os.Symlink("liar", filepath.Join(l.dir, fmt.Sprintf("%016x.%d", m.NetNS, m.Local.Port())))
		}
		if (m.Kind == proto.KindClaim || m.Kind == proto.KindReach || m.Kind == proto.KindMeet) && l.give != nil {
			fd := l.give(m)
			unix.Sendmsg(c, proto.Reply{Kind: m.Kind, Status: proto.StatusOK}.Append(nil), unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL)
			unix.Close(fd)
			if l.gave != nil {
				l.gave()
			}
			return
		}
		if !l.answer(c, m.Kind) {
			return
		}
	}
}

func (l *liar) answer(c int, k proto.Kind) bool {
	if l.invent != nil {
		text, fds := l.invent(k)
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		err := unix.Sendmsg(c, text, rights, nil, unix.MSG_NOSIGNAL)
		for _, fd := range fds {
			unix.Close(fd)
		}
		return err == nil
	}
	lie := l.answers[k]
	text := proto.Reply{Kind: k, Status: proto.StatusOK}.Append(nil)
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	memory := func(size int64, seals int) {
		if fd, err := unix.MemfdCreate("liar", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err == nil {
			unix.Ftruncate(fd, size)
			unix.Pwrite(fd, []byte{1}, 0) // something waits
			unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
			fds = append(fds, fd)
		}
	}
	open := func() {
		if fd, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
			fds = append(fds, fd)
		}
	}
	switch lie {
	case "hang up":
		return false
	case "short":
		text = text[:8]
	case "long":
		text = append(text, make([]byte, 100)...)
	case "kind":
		text[0] ^= 1
	case "version":
		text[1]++
	case "status":
		text = proto.Reply{Kind: k, Status: 77}.Append(nil)
	case "null":
		open()
	case "empty":
		if fd, err := unix.MemfdCreate("liar", unix.MFD_CLOEXEC); err == nil {
			fds = append(fds, fd)
		}
	case "shrinks":
		memory(boardSize, 0)
		defer func() { unix.Ftruncate(fds[0], 0) }()
	case "many":
		for range 20 {
			open()
		}
	case "pair":
		if pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
			fds = append(fds, pair[0], pair[1])
		}
	case "honest":
		if k == proto.KindBoard {
			memory(boardSize, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
		}
	case "no":
		text = proto.Reply{Kind: k, Status: proto.StatusNo}.Append(nil)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	return unix.Sendmsg(c, text, rights, nil, unix.MSG_NOSIGNAL) == nil
}

// lie has a program talk to itself under a supervisor that lies. It must end by itself, and well where its offers are refused.
func lie(t *testing.T, program, library string, answers map[proto.Kind]string, well bool, environ ...string) {
	t.Helper()
	l := newLiar(t, answers, nil)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, program, "parts", "1")
	cmd.Env = append(append(os.Environ(), "LD_PRELOAD="+library, proto.EnvSocket+"="+l.path), environ...)
	out, err := cmd.CombinedOutput()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	lost := status.ExitStatus() == 1 || status.Signaled() && status.Signal() == syscall.SIGPIPE
	if err != nil && (well || !lost) {
		t.Errorf("%v: %v\n%s", answers, err, out)
	}
}

// TestLiesEnd has a supervisor hand over a descriptor that has the name of a connection, and is no
// end that its server could have: it stays TCP. The library is built from its source.
func TestLiesEnd(t *testing.T) {
	program := ringProgram(t)
	library := sanitizedLibrary(t)
	for what, give := range map[string]struct {
		kind int
		role byte
	}{"packets": {unix.SOCK_SEQPACKET, proto.RoleServer}, "client": {unix.SOCK_STREAM, proto.RoleClient}} {
		t.Run(what, func(t *testing.T) {
			l := newLiar(t, map[proto.Kind]string{proto.KindAnnounce: "honest", proto.KindBoard: "honest", proto.KindOffer: "no", proto.KindCancel: "honest"}, nil)
			var given atomic.Int32
			l.give = func(m proto.Message) int {
				pair, err := unix.Socketpair(unix.AF_UNIX, give.kind|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					t.Error(err)
					return -1
				}
				unix.Close(pair[1])
				called := proto.Name{Role: give.role, IPv6: m.IPv6, Local: m.Local, Peer: m.Peer, Unique: uint64(given.Add(1))}
				if err := unix.Bind(pair[0], &unix.SockaddrUnix{Name: called.String()}); err != nil {
					t.Error(err)
				}
				return pair[0]
			}
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			cmd := exec.CommandContext(ctx, program, "parts", "1")
			cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+l.path)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if given.Load() == 0 {
				t.Error("nothing was claimed")
			}
		})
	}
}

// TestLies has a supervisor send answers that it must not send, or descriptors that nobody has
// asked for. Connections are TCP then, or, where it takes an end and drops it, at an end; the
// program never crashes or waits, nor gets another socket in the place of its own.
func TestLies(t *testing.T) {
	program := ringProgram(t)
	honest := map[proto.Kind]string{proto.KindAnnounce: "honest", proto.KindBoard: "honest", proto.KindOffer: "no", proto.KindClaim: "no", proto.KindCancel: "honest"}
	try := func(t *testing.T, library string, environ ...string) {
		for _, k := range []proto.Kind{proto.KindAnnounce, proto.KindBoard, proto.KindClaim, proto.KindOffer} {
			for _, what := range lies {
				answers := make(map[proto.Kind]string)
				for k, v := range honest {
					answers[k] = v
				}
				answers[k] = what
				// An Offer that is answered with a 0 is taken.
				taken := k == proto.KindOffer && what != "hang up" && what != "short" && what != "kind" && what != "version" && what != "status" && what != "no"
				lie(t, program, library, answers, !taken, environ...)
			}
		}
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		for range 20 {
			answers := make(map[proto.Kind]string)
			for k := range honest {
				answers[k] = lies[random.IntN(len(lies))]
			}
			lie(t, program, library, answers, false, environ...)
		}
	}
	t.Run("committed", func(t *testing.T) { try(t, committedLibrary(t)) })
	t.Run("sanitized", func(t *testing.T) { try(t, sanitizedLibrary(t), "ASAN_OPTIONS=detect_leaks=0") })
}
