package main

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// guestModules are the modules that guest/init.sh loads; all else that the guest needs is built
// into the kernel or is a dependency of one of these.
var guestModules = []string{
	"virtio_net", "sch_netem", "ifb", "sch_ingress", "cls_matchall", "act_mirred", "crc32_generic",
	"rdma_rxe", "ib_uverbs", "tcp_diag", "smc", "smc_diag",
}

// An archive is the root file system of the guest: names without a leading slash.
type archive map[string]node

// A node is a file, a symbolic link or a directory.
type node struct {
	mode uint32 // as in struct stat
	data []byte // contents, or where the link leads
}

const (
	modeDir  = 0o040755
	modeFile = 0o100644
	modeProg = 0o100755
	modeLink = 0o120777
)

// add puts a node into the archive, and the directories that lead to it.
func (a archive) add(name string, mode uint32, data []byte) {
	name = strings.TrimPrefix(path.Clean(name), "/")
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		a[dir] = node{mode: modeDir}
	}
	a[name] = node{mode, data}
}

// addFile puts the file source of this machine, or the target if it is a link, into the archive as
// name.
func (a archive) addFile(name, source string, mode uint32) error {
	data, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	a.add(name, mode, data)
	return nil
}

var libraryPath = regexp.MustCompile(`/[^ \n()]+`)

// addLibraries puts the shared libraries that the program or library source needs into the
// archive, at the paths where this machine has them.
func (a archive) addLibraries(ctx context.Context, source string) error {
	list, err := run(ctx, "ldd", source)
	if err != nil {
		if strings.Contains(list, "not a dynamic executable") {
			return nil
		}
		return err
	}
	for _, library := range libraryPath.FindAllString(list, -1) {
		if err := a.addFile(library, library, modeProg); err != nil {
			return err
		}
	}
	return nil
}

// addProgram puts a program into the archive as /bin/name, with its libraries.
func (a archive) addProgram(ctx context.Context, name, source string) error {
	if err := a.addFile("bin/"+name, source, modeProg); err != nil {
		return err
	}
	return a.addLibraries(ctx, source)
}

// addModules puts guestModules and their dependencies into the archive, where modprobe looks.
func (a archive) addModules(k kernel) error {
	dep, err := os.ReadFile(filepath.Join(k.modules, "modules.dep"))
	if err != nil {
		return err
	}
	lines := make(map[string]string) // by the module's name
	for line := range strings.Lines(string(dep)) {
		file, _, _ := strings.Cut(line, ":")
		name, _, _ := strings.Cut(path.Base(file), ".ko")
		lines[name] = line
	}
	dir := path.Join("lib/modules", k.release)
	var packed strings.Builder
	for _, name := range guestModules {
		line, ok := lines[name]
		if !ok {
			return fmt.Errorf("kernel %s has no module %s", k.release, name)
		}
		for _, file := range strings.Fields(strings.Replace(line, ":", " ", 1)) {
			if _, ok := a[path.Join(dir, file)]; ok {
				continue
			}
			if err := a.addFile(path.Join(dir, file), filepath.Join(k.modules, file), modeFile); err != nil {
				return err
			}
			needed, _, _ := strings.Cut(path.Base(file), ".ko")
			packed.WriteString(lines[needed])
		}
	}
	a.add(path.Join(dir, "modules.dep"), modeFile, []byte(packed.String()))
	return nil
}

// addVerbs puts libibverbs' provider for rxe into the archive.
func (a archive) addVerbs(ctx context.Context) error {
	const driver = "/etc/libibverbs.d/rxe.driver"
	if err := a.addFile(driver, driver, modeFile); err != nil {
		return err
	}
	list, err := run(ctx, "dpkg", "-L", "ibverbs-providers")
	if err != nil {
		return err
	}
	for name := range strings.Lines(list) {
		name = strings.TrimSpace(name)
		if !strings.HasPrefix(path.Base(name), "librxe-") {
			continue
		}
		if err := a.addFile(name, name, modeProg); err != nil {
			return err
		}
		return a.addLibraries(ctx, name)
	}
	return errors.New("package ibverbs-providers has no librxe")
}

// buildInitrd writes the initial root file system of the guest: busybox, tc, rdma, the verbs
// programs with their libraries, the programs that were built for the guest, and the modules.
func buildInitrd(ctx context.Context, k kernel, built map[string]string, name string) error {
	a := make(archive)
	for _, dir := range []string{"proc", "sys", "dev", "tmp"} {
		a.add(dir, modeDir, nil)
	}
	a.add("init", modeProg, guestInit)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	applets, err := run(ctx, busybox, "--list")
	if err != nil {
		return err
	}
	for applet := range strings.Lines(applets) {
		a.add("bin/"+strings.TrimSpace(applet), modeLink, []byte("busybox"))
	}
	a.add("sbin", modeLink, []byte("bin")) // the kernel starts /sbin/modprobe
	a.add("etc/passwd", modeFile, []byte("root:x:0:0:root:/:/bin/sh\n"))
	a.add("etc/group", modeFile, []byte("root:x:0:\n")) // for nginx
	sources := maps.Clone(built)
	sources["busybox"] = busybox
	for _, program := range []string{"ip", "tc", "rdma", "ibv_rc_pingpong", "curl", "nginx", "redis-server", "redis-cli", "redis-benchmark"} {
		if sources[program], err = exec.LookPath(program); err != nil {
			return err
		}
	}
	for program, source := range sources {
		if err := a.addProgram(ctx, program, source); err != nil {
			return err
		}
	}
	if err := a.addFile("lib/smcrun.so", filepath.Join(filepath.Dir(name), "smcrun.so"), modeProg); err != nil {
		return err
	}
	if err := a.addVerbs(ctx); err != nil {
		return err
	}
	if err := a.addModules(k); err != nil {
		return err
	}

	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	compressed, err := gzip.NewWriterLevel(file, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if err := errors.Join(a.write(compressed), compressed.Close(), file.Close()); err != nil {
		return fmt.Errorf("writing the initrd: %w", err)
	}
	return nil
}

// write writes the archive in the form that the kernel unpacks: cpio "newc", the header of which is
// a magic number and 13 numbers of 8 hexadecimal digits, followed by name and data, both padded to
// multiples of 4 bytes. Linux Documentation/driver-api/early-userspace/buffer-format.rst.
func (a archive) write(w io.Writer) error {
	out := bufio.NewWriter(w)
	inode := 0
	entry := func(name string, n node) {
		links := 1
		if n.mode == modeDir {
			links = 2
		}
		inode++
		header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
			inode, n.mode, 0, 0, links, 0, len(n.data), 0, 0, 0, 0, len(name)+1, 0)
		out.WriteString(header)
		out.WriteString(name)
		out.Write(make([]byte, 1+padding(len(header)+len(name)+1)))
		out.Write(n.data)
		out.Write(make([]byte, padding(len(n.data))))
	}
	for _, name := range slices.Sorted(maps.Keys(a)) { // a directory comes before its entries
		entry(name, a[name])
	}
	entry("TRAILER!!!", node{})
	return out.Flush()
}

// padding returns how many bytes are missing to a multiple of 4.
func padding(n int) int { return -n & 3 }
