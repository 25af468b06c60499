package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The tests install packages of two versions.
var (
	first  string // directory of all packages of newVersion
	before string // directory of a deb and an rpm of oldVersion for this machine
	tool   string // this command
)

// oldRevision is the commit that packages of oldVersion are made of.
var oldRevision = flag.String("old", "", "the `commit` that is upgraded from; by default these files, with another library and another configuration")

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
	if dir := os.Getenv(bootVariable); dir != "" {
		fmt.Println("boot:", boot(dir))
		os.Exit(1)
	}
	os.Exit(runTests(m))
}

// needs are commands that tests use, and Debian's packages that have them. Without one, a test skips, or checks less.
var needs = [][2]string{
	{"dpkg-deb", "dpkg"}, {"rpm", "rpm"}, {"ip", "iproute2"}, {"perl", "perl-base"}, {"man", "man-db"}, {"systemd-analyze", "systemd"},
	{"redis-server", "redis-server"}, {"redis-benchmark", "redis-tools"},
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
	source := filepath.Join(dir, "source")
	if err := oldSource(source); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, cmd := range []*exec.Cmd{
		exec.Command("go", "build", "-o", tool, "."),
		releaseCommand("../..", first, newVersion, "-arch", strings.Join(arches(), ",")),
		releaseCommand(source, before, oldVersion, "-arch", hostArch(), "-formats", "deb,rpm"),
	} {
		if err := run(cmd); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// arches are the architectures that packages are made for: with -short only this machine's.
func arches() []string {
	if testing.Short() {
		return []string{hostArch()}
	}
	return []string{"amd64", "arm64"}
}

// releaseCommand is the command that makes a release.
func releaseCommand(root, out, version string, flags ...string) *exec.Cmd {
	return exec.Command(tool, append([]string{"-root", root, "-o", out, "-version", version, "-commit", testCommit, "-date", testDate}, flags...)...)
}

// oldSource writes the files that the old version is made of. Its library and its configuration
// differ from those of the new version, so that an upgrade replaces the one and asks about the other.
func oldSource(dir string) error {
	if *oldRevision == "" {
		if err := copySource(dir); err != nil {
			return err
		}
	} else {
		script := `mkdir "$2" && git -C ../.. archive "$1" | tar -x -C "$2"`
		if err := run(exec.Command("sh", "-c", script, "sh", *oldRevision, dir)); err != nil {
			return err
		}
	}
	for name, more := range map[string]string{
		"preload/libgosmc_" + hostArch() + ".so": "\nthe old version\n", // loaders do not look behind the sections
		"packaging/gosmc.conf":                   "\n# The old version.\n",
	} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		if _, err := f.WriteString(more); err != nil {
			return errors.Join(err, f.Close())
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// copySource copies the files of this repository to a directory, without what is made of them.
func copySource(to string) error {
	top := os.DirFS("../..")
	return fs.WalkDir(top, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist"}, name):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		b, err := fs.ReadFile(top, name)
		if err != nil {
			return err
		}
		return writeFile(filepath.Join(to, name), b)
	})
}
