package link

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rdma"
)

// A memory can be reached by several links: it is mapped once, and registered with each of them,
// whose protection domain is its own (RFC 7609 p.14). The group's lock guards it, but for bytes.
type memory struct {
	bytes   []byte
	access  rdma.Access
	regions []region
	left    uint64      // bytes that were placed over links that are gone
	guard   *rdma.Guard // of all of them
}

// A region is the registration of a memory with one link.
type region struct {
	link *Link
	mr   *rdma.MR
}

// mapMemory returns size bytes, zero and page-aligned, without a page until they are touched.
func mapMemory(size int, access rdma.Access) (*memory, error) {
	page := unix.Getpagesize()
	b, err := unix.Mmap(-1, 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("smc: buffer of %d bytes: %w", size, err)
	}
	_ = unix.Madvise(b, unix.MADV_DONTFORK) // best effort: a child has no use for it
	return &memory{bytes: b[:size], access: access}, nil
}

// register makes it known to a link.
func (m *memory) register(l *Link) error {
	mr, err := l.pd.RegisterMR(m.bytes, m.access)
	if err != nil {
		return l.error(err)
	}
	mr.SetGuard(m.guard) // rule: TestGuardLaterLink
	m.regions = append(m.regions, region{l, mr})
	return nil
}

// setGuard has WRITEs over any link obey g, nil for none.
func (m *memory) setGuard(g *rdma.Guard) {
	m.guard = g
	for _, r := range m.regions {
		r.mr.SetGuard(g)
	}
}

// region returns its memory region at a link, nil if it was not registered.
func (m *memory) region(l *Link) *rdma.MR {
	for _, r := range m.regions {
		if r.link == l {
			return r.mr
		}
	}
	return nil
}

// forget undoes register. The queue pair of l does not use it afterwards.
func (m *memory) forget(l *Link) {
	m.regions = slices.DeleteFunc(m.regions, func(r region) bool {
		if r.link != l {
			return false
		}
		r.mr.Deregister()
		m.left += r.mr.Placed()
		return true
	})
}

// placed returns how many bytes the peer has placed in it, over all links.
func (m *memory) placed() uint64 {
	n := m.left
	for _, r := range m.regions {
		n += r.mr.Placed()
	}
	return n
}

// unmap ends it, and its regions at links, which the caller has taken out of it or has the lock
// for.
func (m *memory) unmap(regions []region) {
	for _, r := range regions {
		r.mr.Deregister()
	}
	b := m.bytes[:cap(m.bytes)]
	m.bytes = nil
	unix.Munmap(b)
}

// giveBack returns the pages from from to to, multiples of the page size, to the system. They read as zero.
func (m *memory) giveBack(from, to int) error {
	if from >= to {
		return nil
	}
	return unix.Madvise(m.bytes[from:to], unix.MADV_DONTNEED)
}
