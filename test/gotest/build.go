package main

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// A source is a package of a released version that is compiled to a program.
type source struct {
	pkg     string // its import path
	version string // of the module that has it
	client  string // a file of clients/ that imports pkg and is compiled; empty: pkg is a program
}

// clients are small programs for libraries and servers that have no client of their own.
//
//go:embed clients/*.go.txt
var clients embed.FS

// build compiles a program into the cache and returns its file. The program has a module of its own,
// which requires the version and nothing else, so that the versions of all other modules follow.
func (s source) build(ctx context.Context, opt options, name string) (string, error) {
	dir := filepath.Join(opt.cache, "modules", name)
	if err := s.require(ctx, dir, name); err != nil {
		return "", err
	}
	target := s.pkg
	if s.client != "" {
		target = "."
	}
	program := filepath.Join(opt.cache, "bin", name)
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	build := exec.CommandContext(ctx, opt.gosmc, "go", "build", "-o", program, target)
	build.Dir, build.Env = dir, environment("CGO_ENABLED=0", "GOPROXY=off") // the sources are there
	if err := finish(build); err != nil {
		return "", err
	}
	info, err := exec.CommandContext(ctx, opt.gosmc, "info", program).Output()
	if err != nil || !strings.Contains(string(info), "compiled by gosmc go") {
		return "", fmt.Errorf("gosmc info: %q, %v", info, err)
	}
	return program, nil
}

// require writes the program's module, and fetches all that it needs. A module with the same
// requirement stays as it is.
func (s source) require(ctx context.Context, dir, name string) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	stamp := filepath.Join(dir, "required")
	want := fmt.Sprintln(s.pkg, s.version)
	if s.client != "" {
		text, err := clients.ReadFile(path.Join("clients", s.client))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "main.go"), text, 0o644); err != nil {
			return err
		}
	}
	if text, err := os.ReadFile(stamp); err == nil && string(text) == want {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	module := fmt.Appendf(nil, "module example.com/%s\n\ngo 1.26\n", name)
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), module, 0o644); err != nil {
		return err
	}
	os.Remove(filepath.Join(dir, "go.sum"))
	if s.pkg != "" {
		get := exec.CommandContext(ctx, "go", "get", s.pkg+"@"+s.version)
		get.Dir, get.Env = dir, environment("GOTOOLCHAIN=local")
		if err := finish(get); err != nil {
			return err
		}
		// go get fetches what package pkg imports, and a client imports nothing more.
		list := exec.CommandContext(ctx, "go", "list", "-deps", s.pkg)
		list.Dir, list.Env = dir, environment("GOTOOLCHAIN=local", "CGO_ENABLED=0")
		if err := finish(list); err != nil {
			return err
		}
	}
	return os.WriteFile(stamp, []byte(want), 0o644)
}

// environment is this process's, without settings that change a build.
func environment(more ...string) (env []string) {
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "GOFLAGS", "GOWORK", "GOOS", "GOARCH", "GOTOOLCHAIN", "CGO_ENABLED":
		default:
			env = append(env, v)
		}
	}
	return append(append(env, "GOWORK=off"), more...)
}

// finish runs a command that has to succeed.
func finish(cmd *exec.Cmd) error {
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, lastOf(string(out), 2000))
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
