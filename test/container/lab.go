package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/pairing"
)

// A lab is the machine as the test needs it. The keeper takes it away.
type lab struct {
	ctx     context.Context
	verbose bool

	dir    string // mode 0755, as users of containers read there; its base is the prefix of all names
	group  string // control group of all processes, version 2
	before string // that of this process before
	socket string // of the agent

	keeper *exec.Cmd
	pipe   io.Closer // ends the keeper's wait
	agent  *exec.Cmd
	log    bytes.Buffer // the agent's

	small   bool   // parts are shorter
	all     bool   // parts are tried after one that fails
	runtime string // of the next container

	podman, strict *profile
	servers        []*container
	count          int // of containers so far
}

// name is the prefix of names.
func (l *lab) name() string { return filepath.Base(l.dir) }

// command runs a command to its end.
func (l *lab) command(name string, args ...string) error {
	out, err := exec.CommandContext(l.ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// lines runs command lines without quoting.
func (l *lab) lines(text string) error {
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 0 {
			if err := l.command(words[0], words[1:]...); err != nil {
				return err
			}
		}
	}
	return nil
}

// make makes the directory, the keeper and the control group.
func (l *lab) make() (err error) {
	if pairing.Attached() { // they come before those of an agent for the control group of the test
		return fmt.Errorf("%w beside the programs of another agent: gosmc agent --detach takes them away", errUnable)
	}
	if l.dir, err = os.MkdirTemp("", "gosmc-container-"); err != nil {
		return err
	}
	l.socket = filepath.Join(l.dir, "agent.sock")
	if l.keeper, l.pipe, err = startKeeper(l.dir); err != nil {
		return err
	}
	if err := os.Chmod(l.dir, 0o755); err != nil {
		return err
	}
	return l.enterGroup()
}

// clean has the keeper take everything away.
func (l *lab) clean() error {
	if l.dir == "" {
		return nil
	}
	if l.keeper == nil || l.keeper.Process == nil {
		return os.RemoveAll(l.dir)
	}
	l.stopAll()
	if l.agent != nil {
		l.agent.Process.Signal(os.Interrupt)
		l.agent.Wait()
	}
	if l.before != "" {
		if err := enter(l.before); err != nil {
			return err
		}
	}
	l.pipe.Close()
	return l.keeper.Wait()
}

// enter moves this process into a control group.
func enter(group string) error {
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Appendf(nil, "%d", os.Getpid()), 0)
}

// enterGroup makes a control group of version 2, and moves this process into a group below it: runc makes those of
// containers beside that. Where version 1 is mounted, too, runc leaves containers in the group of this process.
func (l *lab) enterGroup() error {
	root, err := unifiedRoot()
	if err != nil {
		return err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	before := root
	for line := range strings.Lines(string(own)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			before = filepath.Join(root, path)
		}
	}
	l.group = filepath.Join(root, l.name())
	self := filepath.Join(l.group, "self")
	if err := os.MkdirAll(self, 0o755); err != nil {
		return err
	}
	l.before = before
	return enter(self)
}

// unifiedRoot is where control groups of version 2 are mounted.
func unifiedRoot() (string, error) {
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", errors.New("no control groups of version 2 are mounted")
}

// build compiles the programs of the containers.
func (l *lab) build() error {
	for name, args := range map[string][]string{
		"gosmc":  {"build", "-o", "gosmc", "github.com/gosmc/smc/cmd/gosmc"},
		"talk":   {"build", "-o", "talk", "github.com/gosmc/smc/test/container/talk"},
		"attack": {"build", "-o", "attack", "github.com/gosmc/smc/test/container/attack"},
		"across": {"test", "-c", "-o", "across", "github.com/gosmc/smc/test/container/across"},
	} {
		args[slices.Index(args, "-o")+1] = filepath.Join(l.dir, name)
		cmd := exec.CommandContext(l.ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	return nil
}

// startAgent starts an agent for the lab's control group, and waits until it serves.
func (l *lab) startAgent() error {
	pins := filepath.Join(l.dir, "bpf")
	if err := os.Mkdir(pins, 0o700); err == nil {
		if err := unix.Mount("bpf", pins, "bpf", 0, ""); err != nil {
			return fmt.Errorf("mount bpf: %w", err)
		}
	}
	cmd := exec.Command(filepath.Join(l.dir, "gosmc"), "agent", "--no-port", "--cgroup", l.group,
		"--pins", filepath.Join(pins, "gosmc"), "--socket", l.socket)
	l.log.Reset()
	cmd.Stderr = &l.log
	cmd.WaitDelay = time.Second // agent-keeper holds standard error, too
	if err := cmd.Start(); err != nil {
		return err
	}
	l.agent = cmd
	return l.await("the agent serves", func() bool { _, err := l.agentStatus(); return err == nil })
}

// An agentStatus is a part of the output of gosmc agent --status --json.
type agentStatus struct {
	Introductions struct {
		Enabled bool   `json:"enabled"`
		Why     string `json:"why"`
		Busy    int    `json:"refused_quota"`
	} `json:"introductions"`
}

func (l *lab) agentStatus() (s agentStatus, err error) {
	out, err := exec.CommandContext(l.ctx, filepath.Join(l.dir, "gosmc"), "agent", "--status", "--json", "--socket", l.socket).Output()
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(out, &s)
}

// agentWell reports an agent that has ended, or does not introduce.
func (l *lab) agentWell() error {
	s, err := l.agentStatus()
	if err != nil {
		return fmt.Errorf("the agent does not answer: %w", err)
	}
	if !s.Introductions.Enabled {
		return fmt.Errorf("the agent does not introduce: %s", s.Introductions.Why)
	}
	return nil
}

// await waits until something is so.
func (l *lab) await(what string, is func() bool) error {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(pollTime) {
		if is() {
			return nil
		}
		if l.ctx.Err() != nil {
			return context.Cause(l.ctx)
		}
	}
	return fmt.Errorf("not so within %v: %s", patience, what)
}

// eventually tries until it is so: on a busy machine a program can take too long for its word, and TCP is right then.
func (l *lab) eventually(what string, try func() (got string, good bool, err error)) error {
	last := ""
	tries := 0
	for end := time.Now().Add(patience); time.Now().Before(end) && l.ctx.Err() == nil; tries++ {
		got, good, err := try()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if good {
			fmt.Printf("  %s: %s\n", what, got)
			return nil
		}
		last = got
	}
	return fmt.Errorf("%s: not so in %d tries within %v; at last: %s", what, tries, patience, last)
}
