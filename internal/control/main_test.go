package control

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/gosmc/smc/internal/smctest"
)

func TestMain(m *testing.M) { smctest.Main(m) }

// nobody is a user that owns nothing here.
const nobody = 65534

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){
		"control-serve":         childServe,
		"control-follow-nobody": childFollowNobody,
		"control-gather-as":     childGatherAs,
		"control-show":          childShow,
	})
}

// childServe serves a host "a" with a trace in the run directory of its first argument, until it is killed.
func childServe(p *smctest.Parent) {
	sample := func(list []TraceEvent) ([]TraceEvent, int) { return append(list, TraceEvent{Kind: TraceCursors}), 0 }
	_, err := Serve(p.Args[0], "a", testHost{status: testStatus, trace: new(testTrace), sample: sample})
	p.Check(err)
	p.Say("serving")
	p.Hear()
}

// childFollowNobody follows the host "a" in the run directory of its first argument, as another user.
func childFollowNobody(p *smctest.Parent) {
	p.Check(syscall.Setgroups(nil))
	p.Check(syscall.Setgid(nobody))
	p.Check(syscall.Setuid(nobody))
	p.Say("result %v", FollowTrace(context.Background(), p.Args[0], "a", TraceOptions{}, func(TraceEvent) {}))
}

// stop stops a process and waits until it is.
func stop(tb testing.TB, child *smctest.Process) {
	tb.Helper()
	child.Signal(syscall.SIGSTOP)
	smctest.Eventually(tb, patience, "the process stops", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child.PID()))
		_, state, _ := strings.Cut(string(stat), ") ")
		return err == nil && strings.HasPrefix(state, "T")
	})
}
