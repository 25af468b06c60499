package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"
)

// commandTime bounds the time that systemctl takes to answer, but for the start of a service.
const commandTime = 30 * time.Second

// A Manager is the systemd of this machine.
type Manager struct{ path string } // of systemctl

// NewManager returns the manager of this machine, nil if no systemd runs here: sd_booted(3).
func NewManager() *Manager {
	if info, err := os.Stat("/run/systemd/system"); err != nil || !info.IsDir() {
		return nil
	}
	found, err := exec.LookPath("systemctl")
	if err != nil {
		return nil
	}
	return &Manager{found}
}

// run runs systemctl, and returns its output.
func (m *Manager) run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, m.path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0")
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		said := strings.Join(strings.Fields(problems.String()), " ")
		return "", fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err,
			or(said, "it says nothing"))
	}
	return string(out), nil
}

// Reload has systemd read all units again.
func (m *Manager) Reload(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, commandTime)
	defer stop()
	_, err := m.run(ctx, "daemon-reload")
	return err
}

// Restart restarts a service if it runs, which may take as long as its unit says.
func (m *Manager) Restart(ctx context.Context, name Name) error {
	if name.IsTemplate() {
		name = Name(name.Short() + "*" + suffix)
	}
	_, err := m.run(ctx, "try-restart", "--", string(name))
	return err
}

// properties returns properties of a unit from systemd.
func (m *Manager) properties(ctx context.Context, name Name, names ...string) (map[string]string, error) {
	ctx, stop := context.WithTimeout(ctx, commandTime)
	defer stop()
	out, err := m.run(ctx, "show", "--property="+strings.Join(names, ","), "--", string(name))
	if err != nil {
		return nil, err
	}
	values := make(map[string]string)
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[key] = value
	}
	return values, nil
}

// Unit reads a unit from the files that systemd has read it from. A unit that systemd does not
// know, or knows an older version of, is looked up in the tree.
func (m *Manager) Unit(ctx context.Context, t *Tree, name Name) (*Unit, error) {
	if m == nil || name.IsTemplate() {
		return t.Unit(name)
	}
	p, err := m.properties(ctx, name, "Id", "LoadState", "FragmentPath", "DropInPaths", "NeedDaemonReload")
	if err != nil || p["LoadState"] != "loaded" || p["FragmentPath"] == "" || p["NeedDaemonReload"] == "yes" {
		return t.Unit(name)
	}
	real, err := ParseName(p["Id"])
	if err != nil {
		return t.Unit(name)
	}
	return t.unitOf(real, name, p["FragmentPath"], strings.Fields(p["DropInPaths"]))
}

// Check reports whether systemd can use a unit as it is now.
func (m *Manager) Check(ctx context.Context, name Name) error {
	if name.IsTemplate() {
		return nil // only its instances have a state
	}
	p, err := m.properties(ctx, name, "LoadState", "LoadError")
	if err != nil {
		return err
	}
	if p["LoadState"] != "loaded" {
		return fmt.Errorf("systemd says of %s: %s %s", name, p["LoadState"], p["LoadError"])
	}
	return nil
}

// A Running says how far the processes of a service have the library.
type Running string

// Values of Running.
const (
	Stopped    Running = "stopped"
	WithIt     Running = "yes"
	AfterStart Running = "restart" // it runs without: it was started before
	Unknown    Running = ""        // that cannot be found out
)

// Running looks at the processes of a service.
func (m *Manager) Running(ctx context.Context, name Name) Running {
	if m == nil || name.IsTemplate() {
		return Unknown
	}
	p, err := m.properties(ctx, name, "ActiveState", "ControlGroup")
	switch {
	case err != nil:
		return Unknown
	case p["ActiveState"] == "inactive" || p["ActiveState"] == "failed":
		return Stopped
	case p["ControlGroup"] == "":
		return Unknown
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"} {
		if text, err := os.ReadFile(path.Join(mount, p["ControlGroup"], "cgroup.procs")); err == nil {
			return libraryIn("/proc", strings.Fields(string(text)))
		}
	}
	return Unknown
}

// libraryIn reports whether one of these processes has the library.
func libraryIn(proc string, pids []string) Running {
	state := AfterStart
	for _, pid := range pids {
		maps, err := os.ReadFile(path.Join(proc, pid, "maps"))
		switch {
		case err == nil && strings.Contains(string(maps), "/libgosmc-"): // rule: TestLibraryIn
			return WithIt
		case errors.Is(err, fs.ErrPermission):
			state = Unknown
		}
	}
	if len(pids) == 0 {
		return Unknown
	}
	return state
}
