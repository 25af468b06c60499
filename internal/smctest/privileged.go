package smctest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// EnterCgroup moves the process into a control group of its own until the test ends, so that
// programs are attached to nobody else, and returns its directory. root is where control groups of
// version 2 are mounted. The test is skipped if it may not make one.
func EnterCgroup(t testing.TB, root string) string {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	before := root
	for line := range strings.Lines(string(own)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			before = filepath.Join(root, path)
		}
	}
	group, err := os.MkdirTemp(before, "gosmc-test-")
	if err != nil {
		t.Skipf("needs a control group: %v", err)
	}
	move := func(to string) error {
		return os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	t.Cleanup(func() {
		if err := move(before); err != nil {
			t.Errorf("leave the control group: %v", err)
		}
		const patience = 10 * time.Second // children that have just ended are still in it
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if err = os.Remove(group); !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			t.Errorf("remove the control group: %v", err)
		}
	})
	if err := move(group); err != nil {
		t.Skipf("needs a control group: %v", err)
	}
	return group
}

// MountBPF mounts a file system of the type bpf until the test ends, and returns its directory. The
// test is skipped if it may not.
func MountBPF(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Skipf("needs to mount a file system of the type bpf: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
