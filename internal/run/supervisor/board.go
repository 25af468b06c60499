package supervisor

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// boardSize is a page.
//
//	offset  size  field
//	     0     4  offers that wait to be claimed, but for letters
//	     4     4  process ID of the supervisor, in its namespace
//	     8     4  its descriptor for notes
//	    12     4  reserved
//	    16   256  16 letterboxes, of 16 bytes: descriptor (4), reserved (4), cookie of the socket (8)
//	   272        reserved
const boardSize = 4096

// A board is memory that the programs of a supervisor see: whether an accepted connection is worth
// a question, and where letters are.
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
	if b.memory, err = unix.Mmap(fd, 0, boardSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED); err != nil {
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

// setLetters stores where letters are, before a program can have the board: our descriptors, and
// the cookies of the letterboxes.
func (b *board) setLetters(pid int, notes int, boxes []int) error {
	binary.NativeEndian.PutUint32(b.memory[4:], uint32(pid))
	binary.NativeEndian.PutUint32(b.memory[8:], uint32(notes))
	for i, fd := range boxes {
		cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
		if err != nil {
			return os.NewSyscallError("getsockopt", err)
		}
		binary.NativeEndian.PutUint32(b.memory[16+16*i:], uint32(fd))
		binary.NativeEndian.PutUint64(b.memory[24+16*i:], cookie)
	}
	return nil
}

// setWaiting stores how many offers wait. It is stored before a program is told that its offer was taken.
func (b *board) setWaiting(n int) {
	if b == nil {
		return // a program that accepts looks for offers itself
	}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(b.memory))), uint32(n))
}

func (b *board) close() {
	if b.memory != nil {
		unix.Munmap(b.memory)
	}
	unix.Close(b.fd)
}
