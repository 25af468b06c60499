package survey

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/internal/user"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){"survey-hung": childHung, "survey-there": childThere})
}

// childHung is alone in a mount namespace. It has a host in /tmp/gosmc-0 there, and is told to mount
// a file system that never answers in its place.
func childHung(p *smctest.Parent) {
	p.Check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	p.Check(unix.Mount("tmpfs", "/tmp", "tmpfs", 0, ""))
	_, err := control.Serve("/tmp/gosmc-0", "a", quietHost{})
	p.Check(err)
	p.Say("serving")
	p.Hear()
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("fuse", "/tmp/gosmc-0", "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse))
	}
	p.Say("hung %v", err)
	p.Hear()
}

// startHung starts such a process, and returns its run directory and a function that has it hang.
// The process is killed after a minute, with which the file system ends.
func startHung(t *testing.T) (dir string, hang func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	child := smctest.StartIn(t, syscall.CLONE_NEWNS, "survey-hung")
	child.Hear("serving")
	return fmt.Sprintf("/proc/%d/root/tmp/gosmc-0", child.PID()), func() {
		t.Helper()
		child.Say("")
		if got := child.Hear("hung"); got != "<nil>" {
			t.Skip("needs FUSE: " + got)
		}
		watchdog := time.AfterFunc(time.Minute, func() {
			t.Error("a file system that does not answer holds up everybody")
			child.Kill()
		})
		t.Cleanup(func() { watchdog.Stop() })
	}
}

// A file system that does not answer holds up no look at the mount namespaces of others, and takes
// one thread, however many looks there are.
func TestElsewhereHung(t *testing.T) {
	dir, hang := startHung(t)
	hang()
	other, _ := startHung(t)
	for range 2 {
		list := elsewhere(nil)
		if has := func(dir string) bool { return slices.ContainsFunc(list, func(p place) bool { return p.dir == dir }) }; has(dir) || !has(other) {
			t.Errorf("elsewhere = %v, want %s, and not %s", list, other, dir)
		}
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if n := strings.Count(string(stacks), "survey.(*look).below("); n != 1 {
		t.Errorf("%d goroutines look into mount namespaces, want the one that waits", n)
	}
}

// A run directory that does not answer holds up no other one.
func TestGatherHung(t *testing.T) {
	dir, hang := startHung(t)
	hang()
	other, _ := startHung(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	list := gather(ctx, []place{{dir: dir}, {dir: other}})
	if len(list) != 2 || len(list[0].errs) != 1 || !errors.Is(list[0].errs[0], errLate) || len(list[1].hosts) != 1 || list[1].errs != nil {
		t.Errorf("gather = %v, want %v, and one host", list, errLate)
	}
}

// The mount namespaces of a user are counted as that user's.
func TestRootsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	child := smctest.StartRootlessIn(t, syscall.CLONE_NEWNS, 60001, "survey-there")
	child.Hear("there")
	home, err := user.HomeOf(child.PID())
	if err != nil {
		t.Fatal(err)
	}
	all := roots("/proc")
	if !slices.ContainsFunc(all[home.Owner], func(r root) bool { return r.dir == fmt.Sprintf("/proc/%d/root", child.PID()) && r.home == home }) {
		t.Errorf("roots = %v, want that of process %d, whose home is %v", all, child.PID(), home)
	}
}

// childThere does nothing.
func childThere(p *smctest.Parent) {
	p.Say("there")
	p.Hear()
}

// Errors of one directory, of which a user can have very many, are told in a few lines.
func TestComplain(t *testing.T) {
	var errs []error
	for i := range 3 * maxErrors {
		errs = append(errs, &control.Error{Path: fmt.Sprint(i), Err: unix.EPROTO})
	}
	errs = append(errs, &control.Error{Path: "x", Err: unix.EACCES})
	var a Answers
	a.complain("/dir", errs)
	if got := len(a.Errors); got != maxErrors+1 || a.Denied != 1 || a.Errors[maxErrors] != (Error{"/dir", fmt.Sprintf("%d more programs did not answer", 2*maxErrors)}) {
		t.Errorf("%d errors, the last %v, %d denied; want %d and one denied", got, a.Errors[got-1], a.Denied, maxErrors+1)
	}
}

// A directory that another process shows under a path of its own is looked into once.
func TestPlacesKey(t *testing.T) {
	dir := t.TempDir()
	if err := rundir.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	id, ok := identify(dir)
	again, _ := identify(dir + "/../" + "./" + dir[len(dir)-3:])
	if !ok || id != again {
		t.Errorf("identify = %v and %v, want the same for two paths", id, again)
	}
	l := look{seen: make(map[string]bool)}
	if !l.add(place{"/a", "key", 0}) || !l.add(place{"/b", "key", 0}) || !l.add(place{"/c", "other", 0}) || len(l.found) != 2 {
		t.Errorf("found %v, want each key once", l.found)
	}
	l.over = true
	if l.add(place{"/d", "late", 0}) || len(l.found) != 2 {
		t.Errorf("found %v after the end, want what was there", l.found)
	}
}
