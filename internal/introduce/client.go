package introduce

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/dispose"
	"github.com/gosmc/smc/wire"
)

// Errors to be matched with errors.Is.
var (
	// ErrNoAgent means that no agent answers.
	ErrNoAgent = errors.New("no agent introduces programs here; an administrator can start 'gosmc agent'")

	// ErrAgentVersion means that the agent speaks another version of the messages, or none of them.
	ErrAgentVersion = errors.New("the agent is too old, or of another version")
)

// A Client is the conversation of a process with the agent. Any goroutine may call its methods. It
// ends with Close, or when the agent ends: then all questions are answered with [RefusedBusy] and Done
// is closed.
type Client struct {
	line    *line
	welcome Message
	same    bool // the agent is in the PID namespace of the process
	done    chan struct{}

	mu     sync.Mutex
	closed bool
	next   uint64
	asked  map[uint64]*Question
}

// Dial connects to the agent at an address of a Unix socket: a path at which root or this user
// listens, or "@" and the name of a [Room], which the kernel has told. gid is the GID of the process's
// device, and users its policy. ctx bounds the wait, which takes two seconds at most. Errors match
// [ErrNoAgent] or [ErrAgentVersion], or are that of ctx. The caller closes the client.
func Dial(ctx context.Context, address string, gid wire.ISMGID, users Users) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := connect(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	l, err := newLine(conn.(*net.UnixConn))
	if err != nil {
		conn.Close()
		return nil, err
	}
	abstract := strings.HasPrefix(address, "@")
	if !abstract && !l.isTrusted() { // rule: TestUntrusted
		conn.Close()
		return nil, fmt.Errorf("%w: the socket %s belongs to another user", ErrNoAgent, address)
	}
	c := &Client{line: l, done: make(chan struct{}), asked: make(map[uint64]*Question)}
	challenge := [16]byte{}
	rand.Read(challenge[:])
	err = c.hello(ctx, &Message{Kind: KindHello, GID: gid, Users: users, Challenge: challenge})
	// rule: internal/host TestPodsImpostor
	if err == nil && abstract && !isRoom(address, challenge, c.welcome.Signature) {
		err = fmt.Errorf("%w: another program has taken its name %s", ErrNoAgent, address)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	go c.run()
	return c, nil
}

// connect connects to the agent. Its queue may be full for a moment: somebody connects again and again.
func connect(ctx context.Context, address string) (net.Conn, error) {
	for {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unixpacket", address)
		if !errors.Is(err, unix.EAGAIN) { // rule: TestQueueFull
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(connectPause):
		}
	}
}

// isTrusted reports whether root, or this user, has made the socket at the other end.
func (l *line) isTrusted() (trusted bool) {
	l.raw.Control(func(s uintptr) {
		cred, err := unix.GetsockoptUcred(int(s), unix.SOL_SOCKET, unix.SO_PEERCRED)
		trusted = err == nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
	})
	return trusted
}

func (c *Client) hello(ctx context.Context, hello *Message) error {
	stop := context.AfterFunc(ctx, func() { c.line.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.line.send(hello, -1); err != nil {
		return fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	m, fd, memory, err := c.line.receive()
	c.line.discard(fd, memory)
	var decode *wire.DecodeError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrNoAgent, ctx.Err())
	case errors.As(err, &decode):
		return fmt.Errorf("%w: %w", ErrAgentVersion, err)
	case err != nil:
		return fmt.Errorf("%w: it hangs up: %w", ErrAgentVersion, err)
	case m.Kind != KindWelcome:
		return fmt.Errorf("%w: answer of kind %d", ErrAgentVersion, m.Kind)
	}
	c.welcome = m
	c.line.raw.Control(func(s uintptr) {
		cred, err := unix.GetsockoptUcred(int(s), unix.SOL_SOCKET, unix.SO_PEERCRED)
		c.same = err == nil && cred.Pid != 0 && cred.Pid == m.PID
	})
	return nil
}

// BootID returns the kernel's boot ID, which a process without /proc cannot read.
func (c *Client) BootID() [16]byte { return c.welcome.BootID }

// StrictOvercommit reports whether the kernel runs with vm.overcommit_memory=2.
func (c *Client) StrictOvercommit() bool { return c.welcome.Overcommit == strictOvercommit }

// Done returns a channel that is closed when the conversation has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the conversation.
func (c *Client) Close() error {
	err := c.line.conn.Close()
	<-c.done
	return err
}

// A Question asks for the process at the other end of a TCP connection.
type Question struct {
	client *Client
	id     uint64
	answer chan Answer
	offer  uint8

	// These are guarded by Client.mu.
	lent      bool // the first of up to three answers has come
	wanted    bool // and the second one
	withdrawn bool // nobody takes the answers of a question any more that a pair may answer
}

// maxAnswers is how many answers a question can have: a pair that is lent, the word that the server
// waits, and the fate of the pair.
const maxAnswers = 3

// An Answer introduces another process, or says why there is no introduction.
type Answer struct {
	Socket     int         // to the other process, SOCK_SEQPACKET; the receiver closes it. -1: refused
	Memory     int         // of rings, with an end of a pair; the receiver closes it. -1: none
	GID        wire.ISMGID // of the other process's device
	Process    [16]byte    // names the other process, and no other one
	Secret     [16]byte    // that both processes know and nobody else does
	PID        int         // of the other process; 0 if it is not known in this PID namespace
	UID, Group int         // user of the other process, in the user namespace of the agent
	SameUser   bool        // the other process has the user of this one
	Reason     Refusal     // without a socket; with one that is returned
	Lent       bool        // the socket is the client's end of a pair, and other answers follow
	Wanted     bool        // the server waits for [Question.Ready], and another answer follows
	Taken      bool        // the server has the other end of the pair that was lent
	Returned   bool        // the socket is the server's end of the pair that was lent: nobody has taken it
	Pair       bool        // the socket is the server's end of a pair; older agents do not say so
}

// Ask asks about the TCP socket fd, of which the process has the role's end. The agent keeps the
// question for the time wait, at most [MaxWait]. The socket is not used after the call. The caller
// takes the answer from [Question.Answer], or calls [Question.Withdraw].
func (c *Client) Ask(role Role, fd uintptr, wait time.Duration) (*Question, error) {
	return c.ask(role, offerDevice, fd, wait, false)
}

// AskEither is [Client.Ask], and [Client.AskPair] where the other process offers a pair and has no
// device. The answers tell which: [Answer.Pair] those of a server, [Answer.Lent] those of a client, whose
// server waits for [Question.Ready] then; the process takes the memory of rings with its end. An agent that
// does not know this is asked for a device.
func (c *Client) AskEither(role Role, fd uintptr, wait time.Duration) (*Question, error) {
	if !c.welcome.Either { // rule: TestEitherOldAgent
		return c.Ask(role, fd, wait)
	}
	return c.ask(role, offerEither, fd, wait, true)
}

func (c *Client) ask(role Role, offer uint8, fd uintptr, wait time.Duration, rings bool) (*Question, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrNoAgent
	}
	if len(c.asked) >= maxClientWaiting {
		return nil, errCongested
	}
	c.next++
	q := &Question{client: c, id: c.next, answer: make(chan Answer, maxAnswers), offer: offer}
	m := Message{Kind: KindAsk, ID: q.id, Role: role, Offer: offer, Wait: wait, Memory: rings}
	if err := c.line.send(&m, int(fd)); err != nil {
		if !errors.Is(err, errCongested) {
			err = fmt.Errorf("%w: %w", ErrNoAgent, err)
		}
		return nil, err
	}
	c.asked[q.id] = q
	return q, nil
}

// Decline tells the process at the other end of a TCP connection, when it asks, that the connection is
// to be plain TCP.
func (c *Client) Decline(role Role, fd uintptr, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.next++ // the answer says nothing new
		c.line.send(&Message{Kind: KindAsk, ID: c.next, Role: role, Offer: offerNone, Wait: wait}, int(fd))
	}
}

// Answer returns a channel with the one answer to the question.
func (q *Question) Answer() <-chan Answer { return q.answer }

// Strict reports whether the kernel runs with vm.overcommit_memory=2.
func (q *Question) Strict() bool { return q.client.StrictOvercommit() }

// Withdraw takes the question back. Answers that have come meanwhile, or come later, are closed. A
// server's end of a pair goes back to the agent: its client has the other one.
func (q *Question) Withdraw() {
	c := q.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked[q.id] == q {
		if q.withdrawn = q.offer != offerDevice; !q.withdrawn { // rule: TestEitherWithdrawn: q.offer != offerDevice -> q.offer == offerPair
			delete(c.asked, q.id)
		}
		if !c.closed {
			c.line.send(&Message{Kind: KindWithdraw, ID: q.id}, -1) // else the question ends with its time
		}
	}
	for {
		select {
		case a := <-q.answer:
			q.giveUpLocked(&a)
		default:
			return
		}
	}
}

// giveUpLocked closes the socket of an answer that came too late. The caller has Client.mu.
func (q *Question) giveUpLocked(a *Answer) {
	pair := a.Pair || q.offer == offerPair
	if pair && a.Socket >= 0 && !a.Lent && !a.Returned && !q.client.closed { // rule: TestWithdrawnPair
		q.client.line.send(&Message{Kind: KindReturned, ID: q.id}, a.Socket)
	}
	a.Discard()
}

// Discard closes the socket and the memory of an answer that nobody uses.
func (a *Answer) Discard() {
	if a.Memory >= 0 {
		dispose.Close(a.Memory)
		a.Memory = -1
	}
	if a.Socket >= 0 {
		dispose.Close(a.Socket)
		a.Socket = -1
	}
}

// hand hands an answer to its question. It reports false if the answer is nobody's, and still the caller's.
func (c *Client) hand(id uint64, a Answer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.asked[id]
	if q == nil {
		return false
	}
	switch {
	case a.Lent && q.lent, a.Wanted && (!q.lent || q.wanted):
		return false // no agent says so
	case a.Lent:
		q.lent = true
	case a.Wanted:
		q.wanted = true
	default:
		delete(c.asked, id)
	}
	if q.withdrawn {
		q.giveUpLocked(&a)
		return true
	}
	q.answer <- a // there is room
	return true
}

// run hands out answers until the conversation ends.
func (c *Client) run() {
	defer close(c.done)
	for {
		m, fd, memory, err := c.line.receive()
		if errors.Is(err, unix.ECONNRESET) { // rule: TestAgentKilled
			// The agent has ended without having read all. The kernel says so once, before it gives
			// out the last messages.
			continue
		}
		if err != nil {
			break
		}
		a := Answer{Socket: -1, Memory: memory, Reason: m.Reason}
		switch m.Kind {
		case KindIntroduced:
			a = Answer{
				Socket: fd, Memory: memory, GID: m.GID, Secret: m.Secret, Process: m.Process,
				SameUser: m.SameUser, UID: int(m.UID), Group: int(m.Group), Pair: m.Pair,
			}
			if c.same {
				a.PID = int(m.PID)
			}
		case KindLent:
			a.Socket, a.Lent = fd, true
		case KindWanted:
			a.Wanted = true
		case KindTaken:
			a.Taken = true
		case KindReturned:
			a.Socket, a.Returned = fd, true
		}
		if !c.hand(m.ID, a) { // withdrawn
			a.Discard()
		}
	}
	c.line.conn.Close()
	c.mu.Lock()
	c.closed = true
	for _, q := range c.asked {
		if !q.withdrawn {
			q.answer <- Answer{Socket: -1, Memory: -1, Reason: RefusedBusy}
		}
	}
	clear(c.asked)
	c.mu.Unlock()
}
