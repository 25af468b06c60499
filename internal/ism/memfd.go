package ism

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/wire"
)

// requiredSeals are on every memfd that is handed over: its size never changes, so that no access
// inside the mapping can raise SIGBUS, and no further seal can be added.
const requiredSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// sealExec is F_SEAL_EXEC, which Linux 6.3 and later puts on a memfd that cannot be executed.
const sealExec = 0x20

// noExecUnknown is set once the kernel has refused MFD_NOEXEC_SEAL, which is new in Linux 6.3.
var noExecUnknown atomic.Bool

// newMemory makes an anonymous, sealed memfd of size bytes and maps it shared, for reading and
// writing. No page of it is touched; where the kernel may refuse pages later, all are reserved. The
// caller closes the descriptor and unmaps the memory.
//
// Errors match ErrMappings or are the kernel's, and have the name of the call that failed.
func newMemory(name string, size int) (fd int, mem []byte, err error) {
	fd, err = unixMemfd(name)
	if err != nil {
		return -1, nil, os.NewSyscallError("memfd_create", err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			fd = -1
		}
	}()
	if err = unix.Ftruncate(fd, int64(size)); err != nil {
		return fd, nil, fmt.Errorf("memory of %d bytes: %w", size, os.NewSyscallError("ftruncate", err))
	}
	if overcommit.isStrict() {
		if err = reserveMemory(fd, size); err != nil {
			return fd, nil, err
		}
	}
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, requiredSeals); err != nil {
		return fd, nil, fmt.Errorf("sealing: %w", err)
	}
	mem, err = mapShared(fd, size, mappingShare)
	return fd, mem, err
}

// probe finds out whether the system lets this process have the resources that a peering needs.
// Errors match [ErrDenied] or [ErrMappings], or are the kernel's.
func probe() error {
	fd, err := unixMemfd("gosmc-probe")
	if err != nil {
		return denied("memfd_create", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, maxWindow); err != nil {
		return denied("ftruncate of a memfd", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return denied("socketpair", err)
	}
	unix.Close(pair[0])
	unix.Close(pair[1])
	return mappings.room(2, mappingShare)
}

// denied makes an error of a system call match ErrDenied if it says no for good.
func denied(call string, err error) error {
	switch err {
	case unix.EPERM, unix.EACCES, unix.ENOSYS, unix.EAFNOSUPPORT:
		return fmt.Errorf("%w: %w", ErrDenied, os.NewSyscallError(call, err))
	case unix.EFBIG:
		return fmt.Errorf("%w: %w: the limit on the size of files (ulimit -f) is too small", ErrDenied, os.NewSyscallError(call, err))
	}
	return os.NewSyscallError(call, err)
}

func unixMemfd(name string) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if !noExecUnknown.Load() {
		fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
		if err != unix.EINVAL {
			return fd, err
		}
		noExecUnknown.Store(true)
	}
	return unix.MemfdCreate(name, flags)
}

// mapReceived checks that fd, which a peer has sent, is a memfd that can never change its size,
// that its size is size, and maps it. The caller closes the descriptor.
//
// An error matches [ErrProtocol] if the peer is to blame, else it is the kernel's.
func mapReceived(fd, size int) ([]byte, error) {
	// Only files of tmpfs and hugetlbfs know seals, and an ordinary file on a tmpfs cannot have
	// F_SEAL_SHRINK.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, violation("descriptor is no memfd: %v", err)
	}
	if seals&^sealExec != requiredSeals { // rule: TestHostileAttachReply
		return nil, violation("memfd has seals %#x, want %#x", seals, requiredSeals)
	}
	// Huge pages may run out at the first access, which raises SIGBUS.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, fmt.Errorf("fstatfs: %w", err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return nil, violation("memfd is on file system %#x", fs.Type)
	}
	// Sealed, so a check that holds now holds later.
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	if st.Size != int64(size) { // rule: TestHostileAttachReply
		return nil, violation("memfd has %d bytes, want %d", st.Size, size)
	}
	if overcommit.isStrict() {
		if err := reserveMemory(fd, size); err != nil {
			return nil, err
		}
	}
	mem, err := mapShared(fd, size, mappingHardShare)
	if err == unix.EACCES || err == unix.EPERM { // opened read-only
		return nil, violation("memfd cannot be mapped: %v", err)
	}
	return mem, err
}

// mapShared maps size bytes of fd, if that leaves the process within share percent of the mappings
// that it may have. It does not go through unix.Mmap, which would remember every mapping in a
// table of its own.
func mapShared(fd, size, share int) ([]byte, error) {
	if err := mappings.take(1, share); err != nil {
		return nil, err
	}
	p, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		mappings.give(1)
	}
	if err == unix.EACCES || err == unix.EPERM {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", size, err)
	}
	return unsafe.Slice((*byte)(p), size), nil
}

// unmap undoes mapShared. It cannot fail for a slice that mapShared has returned.
func unmap(mem []byte) {
	if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem))); err != nil {
		panic("ism: munmap: " + err.Error())
	}
	mappings.give(1)
}

// elementSize reports whether a DMB can have size bytes: 16 KiB << code, code 0 to 15.
func elementSize(size int) (wire.SizeCode, bool) {
	code := wire.SizeCodeFor(size)
	return code, code.Bytes() == size
}

// newToken returns 64 random bits, never zero.
func newToken() wire.Token {
	for {
		var b [8]byte
		rand.Read(b[:]) // never fails: crypto/rand
		if t := wire.Token(binary.BigEndian.Uint64(b[:])); t != 0 {
			return t
		}
	}
}

// newGID returns a random UUID of version 4.
func newGID() wire.ISMGID {
	var u [16]byte
	rand.Read(u[:])
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return wire.ISMGIDFromUUID(u)
}
