package uverbs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// Access is the set of operations that are allowed on a memory region, or to a peer on a queue
// pair. The values are the kernel's.
type Access uint32

// All kinds of access that SMC needs. Reading by the owner's SENDs and WRITEs needs no permission.
const (
	LocalWrite  Access = 1 << iota // receives may be placed here
	RemoteWrite                    // the peer may WRITE here; needs LocalWrite
)

const allAccess = LocalWrite | RemoteWrite

// An MR is a memory region: memory that work requests may name, and a peer too if it may write. The
// kernel has locked its pages into memory. A child process of a fork does not have them.
//
// The virtual address of the first byte is not its address in this process. It is random, so that
// it tells a peer nothing about the layout of this process.
type MR struct {
	pd     *PD
	mem    []byte
	mapped []byte // the mapping with mem, if it is ours to unmap
	handle uint32
	lkey   uint32
	rkey   wire.RKey
	addr   uint64
	access Access

	mu   sync.Mutex // held to deregister
	dead atomic.Bool
}

// A regMR is the body of REG_MR.
//
//	offset  size  field
//	     0     8  address in this process
//	     8     8  length in bytes
//	    16     8  virtual address for work requests and peers
//	    24     4  handle of the protection domain
//	    28     4  access
type regMR struct {
	start, length, addr uint64
	pd                  uint32
	access              Access
}

func (r regMR) append(b []byte) []byte {
	b = host.AppendUint64(b, r.start)
	b = host.AppendUint64(b, r.length)
	b = host.AppendUint64(b, r.addr)
	b = host.AppendUint32(b, r.pd)
	return host.AppendUint32(b, uint32(r.access))
}

const regMRLen = 12

// parseRegMR decodes the answer to REG_MR.
//
//	offset  size  field
//	     0     4  handle
//	     4     4  local key
//	     8     4  remote key
func parseRegMR(b []byte) (handle, lkey uint32, rkey wire.RKey, err error) {
	if err := needs("answer to REG_MR", b, regMRLen); err != nil {
		return 0, 0, 0, err
	}
	return host.Uint32(b), host.Uint32(b[4:]), wire.RKey(host.Uint32(b[8:])), nil
}

// AllocMR allocates size bytes of zeroed memory in whole pages and registers them. [MR.Deregister]
// frees them. The kernel counts them as locked memory of the user (RLIMIT_MEMLOCK) unless the
// process has CAP_IPC_LOCK.
func (p *PD) AllocMR(size int, access Access) (*MR, error) {
	if size <= 0 || int64(size) > maxRegion {
		return nil, argError("a region of %d bytes", size)
	}
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("uverbs: memory for a region of %d bytes: %w", size, err)
	}
	m, err := p.RegisterMR(mem, access)
	if err != nil {
		unix.Munmap(mem)
		return nil, err
	}
	m.mem, m.mapped = mem[:size:size], mem
	return m, nil
}

// RegisterMR registers memory of the caller: whole pages of a mapping of its own, never memory of
// Go's heap, whose pages a fork must share. The caller must not unmap them before [MR.Deregister].
// A child of a fork never has them from now on, also after an error and after Deregister: they may be
// registered a second time, with another domain or device.
func (p *PD) RegisterMR(mem []byte, access Access) (*MR, error) {
	page := uintptr(os.Getpagesize())
	switch {
	case len(mem) == 0 || int64(len(mem)) > maxRegion:
		return nil, argError("a region of %d bytes", len(mem))
	case uintptr(unsafe.Pointer(&mem[0]))%page != 0 || uintptr(len(mem))%page != 0: // rule: TestRegionArguments
		return nil, argError("a region that is not whole pages")
	case access&^allAccess != 0 || access&RemoteWrite != 0 && access&LocalWrite == 0:
		return nil, argError("access %#x", uint32(access))
	}
	if err := p.hold(); err != nil {
		return nil, err
	}
	m, err := p.registerMR(mem, access)
	if err != nil {
		p.release()
	}
	return m, err
}

func (p *PD) registerMR(mem []byte, access Access) (*MR, error) {
	// After a fork the first process that writes to a page gets a copy of it, and the device keeps
	// the original.
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil {
		return nil, fmt.Errorf("uverbs: madvise of a region: %w", err)
	}
	m := &MR{pd: p, mem: mem, addr: randomAddress(), access: access}
	r := regMR{uint64(uintptr(unsafe.Pointer(&mem[0]))), uint64(len(mem)), m.addr, p.handle, access}
	response := make([]byte, regMRLen)
	err := p.c.command(cmdRegMR, r.append(nil), response)
	if err == nil {
		m.handle, m.lkey, m.rkey, err = parseRegMR(response)
	}
	if err != nil {
		return nil, err
	}
	if err := register(p.c, p.c.mrs, m, struct{}{}); err != nil {
		p.c.destroy(cmdDeregMR, appendHandle(nil, m.handle), nil)
		return nil, err
	}
	return m, nil
}

// randomAddress returns a page-aligned address below 2^47, at which a region of any size that is
// allowed ends below 2^48. Pages have at most 64 KiB.
func randomAddress() uint64 { return (1<<46 | rand.Uint64()&(1<<46-1)) &^ (1<<16 - 1) }

// Bytes returns the memory. It may be used until [MR.Deregister].
func (m *MR) Bytes() []byte { return m.mem }

// Len returns the number of bytes.
func (m *MR) Len() int { return len(m.mem) }

// Addr returns the virtual address of the first byte, as work requests and peers name it. It is
// page-aligned.
func (m *MR) Addr() uint64 { return m.addr }

// RKey returns the key with which a peer names the region.
func (m *MR) RKey() wire.RKey { return m.rkey }

// has reports whether the region has all n bytes from virtual address addr. It is safe for every
// value of both.
func (m *MR) has(addr uint64, n uint32) bool {
	size := uint64(len(m.mem))
	return addr >= m.addr && uint64(n) <= size && addr-m.addr <= size-uint64(n)
}

// Deregister ends the region. Work that names it fails from now on. Memory that AllocMR has
// allocated is freed.
func (m *MR) Deregister() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead.Load() {
		return nil
	}
	err := m.pd.c.destroy(cmdDeregMR, appendHandle(nil, m.handle), nil)
	if err != nil { // such as EBUSY; the device may still write to the memory
		return err
	}
	m.dead.Store(true)
	forget(m.pd.c, m.pd.c.mrs, m)
	m.pd.release()
	if m.mapped != nil {
		return unix.Munmap(m.mapped)
	}
	return nil
}
