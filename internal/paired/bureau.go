package paired

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A bureau is the conversation of a point with the agent. It begins when somebody needs it, and again
// when the agent was started again.
type bureau struct {
	users introduce.Users

	mu      sync.Mutex
	closed  bool
	client  *introduce.Client
	attempt chan struct{} // closed when the attempt that is under way is over; nil: none is
	gid     wire.ISMGID   // that the agent knows
	failed  time.Time     // when no agent answered last
	boot    [16]byte      // the kernel's boot ID; zero if no agent has told it
	why     clc.Diagnosis
}

// get returns the conversation, or the reason why there is none. A process with an agent that does not
// answer waits for it now and then, until ctx is done. One attempt is made at a time; nobody has the lock
// meanwhile.
func (b *bureau) get(
	ctx context.Context, addresses func() []string, gid wire.ISMGID,
) (*introduce.Client, clc.Diagnosis) {
	for {
		client, why, attempt, mine := b.look(gid)
		switch {
		case attempt == nil:
			return client, why
		case mine:
			b.dial(ctx, attempt, addresses, gid)
		default:
			select {
			case <-attempt:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return nil, clc.DiagNoAgent
		}
	}
}

// look returns the conversation or the reason why there is none, or the attempt that is under way, or
// that is the caller's to make.
func (b *bureau) look(gid wire.ISMGID) (
	client *introduce.Client, why clc.Diagnosis, attempt chan struct{}, mine bool,
) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.client; c != nil {
		select {
		case <-c.Done():
			b.client = nil
		default:
			if b.gid == gid {
				return c, clc.DiagNone, nil, false
			}
			c.Close()
			b.client = nil
		}
	}
	switch {
	case b.closed:
		return nil, clc.DiagClosing, nil, false
	case b.attempt != nil:
		return nil, clc.DiagNone, b.attempt, false
	case !b.failed.IsZero() && time.Since(b.failed) < agentPause:
		return nil, b.why, nil, false
	}
	b.attempt = make(chan struct{})
	return nil, clc.DiagNone, b.attempt, true
}

// dial makes an attempt. The caller does not hold the lock, as TestBureauWaits checks.
func (b *bureau) dial(
	ctx context.Context, attempt chan struct{}, addresses func() []string, gid wire.ISMGID,
) {
	defer close(attempt)
	why := clc.DiagNoAgent
	var client *introduce.Client
	for _, address := range addresses() {
		wait, cancel := context.WithTimeout(ctx, welcomeTime)
		c, err := introduce.Dial(wait, address, gid, b.users)
		cancel()
		if err == nil {
			client = c
			break
		}
		if errors.Is(err, introduce.ErrAgentVersion) {
			why = clc.DiagOldAgent
		}
	}
	b.mu.Lock()
	closed := b.closed
	b.attempt = nil
	switch {
	case closed:
	case client != nil:
		b.client, b.gid, b.failed, b.boot = client, gid, time.Time{}, client.BootID()
		ism.LearnOvercommit(client.StrictOvercommit())
	case ctx.Err() == nil: // else the next one makes an attempt
		b.failed, b.why = time.Now(), why
	}
	b.mu.Unlock()
	if closed && client != nil {
		client.Close()
	}
}

// bootID returns the kernel's boot ID as the agent knows it, if it was asked before.
func (b *bureau) bootID() (id [16]byte, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.boot, b.boot != [16]byte{}
}

// release ends the conversation until somebody needs it.
func (b *bureau) release() {
	b.mu.Lock()
	c := b.client
	b.client = nil
	b.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

func (b *bureau) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.release()
}

// introductionOf makes of an answer what a device needs.
func introductionOf(a *introduce.Answer, strict bool) ism.Introduction {
	in := ism.Introduction{
		Own:    a.SameUser,
		Socket: a.Socket, Key: wire.ISMGIDFromUUID(a.Process), GID: a.GID, Secret: a.Secret,
		Cred: ism.Cred{PID: a.PID, UID: a.UID, GID: a.Group}, Strict: strict,
	}
	a.Socket = -1
	return in
}

// refusals are the reasons to give for the agent's.
var refusals = map[introduce.Refusal]clc.Diagnosis{
	introduce.RefusedAlone:     clc.DiagNotAccepted,
	introduce.RefusedUsers:     clc.DiagOtherUser,
	introduce.RefusedBusy:      clc.DiagBusy,
	introduce.RefusedSocket:    clc.DiagNotAccepted,
	introduce.RefusedToken:     clc.DiagNoToken,
	introduce.RefusedContested: clc.DiagNotAccepted,
	introduce.RefusedOffer:     clc.DiagOldAgent,
	introduce.RefusedDeclined:  clc.DiagRefused,
	introduce.RefusedGivenBack: clc.DiagNotAccepted,
}

// reasonOf returns the reason for a refusal of the agent, also of one that is newer than we are.
func reasonOf(r introduce.Refusal) clc.Diagnosis {
	if why, ok := refusals[r]; ok { // rule: TestReasons
		return why
	}
	return clc.DiagRefused
}
