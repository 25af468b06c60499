// Package survey looks at the hosts of this machine: it finds the run directories, asks every host
// in them for its status, and follows the events of several hosts at once, in the order of time.
// Package control has the questions to one host, and the way they are asked; the output is the
// command's concern.
package survey

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/rendezvous"
)

// maxDirsAtOnce is how many run directories are looked into at a time.
const maxDirsAtOnce = 32

// Answers are the statuses that the hosts of the machine give of themselves.
type Answers struct {
	Dirs   []string // in which they were looked for
	NetNS  uint64   // our own network namespace, by the number that hosts use for theirs; 0: not known
	Hosts  []control.Status
	Errors []Error // of those that did not answer as they should
	Denied int     // hosts of other users

	// Missing says that the directory in which somebody asked us to look is not there; Errors has it too.
	Missing bool
}

// Elsewhere reports whether a network namespace, as a host names it, is another one than ours.
func (a *Answers) Elsewhere(netns uint64) bool { return netns != 0 && a.NetNS != 0 && netns != a.NetNS }

// An Error says why a host, or a run directory, could not be asked.
type Error struct {
	Path string `json:"path"`
	Text string `json:"error"`
}

// Ask asks all hosts in the run directory dir, or in all if it is empty. A directory that was
// named, by dir or in the environment, and is not there is an error, see [Answers.Missing].
func Ask(ctx context.Context, dir string) Answers {
	a := Answers{Dirs: dirs(dir), NetNS: ownNetns(), Errors: []Error{}}
	if e := Missing(dir); e != nil {
		a.Errors, a.Missing = append(a.Errors, *e), true
		if dir != "" {
			return a
		}
	}
	for i, answer := range gather(ctx, a.Dirs) {
		dir := a.Dirs[i]
		a.Hosts = append(a.Hosts, answer.hosts...)
		for _, err := range answer.errs {
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

// A dirAnswer has the answers from one run directory.
type dirAnswer struct {
	hosts []control.Status
	errs  []error
}

// gather asks the hosts of several directories at once: a host that is stopped takes the time of one
// question, and users can have such hosts.
func gather(ctx context.Context, dirs []string) []dirAnswer {
	list := make([]dirAnswer, len(dirs))
	places := make(chan struct{}, maxDirsAtOnce)
	var wg sync.WaitGroup
	for i, dir := range dirs {
		places <- struct{}{} // rule: TestAskAtOnce: places <- struct{}{} -> wg.Wait(); places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			list[i].hosts, list[i].errs = control.Gather(ctx, dir)
		})
	}
	wg.Wait()
	return list
}

// Missing returns the fault of the run directory that somebody has named, with dir or in the
// environment, if it is not there: nobody can be found in it, which is no proof that there is
// nobody. Otherwise it returns nil.
func Missing(dir string) *Error {
	name := "GOSMC_DIR"
	if dir == "" {
		dir = os.Getenv(name)
	} else {
		name = "--dir"
	}
	if dir == "" {
		return nil
	}
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return &Error{dir, name + " names a directory that does not exist: no program has used it yet, or it is misspelt"}
	case errors.Is(err, syscall.ENOTDIR), err == nil && !info.IsDir():
		return &Error{dir, name + " names what is not a directory"}
	case err != nil && !errors.Is(err, fs.ErrPermission):
		return &Error{dir, err.Error()}
	}
	return nil
}

// ownNetns is the network namespace of this process.
func ownNetns() uint64 {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	netns, err := rendezvous.SocketNetns(raw)
	if err != nil {
		return 0
	}
	return netns
}

// dirs is dir alone, or all.
func dirs(dir string) []string {
	if dir != "" {
		return []string{dir}
	}
	return Dirs()
}
