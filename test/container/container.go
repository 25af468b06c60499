package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A program is one in a container.
type program struct {
	at      int    // end of the network
	account int    // 0 is the end's own; others have other users on the machine
	private bool   // it has a network of its own with nothing in it, and its root may do anything there
	root    string // name of its root file system
	user    int    // in the container
	profile *profile

	powerless bool // it has no capability, not even those of podman's containers

	run   bool // under 'gosmc run'
	args  []string
	env   []string
	holds int // bytes of its output after which it is stopped until the output is released; 0: it is not
}

// A container is one that runs, or has run.
type container struct {
	l    *lab
	by   string // its runtime
	id   string
	user int
	cmd  *exec.Cmd
	out  buffer // standard output
	log  buffer // standard error
	done chan struct{}
	err  error // of the end; valid once done is closed
}

// A buffer may be read while it is written. One that holds takes no more, once it has so many bytes, until it is released:
// the program that writes is stopped in its work then.
type buffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	holds int           // bytes; 0: it does not
	free  chan struct{} // closed when it is released
	once  sync.Once
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	n, err := b.b.Write(p)
	wait := b.holds > 0 && b.b.Len() >= b.holds
	b.mu.Unlock()
	if wait {
		<-b.free
	}
	return n, err
}

// release lets everything in from now on.
func (b *buffer) release() { b.once.Do(func() { close(b.free) }) }

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Len is the number of bytes so far.
func (b *buffer) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Len()
}

// start starts a container.
func (l *lab) start(p program) (*container, error) {
	if p.profile == nil {
		p.profile = l.podman
	}
	if p.run {
		p.args = append([]string{"/usr/bin/gosmc", "run", "--require", "--"}, p.args...)
	}
	l.count++
	c := &container{l: l, by: l.runtime, id: fmt.Sprintf("%s-c%d", l.name(), l.count), user: p.user, done: make(chan struct{})}
	c.out.holds, c.out.free = p.holds, make(chan struct{})
	bundle := filepath.Join(l.dir, c.id)
	if err := os.Mkdir(bundle, 0o755); err != nil {
		return nil, err
	}
	config, err := json.Marshal(l.spec(c.id, p))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o644); err != nil {
		return nil, err
	}
	c.cmd = c.command(l.ctx, "run", "--bundle", bundle, c.id)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.log
	c.cmd.WaitDelay = patience
	c.cmd.Cancel = func() error { c.out.release(); return c.cmd.Process.Kill() }
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		c.err = c.cmd.Wait()
		if l.verbose {
			fmt.Fprintf(os.Stderr, "--- %s %v: %v\n%s", c.id, p.args, c.err, c.log.String())
		}
		close(c.done)
	}()
	return c, nil
}

// command is one of the runtime. crun 1.8 knows no machine with control groups of both versions: it sees version 2
// alone, in a mount namespace of its own, and leaves its containers in the group of this process.
func (c *container) command(ctx context.Context, args ...string) *exec.Cmd {
	options := []string{"--root", c.l.state()}
	if c.by == runc {
		return exec.CommandContext(ctx, runc, append(options, args...)...)
	}
	inside := []string{"--mount", "/bin/sh", "-c", `mount --bind "$0" /sys/fs/cgroup && exec crun "$@"`, filepath.Dir(c.l.group)}
	options = append(options, "--cgroup-manager=disabled")
	return exec.CommandContext(ctx, "unshare", append(append(inside, options...), args...)...)
}

// Runtimes.
const (
	runc = "runc"
	crun = "crun"
)

// state is where runtimes keep the state of containers.
func (l *lab) state() string { return filepath.Join(l.dir, "runc") }

// spec is the configuration of a container, as the OCI's runtime-spec has it.
func (l *lab) spec(id string, p program) map[string]any {
	type m = map[string]any
	ids := []m{{"containerID": 0, "hostID": 65536 * (16 + p.at + p.account), "size": 65536}}
	network, may := m{"type": "network", "path": "/run/netns/" + l.netns(p.at)}, capabilities
	if p.private {
		network, may = m{"type": "network"}, append(slices.Clone(capabilities), "CAP_NET_ADMIN", "CAP_NET_RAW")
	}
	if p.powerless {
		may = []string{}
	}
	env := []string{"PATH=/usr/bin:/bin", "HOME=/tmp", "LC_ALL=C", "GOSMC_SHORT_AFTER=off"}
	env = append(env, p.env...)
	tmpfs := func(path, mode string) m {
		return m{"destination": path, "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=" + mode}}
	}
	return m{
		"ociVersion": "1.0.0",
		"process": m{
			"user": m{"uid": p.user, "gid": p.user}, "args": p.args, "cwd": "/", "env": env, "noNewPrivileges": true,
			"capabilities": m{"bounding": may, "effective": may, "permitted": may},
			"rlimits":      []m{{"type": "RLIMIT_NOFILE", "hard": 16384, "soft": 16384}},
		},
		"root": m{"path": filepath.Join(l.dir, "root-"+p.root), "readonly": true}, "hostname": "container",
		"mounts": []m{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			tmpfs("/tmp", "1777"), tmpfs("/dev", "755"), tmpfs("/dev/shm", "1777"),
		},
		"linux": m{
			"cgroupsPath": "/" + l.name() + "/" + id, "uidMappings": ids, "gidMappings": ids, "seccomp": p.profile,
			"namespaces": []m{
				{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "user"}, network,
			},
		},
	}
}

// serve starts a container, and waits until it listens on a port.
func (l *lab) serve(port int, p program) (*container, error) {
	c, err := l.start(p)
	if err != nil {
		return nil, err
	}
	l.servers = append(l.servers, c)
	// A listener has no peer, and state 0A. Connections of before may wait on the port for their last segments.
	four := fmt.Appendf(nil, ":%04X %08X:0000 0A", port, 0)
	six := fmt.Appendf(nil, ":%04X %032X:0000 0A", port, 0)
	err = l.await(fmt.Sprintf("%v listens on port %d", p.args, port), func() bool {
		select {
		case <-c.done:
			return true
		default:
		}
		pid, err := c.pid()
		if err != nil {
			return false
		}
		v4, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
		v6, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp6", pid))
		return bytes.Contains(v4, four) || bytes.Contains(v6, six)
	})
	select {
	case <-c.done:
		return nil, fmt.Errorf("%v ends: %v: %s%s", p.args, c.err, c.out.String(), c.log.String())
	default:
		return c, err
	}
}

// ask runs a container to its end, and returns its standard output.
func (l *lab) ask(p program) (string, error) {
	c, err := l.start(p)
	if err != nil {
		return "", err
	}
	err = c.wait()
	c.delete()
	if err != nil {
		err = fmt.Errorf("%v: %w: %s", p.args, err, c.log.String())
	}
	return c.out.String(), err
}

// wait waits for the end of a container, for so long.
func (c *container) wait() error { return c.waitFor(patience) }

func (c *container) waitFor(d time.Duration) error {
	select {
	case <-c.done:
		return c.err
	case <-time.After(d):
		c.kill()
		return fmt.Errorf("does not end within %v", d)
	}
}

// pid returns the first process of a container, as this namespace has it.
func (c *container) pid() (int, error) {
	name, key := "state.json", "init_process_pid"
	if c.by == crun {
		name, key = "status", "pid"
	}
	text, err := os.ReadFile(filepath.Join(c.l.state(), c.id, name))
	if err != nil {
		return 0, err
	}
	var state map[string]any
	if err := json.Unmarshal(text, &state); err != nil {
		return 0, err
	}
	pid, _ := state[key].(float64)
	if pid == 0 {
		return 0, fmt.Errorf("container %s has no process yet", c.id)
	}
	return int(pid), nil
}

// kill kills a container, and waits for its end.
func (c *container) kill() error {
	c.out.release()
	out, err := c.command(context.Background(), "kill", c.id, "KILL").CombinedOutput()
	if err != nil && !strings.Contains(string(out), "not running") {
		return fmt.Errorf("runc kill: %w: %s", err, out)
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("container %s does not end", c.id)
	}
}

// delete removes what is left of a container.
func (c *container) delete() {
	c.out.release()
	c.command(context.Background(), "delete", "--force", c.id).Run()
	select {
	case <-c.done:
	case <-time.After(patience):
	}
	os.RemoveAll(filepath.Join(c.l.dir, c.id))
}

// stopAll ends the servers.
func (l *lab) stopAll() {
	for _, c := range l.servers {
		c.delete()
	}
	l.servers = nil
}

// A tally is how many connections a server has taken.
type tally struct {
	moved    int // by gosmc's word
	accepted int // by the kernel's, in its network namespace
	tcp      string
}

// tally counts a server's connections, by the gosmc stats of the machine's root and by the kernel.
func (c *container) tally() (t tally, err error) {
	late := c.l.await("gosmc stats answers", func() bool { t, err = c.count(); return err == nil })
	return t, errors.Join(late, err)
}

// count is tally for a program that has begun to answer.
func (c *container) count() (t tally, err error) {
	pid, err := c.pid()
	if err != nil {
		return t, err
	}
	dir := fmt.Sprintf("/proc/%d/root/tmp/gosmc-%d", pid, c.user)
	ctx, stop := context.WithTimeout(c.l.ctx, patience)
	defer stop()
	out, err := exec.CommandContext(ctx, filepath.Join(c.l.dir, "gosmc"), "stats", "--json", "--dir", dir).Output()
	if err != nil {
		return t, fmt.Errorf("gosmc stats --dir %s: %w", dir, err)
	}
	var stats struct {
		Total struct {
			AsServer  map[string]int `json:"connections_as_server"`
			Fallbacks []struct {
				Tag   string `json:"tag"`
				Count int    `json:"count"`
			} `json:"fallbacks"`
		} `json:"total"`
	}
	if err := json.Unmarshal(out, &stats); err != nil {
		return t, err
	}
	for mode, n := range stats.Total.AsServer {
		if mode != "TCP" {
			t.moved += n
		}
	}
	t.tcp = fmt.Sprint(stats.Total.Fallbacks)
	t.accepted, err = passiveOpens(pid)
	return t, err
}

// passiveOpens is the number of TCP connections that the network namespace of a process has accepted.
func passiveOpens(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/snmp", pid))
	if err != nil {
		return 0, err
	}
	column := -1
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "Tcp:" {
			continue
		}
		if column >= 0 && column < len(f) {
			return strconv.Atoi(f[column])
		}
		for i, name := range f {
			if name == "PassiveOpens" {
				column = i
			}
		}
	}
	return 0, fmt.Errorf("no PassiveOpens of process %d", pid)
}
