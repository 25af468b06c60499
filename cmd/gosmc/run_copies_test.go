package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/preload"
)

// A copiesLab is a user with a run directory and a home directory of its own, in which copies of the library may be. Root has its copies where all users of the machine look, so
// there it is another user.
type copiesLab struct {
	t       *testing.T
	dir     string
	environ []string
	attr    *syscall.SysProcAttr
}

func newCopiesLab(t *testing.T) *copiesLab {
	if preload.Library() == nil {
		t.Skip("no library for " + runtime.GOARCH)
	}
	dir, err := os.MkdirTemp("", "run") // sockets have short names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l := &copiesLab{t: t, dir: dir, attr: &syscall.SysProcAttr{}}
	if os.Geteuid() == 0 {
		const nobody = 65534
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		l.attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "HOME" && !strings.HasPrefix(name, "XDG_") && !strings.HasPrefix(name, "GOSMC_") {
			l.environ = append(l.environ, v)
		}
	}
	l.environ = append(l.environ, childOfTest+"=main", "HOME="+filepath.Join(dir, "home"), "GOSMC_DIR="+filepath.Join(dir, "d"))
	return l
}

func (l *copiesLab) command(script string) *exec.Cmd {
	cmd := exec.CommandContext(l.t.Context(), "/proc/self/exe", "run", "sh", "-c", script)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = l.dir, l.environ, l.attr
	return cmd
}

// files are the files of the library.
func (l *copiesLab) files() (list []string) {
	filepath.WalkDir(l.dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && strings.Contains(e.Name(), "libgosmc-") {
			list = append(list, strings.TrimPrefix(path, l.dir))
		}
		return nil
	})
	return list
}

// settles waits until there are none.
func (l *copiesLab) settles(what string) {
	l.t.Helper()
	for deadline := time.Now().Add(time.Minute); len(l.files()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("%s: there are still %v", what, l.files())
		}
	}
}

// TestRunCopies has many programs start and end at once, which start others: their loaders find the library, and say nothing. In the end nothing is left of it.
func TestRunCopies(t *testing.T) {
	l := newCopiesLab(t)
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	var wait sync.WaitGroup
	for n := range 8 {
		wait.Go(func() {
			for i := range rounds {
				script := fmt.Sprintf("sleep 0.0%d; cat /proc/self/maps | grep -c libgosmc- >&2; sleep 0.0%d; cat /dev/null", (n+i)%4, n%3)
				out, err := l.command(script).CombinedOutput()
				if count, atoi := strconv.Atoi(strings.TrimSpace(string(out))); err != nil || atoi != nil || count == 0 {
					t.Errorf("%v, %q; want nothing but how often the library is mapped", err, out)
				}
			}
		})
	}
	wait.Wait()
	l.settles("all programs have ended")
}

// TestRunCopiesKilled has the library stay for a program that lost its supervisor by a kill. The
// library goes when that program has ended, with the next one.
func TestRunCopiesKilled(t *testing.T) {
	l := newCopiesLab(t)
	cmd := l.command("echo $GOSMC_RUN; read x; cat /dev/null; sh -c true; echo done")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(l.dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for deadline := time.Now().Add(time.Minute); !strings.Contains(said(), "\n"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the program did not start")
		}
	}
	kill := exec.Command("sh", "-c", `for p in /proc/[0-9]*; do if tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q "run-supervise $0 "; then kill -9 ${p#/proc/} && echo killed; fi; done`, filepath.Join(l.dir, "d"))
	if text, err := kill.Output(); err != nil || string(text) != "killed\n" {
		t.Fatalf("the supervisor was not killed: %q, %v", text, err)
	}
	for range 3 {
		if text, err := l.command("true").CombinedOutput(); err != nil || len(text) > 0 {
			t.Fatalf("another program: %v, %s", err, text)
		}
	}
	// The supervisors of the others have ended when their sockets have gone.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		sockets, _ := filepath.Glob(filepath.Join(l.dir, "d/*/run/????????????????"))
		if len(sockets) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("supervisors are left: %v", sockets)
		}
	}
	time.Sleep(300 * time.Millisecond) // they may be about to remove the library
	if len(l.files()) == 0 {
		t.Fatal("the library is gone, and a program has it")
	}
	in.Close()
	cmd.Wait()
	if lines := strings.Split(said(), "\n"); len(lines) != 3 || lines[1] != "done" {
		t.Errorf("the program says %q", said())
	}
	if text, err := l.command("true").CombinedOutput(); err != nil || len(text) > 0 {
		t.Fatalf("the next program: %v, %s", err, text)
	}
	l.settles("the next program has ended")
}
