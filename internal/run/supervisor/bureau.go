package supervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

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

	mu      sync.Mutex
	over    bool
	client  *introduce.Client
	attempt *flight   // that is under way; nil: none is
	failed  time.Time // when no agent answered last, or not in time
	why     clc.Diagnosis
}

// A flight is an attempt to reach the agent. Others wait for its end, and not for the bureau's lock,
// which nobody has meanwhile.
type flight struct {
	ctx    context.Context // done when the attempt is over, or is given up
	cancel context.CancelFunc
}

// get returns the conversation, or the reason why there is none. It waits for the agent's first answer,
// for nameTime and welcomeTime at most, or until the bureau is closed.
func (b *bureau) get() (*introduce.Client, clc.Diagnosis) {
	for {
		client, why, attempt, mine := b.look()
		switch {
		case attempt == nil:
			return client, why
		case mine:
			b.dial(attempt)
		default:
			<-attempt.ctx.Done()
		}
	}
}

// look returns the conversation or the reason why there is none, or the attempt that is under way, or
// that is the caller's to make.
func (b *bureau) look() (client *introduce.Client, why clc.Diagnosis, attempt *flight, mine bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return nil, clc.DiagClosing, nil, false
	}
	if !b.failed.IsZero() && time.Since(b.failed) < agentPause {
		return nil, b.why, nil, false
	}
	if b.client != nil {
		select {
		case <-b.client.Done():
			b.client = nil
		default:
			return b.client, clc.DiagNone, nil, false
		}
	}
	if b.attempt != nil {
		return nil, clc.DiagNone, b.attempt, false
	}
	b.attempt = &flight{}
	b.attempt.ctx, b.attempt.cancel = context.WithCancel(context.Background())
	return nil, clc.DiagNone, b.attempt, true
}

// dial makes an attempt. The caller does not hold the lock, as TestBureauWaits checks.
func (b *bureau) dial(attempt *flight) {
	defer attempt.cancel()
	why := clc.DiagNoAgent
	var client *introduce.Client
	for _, address := range addresses() {
		ctx, cancel := context.WithTimeout(attempt.ctx, welcomeTime)
		c, err := introduce.Dial(ctx, address, newGID(), b.users)
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
	over := b.over
	b.attempt = nil
	switch {
	case over:
	case client != nil:
		b.client, b.failed = client, time.Time{}
	default:
		b.failed, b.why = time.Now(), why
	}
	b.mu.Unlock()
	if over && client != nil {
		client.Close()
	}
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
//
// The kernel is asked by a socket of our own. One that a program has sent may be of another network
// namespace, whose name somebody has taken in ours, to hand our challenge on to that namespace's agent.
// And its user may have a system call of its own wait in it: then others wait for ever.
func addresses() (list []string) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return port.Paths("")
	}
	defer unix.Close(fd)
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
	if b.attempt != nil {
		b.attempt.cancel()
	}
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
