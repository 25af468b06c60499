package config

import (
	"io"
	"log/slog"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// EnvLog is the variable that says where warnings for the operator go which have no other place:
// stderr is standard error. Package smc writes none without, and supervisors of 'gosmc run' write to
// the log of the system, which containers have not.
const EnvLog = "GOSMC_LOG"

// LogsToStderr reports whether the environment sends warnings to standard error.
func LogsToStderr() bool { return rundir.Getenv(EnvLog) == "stderr" }

// DefaultLogger returns the logger of a host that was given none.
func DefaultLogger() *slog.Logger {
	if LogsToStderr() { // rule: internal/host TestLogsToStderr
		return slog.New(slog.NewTextHandler(Stderr(), nil)).With("from", "gosmc")
	}
	return slog.New(slog.DiscardHandler)
}

// maxLogLine is how much a pipe takes at once, or not at all: PIPE_BUF.
const maxLogLine = 4096

// Stderr returns standard error for warnings of the library. A write never waits, and never ends the
// program: a line that nobody reads is lost. Each write is one line, cut at PIPE_BUF bytes.
var Stderr = sync.OnceValue(func() io.Writer {
	// The runtime ends a program that writes to a broken pipe by descriptor 2, and by no other one.
	fd, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return io.Discard
	}
	return lossy(fd)
})

// A lossy is a descriptor, and loses what its file does not take at once.
type lossy int

func (l lossy) Write(b []byte) (int, error) {
	line := b
	if len(line) > maxLogLine {
		line = append(line[:maxLogLine-1:maxLogLine-1], '\n')
	}
	ready := []unix.PollFd{{Fd: int32(l), Events: unix.POLLOUT}}
	n, err := unix.Poll(ready, 0)
	if err == nil && n > 0 && ready[0].Revents&unix.POLLOUT != 0 { // rule: TestStderr: n > 0 && -> n >= 0 ||
		unix.Write(int(l), line)
	}
	return len(b), nil
}
