package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A package's life is tested in a copy of this system: an overlay, with a process and a network
// namespace of its own, a /run of its own and no /sys. So the files that a package and its scripts
// leave behind are left in the upper directory of the overlay.

// lifeVariable has the directory in which the copy is made, in the process that makes it.
const lifeVariable = "GOSMC_PACKAGE_LIFE"

// A manager is a package manager.
type manager struct {
	name            string
	install, remove []string // upgrade is install; purge too where the manager knows it
	downgrade       []string
	purge, verify   []string
	beside, saved   string   // what ends the names of a package's configuration that was not taken, and of an administrator's that was replaced; empty: that does not happen
	database        []string // the files that it leaves
}

var managers = map[string]manager{
	"deb": {
		name: "dpkg", install: []string{"dpkg", "-i"}, downgrade: []string{"dpkg", "-i"}, beside: ".dpkg-dist", saved: ".dpkg-old", remove: []string{"dpkg", "-r", "gosmc"}, purge: []string{"dpkg", "-P", "gosmc"},
		verify: []string{"dpkg", "--verify", "gosmc"}, database: []string{"/var/lib/dpkg/", "/var/log/", "/var/cache/man/", "/var/cache/ldconfig/"},
	},
	"rpm": { // on Debian nothing provides /bin/sh
		name: "rpm", install: []string{"rpm", "-U", "--nodeps"}, downgrade: []string{"rpm", "-U", "--oldpackage", "--nodeps"}, beside: ".rpmnew", remove: []string{"rpm", "-e", "--nodeps", "gosmc"},
		verify: []string{"rpm", "-V", "--nodeps", "gosmc"}, database: []string{"/var/lib/rpm/", "/root/.rpmdb/", "/etc/gosmc.conf.rpmsave", "/etc/gosmc.conf.rpmnew", "/var/cache/man/"},
	},
}

// TestLife installs, uses, upgrades, downgrades, removes and purges, while programs of each version run.
func TestLife(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for format, m := range managers {
		t.Run(format, func(t *testing.T) {
			if _, err := exec.LookPath(m.name); err != nil {
				t.Skip("needs " + m.name)
			}
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), lifeVariable+"="+t.TempDir(), "GOSMC_PACKAGE_FORMAT="+format,
				"GOSMC_PACKAGE_OLD="+packageFile(t, before, format), "GOSMC_PACKAGE_NEW="+packageFile(t, first, format))
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
				Pdeathsig:  unix.SIGKILL,
			}
			out, err := cmd.CombinedOutput()
			if errors.Is(err, unix.EPERM) {
				t.Skip("needs to make namespaces")
			}
			t.Logf("%s", out)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func packageFile(t *testing.T, dir, format string) string {
	t.Helper()
	if format == "deb" {
		return one(t, dir, "*_"+hostArch()+".deb")
	}
	return one(t, dir, "*."+rpmArch[hostArch()]+".rpm")
}

// A life is a test inside of the copy.
type life struct {
	manager
	failed bool
	lower  *os.File // the root of the system that was copied

	servers []*server // that run under gosmc run, with their clients
	talks   []*talk
}

func (l *life) errorf(format string, args ...any) {
	l.failed = true
	fmt.Printf("FAIL: "+format+"\n", args...)
}

// sh runs a command line of the shell, and returns its output.
func (l *life) sh(line string, args ...any) string {
	return l.command(exec.Command("sh", "-c", fmt.Sprintf(line, args...)))
}

func (l *life) command(cmd *exec.Cmd) string {
	out, err := cmd.CombinedOutput()
	if err != nil {
		l.errorf("%q: %v\n%s", cmd.Args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// exists reports whether there is something at a path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// liveInside is the test, as process 1 of the copy. It returns the exit status.
func liveInside(dir string) int {
	l := &life{manager: managers[os.Getenv("GOSMC_PACKAGE_FORMAT")]}
	if err := l.enter(dir); err != nil {
		fmt.Println("enter the copy:", err)
		return 1
	}
	if exists("/usr/bin/gosmc") || exists("/etc/gosmc.conf") {
		fmt.Println("this machine has gosmc installed: remove it first")
		return 1
	}
	for _, step := range []struct {
		name string
		do   func()
	}{{"install", l.installOld}, {"use", l.use}, {"upgrade", l.upgrade}, {"downgrade", l.downgradeIt}, {"remove", l.removeIt}, {"purge", l.purgeIt}} {
		started := time.Now()
		step.do()
		fmt.Printf("%s: %.1f s\n", step.name, time.Since(started).Seconds())
		if l.failed {
			return 1
		}
	}
	return 0
}

// upperAt is where the upper directory of the overlay is in the copy.
const upperAt = "/mnt"

// enter makes the copy, and goes there.
func (l *life) enter(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"upper", "work", "root", "packages"} {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			return err
		}
	}
	var err error
	if l.lower, err = os.Open("/"); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", at("upper"), at("work"))
	if err := unix.Mount("overlay", at("root"), "overlay", 0, options); err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	for _, name := range []string{"OLD", "NEW"} {
		variable := "GOSMC_PACKAGE_" + name
		source := os.Getenv(variable)
		b, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		if err := os.WriteFile(at("packages/"+name+filepath.Ext(source)), b, 0o644); err != nil {
			return err
		}
		os.Setenv(variable, "/media/"+name+filepath.Ext(source))
	}
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"proc", "root/proc", "proc", 0, ""},
		{"tmpfs", "root/run", "tmpfs", unix.MS_NOEXEC, "mode=0755"},
		{"tmpfs", "root/tmp", "tmpfs", 0, "mode=1777"},
		{"/dev", "root/dev", "", unix.MS_BIND | unix.MS_REC, ""},
		{at("upper"), "root" + upperAt, "", unix.MS_BIND, ""},
		{at("packages"), "root/media", "", unix.MS_BIND, ""},
	} {
		if err := unix.Mount(m.source, at(m.target), m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := changeRoot(at("root")); err != nil {
		return err
	}
	os.Clearenv()
	for name, value := range map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"} {
		os.Setenv(name, value)
	}
	return exec.Command("ip", "link", "set", "lo", "up").Run()
}

// changeRoot makes a directory the root of the mount namespace. In a chroot a process cannot make user
// namespaces, as systemd does for services with PrivateUsers.
func changeRoot(dir string) error {
	const old = "/run/old"
	for _, step := range []func() error{
		func() error { return os.Mkdir(dir+old, 0o700) },
		func() error { return unix.PivotRoot(dir, dir+old) },
		func() error { return os.Chdir("/") },
		func() error { return unix.Unmount(old, unix.MNT_DETACH) },
		func() error { return os.Remove(old) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("change the root: %w", err)
		}
	}
	return nil
}

func (l *life) packageAt(name string) string {
	found, _ := filepath.Glob("/media/" + name + ".*")
	return found[0]
}

// put installs a package by a command of the manager. answer is what an administrator types at the manager's question.
func (l *life) put(name string, by []string, answer string) {
	cmd := exec.Command(by[0], append(slices.Clone(by[1:]), l.packageAt(name))...)
	cmd.Stdin = strings.NewReader(answer)
	if out := l.command(cmd); l.name == "dpkg" && answer != "" && !strings.Contains(out, "Configuration file '/etc/gosmc.conf'") {
		l.errorf("dpkg has not asked about /etc/gosmc.conf:\n%s", out)
	}
	// The installed files are the package's files.
	out, _ := exec.Command(l.verify[0], l.verify[1:]...).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !l.changed() || !strings.HasSuffix(line, " c /etc/gosmc.conf\n") {
			l.errorf("%q: %s", l.verify, line)
		}
	}
	if out := l.sh("gosmc version"); !strings.HasPrefix(out, "gosmc "+map[string]string{"OLD": oldVersion, "NEW": newVersion}[name]+" ") {
		l.errorf("gosmc version of %s = %s", name, out)
	}
}

// setting is the line that the administrator has added to the configuration.
const setting = "listen-port any"

// changed reports whether the configuration is the administrator's.
func (l *life) changed() bool {
	text, err := os.ReadFile("/etc/gosmc.conf")
	return err == nil && strings.HasSuffix(string(text), "\n"+setting+"\n")
}

// processes returns the processes of gosmc.
func processes() (list []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(filepath.Base(target), "gosmc") {
			list = append(list, link+" -> "+target)
		}
	}
	return list
}

const serviceDropIn = "/etc/systemd/system/life.service.d/zz-gosmc.conf"

const enabledLink = "/etc/systemd/system/multi-user.target.wants/gosmc-agent.service"

func (l *life) installOld() {
	l.put("OLD", l.install, "")
	if p := processes(); len(p) > 0 || exists(enabledLink) {
		l.errorf("installation has started %q, enabled the agent: %v", p, exists(enabledLink))
	}
	if _, err := exec.LookPath("systemd-tmpfiles"); err == nil {
		if out := l.sh("stat -c %%a:%%u:%%g /run/gosmc"); out != "1777:0:0" {
			l.errorf("/run/gosmc is %s", out)
		}
	}
	if !strings.Contains(l.sh("cat /etc/group"), "\nsmc:") {
		l.errorf("there is no group smc")
	}
	if l.name == "dpkg" {
		if out := l.sh("dpkg-query -W -f '${Conffiles}' gosmc"); !strings.HasPrefix(out, "/etc/gosmc.conf ") {
			l.errorf("conffiles: %q", out)
		}
	}
	l.sh("gosmc policy") // reads the file
	if _, err := exec.LookPath("man"); err == nil {
		if out := l.sh("man --warnings -P cat gosmc-run gosmc.conf 2>&1 >/dev/null"); out != "" {
			l.errorf("man: %s", out)
		}
	}
	if _, err := exec.LookPath("systemd-analyze"); err == nil {
		if out := l.sh("systemd-analyze verify /usr/lib/systemd/system/gosmc-agent.service 2>&1 | grep gosmc || true"); out != "" {
			l.errorf("systemd-analyze verify: %s", out)
		}
		l.sh("systemd-analyze security --offline=true --threshold=45 /usr/lib/systemd/system/gosmc-agent.service")
		l.sh("systemctl enable gosmc-agent.service")
		if !exists(enabledLink) {
			l.errorf("systemctl enable has made no %s", enabledLink)
		}
	}
}

// upgrade has the administrator keep a configuration that both sides have changed.
func (l *life) upgrade() {
	l.sh("echo '%s' >> /etc/gosmc.conf", setting)
	l.put("NEW", l.install, "N\n")
	if !l.changed() || !exists("/etc/gosmc.conf"+l.beside) {
		l.errorf("the upgrade has changed /etc/gosmc.conf, or there is no %s", l.beside)
	}
	if _, err := exec.LookPath("systemctl"); err == nil && !exists(enabledLink) {
		l.errorf("the upgrade has disabled the agent")
	}
	l.useNext(newServer)
}

// downgradeIt has the administrator take the package's configuration, where the manager asks.
func (l *life) downgradeIt() {
	l.put("OLD", l.downgrade, "Y\n")
	if l.saved == "" {
		if !l.changed() {
			l.errorf("the downgrade has changed /etc/gosmc.conf")
		}
	} else if l.changed() || !exists("/etc/gosmc.conf"+l.saved) {
		l.errorf("the downgrade has left /etc/gosmc.conf as it was, or there is no %s", l.saved)
	}
	if _, err := exec.LookPath("systemctl"); err == nil && !exists(enabledLink) {
		l.errorf("the downgrade has disabled the agent")
	}
	l.useNext(0)
}

func (l *life) removeIt() {
	// A service that is under gosmc run has to start without it.
	l.sh("mkdir -p /etc/systemd/system && printf '[Service]\\nExecStart=/usr/bin/perl -e 1\\n' > /usr/lib/systemd/system/life.service && gosmc service enable life && rm /usr/lib/systemd/system/life.service")
	if !exists(serviceDropIn) {
		l.errorf("gosmc service enable has made no %s", serviceDropIn)
	}
	// The files that an agent that was killed, and programs that found no library, would have left.
	l.sh("mkdir -p /var/cache/gosmc/lib && touch /var/cache/gosmc/lib/x /run/gosmc.off /run/gosmc-agent.sock /run/gosmc-agent.sock.lock")
	l.inChroot()
	l.command(exec.Command(l.remove[0], l.remove[1:]...))
	for _, path := range []string{"/usr/bin/gosmc", "/usr/lib/gosmc", "/usr/share/doc/gosmc", "/usr/lib/systemd/system/gosmc-agent.service", enabledLink, serviceDropIn} {
		if exists(path) {
			l.errorf("after removal there is %s", path)
		}
	}
	l.goOn()
	if l.purge != nil && !(exists("/etc/gosmc.conf") && exists("/run/gosmc")) {
		l.errorf("removal has taken the configuration or the run directory away, which only a purge may")
	}
}

// inChroot has the scripts of a package that is removed from a system within a system leave
// everything of the outer one alone.
func (l *life) inChroot() {
	l.sh(`set -e; mkdir -p /tmp/inner; cd /tmp/inner; mkdir usr proc run var; mount --bind /usr usr; mount --bind /proc proc; mount --bind /run run
for d in bin lib lib64 sbin; do [ ! -e /$d ] || ln -s usr/$d $d; done`)
	scripts := map[string]string{"prerm": "remove", "postrm": "purge"}
	if l.name == "rpm" {
		scripts = map[string]string{"prerm": "0", "postrm": "0"}
	}
	for script, argument := range scripts {
		if l.name == "rpm" {
			tag := map[string]string{"prerm": "PREUN", "postrm": "POSTUN"}[script]
			l.sh("rpm -q --qf '%%{%s}' gosmc > /usr/%s.test", tag, script)
		} else {
			l.sh("cp /var/lib/dpkg/info/gosmc.%s /usr/%s.test", script, script)
		}
		l.sh("chroot /tmp/inner sh /usr/%s.test %s; rm /usr/%s.test", script, argument, script)
	}
	if !exists("/run/gosmc") || !exists("/run/gosmc-agent.sock") {
		l.errorf("a purge in a chroot has taken away what is of the machine in /run")
	}
	l.sh("umount /tmp/inner/usr /tmp/inner/proc /tmp/inner/run; rm -r /tmp/inner")
}

func (l *life) purgeIt() {
	l.end()
	if l.purge != nil {
		l.command(exec.Command(l.purge[0], l.purge[1:]...))
	}
	err := filepath.WalkDir(upperAt, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == upperAt {
			return err
		}
		inside := strings.TrimPrefix(path, upperAt)
		if d.IsDir() {
			var st unix.Stat_t
			if unix.Fstatat(int(l.lower.Fd()), inside[1:], &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
				return nil // was there before
			}
			inside += "/"
		}
		// The group stays, as numbers of groups are not given to others.
		allowed := append(slices.Clone(l.database), "/etc/group", "/etc/gshadow", "/etc/.pwd.lock")
		if inside == "/var/cache/gosmc" && d.Type()&fs.ModeCharDevice != 0 {
			return nil // so overlays say that something is gone which this machine had
		}
		if !slices.ContainsFunc(allowed, func(a string) bool { return strings.HasPrefix(inside, a) }) {
			l.errorf("left behind: %s %v", inside, d.Type())
		}
		return nil
	})
	if err != nil {
		l.errorf("%v", err)
	}
	for _, dir := range []string{"/run", "/tmp"} {
		filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && strings.Contains(path, "gosmc") {
				l.errorf("left behind: %s", path)
			}
			return nil
		})
	}
	if p := processes(); len(p) > 0 {
		l.errorf("still running: %s", strconv.Quote(strings.Join(p, " ")))
	}
}
