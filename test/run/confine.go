package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A confinement is the restrictions that a unit of systemd puts on a service, made by hand:
// systemd.exec(5).
type confinement struct {
	Args      []string // the program
	Env       []string
	UID, GID  int
	Exec      []string // ExecPaths, with NoExecPaths=/
	Writable  []string // ReadWritePaths, with ProtectSystem=strict
	Runtime   []string // RuntimeDirectory, which is below /run, in a file system with noexec
	Families  []uint32 // RestrictAddressFamilies
	Forbidden []uint32 // numbers of system calls that kill
}

// forbidden are system calls that @system-service of systemd has not, or ~@privileged and
// ~@resources take away.
func forbidden() []uint32 {
	return []uint32{unix.SYS_PTRACE, unix.SYS_PIDFD_GETFD, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP, unix.SYS_BPF,
		unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_SETPRIORITY,
		unix.SYS_SCHED_SETSCHEDULER, unix.SYS_SCHED_SETAFFINITY, unix.SYS_SETRLIMIT, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_FCHOWN,
		unix.SYS_FCHOWNAT, unix.SYS_CAPSET, unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETRESUID, unix.SYS_SETGROUPS, unix.SYS_CHROOT}
}

// confine starts a service in place of this program. It returns only if it could not.
func confine(text string) error {
	var c confinement
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	runtime.LockOSThread() // a filter and a namespace belong to a thread
	if err := c.mounts(); err != nil {
		return err
	}
	for _, dir := range c.Runtime {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chown(dir, c.UID, c.GID); err != nil {
			return err
		}
	}
	for _, dir := range c.Writable {
		if err := os.Chown(dir, c.UID, c.GID); err != nil {
			return err
		}
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// Of the thread that executes the program.
	for _, call := range [][4]uintptr{{unix.SYS_SETGROUPS, 0, 0, 0}, {unix.SYS_SETRESGID, uintptr(c.GID), uintptr(c.GID), uintptr(c.GID)},
		{unix.SYS_SETRESUID, uintptr(c.UID), uintptr(c.UID), uintptr(c.UID)}} {
		if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
			return errno
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := c.filter(); err != nil {
		return err
	}
	return &os.PathError{Op: "exec", Path: c.Args[0], Err: syscall.Exec(c.Args[0], c.Args, c.Env)}
}

// mounts makes everything read-only and not executable, but for the named paths.
func (c *confinement) mounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755"); err != nil {
		return fmt.Errorf("/run: %w", err)
	}
	type change struct {
		path       string
		set, clear uint64
	}
	changes := []change{{"/", unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOEXEC, 0}}
	for _, path := range c.Exec {
		changes = append(changes, change{path, 0, unix.MOUNT_ATTR_NOEXEC})
	}
	for _, path := range append([]string{"/run", "/dev"}, c.Writable...) {
		changes = append(changes, change{path, 0, unix.MOUNT_ATTR_RDONLY})
	}
	for i := range changes {
		path, err := filepath.EvalSymlinks(changes[i].path)
		if err != nil {
			return err
		}
		if changes[i].path = path; path != "/" {
			if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	for _, ch := range changes {
		attr := unix.MountAttr{Attr_set: ch.set, Attr_clr: ch.clear}
		flags := uint(unix.AT_RECURSIVE)
		if err := unix.MountSetattr(unix.AT_FDCWD, ch.path, flags, &attr); err != nil {
			return fmt.Errorf("%s: mount_setattr: %w", ch.path, err)
		}
	}
	return nil
}

// filter installs the filter of system calls.
func (c *confinement) filter() error {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
		kill  = 0x80000000 // SECCOMP_RET_KILL_PROCESS
		fails = 0x00050000 // SECCOMP_RET_ERRNO
		allow = 0x7fff0000
	)
	var f []unix.SockFilter
	op := func(code uint16, k uint32, yes, no uint8) {
		f = append(f, unix.SockFilter{Code: code, K: k, Jt: yes, Jf: no})
	}
	op(load, 0, 0, 0) // the number
	for _, n := range c.Forbidden {
		op(equal, n, 0, 1)
		op(ret, kill, 0, 0)
	}
	op(equal, unix.SYS_SOCKET, 1, 0)
	op(ret, allow, 0, 0)
	op(load, 16, 0, 0) // the first argument
	for _, family := range c.Families {
		op(equal, family, 0, 1)
		op(ret, allow, 0, 0)
	}
	op(ret, fails|uint32(unix.EAFNOSUPPORT), 0, 0)
	program := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	return nil
}

// unitOf returns the values of a word in a unit file of Debian, from all of its lines.
func unitOf(file, word string) (values []string, err error) {
	text, err := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), word+"="); ok {
			values = append(values, strings.Fields(value)...)
		}
	}
	return values, err
}
