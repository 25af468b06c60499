package smcr

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gosmc/smc/internal/transport"
	"github.com/gosmc/smc/wire/clc"
)

// A memoryBudget bounds the bytes of the buffers of SMC-R: RMBs and send rings together. Any
// goroutine may use it.
type memoryBudget struct {
	limit int64
	rmbs  atomic.Int64 // bytes of all RMBs
	rings atomic.Int64 // bytes of all send rings
}

// errBudget says that the buffers of SMC-R have all the memory that they may.
var errBudget = &transport.DeclinedError{Why: clc.DiagBudget}

// take counts n bytes more in what, rmbs or rings.
func (b *memoryBudget) take(what *atomic.Int64, n int64) error {
	what.Add(n)
	if b.used() > b.limit {
		what.Add(-n)
		return fmt.Errorf("%w: %d bytes more", errBudget, n)
	}
	return nil
}

// used returns the bytes of all buffers.
func (b *memoryBudget) used() int64 { return b.rmbs.Load() + b.rings.Load() }

// ringMemory is the part of the budget that the send ring of one connection has. The zero value has
// nothing. Any goroutine may give it back, and does so once.
type ringMemory struct {
	budget *memoryBudget
	bytes  atomic.Int64
}

// take takes n bytes of the budget of a fabric. Where there are not as many, idle link groups give way.
func (r *ringMemory) take(ctx context.Context, f *Fabric, n int64) error {
	err := f.memory.take(&f.memory.rings, n)
	for errors.Is(err, errBudget) && f.shed(ctx) {
		err = f.memory.take(&f.memory.rings, n)
	}
	if err != nil {
		return err
	}
	r.budget = &f.memory
	r.bytes.Store(n)
	return nil
}

// shrink gives back the bytes above n.
func (r *ringMemory) shrink(n int64) {
	if surplus := r.bytes.Load() - n; surplus > 0 {
		r.bytes.Add(-surplus)
		r.budget.rings.Add(-surplus)
	}
}

// release gives all back.
func (r *ringMemory) release() {
	if n := r.bytes.Swap(0); n != 0 {
		r.budget.rings.Add(-n)
	}
}
