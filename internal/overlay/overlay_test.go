package overlay

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// local returns the toolchain that runs the tests.
func local(t *testing.T) Toolchain {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT", "GOVERSION").Output()
	if err != nil {
		t.Fatal(err)
	}
	goroot, version, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return Toolchain{GOROOT: goroot, Version: version}
}

// The toolchain that runs the tests is a known one. For another release of Go this test names the
// entry to add.
func TestToolchain(t *testing.T) {
	tool := local(t)
	digest, err := tool.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := tool.Check(); err != nil {
		t.Errorf("%v; if make std-test passes, add {%q, %q} to releases", err, tool.Version, digest)
	}
	if _, err := makeSet(Options{Toolchain: tool}); err != nil {
		t.Errorf("an edit does not fit: %v", err)
	}
}

// A toolchain whose package net is another one is refused, and the error names the releases that
// are not refused.
func TestUnknownToolchain(t *testing.T) {
	tool := local(t)
	other := Toolchain{GOROOT: t.TempDir(), Version: "go9.99"}
	dir := filepath.Join(other.GOROOT, "src", "net")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range editedFiles() {
		text, err := os.ReadFile(filepath.Join(tool.GOROOT, "src", "net", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.Check(); err != nil {
		t.Errorf("a toolchain with the same files: %v", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "fd_unix.go"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("\n")
	f.Close()
	err = other.Check()
	if _, ok := errors.AsType[*UnknownToolchainError](err); !ok || !strings.Contains(err.Error(), "use go1.26 or go1.27,") {
		t.Errorf("Check with a changed fd_unix.go = %v, want an UnknownToolchainError that names the releases", err)
	}
}

// The sources have every file of the packages that package smc imports of this module, and the packages that use package net are renamed.
func TestSources(t *testing.T) {
	files, err := makeSet(Options{Toolchain: local(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,GoFiles,SFiles,HFiles,CgoFiles,Deps", modulePath)
		cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
			var p struct {
				ImportPath                              string
				Standard                                bool
				GoFiles, SFiles, HFiles, CgoFiles, Deps []string
			}
			if err := d.Decode(&p); err != nil {
				t.Fatal(err)
			}
			if p.Standard {
				if _, copied := packages[p.ImportPath]; slices.Contains(p.Deps, "net") && !copied {
					t.Errorf("package smc imports %s, which imports package net: add it to packages", p.ImportPath)
				}
				continue
			}
			rest, ours := strings.CutPrefix(p.ImportPath, modulePath)
			if !ours {
				if _, copied := packages[p.ImportPath]; !copied {
					t.Errorf("package smc imports %s, which is not in packages", p.ImportPath)
				}
				continue
			}
			for _, name := range p.GoFiles {
				if _, ok := files[path.Join(stdPath, rest, name)]; !ok && name != "sources.go" {
					t.Errorf("%s of %s is not in the overlay: see sources.go in the root of the module", name, p.ImportPath)
				}
				seen++
			}
			if len(p.HFiles)+len(p.CgoFiles) > 0 {
				t.Errorf("%s has %v %v, which an overlay leaves out", p.ImportPath, p.HFiles, p.CgoFiles)
			}
			// Where there is assembly, a file that declares its functions is another one here.
			for _, name := range p.SFiles {
				first, _, _ := strings.Cut(name, "_")
				if !slices.ContainsFunc([]string{first + ".go", strings.TrimSuffix(name, ".s") + ".go"}, func(s string) bool {
					_, ok := withoutAssembly[path.Join(stdPath, rest, s)]
					return ok
				}) {
					t.Errorf("%s of %s is assembly, and withoutAssembly has nothing for it", name, p.ImportPath)
				}
			}
		}
		if seen < 100 {
			t.Errorf("%s: only %d files looked at", arch, seen)
		}
	}
	for name, text := range files {
		if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".s") {
			t.Errorf("%s is in the overlay", name)
		}
		if strings.HasPrefix(name, stdPath+"/") && strings.Contains(text, "\n\t\""+modulePath) {
			t.Errorf("%s imports a package of the module", name)
		}
	}
	if !strings.Contains(files["gosmc/dial.go"], "\"gosmc/net\"") {
		t.Error("package smc has not the copy of package net")
	}
}

// Only this module's packages, and copies of other packages, are below gosmc.
func TestRenamed(t *testing.T) {
	for imported, want := range map[string]string{
		"github.com/gosmc/smc":               "gosmc",
		"github.com/gosmc/smc/internal/host": "gosmc/internal/host",
		"github.com/gosmc/smctools":          "github.com/gosmc/smctools",
		"net":                                "gosmc/net",
		"net/netip":                          "net/netip",
		"log/syslog":                         "gosmc/syslog",
		"golang.org/x/sys/unix":              "gosmc/unix",
		"golang.org/x/sys/cpu":               "golang.org/x/sys/cpu",
		"os":                                 "os",
	} {
		if got := renamed(imported); got != want {
			t.Errorf("renamed(%q) = %q, want %q", imported, got, want)
		}
	}
}

// Each file of the overlay without assembly stands for a file that is there.
func TestWithoutAssembly(t *testing.T) {
	files, err := makeSet(Options{Toolchain: local(t)})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range withoutAssembly {
		if files[name] != text {
			t.Errorf("%s stands for no file", name)
		}
	}
}

func TestConfine(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"package a\n", "//go:build linux && amd64\n\npackage a\n"},
		{"// C\n\n//go:build unix || js\n\npackage a\n", "//go:build (unix || js) && linux && amd64\n\n// C\n\n\npackage a\n"},
		{"package a\n\n// like\n//go:build no\n", "//go:build linux && amd64\n\npackage a\n\n// like\n//go:build no\n"},
	} {
		if got, err := confine(tt.text, "linux && amd64"); err != nil || got != tt.want {
			t.Errorf("confine(%q) = %q, %v, want %q", tt.text, got, err, tt.want)
		}
	}
}

// Several processes may make an overlay at once; one that is damaged is made again.
func TestMake(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "a", "b")
	o := Options{Toolchain: local(t), Version: "v1", Cache: cache}
	var names [8]string
	var all sync.WaitGroup
	for i := range names {
		all.Go(func() {
			var err error
			if names[i], err = Make(o); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, name := range names {
		if name != names[0] {
			t.Errorf("two overlays: %s, %s", name, names[0])
		}
	}
	if entries, err := os.ReadDir(cache); err != nil || len(entries) != 2 {
		t.Errorf("%s has %v, %v, want the overlay and its files", cache, entries, err)
	}
	replaced := replaceOf(t, names[0])
	file := replaced[filepath.Join(o.Toolchain.GOROOT, "src", "net", "smc.go")]
	if err := os.Truncate(file, 10); err != nil {
		t.Fatal(err)
	}
	if _, err := Make(o); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(file); err != nil || len(text) == 10 {
		t.Errorf("a file that was cut short is so still: %d bytes, %v", len(text), err)
	}
}

func replaceOf(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var o struct{ Replace map[string]string }
	if err := json.Unmarshal(text, &o); err != nil {
		t.Fatal(err)
	}
	return o.Replace
}

// The overlay of the user applies, too, relative to where the go command runs. One that replaces the same file is refused.
func TestUserOverlay(t *testing.T) {
	dir := t.TempDir()
	tool := local(t)
	write := func(name string, replace map[string]string) {
		text, _ := json.Marshal(map[string]any{"Replace": replace})
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("good.json", map[string]string{"a.go": "with/a.go", "/x/b.go": "", "/x/c.go": "/y/c.go"})
	file, err := Make(Options{Toolchain: tool, Cache: filepath.Join(dir, "cache"), User: "good.json", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	got := replaceOf(t, file)
	for name, want := range map[string]string{filepath.Join(dir, "a.go"): filepath.Join(dir, "with/a.go"), "/x/b.go": "", "/x/c.go": "/y/c.go"} {
		if with, ok := got[name]; !ok || with != want {
			t.Errorf("%s is replaced by %q, %t, want %q", name, with, ok, want)
		}
	}
	write("bad.json", map[string]string{filepath.Join(tool.GOROOT, "src/net/fd_unix.go"): "/y"})
	if _, err := Make(Options{Toolchain: tool, Cache: filepath.Join(dir, "cache"), User: "bad.json", Dir: dir}); err == nil {
		t.Error("an overlay with another fd_unix.go is accepted")
	}
	if _, err := Make(Options{Toolchain: tool, Cache: filepath.Join(dir, "cache"), User: "none.json", Dir: dir}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an overlay that is not there: %v", err)
	}
}

// The mark is found wherever it is in a file, and in no file without it.
func TestMark(t *testing.T) {
	for _, at := range []int{0, 1, 1<<16 - 5, 1 << 16, 3<<16 - 1} {
		text := strings.Repeat("g", at) + makeMark("v1.2 x", "go1.26") + strings.Repeat("o", 100)
		if got := findIn(t, text); got != "v1.2_x" {
			t.Errorf("the mark at %d is %q, want v1.2_x", at, got)
		}
	}
	for _, text := range []string{"", "gosmc", markBegin + " no end", strings.Repeat(markBegin, 1000)} {
		if got := findIn(t, text); got != "" {
			t.Errorf("a file of %d bytes without a mark has %q", len(text), got)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := FindMark(self); got != "" || err != nil {
		t.Errorf("this program, which is compiled without an overlay, has the mark %q, %v", got, err)
	}
}

func findIn(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	version, err := FindMark(file)
	if err != nil {
		t.Fatal(err)
	}
	return version
}
