// Package bureau keeps the one connection of a process to the agent that introduces programs. All that
// need the agent share it: hosts of package smc and supervisors of 'gosmc run'.
package bureau

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// Limits of the wait for an agent.
const (
	// Pause is how long nobody looks for an agent that was not there.
	Pause = 500 * time.Millisecond

	// welcomeTime is how long an agent is waited for that does not answer. It answers at once, unless
	// it is stopped or gets no processor.
	welcomeTime = 300 * time.Millisecond

	// NameTime is how long to wait for the name of an agent that has just heard of a network namespace,
	// and NamePause how long between two looks.
	NameTime  = 100 * time.Millisecond
	NamePause = time.Millisecond
)

// A Dial makes a connection to the agent. Its errors match the ones that [introduce.Dial] returns.
type Dial func(ctx context.Context, gid wire.ISMGID) (*introduce.Client, error)

// At returns a Dial that tries addresses one after another, for welcomeTime each. The error is
// [introduce.ErrAgentVersion] if one of them has an agent of another version.
func At(addresses func() []string, users introduce.Users) Dial {
	return func(ctx context.Context, gid wire.ISMGID) (*introduce.Client, error) {
		result := introduce.ErrNoAgent
		for _, address := range addresses() {
			wait, cancel := context.WithTimeout(ctx, welcomeTime)
			c, err := introduce.Dial(wait, address, gid, users)
			cancel()
			if err == nil {
				return c, nil
			}
			if errors.Is(err, introduce.ErrAgentVersion) { // rule: TestAt: introduce.ErrAgentVersion -> context.Canceled
				result = err
			}
		}
		return nil, result
	}
}

// A Bureau is the connection to the agent. It is made when somebody needs it, and again when the
// agent was started again. The zero value is ready. Any goroutine may call its methods.
type Bureau struct {
	mu      sync.Mutex
	closed  bool
	client  *introduce.Client
	gid     wire.ISMGID // under which the agent knows the client
	attempt *attempt    // under way; nil: none is
	failed  time.Time   // when no agent answered last, or not in time; zero: the last one did
	why     clc.Diagnosis
	boot    [16]byte // the kernel's boot ID; zero if no agent has told it
}

// An attempt to reach the agent is made by one goroutine, without the lock. Others wait for its end.
type attempt struct {
	ctx    context.Context    // done if it is given up
	cancel context.CancelFunc // gives it up
	over   chan struct{}      // closed at its end
}

// Get returns the connection of a process that the agent knows by gid, or the reason why there is
// none. If there is none yet, dial makes it. One attempt is made at a time. Others wait for it until
// ctx is done, which is [clc.DiagNoAgent], or until the Bureau is closed, which is [clc.DiagClosing].
// For [Pause] after an attempt that has failed no other one is made.
func (b *Bureau) Get(ctx context.Context, gid wire.ISMGID, dial Dial) (*introduce.Client, clc.Diagnosis) {
	for {
		client, why, a, mine := b.look(ctx, gid)
		switch {
		case a == nil:
			return client, why
		case mine:
			b.try(ctx, a, gid, dial)
		default:
			select {
			case <-a.over:
			case <-ctx.Done(): // rule: TestGetWaits: ctx.Done() -> (chan struct{})(nil)
			}
		}
		if ctx.Err() != nil {
			return nil, clc.DiagNoAgent
		}
	}
}

// look returns the connection or the reason why there is none. Otherwise it returns an attempt: mine
// says that the caller has to make it, else another goroutine does.
func (b *Bureau) look(
	ctx context.Context, gid wire.ISMGID,
) (client *introduce.Client, why clc.Diagnosis, a *attempt, mine bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return nil, clc.DiagClosing, nil, false
	case !b.failed.IsZero() && time.Since(b.failed) < Pause: // rule: TestPause
		return nil, b.why, nil, false
	}
	if c := b.client; c != nil {
		select {
		case <-c.Done():
		default:
			if b.gid == gid { // rule: TestGet: b.gid == gid -> true
				return c, clc.DiagNone, nil, false
			}
			c.Close()
		}
		b.client = nil
	}
	if b.attempt != nil {
		return nil, clc.DiagNone, b.attempt, false
	}
	b.attempt = &attempt{over: make(chan struct{})}
	b.attempt.ctx, b.attempt.cancel = context.WithCancel(ctx)
	return nil, clc.DiagNone, b.attempt, true
}

// try makes an attempt. The caller does not hold the lock. ctx is the caller's: if it is done, the
// attempt says nothing about the agent.
func (b *Bureau) try(ctx context.Context, a *attempt, gid wire.ISMGID, dial Dial) {
	defer close(a.over)
	defer a.cancel()
	client, err := dial(a.ctx, gid)
	b.mu.Lock()
	b.attempt = nil
	closed := b.closed
	switch {
	case closed:
	case err == nil:
		b.client, b.gid, b.failed, b.boot = client, gid, time.Time{}, client.BootID()
	case ctx.Err() == nil: // rule: TestGetWaits: ctx.Err() == nil -> true
		b.failed, b.why = time.Now(), clc.DiagNoAgent
		if errors.Is(err, introduce.ErrAgentVersion) { // rule: TestOldAgent
			b.why = clc.DiagOldAgent
		}
	}
	b.mu.Unlock()
	if closed && client != nil { // rule: TestClose
		client.Close()
	}
}

// Slow notes that the agent has not answered in time: for [Pause] nobody asks it.
func (b *Bureau) Slow() {
	b.mu.Lock()
	b.failed, b.why = time.Now(), clc.DiagNoAgent
	b.mu.Unlock()
}

// BootID returns the kernel's boot ID as the agent knows it. ok is false if no agent was reached.
func (b *Bureau) BootID() (id [16]byte, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.boot, b.boot != [16]byte{}
}

// Release ends the connection until somebody needs it.
func (b *Bureau) Release() {
	b.mu.Lock()
	c := b.client
	b.client = nil
	b.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// Close ends the connection and an attempt that is under way. No other one is made.
func (b *Bureau) Close() {
	b.mu.Lock()
	b.closed = true
	if b.attempt != nil {
		b.attempt.cancel() // rule: TestClose
	}
	b.mu.Unlock()
	b.Release()
}
