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

	mu     sync.Mutex
	closed bool
	client *introduce.Client
	gid    wire.ISMGID // that the agent knows
	failed time.Time   // when no agent answered last
	boot   [16]byte    // the kernel's boot ID; zero if no agent has told it
	why    clc.Diagnosis
}

// get returns the conversation, or the reason why there is none. A process with an agent that does not
// answer waits for it now and then.
func (b *bureau) get(
	ctx context.Context, addresses func() []string, gid wire.ISMGID,
) (*introduce.Client, clc.Diagnosis) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.client; c != nil {
		select {
		case <-c.Done():
			b.client = nil
		default:
			if b.gid == gid {
				return c, clc.DiagNone
			}
			c.Close()
			b.client = nil
		}
	}
	if b.closed {
		return nil, clc.DiagClosing
	}
	if !b.failed.IsZero() && time.Since(b.failed) < agentPause {
		return nil, b.why
	}
	b.why = clc.DiagNoAgent
	for _, address := range addresses() {
		wait, cancel := context.WithTimeout(ctx, welcomeTime)
		c, err := introduce.Dial(wait, address, gid, b.users)
		cancel()
		if err == nil {
			b.client, b.gid, b.failed, b.boot = c, gid, time.Time{}, c.BootID()
			ism.LearnOvercommit(c.StrictOvercommit())
			return c, clc.DiagNone
		}
		if errors.Is(err, introduce.ErrAgentVersion) {
			b.why = clc.DiagOldAgent
		}
	}
	b.failed = time.Now()
	return nil, b.why
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
}
