package control

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smctest"
)

// Users of the machine.
const (
	userElsewhereA = 60001
	userElsewhereB = 60002
)

// serveElsewhere starts the host "a" as root of a user namespace, where only userElsewhereA has a
// number, and returns its run directory.
func serveElsewhere(t *testing.T) (dir string, child *smctest.Process) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to map users")
	}
	dir, err := os.MkdirTemp("/tmp", "gosmc-test-") // other users see no t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, userElsewhereA, userElsewhereA); err != nil {
		t.Fatal(err)
	}
	child = smctest.StartRootless(t, userElsewhereA, "control-serve", dir)
	child.Hear("serving")
	return dir, child
}

// The machine's root sees hosts in user namespaces.
func TestElsewhereRoot(t *testing.T) {
	dir, child := serveElsewhere(t)
	list, errs := Gather(t.Context(), dir)
	if len(list) != 1 || errs != nil {
		t.Fatalf("Gather = %v, %v, want one host", list, errs)
	}
	if got, want := list[0].PID, child.PID(); got != want {
		t.Errorf("process %d, want %d", got, want)
	}
	if got := list[0].UID; got != userElsewhereA {
		t.Errorf("user %d, want %d", got, userElsewhereA)
	}
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("threads %v, %v", tasks, err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err == nil && !strings.Contains(string(text), "\nUid:\t0\t0\t0\t0\n") {
			t.Errorf("a thread is not root any more: %s", text)
		}
	}
	f := follow(t, dir, "a", TraceOptions{Cursors: minTraceCursors})
	smctest.Eventually(t, patience, "a sample", func() bool { return len(f.events()) > 0 })
	f.cancel()
	if err := <-f.end; !errors.Is(err, context.Canceled) {
		t.Errorf("FollowTrace, cancelled = %v", err)
	}
}

// Other users have the number there that root has. They are refused by the host, too, if a program
// has given everybody the right to connect.
func TestElsewhereStrangers(t *testing.T) {
	dir, _ := serveElsewhere(t)
	for path, mode := range map[string]fs.FileMode{
		dir: 0o755, rundir.Own(dir): 0o755, rundir.Path(dir, socketsDir): 0o755,
		filepath.Join(rundir.Path(dir, socketsDir), "a"): 0o666,
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for uid, want := range map[int]string{
		userElsewhereA: "result 1 hosts, errors []",
		userElsewhereB: "result 0 hosts, errors [",
		nobody:         "result 0 hosts, errors [",
	} {
		child := smctest.Start(t, "control-gather-as", dir, strconv.Itoa(uid))
		got := "result " + child.Hear("result")
		if !strings.HasPrefix(got, want) || strings.HasSuffix(got, "[]") != (uid == userElsewhereA) {
			t.Errorf("user %d: %s, want %s", uid, got, want)
		}
	}
}

// childGatherAs asks the hosts in the run directory of its first argument as the user of its second.
func childGatherAs(p *smctest.Parent) {
	uid, err := strconv.Atoi(p.Args[1])
	p.Check(err)
	p.Check(syscall.Setgroups(nil))
	p.Check(syscall.Setgid(uid))
	p.Check(syscall.Setuid(uid))
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	list, errs := Gather(ctx, p.Args[0])
	p.Say("result %d hosts, errors %v", len(list), errs)
}
