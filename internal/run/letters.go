package run

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/user"
	"github.com/gosmc/smc/wire/clc"
)

// A supervisor has letterboxes: sockets for datagrams, into which clients put offers whose answer they need not wait for. Who accepts takes its
// offer out by itself, with a copy of the descriptor, so that nobody waits for the supervisor, nor wakes it more often than 50 times a second. What is
// not taken, as its server is none of ours or could not, the supervisor takes: some time later, and before it is asked about that connection.
//
//	event                                   what is done
//	a letter comes, and none did lately     letters are read in 20 ms
//	they are read                           those there are kept as offers; read again in 20 ms, until there was none
//	Claim, or Offer that is asked           the letterbox of that connection is read first
//	Return                                  kept as an offer
//
// Letters stay where they are while there are more offers than may be: when a letterbox is full, clients ask.
//
// Who takes a letter has looked which is the first one, and must not get the next one in its place: there may be no descriptors for what came with that.
// So the byte of the table of resets whose place is letterLocks and the client's port is locked, by an open file description, by whoever is about to look
// and to take the letter. Nobody but the supervisor waits for that.
type letters struct {
	boxes  []int
	locks  int       // the table of resets, for its locks; -1 if it cannot be had
	notes  int       // the end of the record's notes that programs get
	poll   int       // an epoll that is readable while a letterbox is
	next   time.Time // when they are read; zero: when poll tells
	read   bool      // since the time before
	until  time.Time // when those who take letters are waited for no more in this call of readBox; zero: nobody was yet
	rested time.Time // before that nobody is waited for
	room   int       // how many offers there may be, by descriptors
	letter [messageLen + 1]byte
	with   [controlLen]byte // what comes with a letter
}

// boxSuffix comes behind the name of the supervisor's socket, and the letterbox's number behind it, as a hexadecimal digit.
const boxSuffix = ".in"

func boxPath(socket string, number int) string {
	return fmt.Sprintf("%s%s%x", socket, boxSuffix, number)
}

// boxOf is the number of the letterbox for a connection: the kernel gives ports that are all odd, or all even.
func boxOf(client uint16) int { return int(client) / 2 % letterboxes }

func (s *supervisor) openLetters() error {
	l := &s.letters
	var err error
	if l.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if l.locks, err = unix.Open(filepath.Join(filepath.Dir(s.path), resetsFile), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil {
		l.locks = -1
	}
	for i := range letterboxes {
		box, err := letterbox(boxPath(s.path, i))
		if err != nil {
			return fmt.Errorf("letterbox: %w", err)
		}
		l.boxes = append(l.boxes, box)
		if err := unix.EpollCtl(l.poll, unix.EPOLL_CTL_ADD, box, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
			return os.NewSyscallError("epoll_ctl", err)
		}
	}
	if l.notes, err = s.record.notes.open(); err != nil {
		return err
	}
	if err := s.board.setLetters(os.Getpid(), l.notes, l.boxes); err != nil {
		return err
	}
	// Yama lets no program take a descriptor of ours unless we allow it. Whoever could, without Yama, still has to be of our user.
	unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0)
	return s.poll.add(l.poll, unix.EPOLLIN|unix.EPOLLONESHOT)
}

func letterbox(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (s *supervisor) closeLetters() {
	for i, fd := range s.letters.boxes {
		os.Remove(boxPath(s.path, i))
		unix.Close(fd)
	}
	closeAll([]int{s.letters.notes, s.letters.poll, s.letters.locks})
	s.record.notes.close()
}

// lettersCame takes note that there are some. Most are taken by who they are for.
func (s *supervisor) lettersCame(now time.Time) { s.letters.next = now.Add(firstLook) }

// readLetters has letters and notes read when it is time.
func (s *supervisor) readLetters(now time.Time) {
	l := &s.letters
	if l.next.IsZero() || now.Before(l.next) {
		return
	}
	l.read = s.readNotes()
	var ready [letterboxes]unix.EpollEvent
	n, _ := unix.EpollWait(l.poll, ready[:], 0)
	for _, e := range ready[:max(n, 0)] {
		s.readBox(int(e.Fd), false)
	}
	if l.read || n > 0 {
		l.next = now.Add(firstLook)
		return
	}
	l.next = time.Time{}
	s.poll.again(l.poll, unix.EPOLLIN|unix.EPOLLONESHOT)
}

// readBox keeps the letters of a letterbox: all that there are, or as many offers as may be.
func (s *supervisor) readBox(number int, all bool) {
	s.letters.until = time.Time{}
	for range maxLetters {
		if !all && len(s.offers) >= s.letters.room { // rule: TestLetterRoom
			return
		}
		if !spare(s.socket, lettersBring) { // rule: TestLetterDescriptors
			return
		}
		unlock, free := s.letters.reserve(number, all)
		if !free { // rule: TestLetterReserved
			return
		}
		m, fds, pid, ok := s.letters.receive(number)
		unlock()
		switch {
		case !ok:
			return
		case fds != nil && m.kind == kindOffer:
			s.letters.read = true
			s.keep(m, fds[0], fds[1], pid)
		default:
			dispose(fds...)
		}
	}
}

// reserve locks the first letter of a box, and returns what unlocks it. It returns false if a program is about to take that letter, which may be waited
// for: see patient.
func (l *letters) reserve(number int, wait bool) (unlock func(), free bool) {
	for ; ; time.Sleep(letterPause) {
		m, ok := l.look(number)
		if !ok {
			return func() {}, true
		}
		at := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: letterLocks + int64(m.local.Port()), Len: 1}
		if err := unix.FcntlFlock(uintptr(l.locks), unix.F_OFD_SETLK, &at); err == nil {
			unlock = func() {
				at.Type = unix.F_UNLCK
				unix.FcntlFlock(uintptr(l.locks), unix.F_OFD_SETLK, &at)
			}
			if again, ok := l.look(number); ok && again == m {
				return unlock, true
			}
			unlock() // somebody has taken it meanwhile
		} else if err != unix.EAGAIN && err != unix.EACCES {
			return func() {}, true // nobody else can lock anything either
		} else if !wait {
			return nil, false
		}
		if !l.patient(time.Now()) {
			return func() {}, true
		}
	}
}

// patient reports whether a program that is about to take a letter is waited for still. The supervisor does nothing else meanwhile, so it waits for no longer than
// letterPatience for all the letters that it reads in one call of readBox, and not at all for a while after that was in vain.
func (l *letters) patient(now time.Time) bool {
	if now.Before(l.rested) { // rule: TestLettersLocked
		return false
	}
	if l.until.IsZero() {
		l.until = now.Add(letterPatience)
	}
	if now.Before(l.until) {
		return true
	}
	l.rested = now.Add(letterRest)
	return false
}

// look shows the first letter of a box. False: there is none that could be right.
func (l *letters) look(number int) (m message, ok bool) {
	var b [messageLen + 1]byte
	n, _, err := unix.Recvfrom(l.boxes[number], b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err == nil {
		m, err = parseMessage(b[:n])
	}
	return m, err == nil
}

// receive takes a letter with two descriptors. They are nil if there is something wrong with it; ok is false if there is none.
func (l *letters) receive(number int) (m message, fds []int, pid int, ok bool) {
	n, with, flags, _, err := unix.Recvmsg(l.boxes[number], l.letter[:], l.with[:], unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err == unix.EINTR {
		return m, nil, 0, true
	}
	if err != nil {
		return m, nil, 0, false
	}
	fds, cred := enclosures(l.with[:max(with, 0)])
	m, err = parseMessage(l.letter[:max(n, 0)])
	if err != nil || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || cred == nil || !user.Ours(int(cred.Uid)) || len(fds) != 2 {
		dispose(fds...)
		return m, nil, 0, true
	}
	return m, fds, int(cred.Pid), true
}

// keep keeps an end and the TCP socket that a client is about to connect. The client does not wait for an answer, so nothing is refused that
// anybody could have meant well: what nobody claims is joined to TCP.
func (s *supervisor) keep(m message, end, tcp, pid int) {
	o := &offer{key: keyOf(m.local, m.peer), client: m.local, server: m.peer, unique: m.unique, end: end, tcp: tcp, letter: true}
	theirs := name{role: roleClient, ipv6: m.ipv6, local: m.local, peer: m.peer, unique: m.unique}
	if m.netns != s.listeners.netns || s.offers[o.key] != nil || !isTCP(tcp) || !isSocket(end, unix.AF_UNIX) ||
		peerName(end) != theirs.String() || o.withdrawn() {
		dispose(end, tcp)
		return
	}
	s.listeners.has(m.peer) // if nobody listens there any more it is withdrawn
	s.record.offered(m, pid, clc.DiagNone)
	s.offers[o.key] = o
	s.hold(o)
}

// withdrawn reports whether a client has given its offer up that came by letter: the end has a name that is no server's, and cannot get another.
func (o *offer) withdrawn() bool {
	if !o.letter {
		return false
	}
	sa, err := unix.Getsockname(o.end)
	u, ok := sa.(*unix.SockaddrUnix)
	if err != nil || !ok {
		return true
	}
	_, ours := parseName(u.Name)
	return !ours && strings.TrimPrefix(u.Name, "@") != ""
}

// readNotes reads what programs have taken by themselves, and reports whether there was anything.
func (s *supervisor) readNotes() (some bool) {
	s.record.readNotes()
	for port, n := range s.record.notes.claims() {
		some = true
		s.listeners.claimed(port, n)
	}
	return some
}

// enclosures returns the descriptors that came with a letter, and who has sent it.
func enclosures(control []byte) (fds []int, cred *unix.Ucred) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, nil
	}
	for _, m := range messages {
		if list, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, list...)
		} else if c, err := unix.ParseUnixCredentials(&m); err == nil {
			cred = c
		}
	}
	return slices.Clip(fds), cred
}
