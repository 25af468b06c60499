package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/gosmc/smc/internal/rdma"
	"github.com/gosmc/smc/wire"
)

// Sizes for cases of errors.
const (
	refuseRegion = 1 << 16
	messageLen   = 100
	manyPackets  = 3 // path MTUs
)

// refused is a case function for something that the other side must refuse: do gets a pair of
// queue pairs for each of its variants.
func refused(variants ...func(context.Context, *lab, *endpoint, *peer) error) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		dev, err := l.openDevice()
		if err != nil {
			return err
		}
		for i, do := range variants {
			e, p, err := l.openPair(ctx, dev, refuseRegion, l.timing())
			if err != nil {
				return err
			}
			fill(e.mr.Bytes(), writerSeed)
			if err := p.fill(writtenSeed); err != nil {
				return err
			}
			ours := sum(e.mr.Bytes())
			if err := do(ctx, l, e, p); err != nil {
				return fmt.Errorf("variant %d: %w", i+1, err)
			}
			if err := p.check(); err != nil {
				return fmt.Errorf("variant %d: %w", i+1, err)
			}
			if sum(e.mr.Bytes()) != ours {
				return fmt.Errorf("variant %d: our region has changed", i+1)
			}
			if err := p.close(); err != nil {
				return err
			}
		}
		l.note("%d variants", len(variants))
		return nil
	}
}

// ourFailure checks that our first request has ended with status, that the one posted behind it
// was flushed, and that the queue pair is in error.
func ourFailure(ctx context.Context, e *endpoint, status rdma.Status) error {
	for id, want := range []rdma.Status{status, rdma.StatusFlushed} {
		c, err := e.await(ctx)
		if err != nil {
			return err
		}
		if c.ID != uint64(id) || c.Status != want {
			return fmt.Errorf("our completion: request %d: %v; want request %d: %v", c.ID, c.Status, id, want)
		}
	}
	if s := e.qp.State(); s != rdma.StateError {
		return fmt.Errorf("state of our queue pair: %v, want %v", s, rdma.StateError)
	}
	return nil
}

// guestFailure is the same for the guest.
func guestFailure(ctx context.Context, p *peer, status int) error {
	for id, want := range []int{status, wcFlushed} {
		if err := p.expect(ctx, guestCompletion{id: uint64(id), status: want}); err != nil {
			return err
		}
	}
	return guestInError(p)
}

func guestInError(p *peer) error {
	var state int
	if err := p.ask("state", &state); err != nil {
		return err
	}
	if state != stateError {
		return fmt.Errorf("state of the guest's queue pair: %d, want %d", state, stateError)
	}
	return nil
}

// badWrite is a variant in which we WRITE where the guest does not allow it: at the offset from
// the start of its region, with a key that differs by keyBits.
func badWrite(offset, length int, keyBits wire.RKey) func(context.Context, *lab, *endpoint, *peer) error {
	return func(ctx context.Context, _ *lab, e *endpoint, p *peer) error {
		bad := rdma.SendWR{ID: 0, Op: rdma.OpWrite, Signaled: true, Remote: p.addr + uint64(offset), RKey: p.rkey ^ keyBits}
		bad.Local[0] = e.sge(0, length)
		good := rdma.SendWR{ID: 1, Op: rdma.OpSend, Signaled: true}
		good.Local[0] = e.sge(0, messageLen)
		if err := e.qp.PostSend(bad, good); err != nil {
			return err
		}
		return ourFailure(ctx, e, rdma.StatusRemoteAccess)
	}
}

// badGuestWrite is the same in the other direction. Without the permission our region is one that
// a peer may not write to.
func badGuestWrite(offset, length int, keyBits wire.RKey, permission bool) func(context.Context, *lab, *endpoint, *peer) error {
	return func(ctx context.Context, l *lab, e *endpoint, p *peer) error {
		mr := e.mr
		if !permission {
			var err error
			if mr, err = e.pd.AllocMR(refuseRegion, rdma.LocalWrite); err != nil {
				return err
			}
			defer mr.Deregister()
		}
		err := p.all(
			writeLine(0, flagSignaled, 0, mr.Addr()+uint64(offset), mr.RKey()^keyBits, span{0, length}),
			sendLine(1, flagSignaled, 0, span{0, messageLen}))
		if err != nil {
			return err
		}
		if err := guestFailure(ctx, p, wcRemoteAccess); err != nil {
			return err
		}
		for i, b := range mr.Bytes() {
			if !permission && b != 0 {
				return fmt.Errorf("byte %d of our region without permission has changed", i)
			}
		}
		return nil
	}
}

// endedPeer is a variant in which the guest SENDs to a queue pair of ours that is gone, as the
// queue pairs of a killed process are. rxe sends again without end, so the owner of the port ends
// it.
func endedPeer(ctx context.Context, _ *lab, e *endpoint, p *peer) error {
	if err := e.qp.Close(); err != nil {
		return err
	}
	if err := p.all(sendLine(0, flagSignaled, 0, span{0, messageLen}), sendLine(1, flagSignaled, 0, span{0, messageLen})); err != nil {
		return err
	}
	return guestFailure(ctx, p, wcRemoteOperation)
}

// tooLong is a variant in which we SEND more than the guest has room for. rxe calls that an error of
// its own, remote operation error; IBTA 9.7.4.1.8 has it as an invalid request.
func tooLong(room, length int) func(context.Context, *lab, *endpoint, *peer) error {
	return func(ctx context.Context, l *lab, e *endpoint, p *peer) error {
		if err := p.all(recvLine(7, span{0, room})); err != nil {
			return err
		}
		bad := rdma.SendWR{ID: 0, Op: rdma.OpSend, Signaled: true, Local: [2]rdma.SGE{e.sge(0, length)}}
		good := rdma.SendWR{ID: 1, Op: rdma.OpSend, Signaled: true, Local: [2]rdma.SGE{e.sge(0, room)}}
		if err := e.qp.PostSend(bad, good); err != nil {
			return err
		}
		if err := ourFailure(ctx, e, rdma.StatusRemoteOperation); err != nil {
			return err
		}
		if err := p.expect(ctx, guestCompletion{id: 7, status: wcLocalOperation}); err != nil {
			return err
		}
		// Packets before the one that was too much have been placed.
		mtu := l.mtu().Bytes()
		copy(p.want, e.mr.Bytes()[:room/mtu*mtu])
		return guestInError(p)
	}
}

// guestTooLong is the same in the other direction.
func guestTooLong(room, length int) func(context.Context, *lab, *endpoint, *peer) error {
	return func(ctx context.Context, l *lab, e *endpoint, p *peer) error {
		if err := e.qp.PostRecv(rdma.RecvWR{ID: 7, Local: [2]rdma.SGE{e.sge(refuseRegion-room, room)}}); err != nil {
			return err
		}
		if err := p.all(sendLine(0, flagSignaled, 0, span{0, length}), sendLine(1, flagSignaled, 0, span{0, room})); err != nil {
			return err
		}
		if err := guestFailure(ctx, p, wcRemoteInvalid); err != nil {
			return err
		}
		c, err := e.await(ctx)
		if err != nil {
			return err
		}
		if c.ID != 7 || c.Status != rdma.StatusLocalLength {
			return fmt.Errorf("our completion: request %d: %v; want request 7: %v", c.ID, c.Status, rdma.StatusLocalLength)
		}
		fill(e.mr.Bytes(), writerSeed) // packets before the one that was too much may have been placed
		return nil
	}
}

// notAllowed: the queue pair allows no WRITEs, neither the guest's nor ours.
func notAllowed(ctx context.Context, l *lab) error {
	dev, err := l.openDevice()
	if err != nil {
		return err
	}
	e, p, err := l.openPairFor(ctx, dev, refuseRegion, rdma.LocalWrite, 0, l.timing())
	if err != nil {
		return err
	}
	for id := range uint64(2) {
		wr := rdma.SendWR{ID: id, Op: rdma.OpWrite, Signaled: true, Local: [2]rdma.SGE{e.sge(0, messageLen)}, Remote: p.addr, RKey: p.rkey}
		if err := e.qp.PostSend(wr); err != nil {
			return err
		}
	}
	if err := ourFailure(ctx, e, rdma.StatusRemoteInvalid); err != nil {
		return err
	}
	if err := p.check(); err != nil {
		return err
	}
	if err := p.close(); err != nil {
		return err
	}
	if e, p, err = l.openPairFor(ctx, dev, refuseRegion, rdma.LocalWrite, 0, l.timing()); err != nil {
		return err
	}
	if err := p.fill(writerSeed); err != nil {
		return err
	}
	err = p.all(
		writeLine(0, flagSignaled, 0, e.mr.Addr(), e.mr.RKey(), span{0, messageLen}),
		writeLine(1, flagSignaled, 0, e.mr.Addr(), e.mr.RKey(), span{0, messageLen}))
	if err != nil {
		return err
	}
	if err := guestFailure(ctx, p, wcRemoteInvalid); err != nil {
		return err
	}
	if !bytes.Equal(e.mr.Bytes(), make([]byte, refuseRegion)) {
		return errors.New("our region has changed")
	}
	return nil
}

// lateReceive: we SEND before the guest has posted a receive, and go on when it has.
func lateReceive(ctx context.Context, l *lab, e *endpoint, p *peer) error {
	wr := rdma.SendWR{ID: 5, Op: rdma.OpSend, Signaled: true, Local: [2]rdma.SGE{e.sge(0, manyPackets*l.mtu().Bytes())}}
	if err := e.qp.PostSend(wr); err != nil {
		return err
	}
	err := try(ctx, "waiting for an RNR NAK", func() (bool, error) { return e.qp.Stats().RcvdRNRNaks >= 2, nil })
	if err != nil {
		return err
	}
	if err := p.all(recvLine(6, span{64, manyPackets * l.mtu().Bytes()})); err != nil {
		return err
	}
	apply(p.want, e.mr.Bytes(), transfer{[]span{{0, manyPackets * l.mtu().Bytes()}}, 64})
	if _, err := e.awaitOK(ctx, 5, rdma.CompletedSend); err != nil {
		return err
	}
	return p.expect(ctx, guestCompletion{id: 6, status: wcSuccess, op: wcOpReceived, length: manyPackets * l.mtu().Bytes()})
}

// guestLateReceive is the same in the other direction.
func guestLateReceive(ctx context.Context, l *lab, e *endpoint, p *peer) error {
	length := manyPackets * l.mtu().Bytes()
	if err := p.all(sendLine(5, flagSignaled, 0, span{64, length})); err != nil {
		return err
	}
	err := try(ctx, "waiting to send an RNR NAK", func() (bool, error) { return e.qp.Stats().SentRNRNaks >= 2, nil })
	if err != nil {
		return err
	}
	if err := e.qp.PostRecv(rdma.RecvWR{ID: 6, Local: [2]rdma.SGE{e.sge(0, length)}}); err != nil {
		return err
	}
	if _, err := e.awaitOK(ctx, 6, rdma.Received); err != nil {
		return err
	}
	if got, want := e.mr.Bytes()[:length], p.want[64:64+length]; string(got) != string(want) {
		return fmt.Errorf("received: %s", difference(got, want))
	}
	fill(e.mr.Bytes(), writerSeed)
	return p.expect(ctx, guestCompletion{id: 5, status: wcSuccess, op: wcOpSend})
}

// hasty gives up early: one retry, after 4.096 us * 2^14 = 67 ms, and one after a missing receive.
var hasty = timing{timeout: 14, retries: 1, rnrRetries: 1}

// neverReceive: there is no receive until the sender gives up.
func neverReceive(ctx context.Context, l *lab) error {
	dev, err := l.openDevice()
	if err != nil {
		return err
	}
	e, p, err := l.openPair(ctx, dev, refuseRegion, hasty)
	if err != nil {
		return err
	}
	for id := range uint64(2) {
		wr := rdma.SendWR{ID: id, Op: rdma.OpSend, Signaled: true, Local: [2]rdma.SGE{e.sge(0, messageLen)}}
		if err := e.qp.PostSend(wr); err != nil {
			return err
		}
	}
	if err := ourFailure(ctx, e, rdma.StatusRNRExceeded); err != nil {
		return err
	}
	if err := p.close(); err != nil {
		return err
	}
	if _, p, err = l.openPair(ctx, dev, refuseRegion, hasty); err != nil {
		return err
	}
	if err := p.all(sendLine(0, flagSignaled, 0, span{0, messageLen}), sendLine(1, flagSignaled, 0, span{0, messageLen})); err != nil {
		return err
	}
	return guestFailure(ctx, p, wcRNRExceeded)
}

// neverAnswer: the other queue pair is gone, and then one of ours that was given up, which says so.
func neverAnswer(ctx context.Context, l *lab) error {
	dev, err := l.openDevice()
	if err != nil {
		return err
	}
	e, p, err := l.openPair(ctx, dev, refuseRegion, hasty)
	if err != nil {
		return err
	}
	if err := p.close(); err != nil { // the guest's
		return err
	}
	for id := range uint64(2) {
		wr := rdma.SendWR{ID: id, Op: rdma.OpSend, Signaled: true, Local: [2]rdma.SGE{e.sge(0, messageLen)}}
		if err := e.qp.PostSend(wr); err != nil {
			return err
		}
	}
	if err := ourFailure(ctx, e, rdma.StatusRetryExceeded); err != nil {
		return err
	}
	if e, p, err = l.openPair(ctx, dev, refuseRegion, hasty); err != nil {
		return err
	}
	if err := e.qp.Reset(); err != nil { // ours
		return err
	}
	two := []string{sendLine(0, flagSignaled, 0, span{0, messageLen}), sendLine(1, flagSignaled, 0, span{0, messageLen})}
	if err := p.all(two...); err != nil {
		return err
	}
	if err := guestFailure(ctx, p, wcRetryExceeded); err != nil {
		return err
	}
	if err := p.close(); err != nil {
		return err
	}
	if e, p, err = l.openPair(ctx, dev, refuseRegion, hasty); err != nil {
		return err
	}
	if err := e.qp.Fail(); err != nil {
		return err
	}
	if err := p.all(two...); err != nil {
		return err
	}
	return guestFailure(ctx, p, wcRemoteOperation)
}
