package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A machineRoot is the root file system that systemd gets: this machine's own, on which it can
// write without changing it. It is the first process of namespaces, and no file that belongs to the
// whole kernel can be written: /proc/sys above all, which units of systemd set.
type machineRoot struct {
	Dir   string            // for mounts
	Files map[string]string // that are written, by path
	Gosmc string            // becomes /usr/local/bin/gosmc
}

// leftOut are units that are no part of the test, or would change more than the root file system.
var leftOut = []string{
	"systemd-sysctl.service", "systemd-modules-load.service", "systemd-udevd.service", "systemd-udev-trigger.service", "systemd-udevd-control.socket",
	"systemd-udevd-kernel.socket", "systemd-remount-fs.service", "systemd-network-generator.service", "systemd-networkd.service", "systemd-networkd.socket",
	"systemd-firstboot.service", "systemd-timesyncd.service", "systemd-machine-id-commit.service", "systemd-sysusers.service", "systemd-update-utmp.service",
	"systemd-random-seed.service", "systemd-binfmt.service", "systemd-hwdb-update.service", "systemd-tmpfiles-setup-dev.service", "systemd-pstore.service",
	"systemd-journald-audit.socket", "kmod-static-nodes.service", "dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-debug.mount",
	"sys-kernel-tracing.mount", "sys-kernel-config.mount", "sys-fs-fuse-connections.mount", "proc-sys-fs-binfmt_misc.automount", "tmp.mount", "timers.target",
	"network-online.target",
}

const (
	systemdPath = "/lib/systemd/systemd"
	unitsDir    = "/etc/systemd/system"
	bootTarget  = "gosmc-test.target"
)

// boot turns this program into systemd. It returns only if it could not.
func boot(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var m machineRoot
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	runtime.LockOSThread() // a namespace belongs to a thread
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	syscall.Umask(0o022)
	root, err := m.mount()
	if err != nil {
		return err
	}
	if err := m.write(root); err != nil {
		return err
	}
	old := filepath.Join(root, "run/old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, old); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/run/old", unix.MNT_DETACH); err != nil {
		return os.NewSyscallError("umount", err)
	}
	if err := os.Remove("/run/old"); err != nil {
		return err
	}
	return &os.PathError{Op: "exec", Path: systemdPath, Err: syscall.Exec(systemdPath,
		[]string{systemdPath, "--system", "--unit=" + bootTarget, "--show-status=0", "--log-target=console", "--log-level=notice"},
		[]string{"container=gosmc", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})}
}

// mount makes the root file system and returns where it is.
func (m *machineRoot) mount() (root string, err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", err
	}
	changes := filepath.Join(m.Dir, "changes")
	root = filepath.Join(m.Dir, "root")
	mount := func(what, where, kind string, flags uintptr, data string) {
		if err != nil {
			return
		}
		if err = os.MkdirAll(where, 0o755); err == nil {
			err = unix.Mount(what, where, kind, flags, data)
		}
		if err != nil {
			err = fmt.Errorf("mount of %s: %w", where, err)
		}
	}
	const closed = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	mount("tmpfs", changes, "tmpfs", 0, "mode=0755")
	for _, dir := range []string{"upper", "work"} {
		if err == nil {
			err = os.Mkdir(filepath.Join(changes, dir), 0o755)
		}
	}
	mount("overlay", root, "overlay", 0, "lowerdir=/,upperdir="+changes+"/upper,workdir="+changes+"/work")
	mount("proc", root+"/proc", "proc", closed, "")
	for _, name := range []string{"sys", "irq", "bus", "fs"} {
		mount(filepath.Join(root, "proc", name), filepath.Join(root, "proc", name), "", unix.MS_BIND, "")
		mount("", filepath.Join(root, "proc", name), "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|closed, "")
	}
	mount("sysfs", root+"/sys", "sysfs", unix.MS_RDONLY|closed, "")
	mount("cgroup2", root+"/sys/fs/cgroup", "cgroup2", closed, "")
	mount("tmpfs", root+"/dev", "tmpfs", unix.MS_NOSUID, "mode=0755")
	for name, device := range map[string]uint64{"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5), "full": unix.Mkdev(1, 7),
		"random": unix.Mkdev(1, 8), "urandom": unix.Mkdev(1, 9), "tty": unix.Mkdev(5, 0)} {
		path := filepath.Join(root, "dev", name)
		if err == nil {
			err = unix.Mknod(path, unix.S_IFCHR|0o666, int(device))
		}
		if err == nil {
			err = os.Chmod(path, 0o666)
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"} {
		if err == nil {
			err = os.Symlink(target, filepath.Join(root, "dev", name))
		}
	}
	mount("devpts", root+"/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
	mount("tmpfs", root+"/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	mount("tmpfs", root+"/run", "tmpfs", closed, "mode=0755") // as on any machine with systemd
	mount("tmpfs", root+"/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	return root, err
}

// write puts our files into the root file system.
func (m *machineRoot) write(root string) error {
	units := filepath.Join(root, unitsDir)
	if err := os.RemoveAll(units); err != nil { // this machine's own units are none of ours
		return err
	}
	files := map[string]string{
		filepath.Join(unitsDir, bootTarget): "[Unit]\nRequires=basic.target\nAfter=basic.target\n",
		"/etc/fstab":                        "",
		"/etc/machine-id":                   strings.Repeat("12345678", 4) + "\n",
	}
	for path, text := range m.Files {
		files[path] = text
	}
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		os.Remove(path)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, unit := range leftOut {
		if err := os.Symlink("/dev/null", filepath.Join(units, unit)); err != nil {
			return err
		}
	}
	program, err := os.ReadFile(m.Gosmc)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "usr/local/bin/gosmc"), program, 0o755)
}

// A machine is a systemd that runs.
type machine struct {
	*server
	l     *lab
	group string // control group
}

// boot starts systemd.
func (l *lab) boot(m machineRoot) *machine {
	var err error
	m.Gosmc = l.gosmc
	m.Dir = filepath.Join(l.dir, "machine")
	l.must(os.Mkdir(m.Dir, 0o755))
	group, err := os.MkdirTemp(cgroup2(), "gosmc-test-")
	l.must(err)
	into, err := os.Open(group)
	l.must(err)
	defer into.Close()
	text, err := json.Marshal(m)
	l.must(err)
	self, err := os.Executable()
	l.must(err)
	cmd := l.plain(self, "-boot", l.file("machine.json", string(text)))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		UseCgroupFD: true, CgroupFD: int(into.Fd()), Pdeathsig: syscall.SIGKILL,
	}
	v := &machine{l.start(cmd), l, group}
	v.server.signal = syscall.SIGKILL // it has nothing that is worth a shutdown
	for deadline := time.Now().Add(listenTime); ; time.Sleep(pollTime) {
		state, _ := v.command("systemctl", "is-active", bootTarget).Output()
		if strings.TrimSpace(string(state)) == "active" {
			return v
		}
		select {
		case <-v.ended:
			l.failf("systemd has ended: %v", v.cmd.ProcessState)
		default:
		}
		if time.Now().After(deadline) {
			l.failf("systemd does not start: %q", state)
		}
	}
}

// cgroup2 is where control groups of version 2 are mounted.
func cgroup2() string {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	return "/sys/fs/cgroup"
}

// end ends systemd and all that it runs, and removes the control groups.
func (v *machine) end() {
	v.l.must(v.stop())
	for deadline := time.Now().Add(stopTime); time.Now().Before(deadline); time.Sleep(pollTime) {
		var dirs []string
		filepath.WalkDir(v.group, func(path string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			os.Remove(dirs[i])
		}
		if _, err := os.Stat(v.group); err != nil {
			return
		}
	}
	v.l.failf("the control group %s cannot be removed", v.group)
}

// command is a program inside, as root.
func (v *machine) command(name string, args ...string) *exec.Cmd {
	cmd := v.l.plain("nsenter", append([]string{"--target", strconv.Itoa(v.cmd.Process.Pid), "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--root", "--wd", "--", name}, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC"}
	return cmd
}

// run runs a program inside, which has to succeed.
func (v *machine) run(name string, args ...string) string {
	return strings.TrimSpace(v.l.finish(v.command(name, args...)))
}

// as runs a program inside as a user, with variables of the environment before its name.
func (v *machine) as(user string, args ...string) string {
	return v.run("runuser", append([]string{"-u", user, "--", "env"}, args...)...)
}
