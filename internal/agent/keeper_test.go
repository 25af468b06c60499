package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/introduce"
	"github.com/gosmc/smc/internal/smctest"
)

// keeper is the process that an agent starts.
func keeper(p *smctest.Parent) { p.Check(Keep()) }

// A notebook has the lines of a log.
type notebook struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (n *notebook) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all.Write(b)
}

// pids returns the processes that were started.
func (n *notebook) pids() (list []int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for d := json.NewDecoder(bytes.NewReader(n.all.Bytes())); ; {
		var line struct{ PID int }
		if d.Decode(&line) != nil {
			return list
		}
		if line.PID > 0 {
			list = append(list, line.PID)
		}
	}
}

// TestKeeperAgain kills an agent's keeper, which is started again. Signals that are for the whole
// service leave it alone, and it ends with the agent.
func TestKeeperAgain(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var log notebook
	i := &introducer{
		server: introduce.NewServer(introduce.Config{}), log: slog.New(slog.NewJSONHandler(&log, nil)),
		stop: make(chan struct{}), given: make(chan struct{}),
	}
	if err := i.keep([]string{"env", "GOSMC_TEST_CHILD=keeper", exe}); err != nil {
		t.Fatal(err)
	}
	first := log.pids()[0]
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	smctest.Eventually(t, 20*time.Second, "the next keeper", func() bool { return len(log.pids()) > 1 })
	second := log.pids()[1]
	smctest.Eventually(t, 20*time.Second, "the keeper to ignore a signal", func() bool { return ignores(t, second, syscall.SIGTERM) })
	for _, signal := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		if !ignores(t, second, signal) {
			t.Errorf("the keeper does not ignore %v", signal)
		}
	}
	close(i.stop)
	i.server.Close()
	close(i.given)
	i.wg.Wait()
	if err := syscall.Kill(second, 0); err != syscall.ESRCH {
		t.Errorf("the keeper is there after the agent: %v", err)
	}
}

// ignores reports whether a process ignores a signal.
func ignores(t *testing.T, pid int, signal syscall.Signal) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "SigIgn:\t")
	word, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(word, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return set>>(uint(signal)-1)&1 != 0
}
