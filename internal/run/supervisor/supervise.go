package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/run/library"
)

// Verbs with which this program is started again: LaunchVerb starts SuperviseVerb and ends, so that
// the program has no child that it did not start.
const (
	LaunchVerb    = "run-launch"
	SuperviseVerb = "run-supervise"
)

// Descriptors of a supervisor: where it says whether it is ready, and the lock of the copy of the
// library that its programs have.
const (
	resultFD = 3
	lockFD   = 4
)

// argsWithLock is how many arguments a supervisor has if a copy of the library was made for its programs.
const argsWithLock = 3

// Launch is [LaunchVerb]: it starts a supervisor in a session of its own and leaves it alone.
func Launch(args []string) error {
	result := os.NewFile(resultFD, "result")
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr, result}
	if len(args) == argsWithLock {
		files = append(files, os.NewFile(lockFD, args[len(args)-1]))
	}
	p, err := os.StartProcess("/proc/self/exe", append([]string{"gosmc", SuperviseVerb}, args...),
		&os.ProcAttr{
			Dir: "/", Env: os.Environ(), Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
		})
	if err != nil {
		fmt.Fprintf(result, "error %v\n", err)
		return err
	}
	return p.Release()
}

// Supervise is [SuperviseVerb]: the life of a supervisor. Its arguments are the run directory, the
// process that it is for, and the lock of a copy of the library.
func Supervise(args []string) error {
	result := os.NewFile(resultFD, "result")
	unix.CloseOnExec(resultFD)
	hangups := hangups() // first: one would end us
	signal.Ignore(syscall.SIGINT, syscall.SIGPIPE)
	s, err := superviseArgs(args)
	if err != nil {
		fmt.Fprintf(result, "error %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		return err
	}
	var lock *os.File
	if len(args) == argsWithLock {
		unix.CloseOnExec(lockFD)
		lock = os.NewFile(lockFD, args[2])
		library.MakeRecord(lock, s.Path) // a record that cannot be written cannot be removed either
	}
	fmt.Fprintf(result, "ok %s\n", s.Path)
	result.Close()
	defer func() { library.ReleaseFor(s.Path, lock, s.programs.over) }()
	defer s.close()
	go library.Tidy(args[0])
	quit := make(chan struct{})
	defer close(quit)
	go s.watchLoops(quit)
	go s.followed.lookAt(hangups)
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	go func() {
		<-terminate
		s.Stop()
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
