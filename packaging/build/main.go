// Command build makes the packages of gosmc, into one directory: a deb, an rpm and an archive for
// each architecture, an image for containers, a list of the modules in each command, and
// SHA256SUMS. 'make packages' runs it.
//
// The same commit and the same Go give the same bytes, on every machine: all times are the
// commit's.
package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// sumsFile lists the checksums of all other files, as sha256sum does.
const sumsFile = "SHA256SUMS"

func main() {
	var b builder
	var arches string
	flag.StringVar(&b.root, "root", "../..", "the `directory` of the source")
	flag.StringVar(&b.out, "o", "../../dist", "the `directory` for what is made")
	flag.StringVar(&b.release.version, "version", "",
		"the version, such as v1.2.3; by default a pseudo-version of the commit")
	flag.StringVar(&b.release.commit, "commit", "", "the commit")
	date := flag.String("date", "", "the date of the commit, in the format of RFC 3339")
	flag.StringVar(&arches, "arch", "amd64,arm64", "the architectures")
	flag.StringVar(&b.formats, "formats", "deb,rpm,tar,oci,spdx", "what to make")
	flag.Parse()
	err := b.release.settle(*date)
	if err == nil && flag.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if err == nil {
		err = b.build(strings.Split(arches, ","))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

// A builder makes one release.
type builder struct {
	root, out string
	formats   string // separated by commas
	release   release
	stage     string // a directory for files that are not distributed as they are
}

func (b *builder) makes(format string) bool {
	return slices.Contains(strings.Split(b.formats, ","), format)
}

func (b *builder) build(arches []string) (err error) {
	if b.root, err = filepath.Abs(b.root); err != nil {
		return err
	}
	if err := emptyOutput(b.out); err != nil {
		return err
	}
	if b.stage, err = os.MkdirTemp("", "gosmc-packages-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.stage)
	if err := b.shared(); err != nil {
		return err
	}
	trees := make(map[string]tree)
	for _, arch := range arches {
		t, err := b.tree(arch)
		if err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
		trees[arch] = t
		for format, write := range map[string]func(string, tree) error{"deb": b.writeDeb, "rpm": b.writeRPM, "tar": b.writeTarball, "spdx": b.writeSBOM} {
			if !b.makes(format) {
				continue
			}
			if err := write(arch, t); err != nil {
				return fmt.Errorf("%s of %s: %w", format, arch, err)
			}
		}
	}
	if b.makes("oci") {
		if err := b.writeImage(arches, trees); err != nil {
			return fmt.Errorf("image: %w", err)
		}
	}
	return b.writeSums()
}

// emptyOutput makes a directory, or empties it if it has an earlier output and nothing else.
func emptyOutput(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return os.MkdirAll(dir, 0o755)
	case err != nil:
		return err
	case len(entries) > 0:
		if _, err := os.Stat(filepath.Join(dir, sumsFile)); err != nil {
			return fmt.Errorf("%s is not empty, and has no %s of an earlier run: name another directory",
				dir, sumsFile)
		}
	}
	for _, e := range entries {
		if e.Name() == sumsFile || strings.HasPrefix(e.Name(), "gosmc") {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// compile writes the command for an architecture. It depends on the source, on the release and on
// the version of Go.
func (b *builder) compile(arch, path string) error {
	const measure = "github.com/gosmc/smc/internal/measure"
	flags := "-s -w"
	for _, set := range [][2]string{{"version", b.release.version}, {"commit", b.release.commit},
		{"date", b.release.dateText()}} {
		flags += fmt.Sprintf(" -X '%s.%s=%s'", measure, set[0], set[1])
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", flags,
		"-o", path, "./cmd/gosmc")
	cmd.Dir = b.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1",
		"GOARM64=v8.0", "GOFLAGS=", "GOEXPERIMENT=", "GOWORK=off", "GOFIPS140=off")
	return run(cmd)
}

// native returns a command that this machine can run.
func (b *builder) native() (string, error) {
	path := filepath.Join(b.stage, runtime.GOARCH, "gosmc")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, b.compile(runtime.GOARCH, path)
}

// run runs a command, and puts its output into the error.
func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// create makes a file of the output, and has write fill it.
func (b *builder) create(name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(filepath.Join(b.out, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Chmod(0o644), f.Close())
}

func (b *builder) writeSums() error {
	entries, err := os.ReadDir(b.out) // sorted
	if err != nil {
		return err
	}
	return b.create(sumsFile, func(w io.Writer) error {
		for _, e := range entries {
			content, err := os.ReadFile(filepath.Join(b.out, e.Name()))
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%x  %s\n", sha256.Sum256(content), e.Name()); err != nil {
				return err
			}
		}
		return nil
	})
}
