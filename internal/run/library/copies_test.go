package library

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
)

// testCopy is a library that no loader would take, under a name that no other test has.
func testCopy(n int) (name string, library []byte) {
	return copyName([32]byte{byte(os.Getpid()), byte(os.Getpid() >> 8), byte(time.Now().Nanosecond()), 7, byte(n)}), bytes.Repeat([]byte{byte(n)}, 1<<12)
}

func installTestCopy(t *testing.T, dir, name string, library []byte) *os.File {
	t.Helper()
	_, lock, err := treeOf(systemLoader()).installCopy(copyPlace{dir, 0o700}, name, library)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// TestCopiesAtOnce has many start and end at once, with one library and with two: a process that
// holds a copy has all of its files, and nothing is left in the end.
func TestCopiesAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "copies")
	tree := treeOf(systemLoader())
	if len(tree.own) == 0 {
		t.Skip("no library for this processor")
	}
	var wait sync.WaitGroup
	for n := range 8 {
		wait.Go(func() {
			_, library := testCopy(n % 2)
			name := fmt.Sprintf("libgosmc-%d-%d.so", n%2, os.Getpid())
			for range 40 {
				_, lock, err := tree.installCopy(copyPlace{dir, 0o700}, name, library)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range 5 {
					for _, value := range tree.own {
						if have, err := os.ReadFile(filepath.Join(dir, value, name)); err != nil || !bytes.Equal(have, library) {
							t.Errorf("who holds a copy finds at look %d: %d bytes, %v", i, len(have), err)
							return
						}
					}
				}
				lock.Close()
				tree.removeCopy(lock.Name())
			}
		})
	}
	wait.Wait()
	locks, _ := filepath.Glob(filepath.Join(dir, copyPrefix+"*"))
	for _, lock := range locks { // each may have found that somebody else just looked
		tree.removeCopy(lock)
	}
	if exists(t, dir) {
		t.Errorf("%s is still there", dir)
	}
}

// TestCopyIsWhole has an installer that finds half of a copy write the other half: children may
// have another loader than the installer.
func TestCopyIsWhole(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "copies")
	tree := treeOf(systemLoader())
	name, library := testCopy(6)
	first := installTestCopy(t, dir, name, library)
	defer first.Close()
	value := tree.valueOf(systemLoader())
	for _, other := range append(append([]string{}, tree.own...), tree.foreign...) {
		if path := filepath.Join(dir, other, name); other != value {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			installTestCopy(t, dir, name, library).Close()
			if !exists(t, path) {
				t.Errorf("%s is missing", path)
			}
		}
	}
}

// TestCopyRemovedMeanwhile has nobody take a lock that he has opened and that was removed before he could take it.
func TestCopyRemovedMeanwhile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "copies")
	name, library := testCopy(4)
	lock := installTestCopy(t, dir, name, library)
	late, err := os.Open(lock.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	lock.Close()
	for deadline := time.Now().Add(10 * time.Second); !treeOf(systemLoader()).removeCopy(lock.Name()); {
		if time.Now().After(deadline) {
			t.Fatal("the copy is still there")
		}
	}
	if err := take(late); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("take of a lock without a name: %v", err)
	}
}

// TestCopyOfSupervisors has a copy stay as long as one of two supervisors holds it, and the record of one go as soon as its programs have ended for sure.
func TestCopyOfSupervisors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "copies")
	name, library := testCopy(5)
	file := filepath.Join(dir, treeOf(systemLoader()).own[0], name)
	stays := installTestCopy(t, dir, name, library)
	for _, over := range []bool{true, false} {
		socket := fmt.Sprintf("/run/01234567890000%t", over)[:len("/run/0123456789abcdef")]
		lock := installTestCopy(t, dir, name, library)
		if err := MakeRecord(lock, socket); err != nil {
			t.Fatal(err)
		}
		ReleaseFor(socket, lock, over)
		if !exists(t, file) {
			t.Fatal("the copy was removed, and a supervisor holds it")
		}
		if exists(t, recordPath(lock.Name(), socket)) == over {
			t.Errorf("of a supervisor whose programs have ended for sure, %t, the record is there: %t", over, !over)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); exists(t, file); stays = nil {
		if stays != nil {
			ReleaseFor("/run/0123456789abcdef", stays, true)
		} else {
			treeOf(systemLoader()).removeCopy(lockPath(dir, name))
		}
		if time.Now().After(deadline) {
			t.Fatal("the copy is still there")
		}
	}
}

// TestCopyOfProgram has a copy stay as long as a process has it in its environment or in its memory, though no supervisor holds it.
func TestCopyOfProgram(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "copies")
	tree := treeOf(systemLoader())
	for n, how := range []string{"environment", "memory"} {
		t.Run(how, func(t *testing.T) {
			name, library := testCopy(n)
			lock := installTestCopy(t, dir, name, library)
			lock.Close()
			file := filepath.Join(dir, tree.own[0], name)
			var end func()
			switch how {
			case "environment":
				cmd := exec.Command("sleep", "1000")
				cmd.Env = append(os.Environ(), "LD_SOMETHING="+file)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				end = sync.OnceFunc(func() {
					cmd.Process.Kill()
					cmd.Wait()
				})
			case "memory":
				f, err := os.Open(file)
				if err != nil {
					t.Fatal(err)
				}
				mapped, err := unix.Mmap(int(f.Fd()), 0, len(library), unix.PROT_READ, unix.MAP_PRIVATE)
				f.Close()
				if err != nil {
					t.Fatal(err)
				}
				end = sync.OnceFunc(func() { unix.Munmap(mapped) })
			}
			defer end()
			if tree.removeCopy(lock.Name()); !exists(t, file) {
				t.Fatal("the copy was removed")
			}
			end()
			for deadline := time.Now().Add(10 * time.Second); exists(t, lock.Name()); time.Sleep(time.Millisecond) {
				tree.removeCopy(lock.Name())
				if time.Now().After(deadline) {
					t.Fatal("the copy is still there")
				}
			}
			if exists(t, file) {
				t.Error("the lock was removed, and not the copy")
			}
		})
	}
}

// TestCopyOfHiddenPrograms has a copy stay while a supervisor that was killed may have programs where they cannot be seen.
func TestCopyOfHiddenPrograms(t *testing.T) {
	for _, tt := range []struct {
		own, theirs string
		local, want bool
	}{
		{"boot pid:[7]", "boot pid:[7]", false, false},
		{"boot pid:[7]", "boot pid:[8]", true, true},
		{"boot pid:[7]", "boot " + initialPIDs, true, true},
		{"boot " + initialPIDs, "boot pid:[8]", true, false},
		{"boot " + initialPIDs, "other " + initialPIDs, true, false},
		{"boot " + initialPIDs, "other " + initialPIDs, false, true}, // another machine, perhaps
		{"boot " + initialPIDs, "", false, true},
	} {
		if got := hiddenFrom(tt.own, tt.theirs, tt.local); got != tt.want {
			t.Errorf("hiddenFrom(%q, %q, %t) = %t", tt.own, tt.theirs, tt.local, got)
		}
	}
	dir := filepath.Join(t.TempDir(), "copies")
	name, library := testCopy(3)
	lock := installTestCopy(t, dir, name, library)
	defer lock.Close()
	record := recordPath(lock.Name(), "/run/0123456789abcdef")
	if err := os.Mkdir(record, 0o700); err != nil { // which says nothing
		t.Fatal(err)
	}
	lock.Close()
	if treeOf(systemLoader()).removeCopy(lock.Name()) {
		t.Error("the copy was removed though a record cannot be read")
	}
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	if err := MakeRecord(lock, "/run/0123456789abcdef"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); !treeOf(systemLoader()).removeCopy(lock.Name()); {
		if time.Now().After(deadline) {
			t.Fatal("the copy of a killed supervisor whose programs could be seen is still there")
		}
	}
	if exists(t, record) || exists(t, dir) {
		t.Error("the record, or the directory, is still there")
	}
}

// TestCopyOfStranger has a run directory of which a part belongs to another user. That user could
// put another library in the place of a copy there: nobody loads one from there.
func TestCopyOfStranger(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: directories of another user")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", "")
	defer func(before string) { systemLibraries = before }(systemLibraries)
	systemLibraries = "/dev/null/gosmc" // nothing can be put there
	for _, owner := range []int{0, 4242 /* a user that has nothing to do with us */} {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
			t.Fatal(err)
		}
		if err := rundir.Prepare(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(rundir.Own(dir), owner, -1); err != nil {
			t.Fatal(err)
		}
		list, lock, err := Install(dir, []byte("a library"))
		if err != nil {
			t.Fatal(err)
		}
		if in := strings.HasPrefix(list, dir); in != (owner == 0) {
			t.Errorf("a part of the run directory belongs to user %d: the library is %s", owner, list)
		}
		lock.Close()
		treeOf(systemLoader()).removeCopy(lock.Name())
	}
}
