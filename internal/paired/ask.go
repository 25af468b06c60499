package paired

import (
	"context"
	"syscall"

	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/wire/clc"
)

// ask asks the agent which process is at the other end of a connection; pairs: a pair will do, too. It
// returns no question and the reason if that is not possible.
func (p *Point) ask(
	ctx context.Context, d *ism.Device, raw syscall.RawConn, role introduce.Role, pairs bool,
) (*introduce.Question, clc.Diagnosis) {
	client, why := p.bureau.get(ctx, func() []string { return p.cfg.Kernel.Addresses(raw) }, d.GID())
	if client == nil {
		return nil, why
	}
	var q *introduce.Question
	var err error
	ask := client.Ask
	if pairs {
		ask = client.AskEither
	}
	if cerr := raw.Control(func(fd uintptr) { q, err = ask(role, fd, claimTime) }); cerr != nil {
		return nil, clc.DiagNotAccepted
	}
	if err != nil {
		return nil, clc.DiagNoAgent
	}
	return q, clc.DiagNone
}

// decline has the agent tell the client of a connection that it is plain TCP. Without an agent the
// client finds out by itself.
func (p *Point) decline(c *Candidate) {
	d := p.cfg.Opened()
	if d == nil {
		return
	}
	if p.retries.Add(1) > maxRetries {
		p.retries.Add(-1)
		return
	}
	go func() {
		defer p.retries.Add(-1)
		addresses := func() []string { return p.cfg.Kernel.Addresses(c.raw) }
		client, _ := p.bureau.get(context.Background(), addresses, d.GID())
		if client != nil {
			c.raw.Control(func(fd uintptr) { client.Decline(introduce.RoleServer, fd, claimTime) })
		}
	}()
}
