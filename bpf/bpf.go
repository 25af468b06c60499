// Package bpf has the programs that 'gosmc agent' runs in the kernel, and attaches them: the SMC
// option of TCP for sockets that ask for it (kernel/option.bpf.c), and one UDP port for many
// processes (kernel/port.bpf.c). The objects are built by 'make bpf' and committed.
//
// Whatever is attached is pinned in a file system of the type bpf. So it stays when the process ends, and the
// next one finds it again: see [AttachOption] and [OpenPort].
package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// DefaultPins is where the programs are pinned if nobody says otherwise.
const DefaultPins = "/sys/fs/bpf/gosmc"

// systemFS is where the file system of the type bpf is mounted on all machines that have one.
const systemFS = "/sys/fs/bpf"

// PreparePins makes the directory for pins. Its file system must be of the type bpf; on /sys/fs/bpf
// one is mounted if there is none.
func PreparePins(dir string) error {
	parent := filepath.Dir(filepath.Clean(dir))
	is, err := isBPF(parent)
	if err == nil && !is && parent == systemFS {
		if err := unix.Mount("bpf", systemFS, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
			"mode=0700"); err != nil {
			return fmt.Errorf("bpf: mount a file system of the type bpf on %s: %w", systemFS, err)
		}
		is, err = isBPF(parent)
	}
	if err != nil {
		return fmt.Errorf("bpf: directory for pins: %w", err)
	}
	if !is {
		return fmt.Errorf("bpf: %s is not on a file system of the type bpf; 'mount -t bpf bpf DIR' makes one", parent)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("bpf: directory for pins: %w", err)
	}
	return nil
}

func isBPF(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return uint32(st.Type) == unix.BPF_FS_MAGIC, nil
}

// CgroupRoot returns where the control groups of version 2 are mounted.
func CgroupRoot() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(mounts)) {
		// 36 35 98:0 /root /mount/point options optional... - type source options
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if ok && len(fields) > 4 && strings.HasPrefix(after, "cgroup2 ") {
			return fields[4], nil
		}
	}
	return "", errors.New("no control groups of version 2 are mounted; 'mount -t cgroup2 none DIR' makes them visible")
}

// load reads the object of one of our sources, and gives its maps names under which they are pinned.
func load(object []byte) (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("bpf: %w", err)
	}
	for name, m := range spec.Maps {
		if !strings.HasPrefix(name, ".") { // a program's constants are its own
			m.Pinning = ebpf.PinByName
		}
	}
	// Before Linux 5.11 maps count as locked memory. Where the limit may not be raised the error comes later.
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	return spec, nil
}

// explain returns an error of loading or attaching with its meaning.
func explain(what string, err error) error {
	hint := ""
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused) && privileged(): // no matter of privilege, and the error says more
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), !privileged():
		// Without privilege the loader's probes fail too, and it takes the features that they ask
		// for to be unknown. Without CAP_PERFMON the verifier refuses the programs, with any error.
		hint = "; it needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
		if errors.Is(err, unix.EPERM) && what == "attach" {
			hint += ", and no program that was attached exclusively to the same control group"
		}
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		hint = "; it needs Linux 5.14 with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF"
	}
	return fmt.Errorf("bpf: %s: %w%s", what, err, hint)
}

// privileged reports whether this thread may load programs like ours.
func privileged() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return true // nothing is known against it
	}
	has := func(c uint) bool { return caps[c/32].Effective&(1<<(c%32)) != 0 }
	return has(unix.CAP_SYS_ADMIN) || has(unix.CAP_BPF) && has(unix.CAP_PERFMON)
}

func closeAll[K comparable, T interface{ Close() error }](things map[K]T) {
	for _, t := range things {
		t.Close()
	}
}
