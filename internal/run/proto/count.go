package proto

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Count is a number that two processes share. The memory belongs to the process that has made it, and
// nobody can cut it off. A nil *Count counts nothing. It is safe for concurrent use.
type Count struct {
	file *os.File
	page []byte
}

// NewCount makes a count of 0.
func NewCount() (*Count, error) {
	fd, err := unix.MemfdCreate("gosmc-count", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "count")
	if err := f.Truncate(int64(os.Getpagesize())); err != nil {
		f.Close()
		return nil, err
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	return CountOf(f)
}

// CountOf returns the count of a file of another process's [NewCount], which is closed with it, or by an
// error.
func CountOf(f *os.File) (*Count, error) {
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, os.NewSyscallError("mmap", err)
	}
	return &Count{f, page}, nil
}

// File returns the file that another process needs for [CountOf].
func (c *Count) File() *os.File { return c.file }

// Add adds to the count, which wraps around.
func (c *Count) Add(n uint32) {
	if c != nil {
		c.word().Add(n)
	}
}

// Load returns the count.
func (c *Count) Load() uint32 {
	if c == nil {
		return 0
	}
	return c.word().Load()
}

func (c *Count) word() *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&c.page[0])) }

// Close releases the memory. Nobody else may use the count meanwhile.
func (c *Count) Close() error {
	if c == nil {
		return nil
	}
	unix.Munmap(c.page)
	return c.file.Close()
}
