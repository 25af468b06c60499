package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A task is the order to a process that does the work of one way.
type task struct {
	Program string        `json:"program"`
	Way     way           `json:"way"`
	Dir     string        `json:"dir"` // for its files
	Gosmc   string        `json:"gosmc"`
	Seed    uint          `json:"seed"`  // of the debug switch
	Alone   bool          `json:"alone"` // it is in namespaces of its own
	Timeout time.Duration `json:"timeout"`
}

// An outcome is the result of a task.
type outcome struct {
	Results map[string]string `json:"results"` // that have to be the same in all ways
	Moved   map[string]int    `json:"moved"`   // ends of connections that ss has shown, by mode
	Notes   []string          `json:"notes"`
	Error   string            `json:"error"`
}

// graceTime is the time that a process has beyond its timeout to report its error.
const graceTime = 20 * time.Second

// way does the work in one way: in a process of its own and, as root, in namespaces of its own for
// network, processes and mounts. So ports are free, and nothing is left of it in the end.
func (p *program) way(ctx context.Context, opt options, dir string, w way) *outcome {
	fail := func(format string, args ...any) *outcome { return &outcome{Error: fmt.Sprintf(format, args...)} }
	t := task{Program: p.name, Way: w, Gosmc: opt.gosmc, Seed: opt.seed, Timeout: cmp.Or(p.timeout, programTimeout), Alone: os.Geteuid() == 0}
	var err error
	if t.Dir, err = os.MkdirTemp(dir, p.name+"-"); err != nil {
		return fail("%v", err)
	}
	defer os.RemoveAll(t.Dir)
	if err := os.Chmod(t.Dir, 0o755); err != nil {
		return fail("%v", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fail("%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, t.Timeout+graceTime)
	defer cancel()
	input, err := json.Marshal(t)
	if err != nil {
		return fail("%v", err)
	}
	cmd := exec.CommandContext(ctx, self, "-work")
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	cmd.WaitDelay = graceTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if t.Alone {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS
	}
	runErr := cmd.Run()
	if !t.Alone {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // processes it may have left
	}
	if opt.verbose && stderr.Len() > 0 {
		fmt.Fprintf(os.Stderr, "%s, %s:\n  | %s\n", p.name, w, strings.ReplaceAll(strings.TrimSpace(stderr.String()), "\n", "\n  | "))
	}
	var o outcome
	if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
		return fail("%v, %v, %s", runErr, err, lastOf(stderr.String(), 2000))
	}
	return &o
}

// work is the other side of it.
func work() int {
	var t task
	if err := json.NewDecoder(os.Stdin).Decode(&t); err != nil {
		fmt.Fprintln(os.Stderr, "run-test:", err)
		return 2
	}
	o := t.do()
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		return 2
	}
	return 0
}

// do sees to the namespaces and has the program run.
func (t *task) do() *outcome {
	if t.Alone {
		if err := settle(); err != nil {
			return &outcome{Error: err.Error()}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.Timeout)
	defer cancel()
	l, err := newLab(ctx, t)
	if err != nil {
		return &outcome{Error: err.Error()}
	}
	return l.do(find(t.Program).run)
}

// settle makes new namespaces fit to live in.
func settle() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return os.NewSyscallError("mount /proc", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return os.NewSyscallError("ioctl", err)
	}
	return nil
}

// lastOf returns the end of a text.
func lastOf(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}
