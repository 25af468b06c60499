package library

import (
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gosmc/smc/preload"
)

// TestStub has the loaders of 32-bit programs load the stub in place of the library, and say
// nothing.
func TestStub(t *testing.T) {
	for _, machine := range []elf.Machine{elf.EM_386, elf.EM_ARM} {
		name := filepath.Join(t.TempDir(), "stub.so")
		if err := os.WriteFile(name, stub(machine), 0o555); err != nil {
			t.Fatal(err)
		}
		f, err := elf.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if f.Machine != machine || f.Class != elf.ELFCLASS32 || len(f.Progs) != 3 {
			t.Errorf("the stub is %v %v with %d segments", f.Machine, f.Class, len(f.Progs))
		}
	}
}

// TestInstallForOthers has root put the library where a program of another user can read it, and its loader says nothing.
func TestInstallForOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if preload.Library() == nil {
		t.Skip("no library for " + runtime.GOARCH)
	}
	public, err := os.MkdirTemp("", "run")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(public)
	if err := os.Chmod(public, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func(before string) { systemLibraries = before }(systemLibraries)
	systemLibraries = filepath.Join(public, "gosmc")
	list, lock, err := Install(filepath.Join(public, "private"), preload.Library())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	cmd := exec.Command("cat", "/proc/self/maps")
	cmd.Dir = "/"
	cmd.Env = []string{EnvPreload + "=" + list}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if strings.Contains(string(out), "ERROR") || !strings.Contains(string(out), "/libgosmc-") {
		t.Errorf("with %s=%s a program of another user says:\n%s", EnvPreload, list, out)
	}
}

// TestInstall has a 64-bit program load the library by its entry in LD_PRELOAD, and a 32-bit
// program have nothing to complain about.
func TestInstall(t *testing.T) {
	if preload.Library() == nil {
		t.Skip("no library for " + runtime.GOARCH)
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("needs a C compiler")
	}
	dir := filepath.Join(t.TempDir(), "gosmc")
	if err := Write(dir, preload.Library()); err != nil {
		t.Fatal(err)
	}
	tree := treeOf(systemLoader())
	list := tree.preload(dir, File, preload.Library())
	if want := filepath.Join(dir, "$LIB", File); list != want {
		t.Fatalf("LD_PRELOAD is %q, want %q", list, want)
	}
	for _, value := range tree.foreign { // what the loader of a 32-bit program finds, where no such program can be built
		f, err := elf.Open(filepath.Join(dir, value, File))
		if err != nil {
			t.Error(err)
			continue
		}
		if f.Close(); f.Class != elf.ELFCLASS32 || f.Machine != tree.stub {
			t.Errorf("in %s is a library of %v for %v, want one of 32 bits for %v", value, f.Class, f.Machine, tree.stub)
		}
	}
	source := filepath.Join(t.TempDir(), "maps.c")
	const text = `#include <stdio.h>
int main(void) { FILE *f = fopen("/proc/self/maps", "r"); for (int c; (c = getc(f)) != EOF;) putchar(c); return 0; }`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	maps := func(args ...string) (string, error) {
		program := filepath.Join(t.TempDir(), "maps")
		if out, err := exec.Command("cc", append(args, "-o", program, source)...).CombinedOutput(); err != nil {
			return string(out), err
		}
		cmd := exec.Command(program)
		cmd.Env = []string{EnvPreload + "=" + list}
		out, err := cmd.CombinedOutput() // the loader's messages, too
		if err != nil {
			t.Fatal(err)
		}
		return string(out), nil
	}
	out, err := maps()
	if err != nil {
		t.Fatal(out)
	}
	if !strings.Contains(out, File) || strings.Contains(out, "ERROR") {
		t.Errorf("a program does not have the library:\n%s", out)
	}
	t.Run("32 bits", func(t *testing.T) {
		if runtime.GOARCH != "amd64" {
			t.Skip("the processor may have no 32-bit programs")
		}
		out, err := maps("-m32")
		if err != nil {
			t.Skip("needs gcc-multilib")
		}
		if strings.Contains(out, "ERROR") || !strings.Contains(out, File) {
			t.Errorf("the loader of a 32-bit program says:\n%s", out)
		}
	})
	t.Run("changed", func(t *testing.T) {
		other := append([]byte(nil), preload.Library()...)
		other[len(other)-1]++
		if got := tree.preload(dir, File, other); got != "" {
			t.Errorf("another library is found there: %q", got)
		}
	})
	t.Run("open to all", func(t *testing.T) {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if got := tree.preload(dir, File, preload.Library()); got != "" {
			t.Errorf("a library is trusted that all can change: %q", got)
		}
	})
}

// TestPackagedLibrary has a package for any architecture have, wherever it is made, the library where 64-bit loaders look and a stub where 32-bit ones do.
func TestPackagedLibrary(t *testing.T) {
	for arch, want := range map[string]map[string]elf.Machine{
		"amd64": {"lib/x86_64-linux-gnu": elf.EM_X86_64, "lib64": elf.EM_X86_64, "lib/i386-linux-gnu": elf.EM_386, "lib32": elf.EM_386, "lib": elf.EM_386},
		"arm64": {"lib/aarch64-linux-gnu": elf.EM_AARCH64, "lib64": elf.EM_AARCH64, "lib/arm-linux-gnueabihf": elf.EM_ARM, "lib/arm-linux-gnueabi": elf.EM_ARM, "lib32": elf.EM_ARM, "lib": elf.EM_ARM},
	} {
		dir := t.TempDir()
		if err := WritePackaged(dir, arch, preload.LibraryFor(arch)); err != nil {
			t.Fatal(err)
		}
		got := make(map[string]elf.Machine)
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			f, err := elf.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			where, _ := filepath.Rel(dir, filepath.Dir(path))
			got[where] = f.Machine
			if d.Name() != File {
				t.Errorf("%s: %s has a file %s", arch, where, d.Name())
			}
			return nil
		})
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", arch, err, diff)
		}
	}
	if err := WritePackaged(t.TempDir(), "s390x", preload.LibraryFor("s390x")); err == nil {
		t.Error("there is a library for s390x, which has none")
	}
}
