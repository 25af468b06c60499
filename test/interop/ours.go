package main

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/wire"
)

// queueDepth is how many work requests may be posted to either queue of either side.
const queueDepth = 64

// An endpoint is our queue pair with the objects that it needs.
type endpoint struct {
	dev *rdma.Device
	pd  *rdma.PD
	cq  *rdma.CQ
	mr  *rdma.MR
	qp  *rdma.QP
	psn wire.PSN // of our first packet

	ready []rdma.Completion // taken out, and not yet returned by await
}

// openDevice opens our device. It is closed when the case ends.
func (l *lab) openDevice() (*rdma.Device, error) {
	dev, err := rdma.Open(l.ourAddr(), &rdma.Config{Headers: l.headers, ReadBuffer: 8 << 20, WriteBuffer: 8 << 20})
	if err != nil {
		return nil, err
	}
	l.atEnd(func() error {
		return errors.Join(l.addStats("our device ", dev.Stats()), dev.Close())
	})
	if dev.MTU() < l.mtu() {
		return nil, fmt.Errorf("MTU of our device: %v, want %v or more", dev.MTU(), l.mtu())
	}
	return dev, nil
}

// openEndpoint makes a queue pair in state INIT that allows the access, with a region of size bytes
// that a peer may write to if the queue pair lets it.
func (l *lab) openEndpoint(dev *rdma.Device, size int, access rdma.Access) (*endpoint, error) {
	e := &endpoint{dev: dev, psn: rdma.RandomPSN()}
	var err error
	if e.pd, err = dev.NewPD(); err != nil {
		return nil, err
	}
	l.atEnd(e.pd.Close)
	if e.cq, err = dev.NewCQ(2*queueDepth, nil); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.AllocMR(size, rdma.LocalWrite|rdma.RemoteWrite); err != nil {
		return nil, err
	}
	l.atEnd(e.mr.Deregister)
	e.qp, err = e.pd.NewQP(rdma.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSend: queueDepth, MaxRecv: queueDepth})
	if err != nil {
		return nil, err
	}
	l.atEnd(func() error {
		return errors.Join(l.addStats("our ", e.qp.Stats()), e.qp.Close())
	})
	return e, e.qp.Init(access)
}

// A remote has the values that an endpoint has to know of the other end.
type remote struct {
	gid wire.GID
	qpn wire.QPN
	psn wire.PSN // of its first packet
}

// The values of both sides, unless a case provokes errors: the codes of Linux net/smc, but a timer
// that is longer than any pause that a busy machine makes. IBTA 9.7.5.2.8 has its values.
const (
	retryCount  = 7
	rnrRetry    = 7  // without limit
	minRNRTimer = 5  // 60 us
	ackTimeout  = 18 // 4.096 us * 2^18 = 1.07 s
	lossTimeout = 14 // 67 ms
)

// connect takes the queue pair to state RTS.
func (e *endpoint) connect(r remote, mtu wire.MTU, rts rdma.RTS) error {
	err := e.qp.ReadyToReceive(rdma.RTR{
		RemoteGID: r.gid, RemoteQPN: r.qpn, PathMTU: mtu, RecvPSN: r.psn, MinRNRTimer: minRNRTimer,
	})
	if err != nil {
		return err
	}
	rts.SendPSN = e.psn
	return e.qp.ReadyToSend(rts)
}

// stallTime is how long a completion may take: longer than all retries of either side.
const stallTime = time.Minute

// await returns the next completion.
func (e *endpoint) await(ctx context.Context) (rdma.Completion, error) {
	stalled := time.NewTimer(stallTime)
	defer stalled.Stop()
	for len(e.ready) == 0 {
		room := make([]rdma.Completion, 2*queueDepth)
		if n := e.cq.Poll(room); n != 0 {
			e.ready = room[:n]
			break
		}
		select {
		case <-e.cq.Channel():
		case <-stalled.C:
			return rdma.Completion{}, fmt.Errorf("%w for %v; queue pair %v: %+v", errStalled, stallTime, e.qp.State(), e.qp.Stats())
		case <-ctx.Done():
			return rdma.Completion{}, fmt.Errorf("no completion: %w; queue pair %v: %+v", context.Cause(ctx), e.qp.State(), e.qp.Stats())
		}
	}
	c := e.ready[0]
	e.ready = e.ready[1:]
	return c, nil
}

// errStalled is in the error about a completion that does not come.
var errStalled = errors.New("no completion")

// awaitOK returns the next completion, which has to be good and match the caller's arguments.
func (e *endpoint) awaitOK(ctx context.Context, id uint64, op rdma.CompletionOp) (rdma.Completion, error) {
	c, err := e.await(ctx)
	if err == nil && (c.Status != rdma.StatusOK || c.ID != id || c.Op != op) {
		err = fmt.Errorf("our completion: %v of %d: %v; want %v of %d: %v", c.Op, c.ID, c.Status, op, id, rdma.StatusOK)
	}
	return c, err
}

// sge returns the piece of the endpoint's region at offset.
func (e *endpoint) sge(offset, length int) rdma.SGE {
	return rdma.SGE{MR: e.mr, Addr: e.mr.Addr() + uint64(offset), Len: uint32(length)}
}

// fill fills b with bytes that follow from the seed: the 8-byte words, the last one cut off, are
// the numbers of splitmix64, least significant byte first. guest/verbspeer.c does the same.
func fill(b []byte, seed uint64) {
	var word [8]byte
	for i := 0; i < len(b); i += 8 {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		binary.LittleEndian.PutUint64(word[:], z)
		copy(b[i:], word[:])
	}
}

// hexGID returns the 32 hexadecimal digits of a GID.
func hexGID(g wire.GID) string { return hex.EncodeToString(g[:]) }
