// Package pod makes what two containers need that gosmc starts for a demo or a measurement: an agent,
// unless the machine has one, a control group whose sockets that sees, and an empty directory. The
// containers themselves are children of the caller, in namespaces of their own.
package pod

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
	"github.com/gosmc/smc/internal/pairing"
	"github.com/gosmc/smc/internal/port"
)

// AgentVerb is the hidden verb of the command that runs the agent, see [ServeAgent].
const AgentVerb = "pod-agent"

// A Site is ready for containers. Close removes it.
type Site struct {
	Dir string // empty, and open to all users: a root directory

	held  *os.File       // Dir, see makeHeld
	group *os.File       // nil if the machine has an agent
	agent *child.Process // nil, too
}

// agentSpec is the only thing that the agent hears, and agentMessage its answer.
type agentSpec struct {
	Dir   string `json:"dir"`
	Group string `json:"group"`
}

type agentMessage struct {
	Problem string `json:"problem,omitempty"`
}

// ErrNoPairing says that an agent cannot introduce programs here.
var ErrNoPairing = errors.New("the kernel pairs no sockets")

var errLeft = errors.New("the programs of an agent that does not run are attached; " +
	"start it: systemctl start gosmc-agent; or take them away: gosmc agent --detach")

// New makes a site, for root. When ctx ends its agent is killed. It removes the directories and control
// groups of sites whose makers were killed.
func New(ctx context.Context) (s *Site, err error) {
	s = new(Site)
	defer func(made *Site) {
		if err != nil {
			made.Close()
		}
	}(s)
	sweep(os.TempDir()) // rule: TestNewSweeps
	if s.held, err = makeHeld(os.TempDir()); err != nil {
		return nil, err
	}
	s.Dir = s.held.Name()
	if err = os.Chmod(s.Dir, 0o755); err != nil {
		return nil, err
	}
	if introducing(ctx) {
		return s, nil
	}
	if pairing.Attached() { // rule: TestAttached: pairing.Attached() -> pairing.Attached() && false
		return nil, errLeft
	}
	if s.group, err = makeGroup(); err != nil {
		return nil, fmt.Errorf("a control group for containers: %w", err)
	}
	// What it mounts and pins is gone with its namespace, however it ends.
	own := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if s.agent, err = child.StartIn(ctx, "agent", AgentVerb, own); err != nil {
		return nil, err
	}
	if err = s.agent.Send(agentSpec{Dir: s.Dir, Group: s.group.Name()}); err != nil {
		return nil, err
	}
	var m agentMessage
	if err = s.agent.Receive(ctx, child.Patience, &m); err != nil {
		return nil, err
	}
	if m.Problem != "" {
		err = fmt.Errorf("an agent for containers: %s", m.Problem)
		if strings.Contains(m.Problem, ErrNoPairing.Error()) {
			err = fmt.Errorf("%w: %w", ErrNoPairing, err)
		}
		return nil, err
	}
	return s, nil
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
	sweepBelow(root) // rule: TestNewSweeps
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(groups)) {
		if own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			return makeHeld(filepath.Join(root, own))
		}
	}
	return nil, errors.New("this process is in no control group of version 2")
}

// Introducer names the agent.
func (s *Site) Introducer() string {
	if s.agent == nil {
		return "the agent of this machine"
	}
	return "an agent for the occasion"
}

// Begin has a child begin in namespaces of its own, without a user namespace, and where the agent sees
// its sockets.
func (s *Site) Begin(a *syscall.SysProcAttr) {
	a.Cloneflags |= unix.CLONE_NEWNET | unix.CLONE_NEWPID
	s.BeginBeside(a)
}

// BeginBeside is [Site.Begin] for a child that stays in the network and PID namespaces of the thread that
// starts it.
func (s *Site) BeginBeside(a *syscall.SysProcAttr) {
	a.Cloneflags |= unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNS
	if s.group != nil {
		a.UseCgroupFD, a.CgroupFD = true, int(s.group.Fd())
	}
}

// Close removes everything. The containers have ended, or are about to.
func (s *Site) Close() {
	if s.agent != nil {
		s.agent.Stop()
	}
	if s.group != nil {
		for range 100 { // processes that have just ended may still be in it
			if err := os.Remove(s.group.Name()); !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		s.group.Close()
	}
	if s.held != nil {
		os.Remove(s.Dir)
		s.held.Close()
	}
}

// Enter has this process be a container: in a root directory, as a user, without capabilities.
func Enter(root string, user int) error {
	for _, step := range []func() error{
		func() error { return unix.Chroot(root) },
		func() error { return os.Chdir("/") },
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setgid(user) },
		func() error { return syscall.Setuid(user) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("become a container: %w", err)
		}
	}
	return nil
}

// ServeAgent does the work of the hidden verb [AgentVerb]: an agent that serves until its input ends. in
// and out are standard input and output of the process.
func ServeAgent(in io.Reader, out io.Writer) error {
	parent := child.NewParent(in, out)
	var spec agentSpec
	if err := parent.Receive(&spec); err != nil {
		return child.ErrNotFromHere
	}
	a, err := startAgent(spec)
	if err != nil {
		return parent.Send(agentMessage{Problem: err.Error()})
	}
	defer a.Close()
	s, err := a.Status()
	if err == nil && !s.Introductions.Enabled {
		err = fmt.Errorf("%w: %s", ErrNoPairing, s.Introductions.Why)
	}
	if err != nil {
		return parent.Send(agentMessage{Problem: err.Error()})
	}
	if err := parent.Send(agentMessage{}); err != nil {
		return err
	}
	if err := parent.Receive(&spec); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// startAgent starts an agent with files that nobody else sees: this process has a mount namespace of
// its own.
func startAgent(spec agentSpec) (*agent.Agent, error) {
	pins := filepath.Join(spec.Dir, "bpf")
	for _, step := range []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("tmpfs", spec.Dir, "tmpfs", 0, "mode=0755") },
		func() error { return os.Mkdir(pins, 0o755) },
		func() error { return unix.Mount("bpf", pins, "bpf", 0, "") },
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("prepare files: %w", err)
		}
	}
	return agent.Start(agent.Config{
		Socket: filepath.Join(spec.Dir, port.SocketName), Cgroup: spec.Group,
		Pins: filepath.Join(pins, "gosmc"), NoOption: true, NoPort: true,
	})
}
