package link

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/verbs"
)

// errHeld is the error for pages that a device holds.
var errHeld = errors.New("a device holds the pages")

// A memory can be reached by several links: it is mapped once, and registered with each of them,
// whose protection domain is its own (RFC 7609 p.14). The group's lock guards it, but for bytes.
type memory struct {
	bytes   []byte
	access  verbs.Access
	regions []region
	left    uint64       // bytes that were placed over links that are gone
	guard   *verbs.Guard // of all of them

	uncounted bool // a device with a region of it does not count bytes: left says nothing

	pages sync.Mutex // of held: pages are not given back while a device takes hold of them
	held  bool       // a device holds the pages, from its registration on
}

// A region is the registration of a memory with one link.
type region struct {
	link *Link
	mr   verbs.MR
}

// mapMemory returns size bytes, zero and page-aligned, without a page until they are touched.
func mapMemory(size int, access verbs.Access) (*memory, error) {
	page := unix.Getpagesize()
	b, err := unix.Mmap(-1, 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("smc: buffer of %d bytes: %w", size, err)
	}
	_ = unix.Madvise(b, unix.MADV_DONTFORK) // best effort: a child has no use for it
	return &memory{bytes: b[:size], access: access}, nil
}

// newArea makes the memory of a link's messages.
func newArea(l *Link) ([]byte, error) {
	if !l.dev.WholePages() {
		return make([]byte, areaLen), nil
	}
	m, err := mapMemory(areaLen, verbs.LocalWrite)
	if err != nil {
		return nil, err
	}
	area := m.wholePages()
	runtime.AddCleanup(l, func(b []byte) { unix.Munmap(b) }, area)
	return area, nil
}

// register makes it known to a link.
func (m *memory) register(l *Link) error {
	bytes, access := m.bytes, m.access
	if l.dev.WholePages() {
		// The device of a send ring only reads it. It is told that it may write so that the kernel
		// gives it pages that are ours alone, and no copy of them on our next write.
		bytes, access = m.wholePages(), access|verbs.LocalWrite
		m.pages.Lock()
		m.held = true // rule: TestHeldPages
		m.pages.Unlock()
	}
	mr, err := l.pd.RegisterMR(bytes, access)
	if err != nil {
		return l.error(err)
	}
	guard(mr, m.guard) // rule: TestGuardLaterLink
	if _, ok := mr.(verbs.Counted); !ok {
		m.uncounted = true
	}
	m.regions = append(m.regions, region{l, mr})
	return nil
}

// setGuard has WRITEs over any link obey g, nil for none.
func (m *memory) setGuard(g *verbs.Guard) {
	m.guard = g
	for _, r := range m.regions {
		guard(r.mr, g)
	}
}

// guard has WRITEs to a region obey g, where its provider can.
func guard(mr verbs.MR, g *verbs.Guard) {
	if mr, ok := mr.(verbs.Guarded); ok {
		mr.SetGuard(g)
	}
}

// wholePages returns the memory up to the end of its last page, which is ours too.
func (m *memory) wholePages() []byte { return m.bytes[:cap(m.bytes)] }

// region returns its memory region at a link, nil if it was not registered.
func (m *memory) region(l *Link) verbs.MR {
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
		m.left += placed(r.mr)
		return true
	})
}

// placed returns how many bytes the peer has placed in it, over all links, and false if nobody
// knows: a device of the kernel does not count them.
func (m *memory) placed() (n uint64, known bool) {
	n = m.left
	for _, r := range m.regions {
		n += placed(r.mr)
	}
	return n, !m.uncounted
}

// placed returns how many bytes the peer has placed in a region, as far as they are counted.
func placed(mr verbs.MR) uint64 {
	if mr, ok := mr.(verbs.Counted); ok {
		return mr.Placed()
	}
	return 0
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

// giveBack returns the pages from from to to, multiples of the page size, to the system. They read
// as zero. The error is errHeld if a device holds them: it would go on to use the old pages, while
// this process gets new ones.
func (m *memory) giveBack(from, to int) error {
	m.pages.Lock()
	defer m.pages.Unlock()
	switch {
	case m.held:
		return errHeld
	case from >= to:
		return nil
	}
	return unix.Madvise(m.bytes[from:to], unix.MADV_DONTNEED)
}
