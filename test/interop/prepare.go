package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs are the programs that are run here or packed into the guest, and the Debian packages
// that have them.
var programs = []struct{ name, pkg string }{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"busybox", "busybox-static"},
	{"ip", "iproute2"},
	{"tc", "iproute2"},
	{"rdma", "iproute2"},
	{"depmod", "kmod"},
	{"ibv_rc_pingpong", "ibverbs-utils"},
	{"gcc", "gcc"},
	{"curl", "curl"},
	{"nginx", "nginx-light"},
	{"redis-server", "redis-server"},
	{"redis-cli", "redis-tools"},
	{"redis-benchmark", "redis-tools"},
}

// files are found on the machine if the package is installed.
var files = []struct{ name, pkg string }{
	{"/etc/libibverbs.d/rxe.driver", "ibverbs-providers"},
	{"/usr/include/infiniband/verbs.h", "libibverbs-dev"},
	{"/usr/include/stdio.h", "libc6-dev"},
}

// kernelSuite is the Debian suite of the guest's kernel: Linux 6.12. The rxe of Debian bookworm's
// own 6.1 is no usable peer for SMC-R, which later cases need.
const kernelSuite = "bookworm-backports"

// The programs to build, by their names: for the guest, and for this machine.
const modulePath = "github.com/gosmc/smc/"

var (
	guestPackages = map[string]string{"limits": "test/interop/guest/limits", "gosmcpeer": "test/interop/gosmcpeer", "smcpeer": "test/interop/guest/smcpeer", "uverbs": "test/interop/guest/uverbs"}
	ourPackages   = map[string]string{"gosmc": "cmd/gosmc", "gosmcpeer": "test/interop/gosmcpeer"}
)

//go:embed guest/init.sh
var guestInit []byte

//go:embed guest/smcrun.c
var smcrunSource []byte

//go:embed guest/verbspeer.c
var verbspeerSource []byte

// prepare makes in dir the boot files, vmlinuz and initrd, and the programs that are run here.
func prepare(ctx context.Context, dir string) error {
	if err := installPackages(ctx); err != nil {
		return err
	}
	kernel, err := findKernel(ctx)
	if err != nil {
		return err
	}
	if err := os.Symlink(kernel.image, filepath.Join(dir, "vmlinuz")); err != nil {
		return err
	}
	source, peer := filepath.Join(dir, "verbspeer.c"), filepath.Join(dir, "verbspeer")
	if err := os.WriteFile(source, verbspeerSource, 0o600); err != nil {
		return err
	}
	if _, err := run(ctx, "gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", peer, source, "-libverbs"); err != nil {
		return err
	}
	library := filepath.Join(dir, "smcrun.so")
	if err := os.WriteFile(library+".c", smcrunSource, 0o600); err != nil {
		return err
	}
	if _, err := run(ctx, "gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, library+".c"); err != nil {
		return err
	}
	built := map[string]string{"verbspeer": peer}
	for _, packages := range []map[string]string{guestPackages, ourPackages} {
		for name, pkg := range packages {
			file := filepath.Join(dir, name)
			if _, err := run(ctx, "env", "CGO_ENABLED=0", "go", "build", "-o", file, modulePath+pkg); err != nil {
				return err
			}
		}
	}
	for name := range guestPackages {
		built[name] = filepath.Join(dir, name)
	}
	return buildInitrd(ctx, kernel, built, filepath.Join(dir, "initrd"))
}

// run runs a program of this machine and returns its output; an error has that text too.
func run(ctx context.Context, name string, args ...string) (string, error) {
	return runIn(ctx, "", name, args...)
}

// runIn is run with a working directory, "" for this one.
func runIn(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.WaitDelay = killDelay
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out), nil
}

func missingPackages() (missing []string) {
	have := make(map[string]bool)
	need := func(pkg string, found bool) {
		if !found && !have[pkg] {
			have[pkg] = true
			missing = append(missing, pkg)
		}
	}
	for _, p := range programs {
		_, err := exec.LookPath(p.name)
		need(p.pkg, err == nil)
	}
	for _, f := range files {
		_, err := os.Stat(f.name)
		need(f.pkg, err == nil)
	}
	return missing
}

// installPackages installs the packages that are missing.
func installPackages(ctx context.Context) error {
	missing := missingPackages()
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("missing %s, and there is no apt-get to install it with", strings.Join(missing, ", "))
	}
	fmt.Printf("installing %s\n", strings.Join(missing, ", "))
	if _, err := run(ctx, "apt-get", "-qq", "update"); err != nil {
		return err
	}
	args := append([]string{"-qq", "-o", "DPkg::Lock::Timeout=300", "install", "--yes", "--no-install-recommends"}, missing...)
	if _, err := run(ctx, "apt-get", args...); err != nil {
		return err
	}
	if missing = missingPackages(); len(missing) != 0 {
		return fmt.Errorf("still missing after apt-get install: %s", strings.Join(missing, ", "))
	}
	return nil
}

// A kernel is one in the cache.
type kernel struct {
	image   string // file to boot
	modules string // directory that has modules.dep
	release string // as uname -r prints it
}

// findKernel returns the kernel in the cache. If there is none it is downloaded.
func findKernel(ctx context.Context) (kernel, error) {
	cache, err := cacheDir()
	if err != nil {
		return kernel{}, err
	}
	root := filepath.Join(cache, "linux-"+kernelSuite)
	if _, err := os.Stat(root); errors.Is(err, os.ErrNotExist) {
		if err := downloadKernel(ctx, cache, root); err != nil {
			return kernel{}, err
		}
	}
	// Debian packages have /lib, and since the merge of / and /usr also /usr/lib.
	for _, lib := range []string{"usr/lib", "lib"} {
		found, err := filepath.Glob(filepath.Join(root, lib, "modules", "*", "modules.dep"))
		if err != nil || len(found) == 0 {
			continue
		}
		modules := filepath.Dir(found[0])
		release := filepath.Base(modules)
		return kernel{filepath.Join(root, "boot", "vmlinuz-"+release), modules, release}, nil
	}
	return kernel{}, fmt.Errorf("no kernel in %s; remove the directory and try again", root)
}

// downloadKernel downloads the stock kernel of kernelSuite from the mirror that apt is set up with
// and unpacks it as root, which appears complete or not at all. Nothing is installed.
func downloadKernel(ctx context.Context, cache, root string) error {
	fmt.Printf("downloading the kernel of %s\n", kernelSuite)
	mirror, err := debianMirror(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, dir := range []string{"lists/partial", "archives/partial", "deb"} {
		if err := os.MkdirAll(filepath.Join(work, dir), 0o755); err != nil {
			return err
		}
	}
	list := fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", mirror, kernelSuite)
	if err := os.WriteFile(filepath.Join(work, "sources.list"), []byte(list), 0o644); err != nil {
		return err
	}
	apt := func(program string, args ...string) (string, error) {
		options := []string{
			"-o", "Dir::Etc::SourceList=" + filepath.Join(work, "sources.list"),
			"-o", "Dir::Etc::SourceParts=-",
			"-o", "Dir::State::Lists=" + filepath.Join(work, "lists"),
			"-o", "Dir::Cache=" + work,
			"-o", "APT::Sandbox::User=root", // the cache of root is closed to apt's own user
		}
		return runIn(ctx, work, program, append(options, args...)...)
	}
	if _, err := apt("apt-get", "-qq", "update"); err != nil {
		return err
	}
	depends, err := apt("apt-cache", "depends", "--no-recommends", "--no-suggests", "linux-image-amd64")
	if err != nil {
		return err
	}
	_, pkg, found := strings.Cut(depends, "Depends: ")
	if !found {
		return fmt.Errorf("%s has no linux-image-amd64:\n%s", kernelSuite, depends)
	}
	pkg, _, _ = strings.Cut(pkg, "\n")
	if _, err := apt("apt-get", "-qq", "download", pkg); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(work, pkg+"_*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get download %s left %q", pkg, debs)
	}
	unpacked := filepath.Join(work, "root")
	if _, err := run(ctx, "dpkg-deb", "-x", debs[0], unpacked); err != nil {
		return err
	}
	image, err := filepath.Glob(filepath.Join(unpacked, "boot", "vmlinuz-*"))
	if err != nil || len(image) != 1 {
		return fmt.Errorf("package %s has kernels %q", pkg, image)
	}
	base := unpacked
	if _, err := os.Stat(filepath.Join(unpacked, "usr", "lib", "modules")); err == nil {
		base = filepath.Join(unpacked, "usr")
	}
	release := strings.TrimPrefix(filepath.Base(image[0]), "vmlinuz-")
	if _, err := run(ctx, "depmod", "-b", base, release); err != nil {
		return err
	}
	if err := os.Rename(unpacked, root); err != nil && !errors.Is(err, os.ErrExist) { // another run was faster
		return err
	}
	return nil
}

// debianMirror returns the address of the mirror from which apt takes Debian's own packages.
func debianMirror(ctx context.Context) (string, error) {
	for range 2 {
		targets, err := run(ctx, "apt-get", "indextargets", "--format", "$(LABEL) $(COMPONENT) $(REPO_URI)", "Identifier: Packages")
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(targets) {
			if mirror, ok := strings.CutPrefix(strings.TrimSpace(line), "Debian main "); ok {
				return mirror, nil
			}
		}
		if _, err := run(ctx, "apt-get", "-qq", "update"); err != nil { // the label is in these lists
			return "", err
		}
	}
	return "", errors.New("apt has no source for Debian's own packages")
}
