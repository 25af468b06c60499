package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gosmc/smc/internal/child"
)

// Users in containers, besides root.
const (
	userWWW      = 33
	userPostgres = 70
)

// sizes of the files that servers serve, in bytes.
var sizes = map[string]int{"empty": 0, "1k": 1000, "1m": 1_000_000, "big": bigSize}

// bigSize is more than there is room for on the way of a transfer whose client does not read.
const bigSize = 24 << 20

// roots builds the root file systems: empty but for a static Go program; busybox with curl; servers and clients of
// Debian.
func (l *lab) roots() (err error) {
	debs := filepath.Join(l.dir, "debs")
	for _, name := range []string{"busybox", "golang-github-containers-common"} {
		if err := l.unpack(name, debs); err != nil {
			return err
		}
	}
	if l.podman, err = readProfile(filepath.Join(debs, "usr/share/containers/seccomp.json")); err != nil {
		return err
	}
	l.strict = l.podman.stricter()
	for _, name := range []string{"empty", "busybox", "debian"} {
		for _, dir := range []string{"proc", "tmp", "dev"} {
			if err := os.MkdirAll(filepath.Join(l.dir, "root-"+name, dir), 0o755); err != nil {
				return err
			}
		}
		// runc gives the file system in the memory the mode of the directory that it is mounted on.
		if err := os.Chmod(l.root(name, "tmp"), 0o777|os.ModeSticky); err != nil {
			return err
		}
		for _, program := range []string{"talk", "attack", "across"} {
			if err := copyTo(l.root(name, program), filepath.Join(l.dir, program)); err != nil {
				return err
			}
		}
	}
	box := filepath.Join(debs, "bin/busybox")
	for _, name := range []string{"busybox", "debian"} {
		if err := l.copyProgram(name, box, "/bin/busybox"); err != nil {
			return err
		}
		for _, applet := range []string{"sh", "wget", "cat", "sleep", "grep", "ip"} {
			if err := os.Symlink("busybox", l.root(name, "bin/"+applet)); err != nil {
				return err
			}
		}
		if err := copyTo(l.root(name, "usr/bin/gosmc"), filepath.Join(l.dir, "gosmc")); err != nil {
			return err
		}
	}
	return l.debianRoot()
}

// root is a file's place in a root file system.
func (l *lab) root(name, path string) string { return filepath.Join(l.dir, "root-"+name, path) }

// debianRoot adds the programs of this Debian.
func (l *lab) debianRoot() error {
	for _, name := range []string{"redis-server", "redis-cli", "redis-benchmark", "nginx", "curl", "haproxy", "socat"} {
		path, err := lookPath(name)
		if err != nil {
			return err
		}
		if err := l.copyProgram("debian", path, "/usr/bin/"+name); err != nil {
			return err
		}
	}
	if err := l.postgresRoot(); err != nil {
		return err
	}
	files := map[string]string{
		"etc/passwd":     fmt.Sprintf("root:x:0:0::/:/bin/sh\nwww-data:x:%d:%[1]d::/:/bin/sh\npostgres:x:%d:%[2]d::/:/bin/sh\n", userWWW, userPostgres),
		"etc/group":      fmt.Sprintf("root:x:0:\nwww-data:x:%d:\npostgres:x:%d:\n", userWWW, userPostgres),
		"etc/nginx.conf": nginxConfig,
		"etc/haproxy":    haproxyConfig,
	}
	for name, size := range sizes {
		files["srv/"+name] = string(pattern(size))
	}
	for name, text := range files {
		path := l.root("debian", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// postgresRoot adds postgres. Of its library for just-in-time compilation, which brings LLVM with it, it needs nothing.
func (l *lab) postgresRoot() error {
	server, err := lookPath("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return err
	}
	bin := filepath.Dir(server)
	for _, name := range []string{"postgres", "initdb", "psql", "pgbench"} {
		if err := l.copyProgram("debian", filepath.Join(bin, name), filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	version := filepath.Base(filepath.Dir(bin))
	for _, dir := range []string{filepath.Join(filepath.Dir(bin), "lib"), "/usr/share/postgresql/" + version} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && (d.Name() == "bitcode" || d.Name() == "man"):
				return fs.SkipDir
			case d.IsDir() || strings.HasPrefix(d.Name(), "llvmjit"):
				return nil
			}
			return copyTo(l.root("debian", path), path)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pattern returns bytes of which each place tells where it belongs.
func pattern(size int) []byte {
	b := make([]byte, 0, size+16)
	for i := 0; len(b) < size; i++ {
		b = fmt.Appendf(b, "%015d\n", i)
	}
	return b[:size]
}

// copyTo copies a file.
func copyTo(to, from string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return child.WriteProgram(to, b)
}

// copyProgram copies a program to a place in a root file system, and the libraries that it needs to theirs.
func (l *lab) copyProgram(root, from, to string) error {
	if err := copyTo(l.root(root, to), from); err != nil {
		return err
	}
	out, err := exec.CommandContext(l.ctx, "ldd", from).Output()
	if err != nil {
		return fmt.Errorf("ldd %s: %w", from, err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		for _, word := range strings.Fields(lines.Text()) {
			if !strings.HasPrefix(word, "/") {
				continue
			}
			if _, err := os.Stat(l.root(root, word)); err == nil {
				break
			}
			if err := copyTo(l.root(root, word), word); err != nil {
				return err
			}
			break
		}
	}
	return nil
}
