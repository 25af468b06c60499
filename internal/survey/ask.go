// Package survey looks at the hosts of this machine: it finds the run directories, asks every host in them for its
// status, and follows what happens in several hosts at once, in the order of time. What one host is asked, and how, is
// package control; what is printed is the command's concern.
package survey

import (
	"context"
	"errors"
	"io/fs"

	"github.com/gosmc/smc/internal/control"
)

// Answers are what the hosts of the machine say of themselves.
type Answers struct {
	Dirs   []string // in which they were looked for
	Hosts  []control.Status
	Errors []Error // of those that did not answer as they should
	Denied int     // hosts of other users
}

// An Error says why a host, or a run directory, could not be asked.
type Error struct {
	Path string `json:"path"`
	Text string `json:"error"`
}

// Ask asks all hosts in the run directory dir, or in all if it is empty.
func Ask(ctx context.Context, dir string) Answers {
	a := Answers{Dirs: dirs(dir), Errors: []Error{}}
	for _, dir := range a.Dirs {
		hosts, errs := control.Gather(ctx, dir)
		a.Hosts = append(a.Hosts, hosts...)
		for _, err := range errs {
			e, ok := errors.AsType[*control.Error](err)
			switch {
			case errors.Is(err, fs.ErrPermission):
				a.Denied++
			case ok:
				a.Errors = append(a.Errors, Error{e.Path, e.Err.Error()})
			default:
				a.Errors = append(a.Errors, Error{dir, err.Error()})
			}
		}
	}
	return a
}

// dirs is dir alone, or all.
func dirs(dir string) []string {
	if dir != "" {
		return []string{dir}
	}
	return Dirs()
}
