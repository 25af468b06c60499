package supervisor

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/internal/run/broker"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/user"
	"github.com/gosmc/smc/wire/clc"
)

// A supervisor has letterboxes, sockets that listen. Clients connect their ends to them, and send
// offers without waiting for an answer. A program that accepts a TCP connection accepts the
// server's end out of a letterbox by itself, with a copy of the letterbox's descriptor. So nobody
// waits for the supervisor, nor wakes it more often than 50 times a second. The supervisor takes an
// end that is not taken, as its server is none of ours or could not take it: some time later, and
// before it is asked about that connection.
//
//	event                                   action
//	a letter comes, and none did lately     letters are read in 20 ms
//	they are read                           those there are kept as offers; read again in 20 ms, until there was none
//	they are to be read, and servers claim  a letterbox out of which programs take is left to them, and so is any other, for maxPasses times,
//	                                        unless a connection was joined to TCP within joinedAge: its like would wait for that
//	Claim                                   the letterbox of that connection is read first, up to its letter
//	Return                                  read, and kept as an offer
//	an end comes without its letter         looked at again whenever letters are read, for letterPatience
//
// Ends stay where they are while there are more offers than may be: when a letterbox is full, clients ask.
type letters struct {
	boxes  []int
	notes  int       // the end of the record's notes that programs get
	poll   int       // an epoll that is readable while a letterbox is
	next   time.Time // when they are read; zero: when poll tells
	read   bool      // since the time before
	claims bool      // somebody has claimed, since the time before
	// times, one after another, that a letterbox was not read though it had letters
	passed [proto.Letterboxes]int
	joined time.Time // when a connection was last joined to TCP; zero: never
	unsent []unsent
	letter [proto.MessageLen]byte // the bytes behind it are the program's
	with   [dispose.Room]byte     // for the descriptors of a letter
}

// unsent is an end with a client that has not sent its letter yet.
type unsent struct {
	end   int
	until time.Time
}

func (s *supervisor) openLetters() error {
	l := &s.letters
	var err error
	if l.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	for i := range proto.Letterboxes {
		box, err := letterbox(proto.BoxPath(s.Path, i))
		if err != nil {
			return fmt.Errorf("letterbox: %w", err)
		}
		l.boxes = append(l.boxes, box)
		if err := unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, box,
			&unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
			return os.NewSyscallError("epoll_ctl", err)
		}
	}
	if l.notes, err = s.record.notes.open(); err != nil {
		return err
	}
	if err := s.board.setLetters(os.Getpid(), l.notes, l.boxes); err != nil {
		return err
	}
	// Yama lets no program take a descriptor of ours unless we allow it. A program that could take
	// one without Yama still has to be of our user.
	unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0)
	return s.Poll.Add(l.poll, unix.EPOLLIN|unix.EPOLLONESHOT)
}

func letterbox(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		err = rundir.Chmod(unix.AT_FDCWD, path, unix.S_IFSOCK, 0o600)
	}
	if err == nil {
		err = unix.Listen(fd, boxBacklog)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (s *supervisor) closeLetters() {
	for i, fd := range s.letters.boxes {
		os.Remove(proto.BoxPath(s.Path, i))
		unix.Close(fd)
	}
	for _, u := range s.letters.unsent {
		dispose.Close(u.end)
	}
	proto.CloseAll([]int{s.letters.notes, s.letters.poll})
	s.record.notes.close()
}

// lettersCame takes note that there are some. Their servers take most of them.
func (s *supervisor) lettersCame(now time.Time) { s.letters.next = now.Add(broker.FirstLook) }

// readLetters has letters and notes read when it is time.
func (s *supervisor) readLetters(now time.Time) {
	l := &s.letters
	if l.next.IsZero() || now.Before(l.next) {
		return
	}
	l.read = s.readNotes()
	s.readUnsent()
	var ready [proto.Letterboxes]unix.EpollEvent
	n, _ := unix.EpollWait(l.poll, ready[:], 0)
	for _, e := range ready[:max(n, 0)] {
		if number := int(e.Fd); !s.pass(number, now) {
			s.readBox(number)
		}
	}
	l.claims = false
	if l.read || n > 0 || len(l.unsent) > 0 {
		l.next = now.Add(broker.FirstLook)
		return
	}
	l.next = time.Time{}
	s.Poll.Again(l.poll, unix.EPOLLIN|unix.EPOLLONESHOT)
}

// pass reports whether the letters of a letterbox are left where they are, for programs that take
// some. A program has to ask for an end that we keep, which takes longer than a connection over
// TCP, and meanwhile more would come. A program that takes a letter takes all before it, so that
// none is left behind. Where servers that do not claim accept beside others, letters for them are
// not left for as long, as their clients wait.
func (s *supervisor) pass(number int, now time.Time) bool {
	l := &s.letters
	switch {
	case s.record.notes.from(number): // rule: TestLettersPassed
		l.passed[number] = 0
		return true
	case l.claims && l.passed[number] < maxPasses && now.Sub(l.joined) > joinedAge: // rule: TestLettersPassed
		l.passed[number]++
		return true
	}
	l.passed[number] = 0
	return false
}

// readBox keeps the letters of a letterbox: all that there are, or as many offers as may be.
func (s *supervisor) readBox(number int) {
	for range maxLetters {
		if len(s.ByKey)+len(s.letters.unsent) >= s.Room || !s.readNext(number) { // rule: TestLetterRoom
			return
		}
	}
}

// readUntil keeps the letters of a connection's letterbox up to the one that offers it, which
// somebody asks for.
func (s *supervisor) readUntil(key broker.Key) {
	s.readUnsent()
	for range maxLetters {
		if o := s.ByKey[key]; o != nil && !o.Withdrawn() { // rule: TestLettersBehind
			return
		}
		if !s.readNext(proto.BoxOf(key.Client.Port())) {
			return
		}
	}
}

// readNext keeps the first letter of a letterbox. It reports false if there is none, or no descriptor for it.
func (s *supervisor) readNext(number int) bool {
	if !broker.Spare(s.Socket, lettersBring) { // rule: TestLetterDescriptors
		return false
	}
	end, _, err := unix.Accept4(s.letters.boxes[number], unix.SOCK_CLOEXEC)
	if err != nil {
		return false
	}
	s.read(unsent{end, time.Now().Add(letterPatience)})
	return true
}

// readUnsent looks at the ends with letters that were not there yet.
func (s *supervisor) readUnsent() {
	list := s.letters.unsent
	s.letters.unsent = nil
	for _, u := range list {
		s.read(u)
	}
}

// read takes the letter that comes with an end, and keeps it as an offer.
func (s *supervisor) read(u unsent) {
	if !broker.Spare(s.Socket, 1) { // rule: TestLetterLate
		s.readLater(u)
		return
	}
	s.unfold(u)
}

// unfold is read when there seems to be a descriptor for the TCP socket.
func (s *supervisor) unfold(u unsent) {
	// The letter stays where it is until its descriptor is here: others may take the last ones that are free.
	n, with, flags, _, err := unix.Recvmsg(u.end, s.letters.letter[:], s.letters.with[:], unix.MSG_PEEK|
		unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if (err == unix.EAGAIN || err == unix.EINTR) && time.Now().Before(u.until) { // rule: TestLetterLate
		s.readLater(u)
		return
	}
	fds := dispose.Descriptors(s.letters.with[:max(with, 0)])
	if err == nil && flags&unix.MSG_CTRUNC != 0 { // rule: TestLetterTorn
		dispose.Close(fds...)
		s.readLater(u)
		return
	}
	if err == nil {
		_, _, err = unix.Recvfrom(u.end, s.letters.letter[:max(n, 0)], unix.MSG_DONTWAIT)
	}
	m, parseErr := proto.ParseMessage(s.letters.letter[:max(n, 0)])
	cred, credErr := unix.GetsockoptUcred(u.end, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || parseErr != nil || credErr != nil || !user.Ours(int(cred.Uid)) || len(fds) != 1 ||
		m.Kind != proto.KindOffer {
		dispose.Close(append(fds, u.end)...)
		return
	}
	s.letters.read = true
	s.keep(m, u.end, fds[0], int(cred.Pid))
}

// readLater has a letter looked for when letters are read, which is soon.
func (s *supervisor) readLater(u unsent) {
	s.letters.unsent = append(s.letters.unsent, u)
	if s.letters.next.IsZero() {
		s.lettersCame(time.Now())
	}
}

// keep keeps an end and the TCP socket that a client is about to connect. The client does not wait
// for an answer, so no letter is refused that could be meant well: an end that nobody claims is
// joined to TCP.
func (s *supervisor) keep(m proto.Message, end, tcp, pid int) {
	o := &broker.Offer{Key: broker.KeyOf(m.Local, m.Peer), Client: m.Local, Server: m.Peer, Unique: m.Unique,
		End: end, TCP: tcp, Letter: true}
	theirs := proto.Name{Role: proto.RoleClient, IPv6: m.IPv6, Local: m.Local, Peer: m.Peer, Unique: m.Unique}
	if before := s.ByKey[o.Key]; before != nil && before.Withdrawn() { // rule: TestLetterWithdrawn
		s.Drop(before) // its client has connected anew
	}
	if m.NetNS != s.Listeners.NetNS || s.ByKey[o.Key] != nil || !proto.IsTCP(tcp) ||
		!proto.IsStream(end, unix.AF_UNIX) ||
		broker.PeerName(end) != theirs.String() || o.Withdrawn() {
		dispose.Close(end, tcp)
		return
	}
	s.Listeners.Has(m.Peer) // if nobody listens there any more it is withdrawn
	s.record.offered(m, pid, clc.DiagNone)
	s.ByKey[o.Key] = o
	s.Hold(o)
}

// readNotes reads which letters programs have taken by themselves, and reports whether there were
// any.
func (s *supervisor) readNotes() (some bool) {
	s.record.readNotes()
	for port, n := range s.record.notes.claims() {
		some = true
		s.letters.claims = true
		s.Listeners.Claimed(port, n)
	}
	return some
}
