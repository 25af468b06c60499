package survey

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smctest"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){"survey-elsewhere": childElsewhere})
}

// A quietHost has no status to tell, and no trace.
type quietHost struct{}

func (quietHost) Status() control.Status                                              { return control.Status{} }
func (quietHost) Trace() control.Tracer                                               { return nil }
func (quietHost) SampleCursors(list []control.TraceEvent) ([]control.TraceEvent, int) { return list, 0 }

// childElsewhere is alone in a mount namespace. It has a host in /tmp/gosmc-0 there, and a symbolic
// link /tmp/out to the directory of its argument, which does not exist there, and very many run directories.
func childElsewhere(p *smctest.Parent) {
	p.Check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	p.Check(unix.Mount("tmpfs", "/tmp", "tmpfs", 0, ""))
	_, err := control.Serve("/tmp/gosmc-0", "a", quietHost{})
	p.Check(err)
	p.Check(os.Symlink(p.Args[0], "/tmp/out"))
	for i := range 2 * maxDirsInside {
		p.Check(rundir.Prepare(fmt.Sprintf("/tmp/gosmc-x%d", i)))
	}
	p.Say("serving")
	p.Hear()
}

// startElsewhere starts such a process, and returns its root directory.
func startElsewhere(t *testing.T, outside string) (root string, child *smctest.Process) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	child = smctest.StartIn(t, syscall.CLONE_NEWNS, "survey-elsewhere", outside)
	child.Hear("serving")
	return fmt.Sprintf("/proc/%d/root", child.PID()), child
}

// Root sees hosts whose run directories are in other mount namespaces.
func TestElsewhere(t *testing.T) {
	root, child := startElsewhere(t, "/tmp")
	a := Ask(t.Context(), "")
	i := slices.IndexFunc(a.Hosts, func(st control.Status) bool { return st.PID == child.PID() })
	if i < 0 {
		t.Fatalf("Ask finds %d hosts, but not that of process %d; errors %v", len(a.Hosts), child.PID(), a.Errors)
	}
	if got, want := a.Hosts[i].Dir, root+"/tmp/gosmc-0"; got != want {
		t.Errorf("run directory %s, want %s", got, want)
	}
	if again := elsewhere([]string{root + "/tmp/gosmc-0"}); slices.ContainsFunc(again, func(p place) bool { return p.dir == root+"/tmp/gosmc-0" }) {
		t.Errorf("elsewhere finds a run directory that is known: %v", again)
	}

	n := 0
	for _, p := range elsewhere(nil) {
		if strings.HasPrefix(p.dir, root+"/") {
			n++
		}
	}
	if n != maxDirsInside {
		t.Errorf("elsewhere finds %d run directories of a process that has very many, want %d", n, maxDirsInside)
	}

	r := &recorder{want: 1}
	chosen := 0
	choose := func(st *control.Status) bool {
		if st.PID == child.PID() {
			chosen++
		}
		return st.PID == child.PID()
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	err := Follow(ctx, Options{Choose: choose}, r)
	if err != nil || len(r.events) != 1 || !strings.Contains(r.events[0], "host answered") || chosen != 1 { // it has no trace
		t.Errorf("Follow = %v, the host was chosen %d times, and said %q", err, chosen, r.events)
	}
}

// A symbolic link there does not lead root to files outside.
func TestOpenDirInside(t *testing.T) {
	outside, err := os.MkdirTemp("/tmp", "gosmc-test-") // not in the other mount namespace
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(outside) })
	if err := os.Mkdir(filepath.Join(outside, "ctl"), 0o700); err != nil {
		t.Fatal(err)
	}
	root, child := startElsewhere(t, outside)
	if d, err := rundir.OpenDir(root + "/tmp/out/ctl"); !errors.Is(err, fs.ErrNotExist) {
		d.Close()
		t.Errorf("OpenDir through a symbolic link = %v, want %v", err, fs.ErrNotExist)
	}
	if d, err := rundir.OpenDir(root + "/tmp/gosmc-0"); err != nil {
		t.Errorf("OpenDir = %v", err)
	} else {
		d.Close()
	}
	child.Kill()
	if d, err := rundir.OpenDir(root + "/tmp/gosmc-0"); !errors.Is(err, fs.ErrNotExist) {
		d.Close()
		t.Errorf("OpenDir of a process that has ended = %v, want %v", err, fs.ErrNotExist)
	}
}

// The places in a root, of which others make as many as they like.
func TestDirsInside(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"tmp/gosmc-0", "tmp/gosmc-a", "tmp/other", "tmp/gosmc-\x1b[2J", "run/user/7", "run/user/x"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, dir := range dirsInside(root) {
		got = append(got, strings.TrimPrefix(dir, root+"/"))
	}
	if want := []string{"run/gosmc", "run/user/7/gosmc", "tmp/gosmc-0", "tmp/gosmc-a"}; !slices.Equal(got, want) {
		t.Errorf("dirsInside = %q, want %q", got, want)
	}
}
