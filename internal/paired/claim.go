package paired

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/bureau"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/ring"
	"github.com/gosmc/smc/wire/clc"
)

// An expectation is a connection of which a client says that it has made it.
type expectation struct {
	peer  *ism.Peer
	id    uint64
	proof Proof
	at    time.Time
}

// decided has the connections that became plain TCP before their client said anything: the newest ones.
type decided struct {
	reasons map[Name]clc.Diagnosis
	order   []Name
	next    int
}

func (d *decided) add(name Name, why clc.Diagnosis) {
	if d.reasons == nil {
		d.reasons = make(map[Name]clc.Diagnosis)
	}
	if len(d.order) < maxDecided {
		d.order = append(d.order, name)
	} else {
		delete(d.reasons, d.order[d.next])
		d.order[d.next] = name
		d.next = (d.next + 1) % maxDecided
	}
	d.reasons[name] = why
}

// A Candidate is a connection with tokens that was just accepted.
type Candidate struct {
	point  *Point
	tcp    *net.TCPConn
	raw    syscall.RawConn
	tokens Tokens
	name   Name
	came   chan expectation // has an element when the client has said that it has made the connection

	awaited bool
	peer    *ism.Peer // of the client; nil before it is known
	id      uint64
	end     *ring.End // of a pair with the client, in place of peer
}

// Claim returns the candidate for a connection that was just accepted, or nil and the reason why it has no
// tokens. It is called once for each connection. Either [Candidate.Accept] or [Candidate.Refuse] follows,
// unless [Candidate.Await] brings an end of a pair.
func (p *Point) Claim(tcp *net.TCPConn) (*Candidate, clc.Diagnosis) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, clc.DiagNone
	}
	tokens, why := p.cfg.Kernel.Read(raw, remoteOf(tcp))
	if why != clc.DiagNone {
		return nil, why
	}
	c := &Candidate{
		point: p, tcp: tcp, raw: raw, tokens: tokens, name: nameOf(tokens.Theirs, tokens.Mine),
		came: make(chan expectation, 1),
	}
	if d := p.cfg.Opened(); d != nil {
		d.Poll() // the message may be here, and nobody has read it
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.takeLocked()
	return c, clc.DiagNone
}

// takeLocked looks whether a client has said that it has made the connection. Point.mu is held.
func (c *Candidate) takeLocked() {
	for _, e := range c.point.expected[c.name] {
		c.point.unexpectLocked(e.peer, e.id, c.name)
		if c.isMeant(e) {
			c.peer, c.id = e.peer, e.id
			return
		}
	}
}

// isMeant reports whether a peer has proved that it has the other end.
func (c *Candidate) isMeant(e expectation) bool {
	secret, _ := e.peer.Secret()
	proof := proofOf(secret, c.tokens.Theirs, c.tokens.Mine)
	return e.proof == proof // rule: TestProof: e.proof == proof -> e.proof == proof || true
}

// Peer returns the peering with the client, nil if none has said that it has made the connection.
func (c *Candidate) Peer() *ism.Peer { return c.peer }

// End returns our end of a pair that takes the place of the connection, nil if there is none. It is the
// caller's, once.
func (c *Candidate) End() *ring.End { return c.end }

// Accept tells the client that CLC will be read from the connection. If it reports false the client is
// gone, and the connection is of no use.
func (c *Candidate) Accept() bool {
	return c.point.send(c.peer, Message{Kind: Accepted, ID: c.id})
}

// Refuse makes the connection plain TCP, and tells the client, also one that says something later.
func (c *Candidate) Refuse(why clc.Diagnosis) {
	p := c.point
	if c.peer == nil {
		p.mu.Lock()
		p.decided.add(c.name, why)
		p.mu.Unlock()
		if !c.awaited { // else the agent knows what there is to know
			p.decline(c)
		}
		return
	}
	p.send(c.peer, Message{Kind: Refused, ID: c.id, Reason: uint32(why)})
}

// Await waits until the client says that it has made the connection, and returns the reason if it is plain
// TCP: the client sends data, or ends the connection, or says nothing. A client that has no device asks for
// a pair, which there is, too, if pairs is set: then [Candidate.End] is there, and no peering.
func (c *Candidate) Await(ctx context.Context, pairs bool) clc.Diagnosis {
	if c.peer != nil {
		return clc.DiagNone
	}
	c.awaited = true
	p := c.point
	p.mu.Lock()
	if p.closed || p.waiting[c.name] != nil {
		p.mu.Unlock()
		return clc.DiagClosing
	}
	if c.takeLocked(); c.peer != nil { // rule: TestExpectBetween: c.peer != nil -> false
		p.mu.Unlock()
		return clc.DiagNone
	}
	p.waiting[c.name] = c
	acquainted := len(p.peers) > 0 // rule: TestCalls: len(p.peers) > 0 -> false
	p.mu.Unlock()
	why := c.await(ctx, acquainted, pairs)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, c.name)
	if c.end != nil {
		return why
	}
	select {
	case e := <-c.came:
		c.peer, c.id = e.peer, e.id
		why = clc.DiagNone
	default:
	}
	return why
}

// await is Await without the tables. The client may have said something when it returns.
func (c *Candidate) await(ctx context.Context, acquainted, pairs bool) clc.Diagnosis {
	p := c.point
	speaks := c.watch()
	defer c.unwatch(speaks)
	end := time.NewTimer(claimTime)
	defer end.Stop()
	if acquainted {
		settle := time.NewTimer(settleTime)
		defer settle.Stop()
		select {
		case e := <-c.came:
			c.came <- e
			return clc.DiagNone
		case <-speaks:
			if !pairs || !c.ended() {
				return clc.DiagPeerNoSMC
			}
		case <-ctx.Done():
			return clc.DiagClosing
		case <-settle.C:
		}
	}
	device, why, err := p.cfg.Open()
	if err != nil {
		return why
	}
	question, why := p.ask(ctx, device, c.raw, introduce.RoleServer, pairs)
	var introduced <-chan introduce.Answer
	switch {
	case question != nil:
		defer question.Withdraw()
		introduced = question.Answer()
	case !acquainted:
		return why // nobody can reach us
	}
	for {
		select {
		case e := <-c.came:
			c.came <- e
			return clc.DiagNone
		case a := <-introduced:
			introduced = nil
			if a.Socket < 0 {
				return bureau.Reason(a.Reason)
			}
			if a.Pair {
				return c.takePair(question, &a)
			}
			device.AcceptBy(introductionOf(&a, question.Strict())) // the client's message comes over it
			end.Reset(metTime)
		case <-speaks:
			// The supervisor of one that has ended it may have been killed: then the agent has our end.
			if !pairs || introduced == nil || !c.ended() { // rule: TestPairLeft: introduced == nil -> introduced != nil
				return clc.DiagPeerNoSMC
			}
			speaks = nil
		case <-ctx.Done():
			return clc.DiagClosing
		case <-end.C:
			if question == nil {
				return why
			}
			return clc.DiagPeerNoSMC
		}
	}
}

// watch returns a channel that is closed when the client has sent something, or the connection has ended.
func (c *Candidate) watch() <-chan struct{} {
	speaks := make(chan struct{})
	go func() {
		defer close(speaks)
		var b [1]byte
		c.raw.Read(func(fd uintptr) bool {
			_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return err != unix.EAGAIN && err != unix.EINTR
		})
	}()
	return speaks
}

// ended reports whether the client has ended the connection, and has sent nothing.
func (c *Candidate) ended() (yes bool) {
	c.raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		yes = err == nil && n == 0
	})
	return yes
}

// unwatch ends watch.
func (c *Candidate) unwatch(speaks <-chan struct{}) {
	c.tcp.SetReadDeadline(time.Unix(1, 0))
	<-speaks
	c.tcp.SetReadDeadline(time.Time{})
}

// onExpect notes a connection that a peer says it has made, or answers at once.
func (p *Point) onExpect(peer *ism.Peer, m Message, secret [16]byte) {
	e := expectation{peer: peer, id: m.ID, proof: m.Proof, at: time.Now()}
	p.mu.Lock()
	why := p.expectLocked(e, m.Name)
	p.mu.Unlock()
	if why != clc.DiagNone {
		p.send(peer, Message{Kind: Refused, ID: m.ID, Reason: uint32(why)})
	}
}

func (p *Point) expectLocked(e expectation, name Name) clc.Diagnosis {
	if p.closed || e.peer.Err() != nil {
		return clc.DiagClosing
	}
	if why := p.decided.reasons[name]; why != clc.DiagNone {
		return why
	}
	if c := p.waiting[name]; c != nil && c.isMeant(e) {
		select {
		case c.came <- e:
			return clc.DiagNone
		default: // another peer has proved the same
			return clc.DiagRefused
		}
	}
	ids := p.peers[e.peer]
	if ids == nil {
		ids = make(map[uint64]Name)
		p.peers[e.peer] = ids
	}
	if len(ids) >= maxExpected {
		p.dropStaleLocked(e.peer, ids)
	}
	// rule: TestExpectBounds
	if len(ids) >= maxExpected || len(p.expected[name]) >= maxRivals {
		return clc.DiagBusy
	}
	if _, twice := ids[e.id]; twice { // rule: TestExpectBounds
		return clc.DiagRefused
	}
	ids[e.id] = name
	p.expected[name] = append(p.expected[name], e)
	return clc.DiagNone
}

// dropStaleLocked forgets connections of a peer that nobody has accepted.
func (p *Point) dropStaleLocked(peer *ism.Peer, ids map[uint64]Name) {
	for id, name := range ids {
		for _, e := range p.expected[name] {
			if e.peer == peer && e.id == id && time.Since(e.at) > expectAge {
				p.unexpectLocked(peer, id, name)
				break
			}
		}
	}
}

// unexpectLocked forgets one connection of a peer.
func (p *Point) unexpectLocked(peer *ism.Peer, id uint64, name Name) {
	delete(p.peers[peer], id)
	list := p.expected[name]
	kept := make([]expectation, 0, len(list))
	for _, e := range list {
		if e.peer != peer || e.id != id {
			kept = append(kept, e)
		}
	}
	if len(kept) == 0 {
		delete(p.expected, name)
	} else {
		p.expected[name] = kept
	}
}

// onCancel forgets a connection, and says so unless it was accepted.
func (p *Point) onCancel(peer *ism.Peer, id uint64) {
	p.mu.Lock()
	name, found := p.peers[peer][id]
	if found {
		p.unexpectLocked(peer, id, name)
	}
	p.mu.Unlock()
	if found {
		p.send(peer, Message{Kind: Refused, ID: id, Reason: uint32(clc.DiagNotAccepted)})
	}
}
