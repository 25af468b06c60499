package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A file is one of those that a package puts on a machine.
type file struct {
	path   string // on the machine
	source string // here
	mode   fs.FileMode
	config bool   // the administrator may change it
	only   string // the only format that has it, "" if all do
}

// A tree is all files of an architecture, sorted by path. Format "tar" has those below /usr and a
// copy of the others as examples.
type tree []file

// shared makes the files that all architectures have: manual pages and completion.
func (b *builder) shared() error {
	gosmc, err := b.native()
	if err != nil {
		return err
	}
	if err := run(exec.Command(gosmc, "man", filepath.Join(b.stage, "man"))); err != nil {
		return err
	}
	for shell, name := range completions {
		script, err := exec.Command(gosmc, "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("completion for %s: %w", shell, err)
		}
		if err := writeFile(filepath.Join(b.stage, "completion", name), script); err != nil {
			return err
		}
	}
	return nil
}

// completions are the names of the files for shells.
var completions = map[string]string{"bash": "gosmc", "zsh": "_gosmc", "fish": "gosmc.fish"}

func (b *builder) tree(arch string) (t tree, err error) {
	gosmc := filepath.Join(b.stage, arch, "gosmc")
	if _, err := os.Stat(gosmc); err != nil {
		if err := b.compile(arch, gosmc); err != nil {
			return nil, err
		}
	}
	add := func(path, source string, mode fs.FileMode) {
		t = append(t, file{path: path, source: source, mode: mode})
	}
	data := func(name string) string { return filepath.Join(b.root, "packaging", name) }
	add("/usr/bin/gosmc", gosmc, 0o755)
	add("/etc/gosmc.conf", data("gosmc.conf"), 0o644)
	t[len(t)-1].config = true
	add("/usr/lib/systemd/system/gosmc-agent.service", data("gosmc-agent.service"), 0o644)
	add("/usr/lib/tmpfiles.d/gosmc.conf", data("tmpfiles.conf"), 0o644)
	add("/usr/lib/sysusers.d/gosmc.conf", data("sysusers.conf"), 0o644)

	// The library, as the command of this machine writes it for the other architecture too.
	native, err := b.native()
	if err != nil {
		return nil, err
	}
	libraries := filepath.Join(b.stage, arch, "library")
	if err := run(exec.Command(native, "run-library", "--arch", arch, libraries)); err != nil {
		return nil, err
	}
	if err := walk(libraries, func(path, relative string) error {
		add("/usr/lib/gosmc/"+relative, path, 0o555)
		return nil
	}); err != nil {
		return nil, err
	}

	// Manual pages are compressed, as Debian and Fedora have them.
	pages := filepath.Join(b.stage, "man")
	if err := walk(pages, func(path, relative string) error {
		compressed := filepath.Join(b.stage, "man.gz", relative+".gz")
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		z, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is right
		if _, err := z.Write(text); err != nil {
			return err
		}
		add("/usr/share/man/"+relative+".gz", compressed, 0o644)
		return errors.Join(z.Close(), writeFile(compressed, out.Bytes()))
	}); err != nil {
		return nil, err
	}

	completion := filepath.Join(b.stage, "completion")
	add("/usr/share/bash-completion/completions/gosmc", filepath.Join(completion, completions["bash"]), 0o644)
	add("/usr/share/fish/vendor_completions.d/gosmc.fish",
		filepath.Join(completion, completions["fish"]), 0o644)
	add("/usr/share/zsh/site-functions/_gosmc", filepath.Join(completion, completions["zsh"]), 0o644)
	add("/usr/share/zsh/vendor-completions/_gosmc", filepath.Join(completion, completions["zsh"]), 0o644)
	t[len(t)-2].only, t[len(t)-1].only = "rpm", "deb"

	add("/usr/share/doc/gosmc/copyright", data("copyright"), 0o644)
	t[len(t)-1].only = "deb"
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"} {
		add("/usr/share/doc/gosmc/"+name, filepath.Join(b.root, name), 0o644)
	}
	documents, err := filepath.Glob(filepath.Join(b.root, "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	for _, path := range documents {
		add("/usr/share/doc/gosmc/docs/"+filepath.Base(path), path, 0o644)
	}
	for _, name := range []string{"gosmc.rules.yml", "gosmc.rules_test.yml", "gosmc-dashboard.json"} {
		// for Prometheus and Grafana
		add("/usr/share/doc/gosmc/monitoring/"+name, data("monitoring/"+name), 0o644)
	}
	for name, make := range map[string]func(string) ([]byte, error){"gosmc.spdx.json": b.sbom, "LICENSES.modules": b.licenses} {
		content, err := make(gosmc)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(b.stage, arch, name)
		if err := writeFile(path, content); err != nil {
			return nil, err
		}
		add("/usr/share/doc/gosmc/"+name, path, 0o644)
	}
	slices.SortFunc(t, func(x, y file) int { return strings.Compare(x.path, y.path) })
	return t, nil
}

// walk calls f for each regular file below a directory.
func walk(dir string, f func(path, relative string) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return f(path, relative)
	})
}

func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// of returns the files that a format has.
func (t tree) of(format string) tree {
	return slices.DeleteFunc(slices.Clone(t), func(f file) bool { return f.only != "" && f.only != format })
}

// ownDirectories returns the directories that are of this package alone, or of several that do not
// need each other: rpm removes, when they are empty, those that it has been told of.
func (t tree) ownDirectories() (list []string) {
	for _, f := range t {
		for dir := filepath.Dir(f.path); slices.ContainsFunc(ownedBelow,
			func(top string) bool { return strings.HasPrefix(dir+"/", top) }); dir = filepath.Dir(dir) {
			list = append(list, dir)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

var ownedBelow = []string{"/usr/lib/gosmc/", "/usr/share/doc/gosmc/", "/usr/share/bash-completion/",
	"/usr/share/fish/", "/usr/share/zsh/"}

// archived returns the files of the archive, by the path that they have in it: it is for any
// prefix, such as /usr/local. Files that would be outside of it are examples.
func (t tree) archived() tree {
	var list tree
	for _, f := range t.of("rpm") {
		inside, ok := strings.CutPrefix(f.path, "/usr/")
		switch {
		case f.path == "/etc/gosmc.conf":
			inside = "share/doc/gosmc/examples/gosmc.conf"
		case strings.HasSuffix(filepath.Dir(f.path), ".d") && strings.HasPrefix(f.path, "/usr/lib/"):
			inside = "share/doc/gosmc/examples/" + filepath.Base(filepath.Dir(f.path)) + "/" + filepath.Base(f.path)
		case strings.HasSuffix(f.path, ".service"):
			inside = "share/doc/gosmc/examples/" + filepath.Base(f.path)
		case !ok:
			panic("build: no place in the archive for " + f.path)
		}
		f.path = inside
		list = append(list, f)
	}
	slices.SortFunc(list, func(x, y file) int { return strings.Compare(x.path, y.path) })
	return list
}

func (b *builder) writeTarball(arch string, t tree) error {
	name := "gosmc-" + b.release.packageVersion() + "-linux-" + arch
	return b.create(name+".tar.gz", func(w io.Writer) error {
		z, _ := gzip.NewWriterLevel(w, gzip.BestCompression) // the level is right
		return errors.Join(b.writeTar(z, name+"/", t.archived()), z.Close())
	})
}

// writeTar writes files and their directories, of root's and of the date of the release.
func (b *builder) writeTar(w io.Writer, prefix string, t tree) error {
	tw := tar.NewWriter(w)
	header := func(name string, kind byte, mode fs.FileMode, size int64) error {
		return tw.WriteHeader(&tar.Header{
			Typeflag: kind, Name: name, Mode: int64(mode), Size: size, ModTime: b.release.date, Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
		})
	}
	made := make(map[string]bool)
	for _, f := range t {
		name := prefix + strings.TrimPrefix(f.path, "/")
		for i := range len(name) {
			if dir := name[:i+1]; name[i] == '/' && !made[dir] {
				made[dir] = true
				if err := header(dir, tar.TypeDir, 0o755, 0); err != nil {
					return err
				}
			}
		}
		content, err := os.ReadFile(f.source)
		if err != nil {
			return err
		}
		if err := header(name, tar.TypeReg, f.mode, int64(len(content))); err != nil {
			return err
		}
		if _, err := tw.Write(content); err != nil {
			return err
		}
	}
	return tw.Close()
}
