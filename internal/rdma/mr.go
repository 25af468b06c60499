package rdma

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

const allAccess = LocalWrite | RemoteWrite

// An MR is a memory region: memory that work requests may name, and a peer too if it may write.
//
// The virtual address of its first byte is not the address in this process: it is random, so that
// it tells a peer nothing about the layout of this process.
type MR struct {
	pd     *PD
	mem    []byte
	addr   uint64
	rkey   wire.RKey
	access Access
	mapped bool // mem is ours to unmap
	dead   atomic.Bool
	placed atomic.Uint64
	guard  atomic.Pointer[Guard]
}

// Bytes returns the memory. It may be used until [MR.Deregister].
func (m *MR) Bytes() []byte { return m.mem }

// Len returns the number of bytes.
func (m *MR) Len() int { return len(m.mem) }

// Addr returns the virtual address of the first byte, as work requests and peers name it. It is
// page-aligned if the memory is.
func (m *MR) Addr() uint64 { return m.addr }

// RKey returns the key with which a peer names the region. All 32 bits of it are random.
func (m *MR) RKey() wire.RKey { return m.rkey }

// Placed returns how many bytes of the peer's WRITEs were placed in the region, of those that have come
// as a whole: those that came twice count twice, and those that a guard has left out count. It may be
// used after Deregister.
func (m *MR) Placed() uint64 { return m.placed.Load() }

// LKey returns the local key, which is the remote one. Work requests here name the region itself.
func (m *MR) LKey() wire.RKey { return m.rkey }

// slice returns the n bytes from virtual address addr, and false if the region does not have them
// all. It is safe for every value of both.
func (m *MR) slice(addr, n uint64) ([]byte, bool) {
	size := uint64(len(m.mem))
	if addr < m.addr || n > size || addr-m.addr > size-n { // no sum that could wrap around
		return nil, false
	}
	offset := addr - m.addr
	return m.mem[offset : offset+n : offset+n], true
}

// AllocMR makes a region of its own memory: size bytes, zero, page-aligned and outside the Go heap.
func (pd *PD) AllocMR(size int, access Access) (*MR, error) {
	if size <= 0 || uint64(size) > maxRegion {
		return nil, argError("a region of %d bytes", size)
	}
	page := unix.Getpagesize()
	mem, err := unix.Mmap(-1, 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("rdma: memory region of %d bytes: %w", size, err)
	}
	// A child made by fork has no use for it. Best effort: old kernels do not know it.
	_ = unix.Madvise(mem, unix.MADV_DONTFORK)
	m, err := pd.register(mem[:size], access, true)
	if err != nil {
		unix.Munmap(mem)
	}
	return m, err
}

// RegisterMR makes a region of memory that the caller keeps. It has to stay mapped until
// [MR.Deregister] has returned.
func (pd *PD) RegisterMR(mem []byte, access Access) (*MR, error) {
	if len(mem) == 0 {
		return nil, argError("a region of no bytes")
	}
	return pd.register(mem, access, false)
}

// Deregister ends the region: once it has returned nothing reads or writes the memory any more, and
// memory made by [PD.AllocMR] is given back. Work that still names it completes with
// [StatusLocalProtection], a peer that does gets a remote access error; either ends the queue pair.
// The error is [ErrClosed] if it was deregistered before.
func (m *MR) Deregister() error {
	if m.dead.Swap(true) {
		return fmt.Errorf("rdma: memory region: %w", ErrClosed)
	}
	m.pd.forget(m)
	mem := m.mem[:cap(m.mem)]
	m.mem = nil
	if m.mapped {
		return unix.Munmap(mem)
	}
	return nil
}
