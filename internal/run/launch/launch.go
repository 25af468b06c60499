package launch

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/library"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/internal/run/proto"
	"github.com/gosmc/smc/internal/run/supervisor"
	"github.com/gosmc/smc/internal/rundir"
)

// held are the locks of this process's copies of the library, which it has, as its supervisor has,
// until it is the program.
var held []*os.File

// Prepare starts a supervisor for this process and returns the environment in which the program at
// a path has the library. The environment of a program that was started by 'gosmc run' is returned
// as it is, unless the program is to have a supervisor of its own: the supervisor of the other
// program serves this one, too. An error is noted as the reason why the program is left to TCP, for
// a later question.
func Prepare(path string, environ []string, own bool, lib []byte) ([]string, error) {
	with, err := prepare(environ, own, lib)
	why := ""
	if err != nil {
		why = err.Error()
	}
	inspect.NoteLeft(rundir.Default(), path, why)
	return with, err
}

// Refuse notes why the program at a path, which cannot have the library, is left to TCP.
func Refuse(path, why string) { inspect.NoteLeft(rundir.Default(), path, why) }

func prepare(environ []string, own bool, lib []byte) ([]string, error) {
	if path := procs.Lookup(environ, proto.EnvSocket); path != "" && !own && proto.Answers(path) {
		return environ, nil
	}
	dir := rundir.Default()
	path, lock, err := library.Install(dir, lib)
	if err != nil {
		return nil, err
	}
	socket, err := start(dir, environ, lock)
	if err != nil {
		library.Release(lock)
		return nil, err
	}
	held = append(held, lock) // rather than let the collector close it
	list := path
	for _, have := range strings.FieldsFunc(procs.Lookup(environ, library.EnvPreload),
		func(r rune) bool { return r == ' ' || r == ':' }) {
		if !strings.HasPrefix(filepath.Base(have), "libgosmc-") {
			list += ":" + have
		}
	}
	environ = slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		return strings.HasPrefix(e, library.EnvPreload+"=") || strings.HasPrefix(e, proto.EnvSocket+"=")
	})
	return append(environ, library.EnvPreload+"="+list, proto.EnvSocket+"="+socket), nil
}

// start starts a supervisor and returns the path of its socket. Descriptors that were handed to this process
// are for the program: the supervisor gets none of them. lock is nil if the library stays for good.
func start(dir string, environ []string, lock *os.File) (string, error) {
	restore := keepDescriptors()
	defer restore()
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return "", err
	}
	defer null.Close()
	log := null
	if config.LogsToStderr() {
		log = os.Stderr
	}
	args, files := []string{"gosmc", supervisor.LaunchVerb, dir, strconv.Itoa(os.Getpid())}, []*os.File{null,
		null, log, w}
	if lock != nil {
		args, files = append(args, lock.Name()), append(files, lock)
	}
	p, err := os.StartProcess("/proc/self/exe", args,
		&os.ProcAttr{Files: files, Env: supervisorEnviron(environ)})
	w.Close()
	if err != nil {
		return "", err
	}
	p.Wait() // its answer is in the pipe
	r.SetReadDeadline(time.Now().Add(launchTimeout))
	line, err := bufio.NewReader(io.LimitReader(r, 1<<16)).ReadString('\n')
	socket, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "ok ")
	if ok {
		return socket, nil
	}
	if line != "" {
		return "", errors.New(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "error "))
	}
	return "", fmt.Errorf("the supervisor did not start: %w", err)
}

// supervisorEnviron is the environment of a supervisor: nothing by which it could be taken for one
// of its programs, or be changed.
func supervisorEnviron(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		return strings.HasPrefix(e, "LD_") || strings.HasPrefix(e, proto.EnvSocket+"=")
	})
}

// keepDescriptors marks the descriptors that this process has inherited close-on-exec, and returns
// a function that takes the mark away again.
func keepDescriptors() (restore func()) {
	var marked []int
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil &&
			flags&unix.FD_CLOEXEC == 0 {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err == nil {
				marked = append(marked, fd)
			}
		}
	}
	return func() {
		for _, fd := range marked {
			unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
		}
	}
}
