package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gosmc/smc/internal/uverbs"
	"github.com/gosmc/smc/wire"
)

const (
	depth      = 16 // work requests of each queue: far less than a run posts, so that all rings wrap around
	regionSize = 256 << 10
	patience   = 20 * time.Second // for one completion or event; the guest is slow
)

// An end is one queue pair with its objects.
type end struct {
	c       *uverbs.Context
	pd      *uverbs.PD
	cq      *uverbs.CQ
	mr      *uverbs.MR
	qp      *uverbs.QP
	wakeups int
	ready   []uverbs.Completion // taken out, not yet returned by next
	buffer  [4]uverbs.Completion
}

func newEnd(c *uverbs.Context, access uverbs.Access) (*end, error) {
	e := &end{c: c}
	var err error
	if e.pd, err = c.NewPD(); err != nil {
		return nil, err
	}
	if e.cq, err = c.NewCQ(2 * depth); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.AllocMR(regionSize, uverbs.LocalWrite|uverbs.RemoteWrite); err != nil {
		return nil, err
	}
	e.qp, err = e.pd.NewQP(uverbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSend: depth, MaxRecv: depth})
	if err != nil {
		return nil, err
	}
	return e, e.qp.Init(1, access)
}

// close closes the objects in their order; each must be possible.
func (e *end) close() error {
	if err := e.pd.Close(); !errors.Is(err, uverbs.ErrBusy) {
		return fmt.Errorf("closing a domain in use: %v", err)
	}
	return errors.Join(e.qp.Close(), e.cq.Close(), e.mr.Deregister(), e.pd.Close())
}

// gid returns a GID of the device for RoCEv2 over IPv4.
func gid(c *uverbs.Context) (uverbs.GIDEntry, error) {
	entries, err := c.GIDs()
	if err != nil {
		return uverbs.GIDEntry{}, err
	}
	for _, g := range entries {
		if _, ok := g.GID.IPv4(); ok && g.Type == uverbs.GIDTypeRoCEv2 && g.Ifindex != 0 && g.Port == 1 {
			return g, nil
		}
	}
	return uverbs.GIDEntry{}, fmt.Errorf("no IPv4 GID among %v", entries)
}

// pair makes two queue pairs of a device that are connected to each other. The PSNs wrap around soon.
func pair(c *uverbs.Context, access uverbs.Access) (a, b *end, err error) {
	if a, err = newEnd(c, access); err != nil {
		return nil, nil, err
	}
	if b, err = newEnd(c, access); err != nil {
		return nil, nil, err
	}
	g, err := gid(c)
	if err != nil {
		return nil, nil, err
	}
	port, err := c.QueryPort(1)
	if err != nil {
		return nil, nil, err
	}
	if port.State != uverbs.PortActive || !port.Ethernet {
		return nil, nil, fmt.Errorf("port %+v", port)
	}
	const psn = 1<<24 - 100
	connect := func(x, y *end) error {
		err := x.qp.ReadyToReceive(uverbs.RTR{
			RemoteGID: g.GID, RemoteQPN: y.qp.QPN(), PathMTU: port.ActiveMTU, RecvPSN: psn, MinRNRTimer: 12,
			Port: 1, GIDIndex: uint8(g.Index),
		})
		if err != nil {
			return err
		}
		return x.qp.ReadyToSend(uverbs.RTS{SendPSN: psn, Timeout: 17, RetryCount: 7, RNRRetry: 7})
	}
	return a, b, errors.Join(connect(a, b), connect(b, a))
}

// next waits for a completion, and for the completion channel if there is none.
func (e *end) next() (uverbs.Completion, error) {
	for len(e.ready) == 0 {
		n := e.cq.Poll(e.buffer[:])
		if n == 0 {
			if err := e.cq.Arm(false); err != nil {
				return uverbs.Completion{}, err
			}
			if n = e.cq.Poll(e.buffer[:]); n == 0 {
				if err := e.cq.Wait(time.Now().Add(patience)); err != nil {
					return uverbs.Completion{}, err
				}
				e.wakeups++
				continue
			}
		}
		e.ready = e.buffer[:n]
		if err := e.cq.Err(); err != nil {
			return uverbs.Completion{}, err
		}
	}
	done := e.ready[0]
	e.ready = e.ready[1:]
	return done, nil
}

// want waits for a completion that has to be as given: the identifier, the operation and the status.
func (e *end) want(id uint64, op uverbs.CompletionOp, status uverbs.Status) (uverbs.Completion, error) {
	done, err := e.next()
	if err == nil && (done.ID != id || done.Op != op || done.Status != status || done.QP != e.qp) {
		err = fmt.Errorf("completion %d %v %v, want %d %v %v", done.ID, done.Op, done.Status, id, op, status)
	}
	return done, err
}

// event waits for an event of a kind; others are passed over.
func event(c *uverbs.Context, kind uverbs.EventKind) (uverbs.Event, error) {
	deadline := time.Now().Add(patience)
	for {
		e, err := c.NextEvent(deadline)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return e, fmt.Errorf("no event %v within %v", kind, patience)
		}
		if err != nil || e.Kind == kind {
			return e, err
		}
	}
}

func sge(m *uverbs.MR, offset, n int) uverbs.SGE {
	return uverbs.SGE{MR: m, Addr: m.Addr() + uint64(offset), Len: uint32(n)}
}

func one(s uverbs.SGE) [uverbs.MaxSGE]uverbs.SGE { return [uverbs.MaxSGE]uverbs.SGE{s} }

// write returns a WRITE of n bytes from one region to another.
func write(id uint64, from *uverbs.MR, at int, to *uverbs.MR, remote, n int) uverbs.SendWR {
	return uverbs.SendWR{
		ID: id, Op: uverbs.OpWrite, Signaled: true, Local: one(sge(from, at, n)),
		Remote: to.Addr() + uint64(remote), RKey: wire.RKey(to.RKey()),
	}
}
