package main

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gosmc/smc/internal/config"
)

// makeTarget runs a target of the Makefile in the directory of the module.
func makeTarget(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("make", args...)
	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// filesBelow returns the regular files below dir.
func filesBelow(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// An image without a C library runs the command that make install installs: it is static, small, and knows its version.
// make uninstall removes every file again.
func TestMakeInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the command")
	}
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("needs make")
	}
	dest := t.TempDir()
	where := []string{"DESTDIR=" + dest, "PREFIX=/opt/smc", "BIN=" + filepath.Join(t.TempDir(), "gosmc")}
	makeTarget(t, append([]string{"install", "VERSION=v1.2.3", "COMMIT=0123abc", "DATE=2026-01-02T03:04:05Z"}, where...)...)

	command := filepath.Join(dest, "opt/smc/bin/gosmc")
	f, err := elf.Open(command)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the installed command has a segment %v: it needs a dynamic loader", p.Type)
		}
	}
	for _, s := range f.Sections {
		if s.Name == ".symtab" || strings.HasPrefix(s.Name, ".debug_") || strings.HasPrefix(s.Name, ".zdebug_") {
			t.Errorf("the installed command has a section %s: it is not stripped", s.Name)
		}
	}

	out, err := exec.Command(command, "version", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var v versionReport
	if err := json.Unmarshal(out, &v); err != nil || v.Version != "v1.2.3" || v.Commit != "0123abc" || v.Date != "2026-01-02T03:04:05Z" {
		t.Errorf("gosmc version --json = %s, %v; want version v1.2.3, commit 0123abc and the date 2026-01-02T03:04:05Z", out, err)
	}
	for _, name := range []string{"share/man/man1/gosmc-run.1", "share/man/man5/gosmc.conf.5", "share/man/man7/gosmc-reasons.7", "share/man/man7/gosmc.7", "share/man/man8/gosmc-agent.8", "share/fish/vendor_completions.d/gosmc.fish"} {
		if _, err := os.Stat(filepath.Join(dest, "opt/smc", name)); err != nil {
			t.Errorf("make install: %v", err)
		}
	}

	makeTarget(t, append([]string{"uninstall"}, where...)...)
	if left := filesBelow(t, dest); len(left) > 0 {
		t.Errorf("make uninstall left %q", left)
	}
}

// A build from a clone has the commit of the clone, and its date.
func TestMakeCommit(t *testing.T) {
	for _, program := range []string{"make", "git"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs " + program)
		}
	}
	head, err := exec.Command("git", "show", "--no-patch", "--format=%H %ct", "HEAD").Output()
	if err != nil {
		t.Skip("needs a clone: ", err)
	}
	var commit string
	var seconds int64
	if _, err := fmt.Sscan(string(head), &commit, &seconds); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("make", "--dry-run", "build")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"measure.commit=" + commit, "measure.date=" + time.Unix(seconds, 0).UTC().Format(time.RFC3339) + "'"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("make --dry-run build = %s; want %s in it", out, want)
		}
	}
}

// TestRunLibraryCommand has a volume that every user can write to get the command and its library, as
// pods have it: a program that is started from there has the library of the volume, whoever has
// written it.
func TestRunLibraryCommand(t *testing.T) {
	t.Setenv(config.EnvDisabled, "")
	dir, err := os.MkdirTemp("", "volume") // a short name: sockets
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for range 2 { // an init container may be started again
		if out, err := exec.Command(os.Args[0], "run-library", "--command", dir).CombinedOutput(); err != nil {
			t.Fatalf("run-library --command: %v\n%s", err, out)
		}
	}
	left, _ := filepath.Glob(filepath.Join(dir, "bin/.gosmc-*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	cmd := exec.Command(filepath.Join(dir, "bin/gosmc"), "run", "--require", "--", "cat", "/proc/self/maps")
	cmd.Env = append(os.Environ(), "GOSMC_DIR="+filepath.Join(dir, "run"))
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), filepath.Join(dir, "lib/gosmc")+"/") {
		t.Errorf("a program from the volume: %v, without its library in\n%s", err, out)
	}
}
