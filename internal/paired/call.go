package paired

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/gosmc/smc/internal/bureau"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/internal/ring"
	"github.com/gosmc/smc/wire/clc"
)

// A call is the client's side of one connection.
type call struct {
	point   *Point
	id      uint64
	tcp     *net.TCPConn
	dest    netip.AddrPort
	pairs   bool // a pair will do, too
	tokens  Tokens
	answers chan answer // room for all that counts
	asked   []*ism.Peer // guarded by Point.mu; only the call's goroutine changes it
	refused []*ism.Peer // of those asked

	stage      stage
	introduced bool                // the agent says that the server waits
	question   *introduce.Question // asked
	met        chan meeting        // meeting
	why        clc.Diagnosis       // the last reason for plain TCP
}

// A stage says how far a call has come with the agent.
type stage uint8

const (
	stageIdle    stage = iota // the agent was not asked
	stageAsked                // the agent has not answered
	stageMeeting              // the peering of an introduction is being made
	stageDone                 // nothing more comes from the agent
)

// A meeting is the outcome of an introduction.
type meeting struct {
	peer *ism.Peer
	err  error
}

type answer struct {
	peer *ism.Peer
	m    Message
}

// answer hands on an answer if the peer was asked. Point.mu is held. It never blocks: a peer that
// answers more than it was asked is not heard.
func (c *call) answer(p *ism.Peer, m Message) {
	if !slices.Contains(c.asked, p) { // rule: TestUnasked
		return
	}
	select {
	case c.answers <- answer{p, m}:
	default:
	}
}

// onAnswer hands an answer to the call that it belongs to.
func (p *Point) onAnswer(peer *ism.Peer, m Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.calls[m.ID]; c != nil {
		c.answer(peer, m)
	}
}

// An Outcome says how the process is reached that has accepted a connection.
type Outcome struct {
	Peer   *ism.Peer     // the peering with it; nil: none
	End    *ring.End     // our end of a pair, in place of the connection; nil: none. The caller's
	Paired bool          // the peer is on this kernel: no other kind of SMC is for the connection
	Why    clc.Diagnosis // it is to be plain TCP, if there is neither
}

// Await finds out how the process is reached that has accepted a connection; pairs: a pair will do, too.
// After an error the connection cannot be used.
func (p *Point) Await(ctx context.Context, tcp *net.TCPConn, pairs bool) (Outcome, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return Outcome{}, nil
	}
	tokens, why := p.cfg.Kernel.Read(raw, remoteOf(tcp))
	if why != clc.DiagNone {
		return Outcome{Why: why}, nil
	}
	device, why, err := p.cfg.Open()
	if err != nil {
		return Outcome{Paired: true, Why: why}, nil
	}
	c := &call{
		point: p, id: p.ids.Add(1), tcp: tcp, dest: remoteOf(tcp), pairs: pairs, tokens: tokens,
		answers: make(chan answer, 2*(maxKnown+1)),
	}
	p.mu.Lock()
	p.calls[c.id] = c
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.calls, c.id)
		p.mu.Unlock()
	}()
	o, err := c.await(ctx, device, raw)
	o.Paired = true
	return o, err
}

// expect tells a peer about the connection.
func (c *call) expect(peer *ism.Peer) {
	secret, _ := peer.Secret()
	p := c.point
	p.mu.Lock()
	again := slices.Contains(c.asked, peer)
	if !again {
		c.asked = append(c.asked, peer)
	}
	p.mu.Unlock()
	if again {
		return
	}
	client, server := c.tokens.Mine, c.tokens.Theirs
	m := Message{Kind: Expect, ID: c.id, Name: nameOf(client, server), Proof: proofOf(secret, client, server)}
	if !p.send(peer, m) {
		c.refused = append(c.refused, peer)
	}
}

// outstanding returns the peers that were asked and have not answered.
func (c *call) outstanding() (peers []*ism.Peer) {
	for _, p := range c.asked { // only this goroutine changes it
		if !slices.Contains(c.refused, p) {
			peers = append(peers, p)
		}
	}
	return peers
}

// await asks until one of the peers accepts, or the time is up.
//
// The processes that are known at the address are asked first. If none of them says anything within
// guessTime, or all say that they cannot, the agent is asked, too. At the end of AcceptTime all
// requests are taken back. Only a peer's answer to that tells whether it was too late, so it is waited
// for.
func (c *call) await(ctx context.Context, device *ism.Device, raw syscall.RawConn) (Outcome, error) {
	p := c.point
	peers, full := p.known.at(c.dest)
	for _, peer := range peers {
		c.expect(peer)
	}
	timer := time.NewTimer(guessTime)
	defer timer.Stop()
	askNow, cancelled := full, false
	start := time.Now()
	for {
		if c.stage == stageIdle && (askNow || len(c.outstanding()) == 0 && c.why == clc.DiagNone) {
			c.ask(ctx, device, raw)
		}
		if len(c.outstanding()) == 0 && (c.stage == stageDone || c.stage == stageIdle) {
			return Outcome{Why: c.why}, nil
		}
		select {
		case a := <-c.answers:
			if a.m.Kind == Accepted {
				c.takeBack(a.peer)
				p.known.add(c.dest, a.peer)
				return Outcome{Peer: a.peer}, nil
			}
			c.onRefused(a)
		case a := <-c.introduction():
			if a.Lent { // nobody else has the connection
				return c.onLent(ctx, &a)
			}
			c.onIntroduced(ctx, device, &a)
		case m := <-c.met:
			c.onMet(m)
		case <-timer.C:
			switch {
			case cancelled:
				return c.silent()
			case time.Since(start) < c.patience():
				askNow = true
				timer.Reset(c.patience() - time.Since(start))
			default:
				cancelled = true
				c.takeBack(nil)
				timer.Reset(cancelTime)
			}
		case <-ctx.Done():
			c.takeBack(nil)
			return Outcome{}, ctx.Err()
		}
	}
}

// onLent takes an end of a pair that the agent has lent.
func (c *call) onLent(ctx context.Context, a *introduce.Answer) (o Outcome, err error) {
	c.stage = stageDone // the question stays
	c.takeBack(nil)
	l := lend(c.question, a, c.tcp)
	if l == nil {
		c.question.Withdraw()
		return Outcome{Why: clc.DiagBusy}, nil
	}
	o.End, o.Why, err = l.fate(ctx, metTime, cancelTime)
	return o, err
}

// patience returns how long the server is waited for.
func (c *call) patience() time.Duration {
	if c.introduced {
		return metTime
	}
	return AcceptTime
}

// introduction returns the channel with the agent's answer, nil if none is awaited.
func (c *call) introduction() <-chan introduce.Answer {
	if c.stage != stageAsked {
		return nil
	}
	return c.question.Answer()
}

// done says that nothing more comes from the agent, and why.
func (c *call) done(why clc.Diagnosis) {
	c.stage = stageDone
	if c.why == clc.DiagNone {
		c.why = why
	}
}

// ask asks the agent.
func (c *call) ask(ctx context.Context, device *ism.Device, raw syscall.RawConn) {
	q, why := c.point.ask(ctx, device, raw, introduce.RoleClient, c.pairs)
	if q == nil {
		c.done(why)
		return
	}
	c.question, c.stage = q, stageAsked
}

// onRefused notes that a peer does not take the connection.
func (c *call) onRefused(a answer) {
	if !slices.Contains(c.refused, a.peer) {
		c.refused = append(c.refused, a.peer)
	}
	switch why := clc.Diagnosis(a.m.Reason); {
	case why == clc.DiagBusy || why == clc.DiagStale: // it need not be the one that has the connection
	case why.IsLocal():
		c.why = why
	default:
		c.why = clc.DiagRefused
	}
}

// onIntroduced makes the peering of an introduction, on another goroutine.
func (c *call) onIntroduced(ctx context.Context, device *ism.Device, a *introduce.Answer) {
	if a.Socket < 0 {
		c.done(bureau.Reason(a.Reason))
		return
	}
	c.introduced = true
	in := introductionOf(a, c.question.Strict())
	c.stage, c.met = stageMeeting, make(chan meeting, 1)
	met, enlist := c.met, c.point.cfg.Enlist
	ctx = context.WithoutCancel(ctx) // the peering serves others, too; the device bounds its time
	go func() {
		peer, err := device.PeerBy(ctx, in)
		if err == nil && !enlist(peer) {
			err = ism.ErrPeerGone
		}
		met <- meeting{peer, err}
	}()
}

// onMet tells an introduced process about the connection.
func (c *call) onMet(m meeting) {
	c.met = nil
	if m.err != nil {
		c.done(c.point.cfg.Reason(m.err))
		return
	}
	c.stage = stageDone
	c.expect(m.peer)
}

// takeBack takes back whatever was asked for, but of one peer.
func (c *call) takeBack(but *ism.Peer) {
	if c.stage == stageAsked {
		c.question.Withdraw()
	}
	c.done(clc.DiagNotAccepted)
	for _, peer := range c.outstanding() {
		if peer != but {
			c.point.send(peer, Message{Kind: Cancel, ID: c.id})
		}
	}
}

// silent decides about a connection of which a peer does not say whether it has accepted it. A process
// of this user does not lie: it is stopped, and the connection cannot be used, because it might still
// expect CLC. One of another user can spoil its own connections only.
func (c *call) silent() (Outcome, error) {
	var err error
	for _, peer := range c.outstanding() {
		c.point.known.drop(c.dest, peer)
		if peer.SameUser() {
			err = os.NewSyscallError("connect", syscall.ETIMEDOUT)
		}
	}
	return Outcome{Why: clc.DiagRendezvousTimeout}, err
}
