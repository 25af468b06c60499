package supervisor

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/wire/clc"
)

// lingering returns a connected TCP socket. Its close waits until the test ends: it has bytes to
// send that nobody takes.
func lingering(t *testing.T) (fd int) {
	t.Helper()
	fd, _ = lingeringUntil(t)
	return fd
}

// lingeringUntil is lingering, but the close waits until the function that is returned is called.
func lingeringUntil(t *testing.T) (fd int, end func()) {
	t.Helper()
	l := listenTCP(t, "127.0.0.1:0")
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	to := l.Addr().(*net.TCPAddr).AddrPort()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}); err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	end = func() { peer.Close() } // with bytes unread, which resets it
	t.Cleanup(end)
	b := make([]byte, 1<<20)
	for err == nil {
		err = unix.Sendto(fd, b, unix.MSG_DONTWAIT, nil)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1000}); err != nil {
		t.Fatal(err)
	}
	return fd, end
}

// TestOutsideRefused has other users send, in talks that are too many, descriptors that are slow to
// close. Our own are served meanwhile; the others are as soon as something was closed.
func TestOutsideRefused(t *testing.T) {
	s := newTestSupervisor(t)
	places := func(count, refused int) {
		s.Mu.Lock()
		defer s.Mu.Unlock()
		s.outsiders.count, s.outsiders.refused = count, refused
	}
	board := testMessage(proto.Message{Kind: proto.KindBoard})
	served := func(p *program, what string) {
		t.Helper()
		got, fd := p.reply()
		if got != proto.StatusOK {
			t.Errorf("%s: status %d", what, got)
		}
		unix.Close(fd)
	}
	fd, end := lingeringUntil(t)
	door := "@gosmc-run/" + filepath.Base(s.Path)
	func() {
		s.Mu.Lock() // it gets nothing before the last descriptor is its own
		defer s.Mu.Unlock()
		s.outsiders.count, s.outsiders.refused = maxOutside, maxRefused-1
		s.dial(t, door).send(board, fd)
		unix.Close(fd)
	}()
	late := s.dial(t, door)
	late.send(board)
	for range 3 {
		p := s.program(t)
		p.send(board)
		served(p, "our own")
	}
	unix.SetsockoptTimeval(late.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200000})
	if n, _, err := unix.Recvfrom(late.fd, make([]byte, 1), unix.MSG_PEEK); err != unix.EAGAIN && err != unix.EINTR {
		t.Errorf("another one was accepted: Recvfrom = %d, %v", n, err)
	}
	places(0, maxRefused)
	unix.SetsockoptTimeval(late.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	end()
	served(late, "another one, when the first is closed")
}

// TestOutsideFlood has others get their turn while one of another user's connects over and over.
func TestOutsideFlood(t *testing.T) {
	s, start := stillSupervisor(t)
	for range broker.MaxAccepts + 10 {
		s.dial(t, "@gosmc-run/"+filepath.Base(s.Path))
	}
	s.Mu.Lock()
	s.acceptOutside()
	if got := s.outsiders.count; got != broker.MaxAccepts {
		t.Errorf("%d are accepted in one turn, want %d", got, broker.MaxAccepts)
	}
	s.Mu.Unlock()
	stop := start()
	p := s.dial(t, "@gosmc-run/"+filepath.Base(s.Path))
	p.send(testMessage(proto.Message{Kind: proto.KindBoard}))
	if got, fd := p.reply(); got != proto.StatusOK {
		t.Errorf("Board behind these: status %d", got)
	} else {
		unix.Close(fd)
	}
	stop()
}

// TestOutsideLingers has another user's program send a socket that makes the last process to close
// it wait, in a claim and behind a message after which the supervisor listens no more. Others are
// served meanwhile.
func TestOutsideLingers(t *testing.T) {
	s := newTestSupervisor(t)
	claim := testMessage(proto.Message{Kind: proto.KindClaim, Local: netip.MustParseAddrPort("127.0.0.1:1"), Peer: netip.MustParseAddrPort("127.0.0.1:2")})
	for what, messages := range map[string][][]byte{
		"claim": {claim},
		"more":  {testMessage(proto.Message{Kind: proto.KindBoard}), claim},
		"offer": {testMessage(proto.Message{Kind: proto.KindOffer})},
	} {
		fd := lingering(t)
		door := s.dial(t, "@gosmc-run/"+filepath.Base(s.Path))
		for i, m := range messages {
			with := []int{fd}[:max(0, i+2-len(messages))]
			var rights []byte
			if len(with) > 0 {
				rights = unix.UnixRights(with...)
			}
			unix.Sendmsg(door.fd, m, rights, nil, unix.MSG_NOSIGNAL) // it may have been hung up on
		}
		done := make(chan struct{})
		go func() { unix.Close(fd); close(done) }() // if the last one is this
		p := s.program(t)
		p.send(testMessage(proto.Message{Kind: proto.KindBoard}))
		got, board := p.reply()
		if got != proto.StatusOK {
			t.Errorf("%s: Board: status %d", what, got)
		}
		unix.Close(board)
	}
}

// TestOutsideSilent has a program that says nothing be hung up on.
func TestOutsideSilent(t *testing.T) {
	s := newTestSupervisor(t)
	door := s.dial(t, "@gosmc-run/"+filepath.Base(s.Path))
	unix.SetsockoptTimeval(door.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60})
	if n, err := readFrom(door.fd, make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("Read = %d, %v, want an end of file", n, err)
	}
}

// TestAnnounceOutside has the program that 'gosmc run' has become announce a listener by the door,
// as it does when it has another user by then. No other process may, nor one that has got the
// process ID when that program has ended.
func TestAnnounceOutside(t *testing.T) {
	s := newTestSupervisor(t)
	l := listenTCP(t, "127.0.0.1:0")
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	announce := proto.Message{Kind: proto.KindAnnounce, NetNS: s.Listeners.NetNS, Local: l.Addr().(*net.TCPAddr).AddrPort()}
	raw.Control(func(fd uintptr) {
		announce.Unique, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() proto.Status {
		p := s.dial(t, proto.DoorName(filepath.Base(s.Path)))
		p.send(testMessage(announce))
		got, _ := p.reply()
		return got
	}
	if got := ask(); got != 99 {
		t.Errorf("Announce of another process: status %d, want to be hung up on", got)
	}
	s.Mu.Lock()
	s.first = os.Getpid() // and no program that is watched: it has ended
	s.Mu.Unlock()
	if got := ask(); got != 99 {
		t.Errorf("Announce of a process with its ID, when the first has ended: status %d, want to be hung up on", got)
	}
	s.Mu.Lock()
	err = s.programs.add(s.first)
	s.Mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(); got != proto.StatusOK {
		t.Errorf("Announce of the first process: status %d, want %d", got, proto.StatusOK)
	}
	if _, err := os.Readlink(s.Listeners.Link(announce.Local.Port())); err != nil {
		t.Error(err)
	}
}

// TestLives has a process that has ended, and whose end the supervisor has not heard of yet.
func TestLives(t *testing.T) {
	poll, err := broker.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer poll.Close()
	p := newPrograms(poll, "", 1000)
	defer p.close()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := p.add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if !p.lives(cmd.Process.Pid) || p.lives(os.Getpid()) {
		t.Errorf("lives = %t of a process that is watched, %t of another one", p.lives(cmd.Process.Pid), p.lives(os.Getpid()))
	}
	cmd.Process.Kill()
	cmd.Wait()
	if p.lives(cmd.Process.Pid) {
		t.Error("a process that has ended lives")
	}
}

// TestOutsiders has no user take the places of all.
func TestOutsiders(t *testing.T) {
	o := outsiders{users: make(map[uint32]int)}
	n := 0
	for ; o.admit(1000); n++ {
	}
	if n != maxOutsideUser {
		t.Errorf("one user has %d places, want %d", n, maxOutsideUser)
	}
	for uid := range uint32(10) {
		for o.admit(uid) {
			n++
		}
	}
	if n != maxOutside {
		t.Errorf("all have %d places, want %d", n, maxOutside)
	}
	for o.users[1000] > 0 {
		o.leave(1000)
	}
	if !o.admit(2000) || o.count != maxOutside-maxOutsideUser+1 {
		t.Errorf("%d places are taken, want %d", o.count, maxOutside-maxOutsideUser+1)
	}
}

// TestLingers is TestOutsideLingers with a program of the supervisor's own user, wherever a
// descriptor that it sends can be closed.
func TestLingers(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	s := newTestSupervisor(t)
	c := s.offer(t)
	claim := testMessage(proto.Message{Kind: proto.KindClaim, Local: c.server, Peer: c.socket})
	offer := testMessage(c.offer)
	board := testMessage(proto.Message{Kind: proto.KindBoard})
	many := slices.Repeat([]int{int(null.Fd())}, 200)
	for what, send := range map[string]func(fd int){
		"claim":     func(fd int) { s.program(t).send(claim, fd) },
		"malformed": func(fd int) { s.program(t).send(claim[:10], fd) },
		"too many":  func(fd int) { s.program(t).send(board, append(slices.Clone(many), fd)...) },
		"unread": func(fd int) {
			p := s.program(t)
			p.send(board)
			p.send(claim, fd)
		},
		"offer": func(fd int) { s.program(t).send(offer, fd) },
		"letter": func(fd int) {
			from, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(from)
			if err := unix.Connect(from, &unix.SockaddrUnix{Name: proto.BoxPath(s.Path, proto.BoxOf(c.socket.Port()))}); err != nil {
				t.Error(err)
			}
			if err := unix.Sendmsg(from, offer, unix.UnixRights(fd), nil, 0); err != nil {
				t.Error(err)
			}
		},
	} {
		fd := lingering(t)
		s.Mu.Lock() // it gets nothing before the last descriptor is its own
		send(fd)
		unix.Close(fd)
		s.Mu.Unlock()
		p := s.program(t)
		p.send(claim, int(null.Fd())) // before which letters are read
		if got, _ := p.reply(); got != proto.StatusNo {
			t.Errorf("%s: Claim by what is no socket: status %d", what, got)
		}
	}
}

// TestOutsideMany has another user's program send as many descriptors as a message may bring, of which the first takes long to close. The others do not stay with the
// supervisor for as long.
func TestOutsideMany(t *testing.T) {
	const most = 253
	s := newTestSupervisor(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	fd := lingering(t)
	before := descriptorCount(t)
	s.Mu.Lock() // it accepts nobody before the last descriptor is its own
	door := s.dial(t, "@gosmc-run/"+filepath.Base(s.Path))
	door.send(testMessage(proto.Message{Kind: proto.KindClaim}), append([]int{fd}, slices.Repeat([]int{int(null.Fd())}, most-1)...)...)
	unix.Close(fd)
	s.Mu.Unlock()
	got := 0
	for start := time.Now(); time.Since(start) < 5*time.Second; time.Sleep(10 * time.Millisecond) {
		s.Mu.Lock()
		taken := s.outsiders.count > 0
		s.Mu.Unlock()
		if got = descriptorCount(t); taken && got > before && time.Since(start) > time.Second {
			break
		}
	}
	if got > before+most/2 {
		t.Errorf("there are %d descriptors more than before", got-before)
	}
}

func descriptorCount(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestCarriedOutside has a process of another user hand over a connection for an engine. Only one that was accepted from a
// listener of our programs is taken, as their workers have it; none that was made by connect.
func TestCarriedOutside(t *testing.T) {
	s := newTestSupervisor(t)
	l := listenTCP(t, "127.0.0.1:0")
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	file, err := accepted.File()
	if err != nil {
		t.Fatal(err)
	}
	accepted.Close()
	defer file.Close()
	s.Mu.Lock()
	s.followed.settings.BetweenHosts = true
	s.carrier.started = time.Now() // no engine is started: that the connection is to be taken shows by BUSY
	s.Mu.Unlock()
	m := proto.Message{Kind: proto.KindCarried, Local: l.Addr().(*net.TCPAddr).AddrPort(), Peer: client.LocalAddr().(*net.TCPAddr).AddrPort()}
	ask := func(m proto.Message) proto.Status {
		p := s.dial(t, proto.DoorName(filepath.Base(s.Path)))
		p.send(testMessage(m), int(file.Fd()))
		got, _ := p.reply()
		return got
	}
	tcp := func(reason clc.Diagnosis) uint64 {
		s.record.mu.Lock()
		defer s.record.mu.Unlock()
		return s.record.tcp[reason]
	}
	if got := ask(m); got != proto.StatusNo || tcp(clc.DiagOtherUser) != 1 || tcp(clc.DiagBusy) != 0 {
		t.Errorf("a connection of another listener: status %d, reasons %v; want OTHER_USER", got, s.record.tcp)
	}
	s.Mu.Lock()
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	announce := proto.Message{Kind: proto.KindAnnounce, NetNS: s.Listeners.NetNS, Local: m.Local}
	raw.Control(func(fd uintptr) {
		announce.Unique, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	})
	if err != nil || !s.Listeners.Add(announce) {
		t.Errorf("Add: %v", err)
	}
	s.Mu.Unlock()
	if got := ask(m); got != proto.StatusNo || tcp(clc.DiagOtherUser) != 1 || tcp(clc.DiagBusy) != 1 {
		t.Errorf("a connection of a listener of ours: status %d, reasons %v; want BUSY, as there is no engine", got, s.record.tcp)
	}
	m.Kind = proto.KindCarry
	if got := ask(m); got != 99 {
		t.Errorf("Carry: status %d, want to be hung up on", got)
	}
}
