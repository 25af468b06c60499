package supervisor

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/run/proto"
)

var shortRounds = flag.Int("short-rounds", 1, "how often TestShortLived does each of its cells under the library")

// shortWays are the ways of testdata/short.c, with the number of cells of each.
var shortWays = map[string]int{"cold": 72, "warm": 72, "late": 27}

// shortCells has programs that end early do all cells of a way, and returns the outcome of each.
func shortCells(t *testing.T, program, way string, environ ...string) map[string]string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, program, way, "6")
	cmd.Env = append(os.Environ(), environ...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%s", way, err, stderr.String())
	}
	cells := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		cell, seen, _ := strings.Cut(strings.TrimSpace(line), ": ")
		cells[cell] = seen
	}
	if len(cells) != shortWays[way] && err == nil {
		t.Errorf("%s: %d cells were done, want %d", way, len(cells), shortWays[way])
	}
	return cells
}

// busySupervisor returns a supervisor that does nothing for 300 ms at a time, as one that has no processor, until the test ends.
func busySupervisor(t *testing.T) *supervisor {
	t.Helper()
	s, start := stillSupervisor(t)
	over := make(chan struct{})
	var served sync.WaitGroup
	served.Go(func() {
		for {
			stop := start()
			last := wait(over, 10*time.Millisecond)
			stop()
			if last || wait(over, 300*time.Millisecond) {
				return
			}
		}
	})
	t.Cleanup(func() {
		close(over)
		served.Wait()
	})
	return s
}

// wait waits for so long, and reports whether something was over before.
func wait(over <-chan struct{}, d time.Duration) bool {
	select {
	case <-over:
		return true
	case <-time.After(d):
		return false
	}
}

// TestShortLived has one of two programs end in every way that there is after it has written to the
// other one, or before that has even accepted: the bytes that this one gets, an end or a reset, and
// the fate of the bytes that it sends into the void are as with TCP.
func TestShortLived(t *testing.T) {
	program := filepath.Join(t.TempDir(), "short")
	compile(t, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/short.c")
	want := make(map[string]map[string]string)
	for way := range shortWays {
		want[way] = shortCells(t, program, way)
	}
	library := committedLibrary(t)
	for _, c := range []struct {
		name    string
		environ []string
		ways    []string
	}{
		{"in-band", []string{"GOSMC_RING_AFTER=1000000000"}, []string{"cold", "late"}},
		{"rings", nil, []string{"cold", "late"}},
		{"on rings", []string{"RINGS=1"}, []string{"warm"}},
		{"shaken", []string{"GOSMC_RUN_SHAKE=1"}, []string{"cold", "warm", "late"}},
	} {
		for _, busy := range []bool{false, true} {
			if busy && c.name == "shaken" {
				continue // rings are not the supervisor's business
			}
			name := c.name
			if busy {
				name += ", supervisor busy"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newTestSupervisor
				if busy {
					s = busySupervisor
				}
				environ := append([]string{"LD_PRELOAD=" + library, proto.EnvSocket + "=" + s(t).Path}, c.environ...)
				var all, pairs int
				for range *shortRounds {
					for _, way := range c.ways {
						for cell, line := range shortCells(t, program, way, environ...) {
							seen, over, _ := strings.Cut(line, " over ")
							tcp, _, _ := strings.Cut(want[way][cell], " over ")
							// A connection that the supervisor joins to TCP ends as TCP does, but
							// for resets.
							if over == "both" {
								tcp, _, _ = strings.Cut(tcp, ", sends")
								if strings.HasPrefix(tcp, "ECONNRESET") {
									continue
								}
							}
							if seen != tcp {
								t.Errorf("%s: %s over %s; with TCP: %s", cell, seen, over, tcp)
							}
							all++
							if over == "a pair" {
								pairs++
							}
						}
					}
				}
				// On a machine with much to do a supervisor may answer too late.
				if pairs < all/4 {
					t.Errorf("%d of %d connections were moved", pairs, all)
				}
			})
		}
	}
}
