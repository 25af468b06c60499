// Package survey looks at the hosts of this machine: it finds the run directories, asks every host
// in them for its status, and follows the events of several hosts at once, in the order of time.
// Package control has the questions to one host, and the way they are asked; the output is the
// command's concern.
package survey

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/rundir"
)

// Bounds of a survey. Users make as many run directories, and hosts in them, as they like.
const (
	maxDirsAtOnce = 32               // run directories of an owner that are looked into at a time
	maxLanes      = 16               // owners whose directories are
	ownerTime     = 15 * time.Second // for all directories of an owner
	askTime       = time.Minute      // for all
	lateTime      = 2 * time.Second  // for the rest, when the time is over
	maxErrors     = 16               // of one directory that are told one by one
)

// Answers are the statuses that the hosts of the machine give of themselves.
type Answers struct {
	Dirs   []string // in which they were looked for; root looks into other mount namespaces, too
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

// Ask asks all hosts in the run directory dir, or in all if it is empty, for root also in other
// mount namespaces, such as containers. A directory that was named, by dir or in the environment,
// and is not there is an error, see [Answers.Missing].
func Ask(ctx context.Context, dir string) Answers {
	a := Answers{Dirs: dirs(dir), NetNS: ownNetns(), Errors: []Error{}}
	if e := Missing(dir); e != nil {
		a.Errors, a.Missing = append(a.Errors, *e), true
		if dir != "" {
			return a
		}
	}
	all := here(a.Dirs)
	if dir == "" {
		// rule: TestElsewhere: elsewhere(a.Dirs) -> elsewhere(a.Dirs)[:0]
		all = append(all, elsewhere(a.Dirs)...)
	}
	ctx, stop := context.WithTimeout(ctx, askTime)
	defer stop()
	for i, answer := range gather(ctx, all) {
		a.Hosts = append(a.Hosts, answer.hosts...)
		a.complain(all[i].dir, answer.errs)
	}
	return a
}

// complain adds the errors of one directory.
func (a *Answers) complain(dir string, errs []error) {
	told := 0
	for _, err := range errs {
		e, ok := errors.AsType[*control.Error](err)
		if errors.Is(err, fs.ErrPermission) {
			a.Denied++
			continue
		}
		if errors.Is(err, syscall.ENOTDIR) && rundir.IsOff(dir) { // rule: cmd/gosmc TestDoctorOff: rundir.IsOff(dir) -> false
			a.Errors = append(a.Errors, Error{dir, rundir.ErrOff.Error()})
			continue
		}
		switch told++; {
		case told > maxErrors: // rule: TestComplain: told > maxErrors -> false
		case ok:
			a.Errors = append(a.Errors, Error{e.Path, e.Err.Error()})
		default:
			a.Errors = append(a.Errors, Error{dir, err.Error()})
		}
	}
	if told > maxErrors {
		more := fmt.Sprintf("%d more programs did not answer", told-maxErrors)
		a.Errors = append(a.Errors, Error{dir, more})
	}
}

// A dirAnswer has the answers from one run directory.
type dirAnswer struct {
	hosts []control.Status
	errs  []error
}

// gather asks the hosts of several directories at once: a host that is stopped takes the time of one
// question, and users can have such hosts. One owner's hosts take no time from another's. It
// returns soon after ctx ends, also if a file system does not answer.
func gather(ctx context.Context, places []place) []dirAnswer {
	var mu sync.Mutex
	list := make([]dirAnswer, len(places))
	for i := range list {
		list[i].errs = []error{errLate}
	}
	var allowance control.Allowance
	ask := func(ctx context.Context, i int) {
		hosts, errs := allowance.Gather(ctx, places[i].dir)
		mu.Lock()
		defer mu.Unlock()
		list[i] = dirAnswer{hosts, errs}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		each(maxLanes, byOwner(places), func(lane []int) {
			ctx, stop := context.WithTimeout(ctx, ownerTime)
			defer stop()
			// rule: TestAskAtOnce: each(maxDirsAtOnce -> each(1
			each(maxDirsAtOnce, lane, func(i int) { ask(ctx, i) })
		})
	}()
	select {
	case <-done:
	case <-ctx.Done():
		select {
		case <-done:
		case <-time.After(lateTime): // rule: TestGatherHung: lateTime -> time.Hour
		}
	}
	mu.Lock()
	defer mu.Unlock()
	return slices.Clone(list)
}

// errLate is the error of a run directory that there was no time for.
var errLate = errors.New("not looked into: its file system, or its owner's programs, did not answer in time")

// each calls f for each of the items, for so many at a time, and waits.
func each[T any](atOnce int, items []T, f func(T)) {
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for _, item := range items {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			f(item)
		})
	}
	wg.Wait()
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
