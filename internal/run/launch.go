package run

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// Verbs with which this program is started again: LaunchVerb starts SuperviseVerb and ends, so that
// the program has no child that it did not start.
const (
	LaunchVerb    = "run-launch"
	SuperviseVerb = "run-supervise"
)

const preloadVariable = "LD_PRELOAD"

// Descriptors of a supervisor: where it says whether it is ready, and the lock of the copy of the
// library that its programs have.
const (
	resultFD = 3
	lockFD   = 4
)

// held are the locks of this process's copies of the library, which it has, as its supervisor has,
// until it is the program.
var held []*os.File

// Prepare starts a supervisor for this process and returns the environment in which the program at
// a path has the library. The environment of a program that was started by 'gosmc run' is returned
// as it is, unless the program is to have a supervisor of its own: the supervisor of the other
// program serves this one, too. An error is noted as the reason why the program is left to TCP, for
// a later question.
func Prepare(path string, environ []string, own bool, library []byte) ([]string, error) {
	with, err := prepare(environ, own, library)
	why := ""
	if err != nil {
		why = err.Error()
	}
	noteLeft(rundir.Default(), path, why)
	return with, err
}

func prepare(environ []string, own bool, library []byte) ([]string, error) {
	if path := lookup(environ, EnvSocket); path != "" && !own && answers(path) {
		return environ, nil
	}
	dir := rundir.Default()
	path, lock, err := install(dir, library)
	if err != nil {
		return nil, err
	}
	socket, err := launch(dir, environ, lock)
	if err != nil {
		if lock != nil {
			lock.Close()
			treeOf(systemLoader()).removeCopy(lock.Name())
		}
		return nil, err
	}
	held = append(held, lock) // rather than let the collector close it
	list := path
	for _, have := range strings.FieldsFunc(lookup(environ, preloadVariable), func(r rune) bool { return r == ' ' || r == ':' }) {
		if !strings.HasPrefix(filepath.Base(have), "libgosmc-") {
			list += ":" + have
		}
	}
	environ = slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		return strings.HasPrefix(e, preloadVariable+"=") || strings.HasPrefix(e, EnvSocket+"=")
	})
	return append(environ, preloadVariable+"="+list, EnvSocket+"="+socket), nil
}

func lookup(environ []string, name string) string {
	for _, e := range environ {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// launch starts a supervisor and returns the path of its socket. Descriptors that were handed to this process
// are for the program: the supervisor gets none of them. lock is nil if the library stays for good.
func launch(dir string, environ []string, lock *os.File) (string, error) {
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
	args, files := []string{"gosmc", LaunchVerb, dir, strconv.Itoa(os.Getpid())}, []*os.File{null, null, null, w}
	if lock != nil {
		args, files = append(args, lock.Name()), append(files, lock)
	}
	p, err := os.StartProcess("/proc/self/exe", args, &os.ProcAttr{Files: files, Env: supervisorEnviron(environ)})
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
		return strings.HasPrefix(e, "LD_") || strings.HasPrefix(e, EnvSocket+"=")
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
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
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

// Launch is [LaunchVerb]: it starts a supervisor in a session of its own and leaves it alone.
func Launch(args []string) error {
	result := os.NewFile(resultFD, "result")
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr, result}
	if len(args) == argsWithLock {
		files = append(files, os.NewFile(lockFD, args[len(args)-1]))
	}
	p, err := os.StartProcess("/proc/self/exe", append([]string{"gosmc", SuperviseVerb}, args...), &os.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		fmt.Fprintf(result, "error %v\n", err)
		return err
	}
	return p.Release()
}

// argsWithLock is how many arguments a supervisor has if a copy of the library was made for its programs.
const argsWithLock = 3

// Supervise is [SuperviseVerb]: the life of a supervisor. Its arguments are the run directory, the
// process that it is for, and the lock of a copy of the library.
func Supervise(args []string) error {
	result := os.NewFile(resultFD, "result")
	unix.CloseOnExec(resultFD)
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	s, err := superviseArgs(args)
	if err != nil {
		fmt.Fprintf(result, "error %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		return err
	}
	var lock *os.File
	if len(args) == argsWithLock {
		unix.CloseOnExec(lockFD)
		lock = os.NewFile(lockFD, args[2])
		makeRecord(lock.Name(), s.path) // a record that cannot be written cannot be removed either
	}
	fmt.Fprintf(result, "ok %s\n", s.path)
	result.Close()
	defer s.releaseCopy(lock)
	defer s.close()
	go tidyCopies(copyPlaces(args[0]))
	quit := make(chan struct{})
	defer close(quit)
	go s.watchLoops(quit)
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	go func() {
		<-terminate
		s.stop()
	}()
	return s.serve()
}

func superviseArgs(args []string) (*supervisor, error) {
	if len(args) != 2 && len(args) != argsWithLock {
		return nil, errors.New("want a directory, a process, and perhaps a lock")
	}
	pid, err := strconv.Atoi(args[1])
	if err != nil {
		return nil, err
	}
	return newSupervisor(args[0], pid)
}

// releaseCopy gives up the copy of the library that the programs had, and removes it unless somebody uses it.
func (s *supervisor) releaseCopy(lock *os.File) {
	if lock == nil {
		return
	}
	if s.programs.over {
		os.Remove(recordPath(lock.Name(), s.path)) // rule: TestCopyOfSupervisors
	}
	lock.Close()
	treeOf(systemLoader()).removeCopy(lock.Name())
}
