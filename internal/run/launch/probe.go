package launch

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ProbeVerb is the verb with which this program is started again to find out whether a filter of
// system calls (seccomp) kills a process for the calls that the start of a program needs.
const ProbeVerb = "run-probe"

// probeFD is the descriptor on which the probe says that it has survived.
const probeFD = 3

// probed are calls that this package, or a package of the standard library below it, makes before
// the program starts. Kernels and filters that are older than a call refuse it with an error, which
// the callers expect. They cannot expect a signal.
var probed = []uintptr{
	unix.SYS_FACCESSAT2, unix.SYS_FCHMODAT2, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_RENAMEAT2, unix.SYS_COPY_FILE_RANGE,
	unix.SYS_MEMFD_CREATE, unix.SYS_FLOCK, unix.SYS_LINKAT, unix.SYS_STATX,
	unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH,
}

// Probe is [ProbeVerb]. It says on a pipe that it has survived all calls.
func Probe() error {
	for _, call := range probed {
		invalid := ^uintptr(0) // for every argument, so that the call does nothing
		unix.RawSyscall6(call, invalid, invalid, invalid, invalid, invalid, invalid)
	}
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		// which tries the calls with which package os waits for processes
		p.Release()
	}
	exec.LookPath("gosmc")
	_, err := os.NewFile(probeFD, "result").WriteString("ok\n")
	return err
}

// Deadly reports whether a filter of system calls kills a process for the calls that the start of a
// program needs. A process that has no filter does not try them.
func Deadly() bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil || !strings.Contains(string(status), "\nSeccomp:\t2\n") {
		return false
	}
	var pipe [2]int
	if unix.Pipe2(pipe[:], unix.O_CLOEXEC) != nil {
		return false
	}
	defer unix.Close(pipe[0])
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(pipe[1])
		return false
	}
	defer unix.Close(null)
	nothing := uintptr(null)
	// Not os.StartProcess, which makes some of the calls itself.
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"gosmc", ProbeVerb}, &syscall.ProcAttr{
		Env: supervisorEnviron(os.Environ()), Files: []uintptr{nothing, nothing, nothing, uintptr(pipe[1])},
	})
	unix.Close(pipe[1])
	if err != nil {
		return false
	}
	// A filter may kill one thread only: then the others wait for it for ever.
	ready := []unix.PollFd{{Fd: int32(pipe[0]), Events: unix.POLLIN}}
	for end := time.Now().Add(launchTimeout); ; {
		if n, err := unix.Poll(ready, int(time.Until(end)/time.Millisecond)); n > 0 || err != unix.EINTR ||
			time.Now().After(end) {
			break
		}
	}
	var answer [1]byte
	survived := ready[0].Revents&unix.POLLIN != 0
	if survived {
		n, _ := unix.Read(pipe[0], answer[:])
		survived = n == 1
	}
	if !survived {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	for {
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != syscall.EINTR {
			return !survived // rule: cmd/gosmc TestRunDeadly: !survived -> false
		}
	}
}
