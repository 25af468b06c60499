package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
)

// A dirFinder knows where run directories may be. Its fields are replaced in tests.
type dirFinder struct {
	root   string // "/"
	getenv func(string) string
	uid    int
}

func systemDirFinder() dirFinder { return dirFinder{"/", os.Getenv, os.Geteuid()} }

// find lists the run directories that exist, each once, however many names it has. Root
// also sees those of the other users.
func (f dirFinder) find() []string {
	candidates := []string{f.getenv("GOSMC_DIR"), filepath.Join(f.root, "run/gosmc")}
	if dir := f.getenv("XDG_RUNTIME_DIR"); dir != "" {
		candidates = append(candidates, filepath.Join(dir, "gosmc"))
	}
	candidates = append(candidates, filepath.Join(f.root, "tmp", "gosmc-"+strconv.Itoa(f.uid)))
	if f.uid == 0 {
		for _, pattern := range []string{"tmp/gosmc-*", "run/user/*/gosmc"} {
			// The only error is a bad pattern.
			found, _ := filepath.Glob(filepath.Join(f.root, pattern))
			candidates = append(candidates, found...)
		}
	}
	var dirs []string
	var seen []os.FileInfo
next:
	for _, dir := range candidates {
		info, err := os.Stat(dir)
		if dir == "" || err != nil || !info.IsDir() {
			continue
		}
		for _, other := range seen {
			if os.SameFile(info, other) {
				continue next
			}
		}
		dirs, seen = append(dirs, dir), append(seen, info)
	}
	return dirs
}

// gatherFlags are common to the verbs that ask the hosts of the machine.
type gatherFlags struct {
	dir  string
	json bool
}

func (f *gatherFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "dir", "", "look in this run directory only")
	cmd.Flags().BoolVar(&f.json, "json", false, "print JSON")
}

// A gathered is what the hosts of the machine answered.
type gathered struct {
	dirs   []string
	hosts  []control.Status
	errors []gatherError
	denied int // hosts of other users
}

type gatherError struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}

// gather asks all hosts in all run directories, or in one.
func (f *gatherFlags) gather(ctx context.Context) gathered {
	g := gathered{dirs: []string{f.dir}}
	if f.dir == "" {
		g.dirs = systemDirFinder().find()
	}
	for _, dir := range g.dirs {
		hosts, errs := control.Gather(ctx, dir)
		g.hosts = append(g.hosts, hosts...)
		for _, err := range errs {
			e, ok := errors.AsType[*control.Error](err)
			switch {
			case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
				g.denied++
			case ok:
				g.errors = append(g.errors, gatherError{e.Path, e.Err.Error()})
			default:
				g.errors = append(g.errors, gatherError{dir, err.Error()})
			}
		}
	}
	return g
}

// complain says what could not be seen.
func (g *gathered) complain(cmd *cobra.Command) {
	for _, e := range g.errors {
		cmd.PrintErrf("gosmc: %s: %s\n", printable(e.Path), printable(e.Error))
	}
	if g.denied > 0 {
		cmd.PrintErrf("gosmc: not shown: what belongs to other users (%d found); run as root to see it\n", g.denied)
	}
}

// process names the program behind a host: pid/command.
func process(pid int, command string) string {
	if pid <= 0 {
		return orNA(command)
	}
	return strconv.Itoa(pid) + "/" + orNA(command)
}
