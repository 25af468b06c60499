package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A System is a machine with services: the [Tree] of its files, and its systemd if it is the machine
// that runs. It is for one goroutine at a time.
type System struct {
	*Tree
	manager *Manager // nil: nobody is told of changes
	root    string
	own     bool // the root is that of this machine
}

// OpenSystem opens the system below root, "/" for this machine. The caller closes it. Errors are of
// the root.
func OpenSystem(root string) (*System, error) {
	t, err := OpenTree(root)
	if err != nil {
		return nil, err
	}
	s := &System{Tree: t, root: root}
	if dir, err := filepath.Abs(root); err == nil && dir == "/" {
		s.own, s.manager = true, NewManager()
	}
	return s, nil
}

// Command finds the gosmc that services of the system can execute: this program if it is installed
// in the system, or one at its usual places. It is a path in the system.
func (s *System) Command() (string, error) {
	candidates := []string{"/usr/bin/gosmc", "/usr/local/bin/gosmc"}
	if self, err := os.Executable(); err == nil && s.own && !strings.ContainsAny(self, " %$\"'\\;") {
		candidates = append([]string{self}, candidates...)
	}
	for _, path := range candidates {
		library := filepath.Join(s.root, filepath.Dir(path), "../lib/gosmc")
		if info, err := os.Stat(library); err == nil && info.IsDir() {
			if info, err := os.Stat(filepath.Join(s.root, path)); err == nil && info.Mode().IsRegular() {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("gosmc is not installed in %s, where services find it: "+
		"install the package, or use 'make install'", s.root)
}

// Outside returns the path of a file of the system for programs that are not in the system.
func (s *System) Outside(file string) string { return filepath.Join(s.root, file) }

// PlanFor reads the unit of a service as the system's systemd does, and returns the drop-in that it
// needs. Nothing is written.
func (s *System) PlanFor(ctx context.Context, name Name, o Options) (*Plan, error) {
	u, err := s.manager.Unit(ctx, s.Tree, name)
	if err != nil {
		return nil, err
	}
	return s.Plan(u, o)
}

// Enable writes a drop-in, and has systemd read it. written is false if the drop-in was there
// already. With force it takes the place of one that somebody has changed. A drop-in that systemd
// refuses is taken back.
func (s *System) Enable(ctx context.Context, p *Plan, force bool) (written bool, err error) {
	written, err = s.Write(p, force)
	if err != nil || s.manager == nil {
		return written, err
	}
	if err := s.manager.Reload(ctx); err != nil {
		return written, err
	}
	name := p.Unit.Name
	if err := s.manager.Check(ctx, name); err != nil && written {
		return written, errors.Join(fmt.Errorf("the drop-in was taken back: %w", err),
			s.Remove(name, true), s.manager.Reload(ctx))
	}
	return written, nil
}

// Disable removes the drop-ins of services, and has systemd read the units again. With force it also
// removes those that somebody has changed. An error with one service does not stop the others: the
// result has the services whose drop-ins were removed, also with an error.
func (s *System) Disable(ctx context.Context, names []Name, force bool) (removed []Name, err error) {
	var errs []error
	for _, name := range names {
		if err := s.Remove(name, force); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
	}
	if s.manager != nil && len(removed) > 0 {
		errs = append(errs, s.manager.Reload(ctx))
	}
	return removed, errors.Join(errs...)
}

// An Effect says when a change of a drop-in takes effect for a service that runs.
type Effect int

// Values of Effect.
const (
	Done      Effect = iota // there is nothing to restart, or that cannot be known
	Restarted               // the service was started again
	NextStart               // with its next start
)

// Restart restarts a service after [System.Enable], or after [System.Disable] if enabled is false. It
// does so only if now is true, and if what runs does not have the change yet.
func (s *System) Restart(ctx context.Context, name Name, enabled, now bool) (Effect, error) {
	state := s.Running(ctx, name)
	switch {
	case s.manager == nil || state == Stopped || enabled && state == WithIt:
		return Done, nil
	case !now:
		return NextStart, nil
	}
	if err := s.manager.Restart(ctx, name); err != nil {
		way := "'journalctl -u " + name.Short() + "' says why"
		if enabled {
			way += "; 'gosmc service disable --now " + name.Short() + "' takes it back"
		}
		return NextStart, fmt.Errorf("%s did not start again: %w: %s", name.Short(), err, way)
	}
	return Restarted, nil
}

// Running looks at the processes of a service. It is [Unknown] of a system that does not run.
func (s *System) Running(ctx context.Context, name Name) Running { return s.manager.Running(ctx, name) }

// A Status is a service under 'gosmc run' as 'gosmc service list' shows it.
type Status struct {
	Unit    string `json:"unit"`
	File    string `json:"file"`              // with 'gosmc run' in it; a path outside of the system
	State   string `json:"state"`             // StateOK and the others
	Why     string `json:"why,omitempty"`     // of a state other than ok
	Dir     string `json:"dir,omitempty"`     // run directory, which clients need
	Running string `json:"running,omitempty"` // see Running
}

// Statuses returns the services under 'gosmc run', sorted by unit. It is not nil.
func (s *System) Statuses(ctx context.Context, o Options) []Status {
	list := []Status{}
	for _, e := range s.List(o) {
		list = append(list, Status{
			Unit: string(e.Unit), File: s.Outside(e.File), State: e.State, Why: e.Why, Dir: e.Dir,
			Running: string(s.Running(ctx, e.Unit)),
		})
	}
	return list
}
