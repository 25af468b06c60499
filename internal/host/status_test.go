package host

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smctest"
)

// Hosts with the same process number in different PID namespaces, on one run directory, are all seen.
func TestControlAcrossPIDNamespaces(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	want := make(map[int]bool)
	for range 3 {
		child := smctest.StartIn(t, syscall.CLONE_NEWPID, "host-serve", dir) // process 1, all of them
		child.Hear("listening")
		want[child.PID()] = true
	}
	list, errs := control.Gather(t.Context(), dir)
	if len(list) != len(want) || errs != nil {
		t.Errorf("Gather = %d hosts, %v, want %d", len(list), errs, len(want))
	}
	for _, st := range list {
		if !want[st.PID] || len(st.Listeners) != 1 {
			t.Errorf("Gather has process %d with %d listeners, want one of %v with 1", st.PID, len(st.Listeners), want)
		}
	}
}

// The name of a control socket tells hosts of one process apart, also those that have no device.
func TestControlNames(t *testing.T) {
	dir := t.TempDir()
	names := make(map[string]bool)
	for _, cfg := range []Config{{Dir: dir}, {Dir: dir, Disabled: true}, {Dir: dir, Disabled: true}} {
		h := newTestHost(t, cfg)
		mustListen(t, h, "127.0.0.1:0")
		name := controlOf(h)
		if _, err := os.Lstat(filepath.Join(rundir.Path(dir, rundir.Control), name)); err != nil || names[name] {
			t.Errorf("control socket %q of %+v: %v, want one of its own", name, cfg, err)
		}
		names[name] = true
	}
	if list, errs := control.Gather(t.Context(), dir); len(list) != len(names) || errs != nil {
		t.Errorf("Gather = %d hosts, %v, want %d", len(list), errs, len(names))
	}
}
