package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
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

// needs are commands that tests use, and Debian's packages that have them. Without one, a test skips, or checks less.
var needs = [][2]string{
	{"dpkg-deb", "dpkg"}, {"rpm", "rpm"}, {"ip", "iproute2"}, {"perl", "perl-base"}, {"man", "man-db"}, {"systemd-analyze", "systemd"},
}

// installNeeds installs the missing packages, where it may.
func installNeeds() {
	var missing []string
	for _, n := range needs {
		if _, err := exec.LookPath(n[0]); err != nil {
			missing = append(missing, n[1])
		}
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 || len(missing) == 0 {
		return
	}
	fmt.Println("installing", missing)
	apt := func(args ...string) {
		ctx, stop := context.WithTimeout(context.Background(), aptTimeout)
		defer stop()
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=300"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if err := run(cmd); err != nil {
			fmt.Println(err)
		}
	}
	apt("update")
	for _, name := range missing { // one by one: a package that cannot be had keeps nothing else away
		apt("install", "-y", "--no-install-recommends", name)
	}
}

const aptTimeout = 5 * time.Minute

func runTests(m *testing.M) int {
	flag.Parse()
	installNeeds()
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
