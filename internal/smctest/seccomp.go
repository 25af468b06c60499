package smctest

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DenyFamily is DenySocket for a test that runs in a process of its own. The test is skipped where
// that is not possible.
func DenyFamily(t testing.TB, family uint32) {
	t.Helper()
	if err := DenySocket(int(family)); err != nil {
		t.Skipf("needs seccomp: %v", err)
	}
}

// DenySocket has the kernel refuse sockets of an address family to this process with EAFNOSUPPORT,
// for good, as systemd's RestrictAddressFamilies does: it is for processes that a test has started.
func DenySocket(family int) error {
	const (
		syscallAt = 0  // in struct seccomp_data, Linux include/uapi/linux/seccomp.h
		firstArg  = 16 // its lower half, little-endian
	)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: syscallAt},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SOCKET, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: firstArg},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(family), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// The filter goes to all threads, and so does the bit that permits it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	if _, err := unix.Socket(family, unix.SOCK_RAW, 0); !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("system calls are not as on amd64: a socket of family %d: %v", family, err)
	}
	return nil
}
