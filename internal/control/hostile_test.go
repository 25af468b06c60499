package control

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smctest"
)

// listenAt makes a listener in the directory of control sockets.
func listenAt(t *testing.T, dir, name string) *net.UnixListener {
	t.Helper()
	if err := rundir.Prepare(dir); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(rundir.Path(dir, socketsDir), name)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// Only sockets are connected to, and no symbolic link is followed.
func TestPin(t *testing.T) {
	dir := t.TempDir()
	listenAt(t, dir, "socket")
	ctl := rundir.Path(dir, socketsDir)
	if err := errors.Join(os.Symlink("socket", filepath.Join(ctl, "link")),
		os.WriteFile(filepath.Join(ctl, "file"), nil, 0o600), unix.Mkfifo(filepath.Join(ctl, "fifo"), 0o600), os.Mkdir(filepath.Join(ctl, "dir"), 0o700)); err != nil {
		t.Fatal(err)
	}
	d, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for name, want := range map[string]error{
		"socket": nil, "link": unix.ENOTSOCK, "file": unix.ENOTSOCK, "fifo": unix.ENOTSOCK, "dir": unix.ENOTSOCK,
		"absent": unix.ENOENT,
	} {
		f, _, err := d.pin(name)
		if !errors.Is(err, want) {
			t.Errorf("pin(%q) = %v, want %v", name, err, want)
		}
		if err == nil {
			f.Close()
		}
	}
}

// A socket whose name another file takes, such as a link to a socket that only root may use, stays
// the one that is connected to.
func TestPinnedStays(t *testing.T) {
	dir := t.TempDir()
	looked := listenAt(t, dir, "a")
	other := listenAt(t, dir, "other")
	d, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	socket, _, err := d.pin("a")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	ctl := rundir.Path(dir, socketsDir)
	looked.SetUnlinkOnClose(false)
	if err := errors.Join(os.Remove(filepath.Join(ctl, "a")), os.Symlink("other", filepath.Join(ctl, "a"))); err != nil {
		t.Fatal(err)
	}
	c, err := d.dial(t.Context(), socket)
	if err != nil {
		t.Fatalf("dial = %v", err)
	}
	defer c.Close()
	other.SetDeadline(time.Unix(1, 0))
	if c, err := other.Accept(); err == nil {
		c.Close()
		t.Error("dial went to the file that took the name")
	}
	looked.SetDeadline(time.Now().Add(patience))
	if c, err := looked.Accept(); err != nil {
		t.Errorf("the socket that was looked at: %v", err)
	} else {
		c.Close()
	}
}

// childShow is root of a user namespace. Its run directory has the socket of its first argument,
// which is somebody else's, by a mount, a socket behind which nobody listens, and a host of its own.
func childShow(p *smctest.Parent) {
	p.Check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	p.Check(unix.Mount("tmpfs", "/mnt", "tmpfs", 0, ""))
	const dir = "/mnt/gosmc-0"
	p.Check(rundir.Prepare(dir))
	ctl := rundir.Path(dir, socketsDir)
	shown := filepath.Join(ctl, "shown")
	p.Check(os.WriteFile(shown, nil, 0o600))
	p.Check(unix.Mount(p.Args[0], shown, "", unix.MS_BIND, ""))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(ctl, "left")})
	p.Check(err)
	l.SetUnlinkOnClose(false)
	l.Close()
	_, err = Serve(dir, "own", &quietHost{})
	p.Check(err)
	p.Say("showing")
	p.Hear()
}

// quietHost has no status to tell, and no trace.
type quietHost struct{}

func (*quietHost) Status() Status                                      { return Status{} }
func (*quietHost) Trace() Tracer                                       { return nil }
func (*quietHost) SampleCursors(list []TraceEvent) ([]TraceEvent, int) { return list, 0 }

// startShow starts such a process, and returns its run directory. With a user namespace its root is
// one who has no other right on the machine.
func startShow(t *testing.T, rootless bool, socket string) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, who sees the files of others")
	}
	var child *smctest.Process
	if rootless {
		child = smctest.StartRootlessIn(t, syscall.CLONE_NEWNS, userElsewhereA, "control-show", socket)
	} else {
		child = smctest.StartIn(t, syscall.CLONE_NEWNS, "control-show", socket)
	}
	child.Hear("showing")
	return "/proc/" + strconv.Itoa(child.PID()) + "/root/mnt/gosmc-0"
}

// A user can mount a socket that only root may use in a directory of control sockets. Root, who can
// connect to it, says nothing there.
func TestForeignSocket(t *testing.T) {
	outside, err := os.MkdirTemp("/tmp", "gosmc-test-") // other users see no t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(outside)
	if err := os.Chmod(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	victim, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(outside, "victim")})
	if err != nil {
		t.Fatal(err)
	}
	defer victim.Close()
	if err := os.Chmod(victim.Addr().String(), 0o600); err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 8)
	go func() {
		for {
			c, err := victim.Accept()
			if err != nil {
				close(heard)
				return
			}
			c.SetDeadline(time.Now().Add(patience))
			b, _ := io.ReadAll(c)
			heard <- string(b)
			c.Close()
		}
	}()
	dir := startShow(t, true, victim.Addr().String())
	list, errs := Gather(t.Context(), dir)
	if len(list) != 1 || list[0].Name != "own" || errs != nil {
		t.Errorf("Gather = %v, %v, want the host of the namespace alone", list, errs)
	}
	if err := DeleteLink(t.Context(), dir, "shown", 1, 1); !errors.Is(err, errElsewhere) {
		t.Errorf("DeleteLink = %v, want %v", err, errElsewhere)
	}
	victim.Close()
	for text := range heard {
		if text != "" {
			t.Errorf("a process outside of the namespace was told %q", text)
		}
	}
}

// Root leaves files in other mount namespaces alone.
func TestElsewhereLeftAlone(t *testing.T) {
	outside := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(outside, "any")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	l.Close()
	dir := startShow(t, false, l.Addr().String())
	if list, errs := Gather(t.Context(), dir); len(list) != 1 || errs != nil {
		t.Errorf("Gather = %v, %v, want one host", list, errs)
	}
	if _, err := os.Lstat(filepath.Join(rundir.Path(dir, socketsDir), "left")); err != nil {
		t.Errorf("a socket behind which nobody listens: %v", err)
	}
}

// Hosts that say nothing take the time of their user, and are told in one error, not one for each.
func TestGatherSilent(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 * gatherConcurrency {
		listenAt(t, dir, strconv.Itoa(100+i)) // nobody accepts
	}
	d, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	g := gathering{allowance: new(Allowance), dir: dir, folder: d, time: time.Millisecond}
	names, err := d.Readdirnames(-1)
	if err != nil {
		t.Fatal(err)
	}
	g.run(t.Context(), d.byUser(names))
	last := 0
	for _, err := range g.errs {
		if strings.Contains(err.Error(), "there was no time for") {
			last++
		}
	}
	if last != 1 || len(g.list) != 0 || len(g.errs) > 2*gatherConcurrency+1 {
		t.Errorf("errors %v, want one for the hosts that there was no time for", g.errs)
	}
}

// Answers are read until the allowance of their user, or that of all, is spent.
func TestAllowance(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, "a", testStatus)
	var user, all Allowance
	if err := user.spend(os.Geteuid(), maxUserBytes); err != nil {
		t.Fatal(err)
	}
	for i := range maxBytes / maxUserBytes {
		if err := all.spend(1<<20+i, maxUserBytes); err != nil {
			t.Fatal(err)
		}
	}
	for name, a := range map[string]*Allowance{"of the user": &user, "of all": &all} {
		if list, errs := a.Gather(t.Context(), dir); len(list) != 0 || len(errs) != 1 || !strings.Contains(errs[0].Error(), "exceed") {
			t.Errorf("Gather with the allowance %s spent = %d hosts, %v, want an error", name, len(list), errs)
		}
	}
	var fresh Allowance
	if err := fresh.spend(1, maxUserBytes); err != nil {
		t.Fatal(err)
	}
	if list, errs := fresh.Gather(t.Context(), dir); (os.Geteuid() != 1) != (len(list) == 1 && errs == nil) {
		t.Errorf("Gather when another user has spent all = %d hosts, %v, want one", len(list), errs)
	}
}

// The hosts of several users in one directory are sorted by who pays.
func TestByUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give files away")
	}
	dir := t.TempDir()
	ctl := rundir.Path(dir, socketsDir)
	for i, name := range []string{"a", "b", "c"} {
		listenAt(t, dir, name)
		if err := os.Lchown(filepath.Join(ctl, name), 3-i/2, 0); err != nil {
			t.Fatal(err)
		}
	}
	d, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	lanes := d.byUser([]string{"a", "b", "c", "absent"})
	if len(lanes) != 2 || lanes[0].payer != 2 || lanes[1].payer != 3 || len(lanes[1].names) != 2 {
		t.Errorf("byUser = %v, want c of user 2, and a and b of user 3", lanes)
	}
	d.there, d.home.Namespace, d.home.Owner = true, 1, 7
	if lanes := d.byUser([]string{"a", "b", "c"}); len(lanes) != 1 || lanes[0].payer != 7 {
		t.Errorf("byUser in a user namespace = %v, want all of its owner's", lanes)
	}
}
