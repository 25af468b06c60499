package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// keeperArg has this command be the process that cleans up.
const keeperArg = "-keeper"

// startKeeper starts a process that takes away everything with the name of the lab, when this process has closed the
// returned pipe or has ended, whatever ended it.
func startKeeper(dir string) (*exec.Cmd, io.Closer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(self, keeperArg, dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal interrupts it
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	return cmd, in, cmd.Start()
}

// keep is the keeper of the lab in a directory. It exits with 1 if something is left.
func keep(dir string) {
	io.Copy(io.Discard, os.Stdin)
	if err := remove(dir); err != nil {
		fmt.Fprintln(os.Stderr, "container-test: left behind:", err)
		os.Exit(exitBad)
	}
}

// remove takes a lab away: its processes, control groups, network namespaces, mounts and files. All have its name.
func remove(dir string) error {
	name := filepath.Base(dir)
	var errs []error
	errs = append(errs, killGroups(name))
	namespaces, _ := filepath.Glob("/run/netns/" + name + "-*")
	for _, path := range namespaces {
		if out, err := exec.Command("ip", "netns", "delete", filepath.Base(path)).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("ip netns delete %s: %w: %s", filepath.Base(path), err, out))
		}
	}
	for _, path := range mountsBelow(dir) {
		errs = append(errs, unix.Unmount(path, unix.MNT_DETACH))
	}
	errs = append(errs, removeGroups(name), os.RemoveAll(dir))
	return errors.Join(errs...)
}

// groups returns the control groups of a name in all hierarchies, the innermost ones first.
func groups(name string) []string {
	var found []string
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != "cgroup" && f[2] != "cgroup2" {
			continue
		}
		filepath.WalkDir(filepath.Join(f[1], name), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && !slices.Contains(found, path) {
				found = append(found, path)
			}
			return nil
		})
	}
	slices.Reverse(found)
	return found
}

// members returns the processes in the control groups of a name, but for this one.
func members(name string) (pids []int) {
	for _, group := range groups(name) {
		text, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil && pid != 0 && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// killGroups ends the processes in the control groups of a name, and waits for their end.
func killGroups(name string) error {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(pollTime) {
		pids := members(name)
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
	return fmt.Errorf("processes %v do not end", members(name))
}

// removeGroups removes the control groups of a name. A process that has just ended can still be in one.
func removeGroups(name string) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(pollTime) {
		err = nil
		for _, group := range groups(name) {
			if e := os.Remove(group); e != nil && !errors.Is(e, fs.ErrNotExist) {
				err = e
			}
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// mountsBelow returns the mounts in a directory, the innermost ones first.
func mountsBelow(dir string) (paths []string) {
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			paths = append(paths, f[1])
		}
	}
	slices.Reverse(paths)
	return paths
}
