package supervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/port"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// A bureau is the conversation of a supervisor with the agent. It begins when somebody needs it,
// and again when the agent was started again. Any goroutine may use it.
type bureau struct {
	users introduce.Users // with whose programs ours share connections

	mu     sync.Mutex
	over   bool
	client *introduce.Client
	failed time.Time // when no agent answered last, or not in time
	why    clc.Diagnosis
}

// get returns the conversation, or the reason why there is none. fd is a TCP socket of the network
// namespace. It waits for the agent's first answer, welcomeTime at most.
func (b *bureau) get(fd int) (*introduce.Client, clc.Diagnosis) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return nil, clc.DiagClosing
	}
	if !b.failed.IsZero() && time.Since(b.failed) < agentPause {
		return nil, b.why
	}
	if b.client != nil {
		select {
		case <-b.client.Done():
			b.client = nil
		default:
			return b.client, clc.DiagNone
		}
	}
	b.why = clc.DiagNoAgent
	for _, address := range addresses(fd) {
		ctx, cancel := context.WithTimeout(context.Background(), welcomeTime)
		c, err := introduce.Dial(ctx, address, newGID(), b.users)
		cancel()
		if err == nil {
			b.client, b.failed = c, time.Time{}
			return c, clc.DiagNone
		}
		if errors.Is(err, introduce.ErrAgentVersion) {
			b.why = clc.DiagOldAgent
		}
	}
	b.failed = time.Now()
	return nil, b.why
}

// slow notes that an agent has not answered in time: nobody asks it for a while.
func (b *bureau) slow() {
	b.mu.Lock()
	b.failed, b.why = time.Now(), clc.DiagNoAgent
	b.mu.Unlock()
}

// newGID is a name for the agent of a supervisor, which has no device.
func newGID() wire.ISMGID {
	var uuid [16]byte
	rand.Read(uuid[:])
	return wire.ISMGIDFromUUID(uuid)
}

// addresses are where the agent may be reached. The kernel vouches for the name that it has of the
// agent. The agent gets to know a network namespace when the first socket asks in it, so its name
// may come a moment later.
func addresses(fd int) (list []string) {
	for end := time.Now().Add(nameTime); ; time.Sleep(namePause) {
		name, err := pairing.ServiceName(uintptr(fd))
		if err == nil {
			list = append(list, "@"+name)
		}
		if !errors.Is(err, pairing.ErrNoName) || time.Now().After(end) {
			return append(list, port.Paths("")...)
		}
	}
}

func (b *bureau) close() {
	b.mu.Lock()
	b.over = true
	c := b.client
	b.client = nil
	b.mu.Unlock()
	if c != nil {
		c.Close()
	}
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

// reasonOf returns the reason for a refusal of the agent.
func reasonOf(r introduce.Refusal) clc.Diagnosis {
	if why, ok := refusals[r]; ok {
		return why
	}
	return clc.DiagRefused
}
