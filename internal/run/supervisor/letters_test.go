package supervisor

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/preload"
)

// stillSupervisor returns a supervisor that does nothing until start is called, and nothing after the function that returns.
func stillSupervisor(t *testing.T) (s *supervisor, start func() (stop func())) {
	t.Helper()
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s, err = newSupervisor(dir, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s, func() func() {
		done := make(chan error, 1)
		go func() { done <- s.serve() }()
		return func() {
			s.Stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
			unix.Read(s.Quit, make([]byte, 8))
		}
	}
}

// A lettersProgram is testdata/letters.c under the library.
type lettersProgram struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr strings.Builder
	port   uint16
}

// startLetters starts it; it listens.
func startLetters(t *testing.T, s *supervisor, mode string, environ ...string) *lettersProgram {
	t.Helper()
	if preload.Library() == nil {
		t.Skip("no library for " + runtime.GOARCH)
	}
	dir := t.TempDir()
	path, library := filepath.Join(dir, "letters"), filepath.Join(dir, "libgosmc.so")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, "testdata/letters.c")
	if err := os.WriteFile(library, preload.Library(), 0o555); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(stop)
	p := &lettersProgram{t: t, cmd: exec.CommandContext(ctx, path, mode)}
	p.cmd.Env = append(append(os.Environ(), "LD_PRELOAD="+library, proto.EnvSocket+"="+s.Path), environ...)
	p.cmd.Stderr = &p.stderr
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(p.stdout, &p.port); err != nil {
		t.Fatal(err, p.stderr.String())
	}
	return p
}

// run has it make its connections, and returns how many were moved.
func (p *lettersProgram) run() (moved int) {
	p.t.Helper()
	fmt.Fprintln(p.stdin)
	_, scanErr := fmt.Fscanln(p.stdout, &moved)
	if err := p.cmd.Wait(); err != nil || scanErr != nil {
		p.t.Fatalf("%v, %v\n%s", err, scanErr, p.stderr.String())
	}
	return moved
}

// counts returns how many connections were moved, and how many stayed TCP, as 'gosmc stats' has it.
func counts(s *supervisor) (moved, tcp uint64) {
	st := view{&s.record, s.Path, nil}.Status()
	return st.Counters.Connections[proto.ModeUnix], st.Counters.Connections["TCP"]
}

// TestLettersTaken has connections moved while the supervisor does nothing at all, and counted all the same.
func TestLettersTaken(t *testing.T) {
	s, start := stillSupervisor(t)
	stop := start()
	p := startLetters(t, s, "turn")
	stop()
	if n := p.run(); n != 100 {
		t.Errorf("%d were moved, want 100", n)
	}
	if moved, tcp := counts(s); moved != 100 || tcp != 0 {
		t.Errorf("%d were counted as moved, %d as TCP; want 100 and 0", moved, tcp)
	}
	s.readNotes()
	if n := s.Listeners.Claims(p.port); n != 100 {
		t.Errorf("the listener has %d claims, want 100", n)
	}
}

// TestLetters has nothing break in cases that are not as simple.
func TestLetters(t *testing.T) {
	for mode, want := range map[string]struct{ least, most int }{
		"turn": {100, 100}, "many": {1800, 1800}, "closed": {2000, 2000}, "narrow": {20, 20}, "withdrawn": {1, 3}, "again": {1, 3}, "stale": {1, 1}, "foreign": {1, 3}, "marked": {0, 0}, "filtered": {50, 50}, "filtering": {0, 0}, "mapped": {20, 20},
	} {
		t.Run(mode, func(t *testing.T) {
			s := newTestSupervisor(t)
			if n := startLetters(t, s, mode).run(); n < want.least || n > want.most {
				t.Errorf("%d were moved, want %d to %d", n, want.least, want.most)
			}
			moved, tcp := counts(s)
			t.Logf("%d were counted as moved, %d as TCP", moved, tcp)
			// One that is relayed first, and taken after all, may stay counted as TCP.
			if all := uint64(want.least); all > 20 && (moved+tcp != all || tcp > all/100) {
				t.Errorf("%d were counted as moved and %d as TCP, want %d in all and nearly all moved", moved, tcp, want.least)
			}
		})
	}
}

// connectEnd has a client about to offer a connection to one that listens: its end is connected to a letterbox.
func (s *supervisor) connectEnd(t *testing.T) *connection {
	t.Helper()
	l := listenTCP(t, "127.0.0.1:0")
	c := &connection{listener: l, server: l.Addr().(*net.TCPAddr).AddrPort(), client: &program{t: t}}
	var err error
	if c.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(c.fd) })
	if err := unix.Bind(c.fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	sa, _ := unix.Getsockname(c.fd)
	c.socket = proto.AddrPort(sa)
	if c.end, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	c.other = -1
	t.Cleanup(func() { proto.CloseAll([]int{c.end}) })
	unix.SetsockoptTimeval(c.end, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	c.offer = proto.Message{Kind: proto.KindOffer, NetNS: s.Listeners.NetNS, Local: c.socket, Peer: c.server}
	c.offer.Unique, _ = unix.GetsockoptUint64(c.end, unix.SOL_SOCKET, unix.SO_COOKIE)
	theirs := proto.Name{Role: proto.RoleClient, Local: c.socket, Peer: c.server, Unique: c.offer.Unique}
	if err := unix.Bind(c.end, &unix.SockaddrUnix{Name: theirs.String()}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(c.end, &unix.SockaddrUnix{Name: proto.BoxPath(s.Path, proto.BoxOf(c.socket.Port()))}); err != nil {
		t.Fatal(err)
	}
	return c
}

// sendLetter offers a connection to one that listens, by letter.
func (s *supervisor) sendLetter(t *testing.T) *connection {
	t.Helper()
	c := s.connectEnd(t)
	c.sendLetter()
	return c
}

func (c *connection) sendLetter() {
	t := c.client.t
	t.Helper()
	if err := unix.Sendmsg(c.end, testMessage(c.offer), unix.UnixRights(c.fd), nil, unix.MSG_DONTWAIT); err != nil {
		t.Fatal(err)
	}
}

// withdraw has a client give up, and reports whether it could: see preload/letters.c.
func (c *connection) withdraw() bool {
	all := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: ^uint32(0)}
	err := unix.SetsockoptSockFprog(c.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &all})
	if err != nil && err != unix.EPERM {
		c.client.t.Fatal(err)
	}
	return err == nil
}

// TestLetterFirst has a server claim the end in a letterbox which nobody has looked into.
func TestLetterFirst(t *testing.T) {
	s, start := stillSupervisor(t)
	c := s.sendLetter(t)
	s.letters.next = time.Time{} // it will not look by itself before long
	s.Poll.Remove(s.letters.poll)
	defer start()()
	s.claims(t, c, "with a letter that nobody has looked at")
}

// TestLetterWithdrawn has a client give up. Its TCP socket goes on without the supervisor: neither
// claimed nor relayed.
func TestLetterWithdrawn(t *testing.T) {
	for _, read := range []bool{false, true} {
		s, start := stillSupervisor(t)
		c := s.sendLetter(t)
		if err := c.dial(); err != nil {
			t.Fatal(err)
		}
		if read {
			s.readUntil(broker.KeyOf(c.socket, c.server))
		}
		if !c.withdraw() {
			t.Fatal("the client could not give up")
		}
		if read {
			s.Look(time.Now().Add(time.Minute))
		} else {
			s.readUntil(broker.KeyOf(c.socket, c.server))
		}
		if len(s.ByKey) != 0 || len(s.Held) != 0 {
			t.Errorf("read before: %t: the supervisor has %d offers", read, len(s.ByKey))
		}
		stop := start()
		if st, _ := s.claimAs(t, c); st != proto.StatusNo {
			t.Errorf("Claim: status %d, want %d", st, proto.StatusNo)
		}
		stop()
		if _, err := c.accepted.Write([]byte("there")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10)
		if n, err := readFrom(c.fd, b); err != nil || string(b[:n]) != "there" {
			t.Errorf("read %q, %v over TCP", b[:max(n, 0)], err)
		}
	}
}

// TestLetterNeverConnected has a client die between its letter and its connection.
func TestLetterNeverConnected(t *testing.T) {
	s, _ := stillSupervisor(t)
	c := s.sendLetter(t)
	s.readUntil(broker.KeyOf(c.socket, c.server))
	s.Look(time.Now().Add(time.Minute))
	if len(s.ByKey) != 1 {
		t.Fatalf("there are %d offers while the client lives, want 1", len(s.ByKey))
	}
	proto.CloseAll([]int{c.end, c.fd})
	c.end, c.fd = -1, -1
	s.Look(time.Now().Add(time.Hour))
	if len(s.ByKey) != 0 {
		t.Error("there is an offer of nobody")
	}
}

// TestLetterReset has a listener go with a connection in its queue: the client is told at the next look.
func TestLetterReset(t *testing.T) {
	s, _ := stillSupervisor(t)
	c := s.sendLetter(t)
	if err := c.dial(); err != nil {
		t.Fatal(err)
	}
	s.readUntil(broker.KeyOf(c.socket, c.server))
	if len(s.ByKey) != 1 {
		t.Fatalf("the supervisor has %d offers, want 1", len(s.ByKey))
	}
	c.listener.Close()
	s.Look(time.Now().Add(time.Second))
	if len(s.ByKey) != 0 {
		t.Errorf("the supervisor has %d offers of a connection that was reset", len(s.ByKey))
	}
}

// TestLetterRoom leaves letters where they are when there are too many offers, unless somebody asks about one.
func TestLetterRoom(t *testing.T) {
	s, _ := stillSupervisor(t)
	s.Room = 1
	first := s.sendLetter(t)
	s.readBox(proto.BoxOf(first.socket.Port()))
	c := s.sendLetter(t)
	s.readBox(proto.BoxOf(c.socket.Port()))
	if len(s.ByKey) != 1 {
		t.Errorf("there are %d offers, want 1", len(s.ByKey))
	}
	s.readUntil(broker.KeyOf(c.socket, c.server))
	if len(s.ByKey) != 2 {
		t.Errorf("there are %d offers when somebody asks, want 2", len(s.ByKey))
	}
}

// twoInOneBox has two clients send letters that come into one letterbox, one after the other.
func (s *supervisor) twoInOneBox(t *testing.T) (first, second *connection) {
	t.Helper()
	first = s.sendLetter(t)
	for range 1000 {
		if second = s.connectEnd(t); proto.BoxOf(second.socket.Port()) == proto.BoxOf(first.socket.Port()) {
			second.sendLetter()
			return first, second
		}
		proto.CloseAll([]int{second.end}) // and its letterbox has an end that is over
		second.end = -1
	}
	t.Fatal("no two connections have one letterbox")
	return nil, nil
}

// TestLettersBehind has somebody ask about a letter: those behind it stay where they are, for programs to take.
func TestLettersBehind(t *testing.T) {
	s, _ := stillSupervisor(t)
	first, second := s.twoInOneBox(t)
	s.readUntil(broker.KeyOf(first.socket, first.server))
	if len(s.ByKey) != 1 || s.ByKey[broker.KeyOf(first.socket, first.server)] == nil {
		t.Errorf("there are %d offers when somebody asks about the first letter; want that one", len(s.ByKey))
	}
	s.readUntil(broker.KeyOf(second.socket, second.server))
	if len(s.ByKey) != 2 {
		t.Errorf("there are %d offers when somebody asks about both, want 2", len(s.ByKey))
	}
}

// TestLettersPassed leaves letters to programs as long as they take some, and for a while as long as they ask for others.
func TestLettersPassed(t *testing.T) {
	s, _ := stillSupervisor(t)
	c := s.sendLetter(t)
	round := func(boxOfPort uint16, want int) {
		t.Helper()
		if boxOfPort != 0 {
			taken := proto.Message{Kind: proto.KindTaken, Local: c.server, Peer: netip.AddrPortFrom(c.socket.Addr(), boxOfPort)}
			if _, err := unix.Write(s.letters.notes, testMessage(taken)); err != nil {
				t.Fatal(err)
			}
		}
		s.letters.next = time.Now()
		s.readLetters(s.letters.next)
		if len(s.ByKey) != want {
			t.Fatalf("there are %d offers, want %d", len(s.ByKey), want)
		}
	}
	same, other := c.socket.Port(), c.socket.Port()^2 // boxOf(other) is another one
	for range 2 * maxPasses {
		round(same, 0)
	}
	for range maxPasses {
		round(other, 0)
	}
	round(other, 1)

	c = s.sendLetter(t)
	s.letters.claims = true // as a claim that was asked
	round(0, 1)
	round(0, 2)
}

// TestLettersJoined leaves no letter to programs that take others after a connection was joined to TCP: their servers may claim none.
func TestLettersJoined(t *testing.T) {
	s, _ := stillSupervisor(t)
	c := s.sendLetter(t)
	if err := c.dial(); err != nil {
		t.Fatal(err)
	}
	s.readUntil(broker.KeyOf(c.socket, c.server))
	c.accept()
	for _, o := range s.ByKey {
		s.Relay(o)
	}
	round := func(want int) {
		t.Helper()
		s.sendLetter(t)
		s.letters.claims = true
		s.letters.next = time.Now()
		s.readLetters(s.letters.next)
		if len(s.ByKey) != want {
			t.Errorf("there are %d offers, want %d", len(s.ByKey), want)
		}
	}
	round(1)
	s.letters.joined = s.letters.joined.Add(-2 * joinedAge)
	round(1)
}

// TestLetterReturned has a program give back an end that it took by mistake.
func TestLetterReturned(t *testing.T) {
	s, start := stillSupervisor(t)
	c := s.sendLetter(t)
	other, _, err := unix.Accept(s.letters.boxes[proto.BoxOf(c.socket.Port())])
	if err != nil {
		t.Fatal(err)
	}
	defer start()()
	m := c.offer
	m.Kind = proto.KindReturn
	p := s.program(t)
	s.Mu.Lock()
	p.send(testMessage(m), other)
	proto.CloseAll([]int{other})
	restore := leaveDescriptors(t, 1-len(s.Talks)) // for the talk, if it was not accepted yet
	s.Mu.Unlock()
	time.Sleep(20 * time.Millisecond)
	restore()
	if st, _ := p.reply(); st != 99 {
		t.Errorf("Return: status %d, want to be hung up on", st)
	}
	st, end := s.claimAs(t, c)
	if st != proto.StatusOK {
		t.Fatalf("Claim: status %d", st)
	}
	defer unix.Close(end)
	exchange(t, c.end, end, "back")
}

// TestLetterLate has an end come to the supervisor before its letter, of a client that goes on a moment later, or never.
func TestLetterLate(t *testing.T) {
	s, _ := stillSupervisor(t)
	c, never := s.connectEnd(t), s.connectEnd(t)
	for _, c := range []*connection{c, never} {
		s.readUntil(broker.KeyOf(c.socket, c.server))
	}
	if len(s.ByKey) != 0 || len(s.letters.unsent) != 2 || s.letters.next.IsZero() {
		t.Fatalf("there are %d offers and %d ends without letters, and they are looked at %v; want 0 and 2, soon", len(s.ByKey), len(s.letters.unsent), s.letters.next)
	}
	c.sendLetter()
	restore := leaveDescriptors(t, 0)
	s.readLetters(s.letters.next)
	restore()
	if len(s.ByKey) != 0 || len(s.letters.unsent) != 2 {
		t.Errorf("there are %d offers and %d ends without letters where there is no descriptor; want 0 and 2", len(s.ByKey), len(s.letters.unsent))
	}
	s.readLetters(s.letters.next)
	if len(s.ByKey) != 1 || len(s.letters.unsent) != 1 {
		t.Errorf("there are %d offers and %d ends without letters; want 1 and 1", len(s.ByKey), len(s.letters.unsent))
	}
	for i := range s.letters.unsent {
		s.letters.unsent[i].until = time.Now()
	}
	s.readLetters(s.letters.next)
	if n := len(s.letters.unsent); n != 0 {
		t.Errorf("%d ends are kept without letters", n)
	}
	if n, err := readFrom(never.end, make([]byte, 1)); n > 0 || err == unix.EAGAIN {
		t.Errorf("the client whose letter never came reads %d, %v; want that its end is over", n, err)
	}
}

// TestLetterRight has a client and its server, or its supervisor, both want an end: one of them gets it.
func TestLetterRight(t *testing.T) {
	take := func(s *supervisor) *broker.Offer {
		for _, o := range s.ByKey {
			return o
		}
		t.Fatal("there is no offer")
		return nil
	}
	s, _ := stillSupervisor(t)
	c := s.sendLetter(t)
	s.readUntil(broker.KeyOf(c.socket, c.server))
	if o := take(s); o.Withdrawn() || !o.Right() || c.withdraw() {
		t.Error("a client gives up what was taken")
	}
	s, _ = stillSupervisor(t)
	c = s.sendLetter(t)
	s.readUntil(broker.KeyOf(c.socket, c.server))
	if o := take(s); !c.withdraw() || o.Right() || !o.Withdrawn() {
		t.Error("what a client has given up is taken")
	}
}

// TestLetterRelayed has a client give up an end that is about to be joined to TCP.
func TestLetterRelayed(t *testing.T) {
	s, _ := stillSupervisor(t)
	c := s.sendLetter(t)
	if err := c.dial(); err != nil {
		t.Fatal(err)
	}
	s.readUntil(broker.KeyOf(c.socket, c.server))
	c.accept()
	c.withdraw()
	for _, o := range s.ByKey {
		s.Relay(o)
	}
	if len(s.ByKey) != 0 || len(s.Relays) != 0 {
		t.Errorf("there are %d offers and %d relays, want none", len(s.ByKey), len(s.Relays))
	}
	if _, err := c.accepted.Write([]byte("there")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	if n, err := readFrom(c.fd, b); err != nil || string(b[:n]) != "there" {
		t.Errorf("read %q, %v over TCP", b[:max(n, 0)], err)
	}
}

// TestOfferUnwatched has offers kept that cannot be watched, by letter and asked for: their server gets them, or they are joined to TCP.
func TestOfferUnwatched(t *testing.T) {
	unwatched := func(t *testing.T, s *supervisor, c *connection) {
		t.Helper()
		o := s.ByKey[broker.KeyOf(c.socket, c.server)]
		if o == nil {
			t.Fatal("the offer is gone")
		}
		s.Poll.Remove(o.TCP)
		o.Watched = false
		// It is watched already, so the poller cannot have it.
		if err := unix.EpollCtl(s.Poll.FD, unix.EPOLL_CTL_ADD, o.TCP, &unix.EpollEvent{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("claimed", func(t *testing.T) {
		s, start := stillSupervisor(t)
		c := s.sendLetter(t)
		if err := c.dial(); err != nil {
			t.Fatal(err)
		}
		s.readUntil(broker.KeyOf(c.socket, c.server))
		unwatched(t, s, c)
		c.accept()
		s.Look(time.Now().Add(time.Minute))
		if len(s.ByKey) != 1 {
			t.Fatal("the supervisor has dropped what it could not watch")
		}
		defer start()()
		st, end := s.claimAs(t, c)
		if st != proto.StatusOK {
			t.Fatalf("Claim: status %d", st)
		}
		defer unix.Close(end)
		exchange(t, c.end, end, "there")
	})
	t.Run("joined", func(t *testing.T) {
		s, _ := stillSupervisor(t)
		c := s.sendLetter(t)
		if err := c.dial(); err != nil {
			t.Fatal(err)
		}
		s.readUntil(broker.KeyOf(c.socket, c.server))
		unwatched(t, s, c)
		conn := c.accept()
		for i := range 2 {
			s.Look(time.Now().Add(time.Duration(i+1) * time.Minute))
		}
		if _, err := unix.Write(c.end, []byte("over TCP")); err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(30 * time.Second))
		b := make([]byte, 8)
		if _, err := io.ReadFull(conn, b); err != nil || string(b) != "over TCP" {
			t.Errorf("the server has read %q, %v", b, err)
		}
	})
}

// TestLetterTorn has a letter come when there is a descriptor for its end and none for its TCP socket any more, though there was one a moment before: it is read later.
func TestLetterTorn(t *testing.T) {
	s, _ := stillSupervisor(t)
	c := s.sendLetter(t)
	end, _, err := unix.Accept4(s.letters.boxes[proto.BoxOf(c.socket.Port())], unix.SOCK_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	restore := leaveDescriptors(t, 0)
	s.unfold(unsent{end, time.Now()})
	restore()
	if len(s.ByKey) != 0 || len(s.letters.unsent) != 1 {
		t.Fatalf("there are %d offers and %d letters to be read later; want 0 and 1", len(s.ByKey), len(s.letters.unsent))
	}
	s.readUnsent()
	if len(s.ByKey) != 1 {
		t.Errorf("there are %d offers, want 1", len(s.ByKey))
	}
}

// TestTaken counts the letters that programs report as taken, in notes and, when those are full, in
// messages; and nothing else that they report.
func TestTaken(t *testing.T) {
	s, start := stillSupervisor(t)
	taken := proto.Message{Kind: proto.KindTaken, Local: netip.MustParseAddrPort("127.0.0.1:80"), Peer: netip.MustParseAddrPort("127.0.0.1:40000"), NetNS: 1<<32 | 2}
	other := taken
	other.Kind = proto.KindClaim
	for _, b := range [][]byte{testMessage(taken), []byte("what"), testMessage(other)} {
		if _, err := unix.Write(s.letters.notes, b); err != nil {
			t.Fatal(err)
		}
	}
	if moved, _ := counts(s); moved != 1 {
		t.Errorf("%d were moved, want 1", moved)
	}
	stop := start()
	p := s.program(t)
	p.send(testMessage(taken))
	if st, _ := p.reply(); st != 99 {
		t.Errorf("Taken: status %d, want to be hung up on", st)
	}
	stop()
	if moved, _ := counts(s); moved != 2 {
		t.Errorf("%d were moved, want 2", moved)
	}
	s.readNotes()
	if n := s.Listeners.Claims(80); n != 2 {
		t.Errorf("the listener has %d claims, want 2", n)
	}
}

// TestLinkSaysAddress tells clients that they need not ask where whatever comes may be moved, and no longer when that is so no more.
func TestLinkSaysAddress(t *testing.T) {
	const plain, any, local = "s", "s.00000000000000000000000000000000", "s.00000000000000000000ffff7f000001"
	for _, c := range []struct {
		ports, prefixes string // that may be moved
		listeners       []string
		want            string
	}{
		{"", "", []string{"127.0.0.1:80"}, local},
		{"", "", []string{"[::]:80"}, any},
		{"", "", []string{"127.0.0.1:80", "127.0.0.1:80"}, local},
		{"", "", []string{"127.0.0.1:80", "127.0.0.2:80"}, plain},
		{"80", "", []string{"[::]:80"}, any},
		{"81", "", []string{"[::]:80"}, plain},
		{"", "127.0.0.0/8", []string{"[::]:80"}, plain},
		{"", "127.0.0.0/8", []string{"127.0.0.1:80"}, local},
		{"", "127.0.0.2", []string{"127.0.0.1:80"}, plain},
	} {
		dir := t.TempDir()
		l := broker.NewListeners(dir, "s", 1)
		policy, err := config.NewPolicy(config.Filter{Ports: strings.Fields(c.ports), Addresses: strings.Fields(c.prefixes)}, config.Filter{}, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		l.OpenLetters(policy)
		for i, a := range c.listeners {
			if !l.Add(proto.Message{Kind: proto.KindAnnounce, NetNS: 1, Local: netip.MustParseAddrPort(a), Unique: uint64(i)}) {
				t.Fatalf("add(%s) = false", a)
			}
		}
		if got, err := os.Readlink(l.Link(80)); got != c.want {
			t.Errorf("%+v: the link says %s, %v", c, got, err)
		}
		l.Close()
	}
}
