package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The tests install packages of two versions.
var (
	first  string // directory of all packages of newVersion
	before string // directory of a deb and an rpm of oldVersion for this machine
	tool   string // this command
)

const (
	oldVersion = "v1.2.2"
	newVersion = "v1.2.3"
	testCommit = "0123456789abcdef0123456789abcdef01234567"
	testDate   = "2026-01-02T03:04:05Z"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(lifeVariable); dir != "" {
		os.Exit(liveInside(dir))
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gosmc-package-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	tool, first, before = filepath.Join(dir, "build"), filepath.Join(dir, "first"), filepath.Join(dir, "before")
	for _, cmd := range []*exec.Cmd{
		exec.Command("go", "build", "-o", tool, "."),
		releaseCommand("../..", first, newVersion),
		releaseCommand("../..", before, oldVersion, "-arch", hostArch(), "-formats", "deb,rpm"),
	} {
		if err := run(cmd); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// releaseCommand is the command that makes a release.
func releaseCommand(root, out, version string, flags ...string) *exec.Cmd {
	return exec.Command(tool, append([]string{"-root", root, "-o", out, "-version", version, "-commit", testCommit, "-date", testDate}, flags...)...)
}
