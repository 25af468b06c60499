// Package overlay makes overlays for go build -overlay with which an unchanged Go program has SMC
// connections in place of TCP connections.
//
// An overlay gives the standard library two things. Package gosmc is package smc of this module,
// with all that it imports, and with a copy of package net, gosmc/net, which it makes its sockets
// with. Package net has a few functions that ask package gosmc for a connection or a listener in
// place of a socket. It imports it like any other package: neither a program's go.mod nor its main
// package knows of it.
package overlay

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Options are the parts of which an overlay is made.
type Options struct {
	Toolchain Toolchain
	Version   string // of gosmc, for the mark in programs
	Cache     string // directory that keeps overlays, "" for the user's

	// Extra has more files of GOROOT/src, by slash-separated path: tests of package net look behind it.
	Extra map[string]string

	// User is the file of another overlay that applies, too; "" for none. Relative paths in it begin at Dir.
	User, Dir string
}

// A set has the files of an overlay by their slash-separated paths in GOROOT/src.
type set map[string]string

// Make writes an overlay and returns its file, for go build -overlay. The file depends on nothing
// but its contents, and stays where it is. A program may be built while another call writes the
// same one.
func Make(o Options) (string, error) {
	files, err := makeSet(o)
	if err != nil {
		return "", err
	}
	cache := o.Cache
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no directory for overlays: %w", err)
		}
		cache = filepath.Join(user, "gosmc", "go")
	}
	dir := filepath.Join(cache, o.Toolchain.Version+"-"+files.digest())
	if err := files.keep(dir); err != nil {
		return "", err
	}
	replace := make(map[string]string)
	src := filepath.Join(o.Toolchain.GOROOT, "src")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		replace[filepath.Join(src, filepath.FromSlash(name))] = filepath.Join(dir, filepath.FromSlash(name))
	}
	if err := addUser(replace, o.User, o.Dir); err != nil {
		return "", err
	}
	text, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	file := filepath.Join(cache, o.Toolchain.Version+"-"+hex.EncodeToString(sum[:8])+".json")
	return file, writeFile(file, text)
}

// makeSet returns the files of an overlay.
func makeSet(o Options) (set, error) {
	files := make(set)
	for _, add := range []func(Options) error{files.addNet, files.addRawNet, files.addStandard, files.addModule} {
		if err := add(o); err != nil {
			return nil, err
		}
	}
	for name, text := range o.Extra {
		files[name] = text
	}
	return files, nil
}

// digest identifies the names and contents of the files.
func (s set) digest() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(h, "%s %d\n%s", name, len(s[name]), s[name])
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// keep sees to it that a directory, whose name tells its contents, has the files.
func (s set) keep(dir string) error {
	if s.isIn(dir) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	if err := os.Chmod(fresh, 0o755); err != nil {
		return err
	}
	for name, text := range s {
		file := filepath.Join(fresh, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	err = os.Rename(fresh, dir)
	if err == nil || s.isIn(dir) { // another process was faster
		return nil
	}
	if err := os.RemoveAll(dir); err != nil { // which is not whole
		return err
	}
	return os.Rename(fresh, dir)
}

// isIn reports whether a directory has all files in their full length.
func (s set) isIn(dir string) bool {
	for name, text := range s {
		info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil || info.Size() != int64(len(text)) {
			return false
		}
	}
	return true
}

// writeFile writes a file at once: readers see all of it or nothing.
func writeFile(name string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), "new-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// addUser adds the files of another overlay.
func addUser(replace map[string]string, file, dir string) error {
	if file == "" {
		return nil
	}
	from := func(name string) string {
		if name == "" || filepath.IsAbs(name) { // "" has the file not be there
			return name
		}
		return filepath.Join(dir, name)
	}
	text, err := os.ReadFile(from(file))
	if err != nil {
		return fmt.Errorf("reading the overlay of -overlay: %w", err)
	}
	var user struct{ Replace map[string]string }
	if err := json.Unmarshal(text, &user); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for name, with := range user.Replace {
		name = filepath.Clean(from(name))
		if _, ours := replace[name]; ours {
			return fmt.Errorf("%s replaces %s, which gosmc replaces, too", file, name)
		}
		replace[name] = from(with)
	}
	return nil
}

// goFiles returns the names of the Go files of a directory, without tests, sorted.
func goFiles(fsys fs.FS, dir string) (names []string, err error) {
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			names = append(names, name)
		}
	}
	return names, nil
}
