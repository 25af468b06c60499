package supervisor

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/proto"
)

// Cases of testdata/rings in which somebody gets a descriptor while bytes are in its ring.
var handedCases = []string{"handed-fork", "handed-exec", "handed-spawn", "handed-passed", "handed-stream", "handed-splice", "handed-ended", "handed-kept", "unshared"}

// TestHanded has programs give a descriptor away while bytes are in its ring, to a program without
// the library and to one that is static, and have one of their threads close its own copies: the
// reader gets all bytes in their order.
func TestHanded(t *testing.T) {
	program := ringProgram(t)
	source, _ := filepath.Glob("testdata/rings/*.c")
	static := filepath.Join(t.TempDir(), "static")
	compile(t, append([]string{"-O1", "-static", "-pthread", "-o", static}, source...)...)
	t.Run("bare", func(t *testing.T) { runRings(t, program, handedCases, 1, "STATIC="+static) })
	library := committedLibrary(t)
	s := newTestSupervisor(t)
	environ := []string{"RINGS=1", "LD_PRELOAD=" + library, proto.EnvSocket + "=" + s.Path}
	t.Run("static", func(t *testing.T) { runRings(t, program, handedCases, 1, append(environ, "STATIC="+static)...) })
	t.Run("dynamic", func(t *testing.T) { runRings(t, program, handedCases, 1, environ...) })
}

// TestHandedSanitized has the sanitizers look at it.
func TestHandedSanitized(t *testing.T) {
	library := sanitizedLibrary(t)
	s := newTestSupervisor(t)
	runRings(t, ringProgram(t), handedCases, 1, "RINGS=1", "ASAN_OPTIONS=detect_leaks=0", "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path)
}

// A handOut has the descriptors that a program gives a supervisor, and those that it keeps.
type handOut struct {
	*program
	peer  int   // of the end
	heir  int   // of the process that has the descriptor
	given []int // the end, the other one of the pair, the file
}

func newHandOut(t *testing.T, s *supervisor, rest string) *handOut {
	t.Helper()
	h := &handOut{program: s.program(t)}
	own, fresh := unixPair(t), unixPair(t)
	file, err := unix.MemfdCreate("rest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(file) })
	if _, err := unix.Write(file, []byte(rest)); err != nil {
		t.Fatal(err)
	}
	h.peer, h.heir = own[0], fresh[0]
	h.given = []int{own[1], fresh[1], file}
	return h
}

func unixPair(t *testing.T) [2]int {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pair[0]) })
	return pair
}

// say sends a Relay, and returns the answer; 99 if the supervisor has hung up.
func (h *handOut) say(m proto.Message, fds ...int) proto.Status {
	m.Kind = proto.KindRelay
	h.send(testMessage(m), fds...)
	got, _ := h.reply()
	return got
}

// TestHandedRelay has a supervisor send the bytes of a ring, leave tokens out, and copy in both
// directions until both have ended.
func TestHandedRelay(t *testing.T) {
	s := newTestSupervisor(t)
	h := newHandOut(t, s, "in the ring, ")
	if got := h.say(proto.Message{}); got != proto.StatusOK {
		t.Fatalf("Relay: status %d", got)
	}
	if _, err := unix.Write(h.peer, []byte("\x00\x00and behind it")); err != nil {
		t.Fatal(err)
	}
	if got := h.say(proto.Message{Unique: 13, NetNS: 2}, h.given...); got != proto.StatusOK {
		t.Fatalf("second Relay: status %d", got)
	}
	proto.CloseAll(h.given[:2])
	if _, err := unix.Write(h.heir, []byte("an answer")); err != nil {
		t.Fatal(err)
	}
	unix.Shutdown(h.heir, unix.SHUT_WR)
	if got := readAll(t, h.peer); string(got) != "an answer" {
		t.Errorf("the peer has got %q", got)
	}
	unix.Shutdown(h.peer, unix.SHUT_WR)
	if got := readAll(t, h.heir); string(got) != "in the ring, and behind it" {
		t.Errorf("who has the descriptor has got %q", got)
	}
}

// TestHandedAnswer has the receiver of the descriptor leave bytes unread and end: its own bytes
// come all the same, and the peer sees the end.
func TestHandedAnswer(t *testing.T) {
	s := newTestSupervisor(t)
	h := newHandOut(t, s, string(make([]byte, 1<<20)))
	h.say(proto.Message{})
	if got := h.say(proto.Message{Unique: 1 << 20}, h.given...); got != proto.StatusOK {
		t.Fatalf("second Relay: status %d", got)
	}
	proto.CloseAll(h.given[:2])
	answer := bytes.Repeat([]byte("answer"), 10000)
	go func() {
		for b := answer; len(b) > 0; {
			n, err := unix.Write(h.heir, b)
			if err != nil {
				return
			}
			b = b[n:]
		}
		unix.Shutdown(h.heir, unix.SHUT_RDWR)
	}()
	if got := readAll(t, h.peer); !bytes.Equal(got, answer) {
		t.Errorf("the peer has got %d bytes, want %d", len(got), len(answer))
	}
}

// TestHandedHostile has a supervisor copy nothing for a program that does not ask first, or brings
// something else.
func TestHandedHostile(t *testing.T) {
	s := newTestSupervisor(t)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer proto.CloseAll(pipe[:])
	for name, change := range map[string]func(h *handOut, m *proto.Message){
		"length":    func(_ *handOut, m *proto.Message) { m.Unique = maxHanded + 1 },
		"tokens":    func(_ *handOut, m *proto.Message) { m.NetNS = maxTokens + 1 },
		"no socket": func(h *handOut, _ *proto.Message) { h.given[0] = pipe[0] },
		"no pair":   func(h *handOut, _ *proto.Message) { h.given[1] = pipe[1] },
		"no file":   func(h *handOut, _ *proto.Message) { h.given[2] = pipe[0] },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHandOut(t, s, "x")
			m := proto.Message{Unique: 1}
			given := [3]int(h.given)
			change(h, &m)
			if got := h.say(proto.Message{}); got != proto.StatusOK {
				t.Fatalf("Relay: status %d", got)
			}
			if got := h.say(m, h.given...); got != proto.StatusNo {
				t.Errorf("second Relay: status %d, want %d", got, proto.StatusNo)
			}
			proto.CloseAll(given[:2])
		})
	}
	h := newHandOut(t, s, "x")
	if got := h.say(proto.Message{Unique: 1}, h.given...); got != 99 {
		t.Errorf("Relay with descriptors first: status %d, want to be hung up on", got)
	}
	h = newHandOut(t, s, "x")
	h.say(proto.Message{})
	if got := h.say(proto.Message{Unique: 1}, h.given[:2]...); got != 99 {
		t.Errorf("second Relay without a file: status %d, want to be hung up on", got)
	}
	h = newHandOut(t, s, "x")
	h.say(proto.Message{})
	h.send(testMessage(proto.Message{Kind: proto.KindOffer, Local: netip.MustParseAddrPort("127.0.0.1:1"), Peer: netip.MustParseAddrPort("127.0.0.1:2")}), h.given[0])
	if got, _ := h.reply(); got != 99 {
		t.Errorf("Offer in place of the second Relay: status %d, want to be hung up on", got)
	}
	if n := len(s.Relays); n != 0 {
		t.Errorf("%d places among the relays are taken, want none", n)
	}
}

func readAll(t *testing.T, fd int) (all []byte) {
	t.Helper()
	var b [4096]byte
	for {
		n, err := unix.Read(fd, b[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return all
		}
		all = append(all, b[:n]...)
	}
}
