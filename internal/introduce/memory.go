package introduce

import "golang.org/x/sys/unix"

// Two programs of different accounts send each other no descriptors. The agent makes the memory of the
// rings that their connection may have: it belongs to neither of them, and no process has it before both
// do. Each user's pages are that user's who first touches them.
const (
	ringHeader = 4096
	ringBytes  = 256 << 10
	// memoryBytes is the size of a file: two rings, the client's first. preload/src/ring.c takes no other.
	memoryBytes = 2 * (ringHeader + ringBytes)
)

// memorySeals keep the file as long as it is: to look behind the end of one that was cut off is a signal.
const memorySeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// strictOvercommit is the value of vm.overcommit_memory with which the kernel promises no memory that it
// may not have.
const strictOvercommit = 2

// newMemory makes the memory of two rings, whose bytes are 0. The caller closes it. A strict one has all
// its pages, or is not made: where the kernel overcommits nothing, it may refuse a page when a program
// touches it first, which is a signal, too.
func newMemory(strict bool) (fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = unix.MemfdCreate("gosmc-rings", flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("gosmc-rings", flags)
	}
	if err != nil {
		return -1, err
	}
	if err = unix.Ftruncate(fd, memoryBytes); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, memorySeals) // rule: TestPairsMemory
	}
	if err == nil && strict {
		err = unix.Fallocate(fd, 0, 0, memoryBytes) // rule: TestPairsMemoryStrict
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
