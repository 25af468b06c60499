package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/gosmc/smc/internal/uverbs"
)

// A mistake is work that must fail.
type mistake struct {
	name   string
	status uverbs.Status
	access uverbs.Access // of the peer's queue pair
	work   func(a, b *end) uverbs.SendWR
}

const full = uverbs.LocalWrite | uverbs.RemoteWrite

var allMistakes = []mistake{
	{"wrong key", uverbs.StatusRemoteAccess, full, func(a, b *end) uverbs.SendWR {
		w := write(1, a.mr, 0, b.mr, 0, 100)
		w.RKey ^= 0x100
		return w
	}},
	{"beyond the region", uverbs.StatusRemoteAccess, full, func(a, b *end) uverbs.SendWR {
		return write(1, a.mr, 0, b.mr, regionSize-99, 100)
	}},
	{"before the region", uverbs.StatusRemoteAccess, full, func(a, b *end) uverbs.SendWR {
		return write(1, a.mr, 0, b.mr, -1, 100)
	}},
	{"no right to write", uverbs.StatusRemoteInvalid, 0, func(a, b *end) uverbs.SendWR {
		return write(1, a.mr, 0, b.mr, 0, 100)
	}},
}

// mistakes does work that must fail, each on queue pairs of its own: the status of the work, no change of memory, and
// what was posted behind is flushed at both ends.
func mistakes(c *uverbs.Context) error {
	for _, m := range allMistakes {
		a, b, err := pair(c, m.access)
		if err != nil {
			return err
		}
		fill := bytes.Repeat([]byte{0x5a}, regionSize)
		copy(a.mr.Bytes(), fill)
		if err := m.run(a, b); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		if !bytes.Equal(b.mr.Bytes(), make([]byte, regionSize)) {
			return fmt.Errorf("%s: the peer's memory has changed", m.name)
		}
		if err := errors.Join(a.close(), b.close()); err != nil {
			return fmt.Errorf("%s: closing: %w", m.name, err)
		}
		fmt.Printf("%s: %v\n", m.name, m.status)
	}
	return errors.Join(refusedHere(c), failed(c))
}

func (m mistake) run(a, b *end) error {
	if err := a.qp.PostRecv(uverbs.RecvWR{ID: 3, Local: one(sge(a.mr, 0, 100))}); err != nil {
		return err
	}
	behind := uverbs.SendWR{ID: 2, Op: uverbs.OpSend, Local: one(sge(a.mr, 0, 100))} // not signaled: an error is told
	if err := a.qp.PostSend(m.work(a, b), behind); err != nil {
		return err
	}
	if _, err := a.want(1, uverbs.CompletedSend, m.status); err != nil {
		return err
	}
	var left = map[uint64]uverbs.CompletionOp{2: uverbs.CompletedSend, 3: uverbs.Received}
	for len(left) > 0 { // the queues are flushed in any order
		done, err := a.next()
		if err != nil {
			return fmt.Errorf("flushing: %w", err)
		}
		if op, ok := left[done.ID]; !ok || op != done.Op || done.Status != uverbs.StatusFlushed {
			return fmt.Errorf("flushing: completion %d %v %v", done.ID, done.Op, done.Status)
		}
		delete(left, done.ID)
	}
	return nil
}

// refusedHere checks that bad work does not come to the kernel.
func refusedHere(c *uverbs.Context) error {
	a, b, err := pair(c, full)
	if err != nil {
		return err
	}
	for _, w := range []uverbs.SendWR{
		{Op: uverbs.OpSend, Local: one(sge(a.mr, regionSize-99, 100))},
		{Op: uverbs.OpSend, Local: one(sge(b.mr, 0, 100))},
		{Op: uverbs.OpSend, Local: one(uverbs.SGE{Len: 1})},
	} {
		if err := a.qp.PostSend(w); !errors.Is(err, uverbs.ErrRegion) {
			return fmt.Errorf("posting bad work: %v", err)
		}
	}
	if err := a.qp.ReadyToSend(uverbs.RTS{}); !errors.Is(err, uverbs.ErrState) {
		return fmt.Errorf("RTS twice: %v", err)
	}
	fmt.Println("bad work: refused")
	return errors.Join(a.close(), b.close())
}

// failed takes a queue pair to ERR with receives posted: all are flushed. Others of the device go on. A queue pair that
// is closed with completions in the queue leaves no trace.
func failed(c *uverbs.Context) error {
	a, b, err := pair(c, full)
	if err != nil {
		return err
	}
	for id := range uint64(depth) {
		if err := a.qp.PostRecv(uverbs.RecvWR{ID: id, Local: one(sge(a.mr, 0, 8))}); err != nil {
			return err
		}
	}
	if err := a.qp.Fail(); err != nil {
		return err
	}
	for id := range uint64(depth) {
		if _, err := a.want(id, uverbs.Received, uverbs.StatusFlushed); err != nil {
			return err
		}
	}
	for range depth {
		if err := b.qp.PostRecv(uverbs.RecvWR{Local: one(sge(b.mr, 0, 8))}); err != nil {
			return err
		}
	}
	if err := b.qp.Fail(); err != nil {
		return err
	}
	if err := b.cq.Arm(false); err != nil {
		return err
	}
	if err := b.qp.Close(); err != nil { // with completions that nobody took out
		return err
	}
	if n := b.cq.Poll(b.buffer[:]); n != 0 || b.cq.Err() != nil {
		return fmt.Errorf("%d completions of a closed queue pair, %v", n, b.cq.Err())
	}
	if b.qp, err = b.pd.NewQP(uverbs.QPConfig{SendCQ: b.cq, RecvCQ: b.cq, MaxSend: depth, MaxRecv: depth}); err != nil {
		return fmt.Errorf("a queue pair in the place of the closed one: %w", err)
	}
	fmt.Println("failed: flushed")
	return errors.Join(a.close(), b.close())
}

// down takes the interface of the device down and up, which gives events, and ends a transfer.
func down(c *uverbs.Context, name string) error {
	a, b, err := pair(c, full)
	if err != nil {
		return err
	}
	if err := set(name, "down"); err != nil {
		return err
	}
	e, err := event(c, uverbs.EventPortDown)
	if err != nil {
		return err
	}
	p, err := c.QueryPort(1)
	if err != nil {
		return err
	}
	if e.Port != 1 || p.State == uverbs.PortActive {
		return fmt.Errorf("event of port %d, which is %+v", e.Port, p)
	}
	if err := set(name, "up"); err != nil {
		return err
	}
	if _, err := event(c, uverbs.EventPortActive); err != nil {
		return err
	}
	fmt.Println("down: events of the port")
	return errors.Join(a.close(), b.close())
}

func set(name, state string) error {
	out, err := exec.Command("/bin/ip", "link", "set", name, state).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip link set %s %s: %w: %s", name, state, err, out)
	}
	return nil
}

// removed removes the device while it is used. The kernel ends the removal when the context is closed, and no earlier.
func removed(c *uverbs.Context) error {
	a, b, err := pair(c, full)
	if err != nil {
		return err
	}
	removal := exec.Command("/bin/rdma", "link", "del", c.Name())
	if err := removal.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- removal.Wait() }()
	if _, err := event(c, uverbs.EventRemoved); err != nil {
		return err
	}
	if err := errors.Join(a.close(), b.close(), c.Close()); err != nil {
		return fmt.Errorf("closing after the removal: %w", err)
	}
	if _, err := c.NextEvent(time.Time{}); !errors.Is(err, uverbs.ErrClosed) {
		return fmt.Errorf("an event of a closed context: %v", err)
	}
	select {
	case err := <-ended:
		if err != nil {
			return fmt.Errorf("rdma link del: %w", err)
		}
	case <-time.After(patience):
		removal.Process.Kill()
		return errors.New("the kernel has not ended the removal")
	}
	fmt.Println("removed: event, and the removal ended")
	return nil
}
