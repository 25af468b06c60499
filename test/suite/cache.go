package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// release is the Debian release of the sources. It is the same on every machine.
const release = "bookworm"

// listsAge is how old apt's lists of sources may be.
const listsAge = 24 * time.Hour

// A cache is a directory of sources and builds. One process uses it at a time, as suites write into
// their own directories.
//
//	apt/          a configuration of apt of its own, with lists: the machine's stay as they are
//	SUITE/tree    the source, in which the suite was built
//	SUITE/built   the hash of the recipe by which it was built; missing: it was not
//	SUITE/logs    the output of the last run
type cache struct {
	dir  string
	lock *os.File
}

func openCache(dir string) (*cache, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("%s is used by another run: %w", dir, err)
	}
	return &cache{dir, lock}, nil
}

func (c *cache) close() { c.lock.Close() }

// tree returns the directory in which a suite is built.
func (s *suite) tree(cache string) string { return filepath.Join(cache, s.name, "tree") }

// recipe identifies the inputs of a build.
func (s *suite) recipe() string {
	h := sha256.New()
	fmt.Fprintln(h, release, s.source, s.build)
	if s.after != nil {
		fmt.Fprintln(h, s.after.recipe())
	}
	return hex.EncodeToString(h.Sum(nil))
}

// build builds a suite, and the suite that has its library, unless the cache has it.
func (c *cache) build(ctx context.Context, s *suite) error {
	if s.after != nil {
		if err := c.build(ctx, s.after); err != nil {
			return err
		}
	}
	home := filepath.Join(c.dir, s.name)
	stamp := filepath.Join(home, "built")
	if text, err := os.ReadFile(stamp); err == nil && string(text) == s.recipe() {
		return nil
	}
	if lacks := s.lacks(); len(lacks) > 0 {
		return fmt.Errorf("lacks %s", strings.Join(lacks, ", "))
	}
	if err := os.RemoveAll(home); err != nil {
		return err
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	if err := c.fetch(ctx, s.source, home); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-e", "-c", s.build)
	cmd.Dir = s.tree(c.dir)
	if s.after != nil {
		cmd.Env = append(os.Environ(), "AFTER="+s.after.tree(c.dir))
	}
	if err := finish(cmd); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	return os.WriteFile(stamp, []byte(s.recipe()), 0o644)
}

// fetch gets the source of a package into the directory tree of home.
func (c *cache) fetch(ctx context.Context, source, home string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	config := filepath.Join(c.dir, "apt", "apt.conf")
	apt := func(args ...string) error {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-q"}, args...)...)
		cmd.Dir = home
		cmd.Env = append(os.Environ(), "APT_CONFIG="+config)
		return finish(cmd)
	}
	info, err := os.Stat(config)
	if err != nil || time.Since(info.ModTime()) > listsAge {
		if err := c.configure(); err != nil {
			return err
		}
		if err := apt("update"); err != nil {
			os.Remove(config) // the next run tries again
			return err
		}
	}
	if err := apt("source", source); err != nil {
		return err
	}
	entries, err := os.ReadDir(home)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			return os.Rename(filepath.Join(home, e.Name()), filepath.Join(home, "tree"))
		}
	}
	return fmt.Errorf("apt-get source %s has made no directory", source)
}

// configure writes a configuration by which apt-get uses nothing of the machine's but its keys.
func (c *cache) configure() error {
	dir := filepath.Join(c.dir, "apt")
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	list := fmt.Sprintf("deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian %s main\n", release)
	if err := os.WriteFile(filepath.Join(dir, "sources.list"), []byte(list), 0o644); err != nil {
		return err
	}
	config := fmt.Sprintf(`Dir::State::lists "%[1]s/lists";
Dir::Cache "%[1]s/cache";
Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "-";
APT::Sandbox::User "root";
`, dir)
	return os.WriteFile(filepath.Join(dir, "apt.conf"), []byte(config), 0o644)
}

// finish runs a command that has to succeed. Its output is shown if it does not. When its time is
// over all that it has started is killed.
func finish(cmd *exec.Cmd) error {
	var output bytes.Buffer
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd.Args[0], err, lastOf(output.String(), 3000))
	}
	return nil
}

// lastOf returns the end of a text.
func lastOf(s string, n int) string {
	s = strings.TrimSpace(s)
	if len(s) > n {
		return "..." + s[len(s)-n:]
	}
	return s
}
