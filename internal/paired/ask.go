package paired

import (
	"context"
	"syscall"

	"github.com/gosmc/smc/internal/bureau"
	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/ism"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

// agent returns the connection to the agent, or the reason why there is none.
func (p *Point) agent(
	ctx context.Context, d *ism.Device, raw syscall.RawConn,
) (*introduce.Client, clc.Diagnosis) {
	dial := bureau.At(func() []string { return p.cfg.Kernel.Addresses(raw) }, p.cfg.Users)
	return p.bureau.Get(ctx, d.GID(), func(ctx context.Context, gid wire.ISMGID) (*introduce.Client, error) {
		client, err := dial(ctx, gid)
		if err == nil {
			ism.LearnOvercommit(client.StrictOvercommit())
		}
		return client, err
	})
}

// ask asks the agent which process is at the other end of a connection; pairs: a pair will do, too. It
// returns no question and the reason if that is not possible.
func (p *Point) ask(
	ctx context.Context, d *ism.Device, raw syscall.RawConn, role introduce.Role, pairs bool,
) (*introduce.Question, clc.Diagnosis) {
	client, why := p.agent(ctx, d, raw)
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
		if client, _ := p.agent(context.Background(), d, c.raw); client != nil {
			c.raw.Control(func(fd uintptr) { client.Decline(introduce.RoleServer, fd, claimTime) })
		}
	}()
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
