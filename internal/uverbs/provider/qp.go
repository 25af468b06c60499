package provider

import (
	"fmt"
	"sync"
	"time"

	"github.com/gosmc/smc/internal/uverbs"
	"github.com/gosmc/smc/internal/verbs"
	"github.com/gosmc/smc/wire"
)

// pair is a queue pair.
type pair struct {
	d    *device
	q    *uverbs.QP
	recv *queue

	sendMu sync.Mutex
	sends  []uverbs.SendWR // translated work; used again
	recvMu sync.Mutex
	recvs  []uverbs.RecvWR
}

// NewQP implements [verbs.PD].
func (p *domain) NewQP(cfg verbs.QPConfig) (verbs.QP, error) {
	send, _ := cfg.SendCQ.(*queue)
	recv, _ := cfg.RecvCQ.(*queue)
	if send == nil || recv == nil {
		return nil, fmt.Errorf("completion queues of another provider: %w", verbs.ErrArgument)
	}
	q, err := p.PD.NewQP(uverbs.QPConfig{
		SendCQ: send.q, RecvCQ: recv.q, MaxSend: cfg.MaxSend, MaxRecv: cfg.MaxRecv,
	})
	if err != nil {
		return nil, p.d.failure(err)
	}
	return &pair{d: p.d, q: q, recv: recv}, nil
}

// Init implements [verbs.QP].
func (p *pair) Init(access verbs.Access) error {
	return p.q.Init(p.d.port, uverbs.Access(access)) // both have the kernel's values
}

// ReadyToReceive implements [verbs.QP].
func (p *pair) ReadyToReceive(a verbs.RTR) error {
	return p.q.ReadyToReceive(uverbs.RTR{
		RemoteGID: a.RemoteGID, RemoteQPN: a.RemoteQPN, PathMTU: a.PathMTU, RecvPSN: a.RecvPSN,
		MinRNRTimer: a.MinRNRTimer, Port: p.d.port, GIDIndex: uint8(p.d.index.Load()),
	})
}

// ReadyToSend implements [verbs.QP].
func (p *pair) ReadyToSend(a verbs.RTS) error {
	return p.q.ReadyToSend(uverbs.RTS{
		SendPSN: a.SendPSN, Timeout: a.Timeout, RetryCount: a.RetryCount, RNRRetry: a.RNRRetry,
	})
}

// PostSend implements [verbs.QP].
func (p *pair) PostSend(wrs ...verbs.SendWR) error {
	if len(wrs) == 0 {
		return nil
	}
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	p.sends = p.sends[:0]
	for i := range wrs {
		w := &wrs[i]
		p.sends = append(p.sends, uverbs.SendWR{
			ID: w.ID, Op: uverbs.Op(w.Op), Signaled: w.Signaled, Solicited: w.Solicited,
			Local: pieces(&w.Local), Remote: w.Remote, RKey: w.RKey, Imm: w.Imm,
		})
	}
	return p.q.PostSend(p.sends...)
}

// PostRecv implements [verbs.QP].
func (p *pair) PostRecv(wrs ...verbs.RecvWR) error {
	p.recvMu.Lock()
	defer p.recvMu.Unlock()
	p.recvs = p.recvs[:0]
	for i := range wrs {
		p.recvs = append(p.recvs, uverbs.RecvWR{ID: wrs[i].ID, Local: pieces(&wrs[i].Local)})
	}
	return p.q.PostRecv(p.recvs...)
}

// pieces translates. A region of another provider becomes none, which package uverbs refuses.
func pieces(local *[verbs.MaxSGE]verbs.SGE) (to [uverbs.MaxSGE]uverbs.SGE) {
	for i := range local {
		m, _ := local[i].MR.(*uverbs.MR)
		to[i] = uverbs.SGE{MR: m, Addr: local[i].Addr, Len: local[i].Len}
	}
	return to
}

// Drain implements [verbs.QP].
func (p *pair) Drain(limit time.Duration) bool { return p.recv.handler == nil || p.recv.drain(limit) }

// AnswerFirst implements [verbs.QP]: the device acknowledges as it likes.
func (p *pair) AnswerFirst() {}

// HoldAnswers implements [verbs.QP]: the device acknowledges as it likes.
func (p *pair) HoldAnswers() {}

func (p *pair) Fail() error   { return p.q.Fail() }
func (p *pair) Close() error  { return p.q.Close() }
func (p *pair) QPN() wire.QPN { return p.q.QPN() }

// Stats implements [verbs.QP]. The kernel has no counters of queue pairs.
func (p *pair) Stats() verbs.QPStats { return verbs.QPStats{} }
