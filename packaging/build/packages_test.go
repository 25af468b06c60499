package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/sassoftware/go-rpmutils"
)

func hostArch() string { return runtime.GOARCH }

// A content is a file of a package.
type content struct {
	mode        fs.FileMode
	user, group string
	bytes       []byte
}

// one returns the only file of a directory that matches a pattern.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(names) != 1 {
		t.Fatalf("%s in %s: %q, %v; want one file", pattern, dir, names, err)
	}
	return names[0]
}

func readTar(t *testing.T, r io.Reader) map[string]content {
	t.Helper()
	files := make(map[string]content)
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			if h.Typeflag != tar.TypeDir || h.Mode&0o7777 != 0o755 || h.Uid != 0 || h.Gid != 0 {
				t.Errorf("%s has type %c, mode %o, user %d, group %d", h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid)
			}
			continue
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.UTC().Format("2006-01-02T15:04:05Z") != testDate {
			t.Errorf("%s is of user %d, group %d and %v", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		files[path.Join("/", h.Name)] = content{fs.FileMode(h.Mode), h.Uname, h.Gname, b}
	}
}

func readDeb(t *testing.T, arch string) map[string]content {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("needs dpkg-deb")
	}
	out, err := exec.Command("dpkg-deb", "--fsys-tarfile", one(t, first, "*_"+arch+".deb")).Output()
	if err != nil {
		t.Fatal(err)
	}
	return readTar(t, bytes.NewReader(out))
}

var rpmArch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

func readRPM(t *testing.T, arch string) (map[string]content, *rpmutils.RpmHeader) {
	t.Helper()
	f, err := os.Open(one(t, first, "*."+rpmArch[arch]+".rpm"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := rpmutils.ReadRpm(f)
	if err != nil {
		t.Fatal(err)
	}
	list, err := r.Header.GetFiles()
	if err != nil {
		t.Fatal(err)
	}
	owners := make(map[string]rpmutils.FileInfo)
	for _, f := range list {
		owners[f.Name()] = f
	}
	payload, err := r.PayloadReaderExtended()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]content)
	for {
		info, err := payload.Next()
		if errors.Is(err, io.EOF) {
			return files, r.Header
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(payload)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode()&syscall.S_IFMT == syscall.S_IFREG {
			o := owners[info.Name()]
			files[info.Name()] = content{fs.FileMode(info.Mode() & 0o7777), o.UserName(), o.GroupName(), b}
		}
	}
}

func readTarball(t *testing.T, arch string) map[string]content {
	t.Helper()
	f, err := os.Open(one(t, first, "*-linux-"+arch+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	return readTar(t, z)
}

// readImages returns the files of the image for each architecture.
func readImages(t *testing.T) map[string]map[string]content {
	t.Helper()
	dir := t.TempDir()
	if err := run(exec.Command("tar", "-xf", one(t, first, "*-oci.tar"), "-C", dir)); err != nil {
		t.Fatal(err)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Fatal(err)
	}
	top, err := index.IndexManifest()
	if err != nil || len(top.Manifests) != 1 || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != newVersion {
		t.Fatalf("index %+v, %v; want one image with the name %s", top, err, newVersion)
	}
	inner, err := index.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := inner.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	images := make(map[string]map[string]content)
	for _, m := range manifest.Manifests {
		image, err := inner.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if want := (v1.Platform{OS: "linux", Architecture: config.Architecture}); !m.Platform.Equals(want) || config.OS != "linux" {
			t.Errorf("an image for %v has a configuration for %s", m.Platform, config.Architecture)
		}
		if got := config.Config.Labels["org.opencontainers.image.version"] + " " + config.Config.Labels["org.opencontainers.image.revision"]; got != newVersion+" "+testCommit {
			t.Errorf("labels of the image say %q", got)
		}
		if !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/gosmc"}) {
			t.Errorf("the image starts %q", config.Config.Entrypoint)
		}
		layers, err := image.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
		r, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		images[config.Architecture] = readTar(t, r)
		r.Close()
	}
	return images
}

// TestReproducible has a copy of the source in another place, with another umask, time zone and
// language, give the same bytes. For this machine's architecture the cache of Go is empty, unless
// -short is given. For all of them the files compiled for the first packages are packed again.
func TestReproducible(t *testing.T) {
	root := filepath.Join(t.TempDir(), "elsewhere")
	if err := copySource(root); err != nil {
		t.Fatal(err)
	}
	again := func(environment []string, flags ...string) []string {
		out := filepath.Join(t.TempDir(), "again")
		cmd := releaseCommand(root, out, newVersion, flags...)
		cmd.Args = append([]string{"sh", "-c", `umask 077; exec "$@"`, "sh"}, cmd.Args...)
		shell, err := exec.LookPath("sh")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Path = shell
		cmd.Env = append(os.Environ(), "TZ=Pacific/Kiritimati", "LC_ALL=C", "TMPDIR="+t.TempDir())
		cmd.Env = append(cmd.Env, environment...)
		if err := run(cmd); err != nil {
			t.Fatal(err)
		}
		return sums(t, out)
	}
	want := sums(t, first)
	if n := 4*len(arches()) + 1; len(want) != n {
		t.Errorf("%s has %d lines, want %d: for each architecture a deb, an rpm, an archive and an SBOM, and an image:\n%s", sumsFile, len(want), n, strings.Join(want, "\n"))
	}
	if got := again(nil, "-arch", strings.Join(arches(), ",")); !slices.Equal(got, want) {
		t.Errorf("the second time the sums are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if testing.Short() {
		return
	}
	for _, line := range again([]string{"GOCACHE=" + t.TempDir()}, "-arch", hostArch(), "-formats", "deb,tar") {
		if !slices.Contains(want, line) {
			t.Errorf("compiled with an empty cache: %s, want one of\n%s", line, strings.Join(want, "\n"))
		}
	}
}

// sums checks the checksums of a directory, and returns their lines.
func sums(t *testing.T, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil {
		t.Fatal(err)
	}
	check := exec.Command("sha256sum", "--check", "--strict", sumsFile)
	check.Dir = dir
	if err := run(check); err != nil {
		t.Error(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// TestContents has deb, rpm, archive and image have the same files, with the library that the repository has, and a command that knows its version.
func TestContents(t *testing.T) {
	images := readImages(t)
	if len(images) != len(arches()) {
		t.Errorf("images for %q, want %q", slices.Sorted(maps.Keys(images)), arches())
	}
	for _, arch := range arches() {
		machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
		t.Run(arch, func(t *testing.T) {
			rpm, header := readRPM(t, arch)
			command := rpm["/usr/bin/gosmc"].bytes
			checkCommand(t, arch, machine, command)
			library, err := os.ReadFile("../../preload/libgosmc_" + arch + ".so")
			if err != nil {
				t.Fatal(err)
			}
			multiarch := "/usr/lib/gosmc/lib/" + map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch] + "-linux-gnu/libgosmc-run.so"
			for _, name := range []string{multiarch, "/usr/lib/gosmc/lib64/libgosmc-run.so"} {
				if !bytes.Equal(rpm[name].bytes, library) {
					t.Errorf("%s is not preload/libgosmc_%s.so", name, arch)
				}
			}
			for _, name := range []string{
				"/etc/gosmc.conf", "/usr/lib/systemd/system/gosmc-agent.service", "/usr/lib/tmpfiles.d/gosmc.conf", "/usr/lib/sysusers.d/gosmc.conf",
				"/usr/share/man/man1/gosmc.1.gz", "/usr/share/man/man1/gosmc-run.1.gz", "/usr/share/man/man5/gosmc.conf.5.gz", "/usr/share/man/man7/gosmc-reasons.7.gz", "/usr/share/man/man7/gosmc.7.gz", "/usr/share/man/man8/gosmc-agent.8.gz",
				"/usr/share/bash-completion/completions/gosmc", "/usr/share/fish/vendor_completions.d/gosmc.fish", "/usr/share/zsh/site-functions/_gosmc",
				"/usr/share/doc/gosmc/LICENSE", "/usr/share/doc/gosmc/LICENSES.modules", "/usr/share/doc/gosmc/gosmc.spdx.json", "/usr/share/doc/gosmc/docs/run.md",
			} {
				if len(rpm[name].bytes) == 0 {
					t.Errorf("the rpm has no %s", name)
				}
			}
			for name, f := range rpm {
				want := fs.FileMode(0o644)
				switch {
				case name == "/usr/bin/gosmc":
					want = 0o755
				case strings.HasSuffix(name, ".so"):
					want = 0o555
				}
				if f.mode != want || f.user != "root" || f.group != "root" {
					t.Errorf("%s has mode %o and is of %s:%s, want %o of root:root", name, f.mode, f.user, f.group, want)
				}
			}
			list, err := header.GetFiles()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range list {
				const config, noReplace = 1, 16
				want := 0
				if f.Name() == "/etc/gosmc.conf" {
					want = config | noReplace
				}
				if f.Flags() != want {
					t.Errorf("%s has flags %d, want %d", f.Name(), f.Flags(), want)
				}
			}

			same := func(where string, files map[string]content, there func(string) string) {
				t.Helper()
				for name, f := range files {
					from := there(name)
					if got, ok := rpm[from]; !ok || got.mode != f.mode || !bytes.Equal(got.bytes, f.bytes) {
						t.Errorf("%s of %s differs from %s of the rpm, or that is missing", name, where, from)
					}
				}
			}
			deb := readDeb(t, arch)
			delete(deb, "/usr/share/doc/gosmc/copyright")
			same("the deb", deb, func(name string) string {
				return strings.Replace(name, "vendor-completions", "site-functions", 1)
			})
			tarball := readTarball(t, arch)
			top := regexp.MustCompile(`^/[^/]*/`)
			same("the archive", tarball, func(name string) string {
				inside := top.ReplaceAllString(name, "")
				example, ok := strings.CutPrefix(inside, "share/doc/gosmc/examples/")
				switch {
				case example == "gosmc.conf":
					return "/etc/gosmc.conf"
				case strings.HasSuffix(example, ".service"):
					return "/usr/lib/systemd/system/" + example
				case ok:
					return "/usr/lib/" + example
				}
				return "/usr/" + inside
			})
			for where, n := range map[string]int{"deb": len(deb), "archive": len(tarball)} {
				if n != len(rpm) {
					t.Errorf("the %s has %d files, the rpm %d", where, n, len(rpm))
				}
			}
			if len(images[arch]) < 6 {
				t.Errorf("the image has only %q", slices.Sorted(maps.Keys(images[arch])))
			}
			same("the image", images[arch], func(name string) string { return name })
			checkSBOM(t, arch, command)
		})
	}
}

// checkCommand looks at a command: static, for its processor, and with its version. The command for
// this machine says its version.
func checkCommand(t *testing.T, arch string, machine elf.Machine, command []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(command))
	if err != nil {
		t.Fatal(err)
	}
	if f.Machine != machine {
		t.Errorf("the command for %s is for %v", arch, f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("the command for %s is not static", arch)
		}
	}
	for _, text := range []string{newVersion, testCommit, testDate} {
		if !bytes.Contains(command, []byte(text)) {
			t.Errorf("the command for %s does not have %s in it", arch, text)
		}
	}
	if arch != hostArch() {
		return
	}
	name := filepath.Join(t.TempDir(), "gosmc")
	if err := os.WriteFile(name, command, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(name, "version").Output()
	if want := fmt.Sprintf("gosmc %s (commit %s, %s, ", newVersion, testCommit, testDate); err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("gosmc version = %q, %v; want %q", out, err, want)
	}
}

// checkSBOM compares the list of modules with the command, and looks whether its references lead somewhere.
func checkSBOM(t *testing.T, arch string, command []byte) {
	t.Helper()
	text, err := os.ReadFile(one(t, first, "*-linux-"+arch+".spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d spdxDocument
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.Read(bytes.NewReader(command))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{info.Main.Path: newVersion, "stdlib": strings.TrimPrefix(info.GoVersion, "go")}
	for _, m := range info.Deps {
		want[m.Path] = m.Version
	}
	got, ids := make(map[string]string), map[string]bool{spdxDocumentID: true, spdxGosmcID + "-command": true}
	form := regexp.MustCompile(`^SPDXRef-[a-zA-Z0-9.-]+$`)
	for _, p := range d.Packages {
		got[p.Name] = p.Version
		if ids[p.ID] || !form.MatchString(p.ID) {
			t.Errorf("the SBOM has an identifier %q that is not one, or twice", p.ID)
		}
		ids[p.ID] = true
	}
	if !maps.Equal(got, want) || len(want) < 5 {
		t.Errorf("the SBOM of %s has %v, the command %v", arch, got, want)
	}
	for _, r := range d.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("the SBOM has %+v, which leads nowhere", r)
		}
	}
	if len(d.Relationships) != len(d.Packages)+1 || d.Creation.Created != testDate {
		t.Errorf("the SBOM of %s has %d packages, %d relationships and the date %s", arch, len(d.Packages), len(d.Relationships), d.Creation.Created)
	}
}

// TestPackageVersion has versions of packages in the order in which the commits are.
func TestPackageVersion(t *testing.T) {
	order := []struct{ version, commit, date, want string }{
		{"", "862ab365fd9ce65611713dfb01bf6b828d38baa5", "2026-11-26T07:48:36Z", "0.0.0~20261126074836.862ab365fd9c"},
		{"", "0f2ab365fd9ce65611713dfb01bf6b828d38baa5", "2026-11-27T00:48:36+01:00", "0.0.0~20261126234836.0f2ab365fd9c"},
		{"v0.1.0-rc1", "c", testDate, "0.1.0~rc1"},
		{"v0.1.0-rc1-7-g0123abc", "c", testDate, "0.1.0~rc1+7.g0123abc"},
		{"v0.1.0-rc2", "c", testDate, "0.1.0~rc2"},
		{"v0.1.0", "c", testDate, "0.1.0"},
		{"v0.1.0-4-g0123abc", "c", testDate, "0.1.0+4.g0123abc"},
		{"v0.1.0-4-g0123abc+changes", "c", testDate, "0.1.0+4.g0123abc+changes"},
		{"v0.1.1", "c", testDate, "0.1.1"},
	}
	last := ""
	for _, tt := range order {
		r := release{version: tt.version, commit: tt.commit}
		if err := r.settle(tt.date); err != nil || r.packageVersion() != tt.want {
			t.Errorf("the version of %+v is %q, %v", tt, r.packageVersion(), err)
		}
		if _, err := exec.LookPath("dpkg"); err == nil && last != "" {
			if err := exec.Command("dpkg", "--compare-versions", last, "lt", tt.want).Run(); err != nil {
				t.Errorf("%s is not before %s: %v", last, tt.want, err)
			}
		}
		last = tt.want
	}
	for _, bad := range []release{{version: "v1", commit: ""}, {version: "1.2", commit: "c"}, {version: "v1 2", commit: "c"}} {
		if err := bad.settle(testDate); err == nil {
			t.Errorf("%+v is a release", bad)
		}
	}
}

// TestOutput has a directory with files of others not be touched.
func TestOutput(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "thesis.tex")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := emptyOutput(dir); err == nil {
		t.Error("a directory of others is taken")
	}
	for _, name := range []string{sumsFile, "gosmc_1_amd64.deb"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := emptyOutput(dir)
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || !slices.Equal(left, []string{other}) {
		t.Errorf("emptyOutput = %v, and left %q", err, left)
	}
}
