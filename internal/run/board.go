package run

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// boardSize is a page. Its first word is how many offers wait to be claimed; the rest is reserved.
const boardSize = 4096

// A board is memory that the programs of a supervisor see: whether an accepted connection is worth a question.
type board struct {
	fd     int
	memory []byte
}

func newBoard() (*board, error) {
	fd, err := unix.MemfdCreate("gosmc-run", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	b := &board{fd: fd}
	if err := unix.Ftruncate(fd, boardSize); err != nil {
		b.close()
		return nil, os.NewSyscallError("ftruncate", err)
	}
	if b.memory, err = unix.Mmap(fd, 0, boardSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		b.close()
		return nil, os.NewSyscallError("mmap", err)
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		b.close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	return b, nil
}

// setWaiting stores how many offers wait. It is stored before a program is told that its offer was taken.
func (b *board) setWaiting(n int) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(b.memory))), uint32(n))
}

func (b *board) close() {
	if b.memory != nil {
		unix.Munmap(b.memory)
	}
	unix.Close(b.fd)
}
