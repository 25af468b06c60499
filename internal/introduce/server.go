package introduce

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/wire"
)

// Config has the things that a [Server] needs of its agent.
type Config struct {
	Verifier   Verifier
	Users      Users        // policy of the machine, which holds in addition to those of both processes
	BootID     [16]byte     // of the kernel
	Overcommit func() uint8 // vm.overcommit_memory

	// Identify asks the kernel for the process at the other end of a connection.
	Identify func(c *net.UnixConn) (Identity, error)

	Logger *slog.Logger // nil for none
}

// Counters count the questions to a server.
type Counters struct {
	Clients    int    `json:"processes"`  // connected now
	Waiting    int    `json:"waiting"`    // questions that wait now
	Asked      uint64 `json:"asked"`      // questions so far
	Introduced uint64 `json:"introduced"` // pairs of processes
	Users      uint64 `json:"refused_users"`
	Busy       uint64 `json:"refused_quota"`
	Unfit      uint64 `json:"unfit"` // sockets that prove nothing, and messages that are none
}

// A Server introduces the processes that connect to it. Any goroutine may call its methods.
type Server struct {
	cfg   Config
	log   *slog.Logger
	table *table
	wg    sync.WaitGroup

	strongroom strongroom // copies of the ends of pairs
	apart      bool       // the kernel keeps descriptors out of pairs

	instance [16]byte      // random, in its first half
	numbers  atomic.Uint64 // of processes so far

	asked, introduced, users, busy, unfit atomic.Uint64
}

// NewServer returns a server that nobody is connected to. The caller closes it.
func NewServer(cfg Config) *Server {
	s := &Server{cfg: cfg, log: cfg.Logger, apart: passRights()}
	s.table = newTable(s)
	rand.Read(s.instance[:8])
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// A client is a process that has connected.
type client struct {
	who     Identity
	line    *line
	room    *Room    // at which it has connected; nil at the path
	name    [16]byte // of the process, that no other one ever has
	account *account

	gid   wire.ISMGID // these two are set by its Hello, before it asks
	users Users
}

// Serve serves the processes that connect to a listener, until that is closed: one at a path, or that of a
// room, which is nil otherwise.
func (s *Server) Serve(l *net.UnixListener, room *Room) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(acceptPause)
			continue
		}
		who, err := s.cfg.Identify(c)
		if err != nil {
			dispose.Conn(c)
			continue
		}
		s.take(c, who, room)
	}
}

// Take serves a process that has connected at a path. It does not wait, and c belongs to the server.
func (s *Server) Take(c *net.UnixConn, who Identity) { s.take(c, who, nil) }

func (s *Server) take(c *net.UnixConn, who Identity, room *Room) {
	l, err := newLine(c)
	if err != nil {
		dispose.Conn(c)
		return
	}
	p := &client{who: who, line: l, room: room, name: s.instance}
	binary.BigEndian.PutUint64(p.name[8:], s.numbers.Add(1))
	if !s.table.enter(p) {
		s.busy.Add(1)
		dispose.Conn(c) // with descriptors in messages that nobody has read
		return
	}
	l.quota = &p.account.closing
	s.wg.Go(func() {
		s.serve(p)
		s.table.unkeep(p)
		dispose.Conn(c)
		left, taken := s.table.leave(p)
		for _, w := range left {
			s.refuse(w.who, w.id, RefusedAlone)
		}
		for _, w := range taken {
			s.tellTaken(w)
		}
	})
}

// serve handles the messages of a process until it hangs up or breaks the rules.
func (s *Server) serve(c *client) {
	c.line.conn.SetReadDeadline(time.Now().Add(helloTime)) // rule: TestSilent
	m, fd, memory, err := c.line.receive()
	c.line.discard(fd, memory)
	if err != nil || m.Kind != KindHello {
		s.unfit.Add(1)
		return
	}
	c.line.conn.SetReadDeadline(time.Time{})
	c.gid, c.users = m.GID, m.Users
	welcome := Message{
		Kind: KindWelcome, BootID: s.cfg.BootID, PID: int32(os.Getpid()), Overcommit: s.cfg.Overcommit(),
		Either: true, Signature: c.room.sign(m.Challenge),
	}
	for err = c.line.send(&welcome, -1); err == nil; {
		if m, fd, memory, err = c.line.receive(); err != nil {
			break
		}
		c.line.discard(memory) // which no process has to give
		if !s.table.mayGoOn(c) {
			time.Sleep(floodPause)
		}
		err = s.handle(c, &m, fd)
	}
	var decode *wire.DecodeError
	if errors.As(err, &decode) || errors.Is(err, errRights) || errors.Is(err, errCongested) ||
		errors.Is(err, errSlowClose) || errors.Is(err, errKind) {
		s.unfit.Add(1)
		s.log.Warn("introduction: a process breaks the rules", "pid", c.who.PID, "uid", c.who.UID, "err", err)
	}
}

// errKind means that a process has sent a message that no process sends.
var errKind = errors.New("introduce: unexpected message")

// handle takes one message. After an error nothing more is heard of the process.
func (s *Server) handle(c *client, m *Message, fd int) error {
	switch m.Kind { // words that belong to questions, for which the process has spent something
	case KindReady:
		if s.ready(c, m.ID) {
			return nil
		}
	case KindTaken, KindReturned:
		if w := s.table.settle(c, m.ID); w != nil {
			s.settled(c, w, m, fd)
			return nil
		}
	}
	if !s.table.spend(c) {
		// rule: TestPairsBroke
		if m.Kind == KindAsk && m.Role == RoleServer && (m.Offer == offerPair || m.Offer == offerEither) {
			return s.ask(c, m, fd, true)
		}
		c.line.discard(fd)
		if m.Kind == KindAsk {
			return s.refuse(c, m.ID, RefusedBusy)
		}
		return nil // a question that is not withdrawn ends with its time
	}
	switch m.Kind {
	case KindAsk:
		return s.ask(c, m, fd, false)
	case KindWithdraw:
		if w := s.table.withdraw(c, m.ID); w != nil {
			return s.refuseWaiting(w, RefusedAlone)
		}
		return nil // it was answered, and the answer is on its way
	case KindReady, KindTaken, KindReturned: // too late
		c.line.discard(fd)
		return nil
	}
	c.line.discard(fd)
	return errKind
}

// ask answers a question, at once or when the other end asks. A server that is broke, as it has
// asked too often, gets its end of a pair all the same if the client waits, who has paid for it.
func (s *Server) ask(c *client, m *Message, fd int, broke bool) error {
	s.asked.Add(1)
	e, refused := prove(s.cfg.Verifier, fd, m.Role)
	c.line.discard(fd) // or the connection would not end with its process
	if m.Offer > offerEither {
		refused = RefusedOffer
	}
	if refused != 0 {
		return s.refuse(c, m.ID, refused)
	}
	w := &waiting{
		who: c, id: m.ID, role: m.Role, end: e, offer: m.Offer, rings: m.Memory,
		held: -1, theirs: -1, memory: -1,
	}
	other, refused := s.table.match(w, m.Wait, broke)
	switch {
	case other != nil && refused != 0:
		s.refuseWaiting(other, refused)
		return s.refuse(c, m.ID, refused)
	case refused != 0:
		return s.refuse(c, m.ID, refused)
	case other == nil:
		return nil // it waits
	case w.offer == offerPair:
		return s.handOver(other, w, w)
	}
	return s.introduce(w, other)
}

// fit says why two processes are not introduced; 0 if they are.
func (s *Server) fit(a, b *waiting) Refusal {
	offer := common(a.offer, b.offer)
	if offer == offerNone { // rule: TestDecline
		return RefusedDeclined
	}
	// rule: TestUsers
	if !a.who.users.Admits(&a.who.who, &b.who.who) || !b.who.users.Admits(&b.who.who, &a.who.who) ||
		!s.cfg.Users.admitsBoth(&a.who.who, &b.who.who) {
		return RefusedUsers
	}
	if offer == offerPair && !s.apart && !sameAccount(a, b) { // rule: TestPairsApart
		return RefusedUsers
	}
	if a.who.line.unread() > maxUnread || b.who.line.unread() > maxUnread { // rule: TestUnreadIntroductions
		return RefusedBusy
	}
	return 0
}

// expired answers a question that has waited in vain.
func (s *Server) expired(w *waiting) { s.refuseWaiting(w, RefusedAlone) }

// introduce answers the questions of both ends. The error is about the first one.
func (s *Server) introduce(a, b *waiting) error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		s.log.Warn("introduction: no socket", "err", err)
		s.refuse(b.who, b.id, RefusedBusy)
		return s.refuse(a.who, a.id, RefusedBusy)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	var secret [16]byte
	rand.Read(secret[:])
	s.introduced.Add(1)
	if err := tell(b, a, secret, ends[1], -1); err != nil {
		s.drop(b.who, err)
	}
	return tell(a, b, secret, ends[0], -1)
}

// tell tells the process of w about the process of other. memory is for rings, -1: none.
func tell(w, other *waiting, secret [16]byte, fd, memory int) error {
	p := other.who
	m := Message{
		Kind: KindIntroduced, ID: w.id, GID: p.gid, Secret: secret,
		UID: p.who.UID, Group: p.who.GID, PID: p.who.PID, Process: p.name,
		SameUser: p.who.UID == w.who.who.UID,
		Memory:   memory >= 0, Pair: w.offer == offerPair,
	}
	return w.who.line.send(&m, fd, memory)
}

// refuse answers a question.
func (s *Server) refuse(c *client, id uint64, why Refusal) error {
	s.count(why)
	err := c.line.send(&Message{Kind: KindRefused, ID: id, Reason: why}, -1)
	if err != nil {
		s.drop(c, err)
	}
	return err
}

// count counts a refusal.
func (s *Server) count(why Refusal) {
	switch why {
	case RefusedAlone, RefusedDeclined:
	case RefusedUsers:
		s.users.Add(1)
	case RefusedBusy:
		s.busy.Add(1)
	default:
		s.unfit.Add(1)
	}
}

// drop ends the conversation with a process that does not read its answers. Its goroutine does the rest.
func (s *Server) drop(c *client, err error) {
	if errors.Is(err, errCongested) {
		s.log.Warn("introduction: a process does not read its answers", "pid", c.who.PID, "uid", c.who.UID)
	}
	c.line.raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

// Status returns the counts.
func (s *Server) Status() Counters {
	n := Counters{
		Asked: s.asked.Load(), Introduced: s.introduced.Load(),
		Users: s.users.Load(), Busy: s.busy.Load(), Unfit: s.unfit.Load(),
	}
	n.Clients, n.Waiting = s.table.counts()
	return n
}

// Close ends all conversations, and waits for that, but not for descriptors whose close takes long.
// Processes that were introduced go on.
func (s *Server) Close() {
	clients, holding, taken := s.table.close()
	for _, w := range taken {
		s.tellTaken(w)
	}
	for _, w := range holding {
		s.refuseWaiting(w, RefusedBusy) // rule: TestPairsReturned
	}
	for _, c := range clients {
		s.drop(c, nil)
	}
	ended := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		s.strongroom.close()
	case <-time.After(closeTime):
	}
}
