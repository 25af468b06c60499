package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/bpf"
	"github.com/gosmc/smc/internal/agent"
	"github.com/gosmc/smc/internal/child"
	"github.com/gosmc/smc/internal/port"
)

// Users that the two processes become. They need not exist.
const (
	serverUser = 54311
	clientUser = 54312
)

// roleAgent is a third process: an agent for the two others, where the machine has none.
const roleAgent = "agent"

// pods are what two containers need outside of them: an agent, a control group for whose members that
// has programs in the kernel, and an empty directory.
type pods struct {
	dir   string
	group *os.File       // nil if the machine has an agent
	agent *child.Process // nil, too
}

// newPods prepares them.
func newPods(ctx context.Context) (p *pods, err error) {
	p = new(pods)
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.dir, err = os.MkdirTemp("", "gosmc-demo-"); err != nil {
		return p, err
	}
	if err = os.Chmod(p.dir, 0o755); err != nil || introducing(ctx) {
		return p, err
	}
	if p.group, err = makeGroup(); err != nil {
		return p, fmt.Errorf("a control group for the containers: %w", err)
	}
	// What it mounts and pins is gone with its namespace, however it ends.
	own := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if p.agent, err = child.StartIn(ctx, roleAgent, WorkerVerb, own); err != nil {
		return p, err
	}
	if err = p.agent.Send(spec{Role: roleAgent, Root: p.dir, Group: p.group.Name()}); err != nil {
		return p, err
	}
	return p, hear(ctx, p.agent, new(message))
}

// introducing reports whether the machine has an agent that introduces programs.
func introducing(ctx context.Context) bool {
	answer, extra, err := port.Ask(ctx, port.Paths(""), port.Request{Request: "status"})
	if extra != nil {
		extra.Close()
	}
	var s agent.Status
	return err == nil && json.Unmarshal(answer.Status, &s) == nil && s.Introductions.Enabled
}

// makeGroup makes a control group in that of this process.
func makeGroup() (*os.File, error) {
	root, err := bpf.CgroupRoot()
	if err != nil {
		return nil, err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(groups)) {
		if own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			dir, err := os.MkdirTemp(filepath.Join(root, own), "gosmc-demo-")
			if err != nil {
				return nil, err
			}
			return os.Open(dir)
		}
	}
	return nil, errors.New("this process is in no control group of version 2")
}

// introducer names the agent.
func (p *pods) introducer() string {
	if p.agent == nil {
		return "the agent of this machine"
	}
	return "an agent of the demo"
}

// begin has a process begin in namespaces of its own, and where the agent sees its sockets.
func (p *pods) begin(a *syscall.SysProcAttr) {
	a.Cloneflags |= unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNS
	if p.group != nil {
		a.UseCgroupFD, a.CgroupFD = true, int(p.group.Fd())
	}
}

// close removes everything. The two processes have ended.
func (p *pods) close() {
	if p.agent != nil {
		p.agent.Stop()
	}
	if p.group != nil {
		p.group.Close()
		for range 100 { // processes that have just ended may still be in it
			if err := os.Remove(p.group.Name()); !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	if p.dir != "" {
		os.Remove(p.dir)
	}
}

// serveAgent is the process of [roleAgent]. It serves until its input ends.
func serveAgent(task spec, parent *child.Parent) error {
	a, err := startAgent(task)
	if err != nil {
		return err
	}
	defer a.Close()
	s, err := a.Status()
	if err == nil && !s.Introductions.Enabled {
		err = fmt.Errorf("an agent cannot introduce programs: the kernel pairs no sockets: %s", s.Introductions.Why)
	}
	if err == nil {
		err = parent.Send(message{})
	}
	if err != nil {
		return err
	}
	var end spec
	if err := parent.Receive(&end); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// startAgent starts an agent with files that nobody else sees.
func startAgent(task spec) (*agent.Agent, error) {
	pins := filepath.Join(task.Root, "bpf")
	for _, step := range []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("tmpfs", task.Root, "tmpfs", 0, "mode=0755") },
		func() error { return os.Mkdir(pins, 0o755) },
		func() error { return unix.Mount("bpf", pins, "bpf", 0, "") },
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("prepare an agent: %w", err)
		}
	}
	return agent.Start(agent.Config{
		Socket: filepath.Join(task.Root, port.SocketName), Cgroup: task.Group,
		Pins:     filepath.Join(pins, "gosmc"),
		NoOption: true, NoPort: true,
	})
}

// enter has this process be a container: in its root directory, as its user, without capabilities.
func enter(task spec) error {
	if task.User == 0 {
		return nil
	}
	for _, step := range []func() error{
		func() error { return unix.Chroot(task.Root) },
		func() error { return os.Chdir("/") },
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setgid(task.User) },
		func() error { return syscall.Setuid(task.User) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("become a container: %w", err)
		}
	}
	return nil
}
