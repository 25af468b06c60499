package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A package's life with a systemd that runs: in a copy of this system, as [TestLife] has it, systemd is
// process 1. It starts the agent and redis by their units, and programs of another user are clients.

// bootVariable has the directory in which the copy is made, in the process that becomes systemd.
const bootVariable = "GOSMC_PACKAGE_BOOT"

const (
	systemdPath = "/lib/systemd/systemd"
	bootTarget  = "gosmc-test.target"
	patience    = 30 * time.Second // for a unit, or a process, to come or go
	wholeTime   = 10 * time.Minute // for the whole test
)

// leftOut are units that are no part of the test, or would change more than the copy.
var leftOut = []string{
	"systemd-sysctl.service", "systemd-modules-load.service", "systemd-udevd.service", "systemd-udev-trigger.service",
	"systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-remount-fs.service",
	"systemd-network-generator.service", "systemd-networkd.service", "systemd-networkd.socket",
	"systemd-firstboot.service", "systemd-timesyncd.service", "systemd-machine-id-commit.service",
	"systemd-sysusers.service", "systemd-update-utmp.service", "systemd-random-seed.service", "systemd-binfmt.service",
	"systemd-hwdb-update.service", "systemd-tmpfiles-setup-dev.service", "systemd-pstore.service",
	"systemd-journald-audit.socket", "kmod-static-nodes.service", "dev-hugepages.mount", "dev-mqueue.mount",
	"sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount", "sys-fs-fuse-connections.mount",
	"proc-sys-fs-binfmt_misc.automount", "tmp.mount", "timers.target", "network-online.target",
}

// A booted machine is the copy with its systemd.
type booted struct {
	t       *testing.T
	pid     string   // of systemd
	root    string   // of the copy, from here
	session *os.File // the control group of the programs that are started from here
	ctx     context.Context
}

// TestSystemd installs the package, starts the agent by its unit and redis under 'gosmc run' by its own, upgrades
// while a client of another user works, removes and purges. Nothing of gosmc remains.
func TestSystemd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, need := range []string{systemdPath, "nsenter", "dpkg", "redis-server", "redis-benchmark", "runuser"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skip("needs " + need)
		}
	}
	m := bootMachine(t)
	defer func() {
		if t.Failed() {
			t.Logf("ss: %s\ndoctor: %s", m.try("gosmc", "ss", "-a", "--why"), m.try("gosmc", "doctor"))
			t.Logf("redis: %s\nthe journal:\n%s", m.try("systemctl", "--no-pager", "--full", "status", "redis-server"),
				m.try("journalctl", "--no-pager", "-n", "60", "--facility=daemon,user,syslog"))
		}
	}()
	group := filepath.Join(m.root, "sys/fs/cgroup")
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"install", m.installs}, {"agent", func() { m.startsAgent(group) }}, {"redis", m.startsRedis},
		{"upgrade", m.upgrades}, {"remove", m.removes}, {"purge", func() { m.purges(group) }},
	} {
		began := time.Now()
		step.do()
		t.Logf("%s: %.1f s", step.name, time.Since(began).Seconds())
		if t.Failed() {
			return
		}
	}
}

// bootMachine starts systemd in a copy of this system, with a control group, which ends with the test.
func bootMachine(t *testing.T) *booted {
	t.Helper()
	parent := "/sys/fs/cgroup"
	if _, err := os.Stat(parent + "/unified/cgroup.procs"); err == nil {
		parent += "/unified"
	}
	group, err := os.MkdirTemp(parent, "gosmc-package-test-")
	if err != nil {
		t.Skip("needs control groups of version 2: ", err)
	}
	into, err := os.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer into.Close()
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), bootVariable+"="+dir, "GOSMC_PACKAGE_FORMAT=deb",
		"GOSMC_PACKAGE_OLD="+packageFile(t, before, "deb"), "GOSMC_PACKAGE_NEW="+packageFile(t, first, "deb"))
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  unix.SIGKILL, UseCgroupFD: true, CgroupFD: int(into.Fd()),
	}
	runtime.LockOSThread() // the parent's death is that of the thread
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); errors.Is(err, unix.EPERM) {
		os.Remove(group)
		t.Skip("needs to make namespaces")
	} else if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		cmd.Process.Kill() // it has nothing that is worth a shutdown
		<-ended
		removeGroups(t, group)
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("systemd says:\n%s", text)
		}
		log.Close()
	})
	ctx, stop := context.WithTimeout(t.Context(), wholeTime)
	t.Cleanup(stop)
	m := &booted{t: t, ctx: ctx, pid: strconv.Itoa(cmd.Process.Pid), root: filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "root")}
	m.await("systemd", func() bool {
		select {
		case <-ended:
			t.Fatalf("systemd has ended: %v", cmd.ProcessState)
		default:
		}
		return m.try("systemctl", "is-active", bootTarget) == "active"
	})
	session := filepath.Join(group, "session")
	if err := os.Mkdir(session, 0o755); err != nil {
		t.Fatal(err)
	}
	if m.session, err = os.Open(session); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.session.Close() })
	return m
}

// removeGroups removes a control group with those below it, once their processes are gone.
func removeGroups(t *testing.T, group string) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var dirs []string
		filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			os.Remove(dir)
		}
		if !exists(group) {
			return
		}
	}
	t.Errorf("the control group %s cannot be removed", group)
}

// boot makes the copy and turns this process into its systemd. It returns only if it could not.
func boot(dir string) error {
	runtime.LockOSThread() // a namespace belongs to a thread
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return err
	}
	syscall.Umask(0o022)
	l := &life{manager: managers["deb"]}
	if err := l.enter(dir); err != nil {
		return err
	}
	for _, m := range [][3]string{{"sysfs", "/sys", "sysfs"}, {"cgroup2", "/sys/fs/cgroup", "cgroup2"}, {"bpf", "/sys/fs/bpf", "bpf"}} {
		if err := unix.Mount(m[0], m[1], m[2], 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	if err := os.RemoveAll("/etc/systemd/system"); err != nil { // this machine's own units are none of ours
		return err
	}
	if err := os.MkdirAll("/etc/systemd/system", 0o755); err != nil {
		return err
	}
	for _, path := range []string{"/etc/gosmc.conf", "/usr/bin/gosmc"} { // of this machine
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, unit := range leftOut {
		if err := os.Symlink("/dev/null", filepath.Join("/etc/systemd/system", unit)); err != nil {
			return err
		}
	}
	for path, text := range map[string]string{
		"/etc/systemd/system/" + bootTarget: "[Unit]\nRequires=basic.target\nAfter=basic.target\n",
		"/etc/fstab":                        "",
		"/etc/machine-id":                   strings.Repeat("12345678", 4) + "\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return syscall.Exec(systemdPath, []string{
		systemdPath, "--system", "--unit=" + bootTarget, "--show-status=0", "--log-target=journal", "--log-level=info",
	}, []string{"container=gosmc", "PATH=" + os.Getenv("PATH")})
}

// command is a program inside, as root.
func (m *booted) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(m.ctx, "nsenter", append([]string{
		"--target", m.pid, "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--root", "--wd", "--",
	}, args...)...)
	cmd.WaitDelay = time.Second
	if m.session != nil { // an agent serves a control group with those below
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(m.session.Fd())}
	}
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}
	return cmd
}

// run runs a program inside, which has to succeed.
func (m *booted) run(args ...string) string {
	m.t.Helper()
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		m.t.Errorf("%q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// try is the output of a program inside, which may fail.
func (m *booted) try(args ...string) string {
	out, _ := m.command(args...).CombinedOutput()
	return strings.TrimSpace(string(out))
}

// await waits until something is done.
func (m *booted) await(what string, done func() bool) {
	m.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("%s: waited in vain", what)
		}
	}
}

func (m *booted) dpkg(args ...string) {
	m.t.Helper()
	m.run(append([]string{"dpkg"}, args...)...)
}

func (m *booted) installs() {
	m.dpkg("-i", "/media/OLD.deb")
	if state := m.try("systemctl", "is-active", "gosmc-agent"); state != "inactive" {
		m.t.Errorf("after the installation the agent is %s", state)
	}
	if out := m.run("stat", "-c", "%a:%u", "/run/gosmc"); out != "1777:0" {
		m.t.Errorf("/run/gosmc is %s", out)
	}
}

func (m *booted) startsAgent(group string) {
	m.run("systemctl", "enable", "--now", "gosmc-agent")
	m.awaitAgent()
	if n := programsOf(m.t, group); n == 0 {
		m.t.Errorf("the agent has attached no program to the control groups")
	}
}

func (m *booted) awaitAgent() {
	m.t.Helper()
	m.await("agent", func() bool { return m.command("gosmc", "agent", "--status").Run() == nil })
}

// startsRedis has redis run under 'gosmc run', by its own unit and user, with a client of another user.
func (m *booted) startsRedis() {
	m.run("gosmc", "service", "enable", "redis-server")
	m.run("systemctl", "start", "redis-server")
	m.await("redis", func() bool { return m.try("redis-cli", "ping") == "PONG" })
	if out := m.client("redis-cli", "set", "greeting", "hello"); out != "OK" {
		m.t.Errorf("set: %s", out)
	}
	m.moves("before the upgrade")
}

// client runs a program under 'gosmc run', of another user than redis.
func (m *booted) client(args ...string) string {
	m.t.Helper()
	return m.run(append([]string{"runuser", "-u", "nobody", "--", "env", "HOME=/nonexistent", "gosmc", "run", "--"}, args...)...)
}

// moves checks that a connection of another user's client to redis leaves TCP.
func (m *booted) moves(when string) {
	m.t.Helper()
	cmd := m.command("runuser", "-u", "nobody", "--", "env", "HOME=/nonexistent", "gosmc", "run", "--", "redis-benchmark", "-q", "-c", "4", "-t", "get", "-n", "100000000")
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	why := ""
	defer func() {
		if m.t.Failed() {
			m.t.Logf("connections %s: %s", when, why)
		}
		m.try("pkill", "-f", "--", "-n 100000000") // of this one alone
		cmd.Wait()
	}()
	m.await("connections outside TCP "+when, func() bool {
		if m.moved() > 0 {
			return true
		}
		why = m.try("gosmc", "ss", "--why", "sport", "6379")
		return false
	})
}

// moved is the number of connections to redis that left TCP, as root sees them.
func (m *booted) moved() (n int) {
	var report struct {
		Connections []struct{ Local, Mode string }
	}
	out, err := m.command("gosmc", "ss", "--json").Output()
	if err != nil || json.Unmarshal(out, &report) != nil {
		return 0
	}
	for _, c := range report.Connections {
		if c.Mode == "Unix" && strings.HasSuffix(c.Local, ":6379") {
			n++
		}
	}
	return n
}

// upgrades has another version come while clients work: none of their requests fails.
func (m *booted) upgrades() {
	load := m.command("runuser", "-u", "nobody", "--", "env", "HOME=/nonexistent", "gosmc", "run", "--", "sh", "-c",
		"while [ ! -e /tmp/enough ]; do redis-benchmark -q -c 8 -t set,get -n 20000 >/dev/null || exit 1; done")
	if err := load.Start(); err != nil {
		m.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- load.Wait() }()
	m.await("load", func() bool { return m.moved() > 0 })
	m.dpkg("-i", "/media/NEW.deb")
	m.awaitAgent()
	if out := m.run("gosmc", "version"); !strings.HasPrefix(out, "gosmc "+newVersion+" ") {
		m.t.Errorf("gosmc version = %s", out)
	}
	m.moves("after the upgrade")
	m.run("touch", "/tmp/enough")
	if err := <-ended; err != nil {
		m.t.Errorf("a client has failed: %v", err)
	}
	if out := m.client("redis-cli", "get", "greeting"); out != "hello" {
		m.t.Errorf("after the upgrade redis says %q", out)
	}
	if state := m.try("systemctl", "is-enabled", "gosmc-agent"); state != "enabled" {
		m.t.Errorf("after the upgrade the agent is %s", state)
	}
}

func (m *booted) removes() {
	m.dpkg("-r", "gosmc")
	if out := m.client0("redis-cli", "get", "greeting"); out != "hello" {
		m.t.Errorf("without the package the redis that runs says %q", out)
	}
	m.run("systemctl", "restart", "redis-server")
	m.await("redis without gosmc", func() bool { return m.try("redis-cli", "ping") == "PONG" })
}

// client0 is a client without gosmc.
func (m *booted) client0(args ...string) string { return m.try(args...) }

// purges looks for what remains.
func (m *booted) purges(group string) {
	m.dpkg("-P", "gosmc")
	m.await("processes of gosmc", func() bool { return m.try("sh", "-c", "ls -l /proc/[0-9]*/exe 2>/dev/null | grep /gosmc") == "" })
	if out := m.try("systemctl", "list-units", "--all", "--no-legend", "*gosmc-agent*"); out != "" {
		m.t.Errorf("units remain: %s", out)
	}
	if out := m.try("systemctl", "--failed", "--no-legend"); strings.Contains(out, "gosmc") || strings.Contains(out, "redis") {
		m.t.Errorf("failed units: %s", out)
	}
	if n := programsOf(m.t, group); n != 0 {
		m.t.Errorf("%d programs are attached to the control groups", n)
	}
	for _, dir := range []string{"etc", "usr", "var", "run", "tmp", "sys/fs/bpf", "dev/shm", "root"} {
		filepath.WalkDir(filepath.Join(m.root, dir), func(path string, d fs.DirEntry, err error) error {
			name := strings.TrimPrefix(path, m.root)
			known := strings.Contains(name, bootTarget) || strings.HasPrefix(name, "/var/log/") || strings.HasPrefix(name, "/var/cache/") && !strings.HasPrefix(name, "/var/cache/gosmc")
			if err == nil && strings.Contains(name, "gosmc") && !known && !m.isHere(name) {
				m.t.Errorf("left behind: %s", name)
			}
			return nil
		})
	}
}

// isHere reports whether this machine, of which the copy was made, has a file, too.
func (m *booted) isHere(name string) bool {
	return exists(name) && name != "/etc/gosmc.conf" && !strings.HasPrefix(name, "/run/") && !strings.HasPrefix(name, "/tmp/") && !strings.HasPrefix(name, "/sys/")
}

// programsOf returns how many eBPF programs of the agent's kinds are attached to a control group.
func programsOf(t *testing.T, group string) (n uint32) {
	t.Helper()
	f, err := os.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, kind := range []uint32{3, 21, 22} { // BPF_CGROUP_SOCK_OPS, BPF_CGROUP_GETSOCKOPT, BPF_CGROUP_SETSOCKOPT
		attr := struct {
			fd, kind, query, attach uint32
			ids                     uint64
			count                   uint32
			_                       [64]byte
		}{fd: uint32(f.Fd()), kind: kind}
		const query = 16 // BPF_PROG_QUERY
		if _, _, errno := unix.Syscall(unix.SYS_BPF, query, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)); errno != 0 {
			t.Fatalf("BPF_PROG_QUERY: %v", errno)
		}
		n += attr.count
	}
	return n
}
