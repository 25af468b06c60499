package introduce

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
)

// A pair of stream sockets takes the place of a connection between two programs that do not know of
// SMC ('gosmc run'). The agent makes it: an end that the other process had made, or had ever held,
// would have that process change its file status flags, such as O_NONBLOCK, whenever it likes.
//
//	client                        agent                          server
//	  Ask(socket, client) ---->   makes the pair
//	  <---- Lent(end)             keeps the other end
//	  <---- Wanted, if the server waits          <----  Ask(socket, server)
//	  Ready ------------------>   Introduced(end)  ---->
//	  <---- Taken                               <----  Taken
//
// The client does not wait for the server. The server gets its end when the client's program has
// the other one (Ready), and the client hears of that when the server's program has it (Taken):
// whatever else happens, and however late, both programs stay with TCP, or the client gets the end
// back ([Answer.Returned]) and joins it to TCP. The agent's table alone decides which. An agent
// that is closed gives all ends back; for one that is killed its keeper does ([Keep]).

// AskPair is [Client.Ask] for a pair. The client's question has these answers: [Answer.Lent],
// unless it is refused at once; [Answer.Wanted], if the server waits before [Question.Ready]; and
// [Answer.Taken] or [Answer.Returned]. The server's question has one answer, its end, of which
// [Question.Took] or [Question.GiveBack] tells the agent. rings: the program takes the memory of rings
// with its end ([Answer.Memory]), where the agent has any to give.
func (c *Client) AskPair(role Role, fd uintptr, wait time.Duration, rings bool) (*Question, error) {
	return c.ask(role, offerPair, fd, wait, rings)
}

// Ready tells the agent that the client's program has its end: the server may have the other one.
// An agent that does not read that returns the other end in time. It reports false if the agent will
// not read it.
func (q *Question) Ready() bool { return q.tell(KindReady, -1) == nil }

// Took tells the agent that the server's program has its end.
func (q *Question) Took() { q.tellSurely(KindTaken, -1) }

// GiveBack returns the end that the server's program did not get. It stays the caller's, too.
func (q *Question) GiveBack(end int) { q.tellSurely(KindReturned, end) }

// tellSurely is tell, and waits a while for room in the socket.
func (q *Question) tellSurely(k Kind, fd int) {
	for begin := time.Now(); errors.Is(q.tell(k, fd), errCongested) && time.Since(begin) < MaxWait; {
		time.Sleep(roomPause)
	}
}

// tell tells the agent something about a question.
func (q *Question) tell(k Kind, fd int) error {
	c := q.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrNoAgent
	}
	return c.line.send(&Message{Kind: k, ID: q.id}, fd)
}

// Recall asks for the end back that the server has not taken. The answer is [Answer.Returned], or
// [Answer.Taken] if it comes too late.
func (q *Question) Recall() {
	c := q.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked[q.id] == q && !c.closed {
		c.line.send(&Message{Kind: KindWithdraw, ID: q.id}, -1) // else the question ends with its time
	}
}

// lend makes a pair for a client's question and sends the client its end. It reports false if the
// client has got nothing.
func (s *Server) lend(w *waiting) bool {
	if w.who.line.unread() > maxUnread { // each end is a descriptor in its queue
		return false
	}
	ends, err := s.newPair()
	if err != nil {
		s.log.Warn("introduction: no pair", "err", err)
		return false
	}
	w.held, w.theirs = ends[1], ends[0]
	// Before the client can write into its end.
	if err := s.strongroom.put(w); err != nil { // rule: TestAgentKilled
		s.log.Warn("introduction: an end of a pair cannot be kept", "err", err)
		w.close()
		return false
	}
	if w.rings && s.apart { // else rings are made, and sent, when they are needed
		if w.memory, err = newMemory(s.cfg.Overcommit() == strictOvercommit); err != nil {
			s.log.Warn("introduction: no memory for rings", "err", err)
			w.memory = -1
		}
	}
	if w.who.line.send(&Message{Kind: KindLent, ID: w.id, Memory: w.memory >= 0}, ends[0], w.memory) != nil {
		s.unkeep(w)
		w.close()
		return false
	}
	if !s.apart {
		w.closeTheirs()
	}
	w.cookie, _ = unix.GetsockoptUint64(ends[1], unix.SOL_SOCKET, unix.SO_COOKIE)
	return true
}

// want tells a client that its server waits. It may ask why when its question ends.
func (s *Server) want(w *waiting) {
	w.who.line.send(&Message{Kind: KindWanted, ID: w.id}, -1)
}

// ready handles the word of a client that its program has its end. It reports false if the client
// has no such question, or has said so before.
func (s *Server) ready(c *client, id uint64) bool {
	client, server, refused, ok := s.table.ready(c, id)
	switch {
	case client == nil:
	case refused != 0:
		s.refuseWaiting(client, refused)
	default:
		s.handOver(client, server, client)
	}
	return ok
}

// settled handles the word of a server about the end that it has got, for the client's question.
func (s *Server) settled(c *client, w *waiting, m *Message, fd int) {
	if m.Kind == KindTaken {
		s.tellTaken(w)
		return
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil || cookie != w.cookie { // rule: TestPairsGivenBack
		s.unfit.Add(1)
		c.line.discard(fd)
		s.tellTaken(w)
		return
	}
	w.held = fd
	s.refuseWaiting(w, RefusedGivenBack)
}

// tellTaken tells a client that the server has the other end.
func (s *Server) tellTaken(w *waiting) {
	if err := w.who.line.send(&Message{Kind: KindTaken, ID: w.id}, -1); err != nil {
		s.drop(w.who, err)
	}
}

// newPair makes a pair into which no descriptor can be put, if the kernel can do that.
func (s *Server) newPair() (ends [2]int, err error) {
	ends, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	for _, end := range ends {
		if err == nil && s.apart { // rule: TestPairsApart
			err = unix.SetsockoptInt(end, unix.SOL_SOCKET, soPassRights, 0)
		}
	}
	return ends, err
}

// soPassRights is SO_PASSRIGHTS, Linux 6.16: whether a socket takes descriptors.
const soPassRights = 83

// passRights reports whether the kernel keeps descriptors out of sockets that are not to take any.
//
// The last close of a descriptor takes as long as its sender likes, as with SO_LINGER of a TCP socket, and
// a program that reads bytes closes those that come with them. A user must not stop the program of
// another one by that, nor the root of a container that of another.
func passRights() bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassRights, 0) == nil
}

// sameAccount reports whether two processes may send each other descriptors, and with these the memory
// of rings.
func sameAccount(a, b *waiting) bool { return a.who.who.Account == b.who.who.Account }

// closeTheirs closes the copy of the client's end. The server would not see an end before. Nobody has
// sent anything to that end, so the close takes no time.
func (w *waiting) closeTheirs() {
	if w.theirs >= 0 {
		unix.Close(w.theirs)
		w.theirs = -1
	}
}

// closeMemory closes the memory of rings. The programs have it mapped.
func (w *waiting) closeMemory() {
	if w.memory >= 0 {
		unix.Close(w.memory)
		w.memory = -1
	}
}

// handOver gives the server's end of a pair to the server. The error is about the one of the two
// that is asker.
func (s *Server) handOver(client, server, asker *waiting) error {
	// The server's word about its end may be here before tell returns.
	end, copied := client.held, client.safe
	client.held, client.safe, client.other = -1, nil, nil
	if s.apart && sameAccount(client, server) { // rule: TestPairsApart
		unix.SetsockoptInt(end, unix.SOL_SOCKET, soPassRights, 1)
		unix.SetsockoptInt(client.theirs, unix.SOL_SOCKET, soPassRights, 1)
	}
	client.closeTheirs()
	memory := -1
	if server.rings && !sameAccount(client, server) { // rule: TestPairsMemory
		memory = client.memory
	}
	told := tell(server, client, [16]byte{}, end, memory)
	if told == nil {
		client.closeMemory()
		s.strongroom.empty(copied)
		dispose.Now(end) // the server has a copy
		s.introduced.Add(1)
	} else {
		client.held, client.safe = end, copied
	}
	switch left := s.table.handed(client, server, told == nil); {
	case told != nil:
		s.refuseWaiting(client, RefusedAlone)
		s.drop(server.who, told)
		if asker == server {
			return told
		}
	case left != nil:
		s.tellTaken(client) // the server has ended meanwhile
	}
	return nil
}

// refuseWaiting answers a question that has waited, and gives the end back that it holds. A server
// that waits for the client's word is answered, too.
func (s *Server) refuseWaiting(w *waiting, why Refusal) error {
	if w.role == RoleClient && w.other != nil {
		s.refuse(w.other.who, w.other.id, why)
		w.other = nil
	}
	if w.held < 0 {
		return s.refuse(w.who, w.id, why)
	}
	s.count(why)
	w.closeTheirs()
	err := w.who.line.send(&Message{Kind: KindReturned, ID: w.id, Reason: why}, w.held)
	s.unkeep(w)
	w.close()
	if err != nil {
		s.drop(w.who, err)
	}
	return err
}
