package rdma

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/gosmc/smc/wire"
)

// A PD is a protection domain: queue pairs can reach the memory regions of their own domain and no
// others. It may be used by several goroutines.
type PD struct {
	dev *Device // nil in tests of queue pairs without one

	mu      sync.RWMutex
	regions map[wire.RKey]*MR
	qps     map[*QP]struct{}
}

func newPD(dev *Device) *PD {
	return &PD{dev: dev, regions: make(map[wire.RKey]*MR), qps: make(map[*QP]struct{})}
}

// Close ends the domain. The error is [ErrBusy] while it has queue pairs or regions.
func (pd *PD) Close() error {
	pd.mu.RLock()
	defer pd.mu.RUnlock()
	if len(pd.qps)+len(pd.regions) > 0 {
		return fmt.Errorf("rdma: protection domain with %d queue pairs and %d memory regions: %w",
			len(pd.qps), len(pd.regions), ErrBusy)
	}
	return nil
}

func (pd *PD) register(mem []byte, access Access, mapped bool) (*MR, error) {
	if access&^allAccess != 0 || access&RemoteWrite != 0 && access&LocalWrite == 0 {
		return nil, argError("access %#x", uint8(access))
	}
	m := &MR{pd: pd, mem: mem, access: access, mapped: mapped}
	pd.mu.Lock()
	defer pd.mu.Unlock()
	if len(pd.regions) >= maxRegions {
		return nil, fmt.Errorf("rdma: %d memory regions: %w", len(pd.regions), ErrExhausted)
	}
	for m.rkey == 0 || pd.regions[m.rkey] != nil {
		m.rkey = wire.RKey(randomBits())
	}
	// Any page in the middle of the range of 47 bits: never zero, never near the end.
	m.addr = 1<<45 + uint64(randomBits())<<12
	pd.regions[m.rkey] = m
	return m, nil
}

// lookup returns the region with a key, nil if there is none.
func (pd *PD) lookup(key wire.RKey) *MR {
	pd.mu.RLock()
	m := pd.regions[key]
	pd.mu.RUnlock()
	return m
}

// forget takes a region that is marked dead out of the domain, and waits until no queue pair is in
// the middle of using it: each looks at the mark again whenever it has taken its lock.
func (pd *PD) forget(m *MR) {
	pd.mu.Lock()
	delete(pd.regions, m.rkey)
	qps := make([]*QP, 0, len(pd.qps))
	for q := range pd.qps {
		qps = append(qps, q)
	}
	pd.mu.Unlock()
	for _, q := range qps {
		q.mu.Lock()
		//lint:ignore SA2001 whoever had the lock has let go of it: that is all that is wanted
		q.mu.Unlock()
	}
}

// randomBits returns 32 random bits that nobody can guess.
func randomBits() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint32(b[:])
}
