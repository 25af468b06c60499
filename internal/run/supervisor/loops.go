package supervisor

import (
	"fmt"
	"log/syslog"
	"path/filepath"
	"time"

	"github.com/gosmc/smc/internal/config"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/run/inspect"
	"github.com/gosmc/smc/internal/run/procs"
	"github.com/gosmc/smc/wire/clc"
)

// loops are connections between two programs of 'gosmc run' that are TCP for no reason that can be
// seen. An operator may want to know of them: the programs were given to us to be fast. The
// supervisor of the server says so, once for each program and port of it.
type loops struct {
	told map[string]bool
	warn func(string)
}

// look tells of loops that were not told of yet, to servers of the supervisor with this socket.
func (l *loops) look(socket string, note func(inspect.Connection)) {
	list, _ := inspect.TCPConnections()
	for _, c := range list {
		if !loopsThrough(&c, socket) {
			continue
		}
		which := fmt.Sprintf("%s %d", c.Command, c.Local.Port())
		if l.told[which] || len(l.told) == maxLoops { // rule: TestLoops: l.told[which] || -> false ||
			continue
		}
		l.told[which] = true
		note(c.Connection)
		l.warn(fmt.Sprintf("connections to %s (pid %d) at port %d are TCP though both programs were started by 'gosmc run': see 'gosmc ss', and docs/run.md for what is moved",
			c.Command, c.PID, c.Local.Port()))
	}
}

// loopsThrough reports whether a connection is TCP for no reason, and its server a program of the
// supervisor with this socket.
func loopsThrough(c *inspect.TCPConnection, socket string) bool {
	return c.Server && c.Reason.Code == clc.DiagNone && filepath.Base(procs.Supervisor(c.PID)) == filepath.Base(socket) // rule: TestLoops: c.Server && -> true &&
}

// watchLoops looks for loops after a while, and then ever less often, until quit is closed: to look
// through all processes is work.
func (s *supervisor) watchLoops(quit <-chan struct{}) {
	l := loops{told: make(map[string]bool), warn: logWarning}
	for wait := firstLoops; ; wait = min(2*wait, lastLoops) {
		select {
		case <-quit:
			return
		case <-time.After(wait):
			l.look(s.Path, s.record.loops)
		}
	}
}

// logWarning writes to the log of the system, if it has one, or to the standard error of the program
// that the supervisor was started with.
func logWarning(text string) {
	if config.LogsToStderr() {
		fmt.Fprintf(config.Stderr(), "gosmc: %s\n", text)
		return
	}
	w, err := syslog.New(syslog.LOG_WARNING|syslog.LOG_DAEMON, "gosmc")
	if err != nil {
		return
	}
	defer w.Close()
	w.Warning(text)
}

// loopName is the name of the event of a loop.
const loopName = "Loop"

// loops notes a connection that is TCP for no reason.
func (r *record) loops(c inspect.Connection) {
	r.trace.Add(&event{kind: control.TraceFallback, name: loopName, local: c.Local, remote: c.Peer,
		pid: c.PID}, nil)
}
