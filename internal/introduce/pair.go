package introduce

import (
	"time"

	"golang.org/x/sys/unix"
)

// A pair of stream sockets takes the place of a connection between two programs that do not know of
// SMC ('gosmc run'). The agent makes it: an end that the other process had made, or had ever held,
// would have that process change its file status flags, such as O_NONBLOCK, whenever it likes.
//
//	client                        agent                          server
//	  Ask(socket, client) ---->   makes the pair
//	  <---- Lent(end)             keeps the other end
//	                              Taken or Introduced  <----  Ask(socket, server)
//	  <---- Taken                               Introduced(end) ---->
//
// The client does not wait for the server. The one who has the other end is decided in the agent's
// table alone: the server gets it, or the client does ([Answer.Returned]), which joins it to TCP.
// An agent that is closed gives all ends back; one that is killed takes the connections of that
// moment with it.

// AskPair is [Client.Ask] for a pair. The client's question has two answers: [Answer.Lent], unless
// it is refused at once, and then [Answer.Taken] or [Answer.Returned]. If the server waits
// already, the one answer is the client's end. The server's question has one answer, its end.
func (c *Client) AskPair(role Role, fd uintptr, wait time.Duration) (*Question, error) {
	return c.ask(role, offerPair, fd, wait)
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
	ends, err := newPair()
	if err != nil {
		s.log.Warn("introduction: no pair", "err", err)
		return false
	}
	defer unix.Close(ends[0])
	if w.who.line.send(&Message{Kind: KindLent, ID: w.id}, ends[0]) != nil {
		unix.Close(ends[1])
		return false
	}
	w.held = ends[1]
	return true
}

func newPair() (ends [2]int, err error) {
	return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
}

// introducePair gives the server's end of a pair to the server, and tells the client, in this
// order: a client that was told does not lose its connection when the agent ends. The error is
// about the first one.
func (s *Server) introducePair(a, b *waiting) error {
	client, server := a, b
	if a.role == RoleServer {
		client, server = b, a
	}
	lent := client.held
	end := -1 // of the client, which has none yet
	if lent < 0 {
		ends, err := newPair()
		if err != nil {
			s.log.Warn("introduction: no pair", "err", err)
			s.refuse(b.who, b.id, RefusedBusy)
			return s.refuse(a.who, a.id, RefusedBusy)
		}
		end, client.held = ends[0], ends[1]
		defer unix.Close(end)
	}
	told := tell(server, client, [16]byte{}, client.held)
	if told != nil { // rule: TestPairs
		s.drop(server.who, told)
		err := s.refuseUntaken(client, lent >= 0)
		if a == server {
			return told
		}
		return err
	}
	client.close()
	s.introduced.Add(1)
	var err error
	if lent >= 0 {
		err = client.who.line.send(&Message{Kind: KindTaken, ID: client.id}, -1)
	} else {
		err = tell(client, server, [16]byte{}, end)
	}
	if err != nil {
		s.drop(client.who, err)
	}
	if a == client {
		return err
	}
	return nil
}

// refuseUntaken answers a client whose server could not be told.
func (s *Server) refuseUntaken(client *waiting, lent bool) error {
	if lent {
		return s.refuseWaiting(client, RefusedAlone)
	}
	client.close()
	return s.refuse(client.who, client.id, RefusedAlone)
}

// refuseWaiting answers a question that has waited, and gives the end back that it holds.
func (s *Server) refuseWaiting(w *waiting, why Refusal) error {
	if w.held < 0 {
		return s.refuse(w.who, w.id, why)
	}
	s.count(why)
	err := w.who.line.send(&Message{Kind: KindReturned, ID: w.id, Reason: why}, w.held)
	w.close()
	if err != nil {
		s.drop(w.who, err)
	}
	return err
}
