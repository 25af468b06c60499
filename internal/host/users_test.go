package host

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire/clc"
)

func init() {
	smctest.RunChild(map[string]func(*smctest.Parent){
		"host-as":         childAs,
		"host-unmapped":   childUnmapped,
		"host-drops":      childDrops,
		"host-other-boot": childOtherBoot,
		"host-rundir":     func(p *smctest.Parent) { p.Say("dir %v", rundir.Default()) },
	})
}

// Users that own nothing here.
const (
	userA = 60001
	userB = 60002
)

// becomeUser gives up root.
func becomeUser(p *smctest.Parent, uid int) {
	p.Check(syscall.Setgroups(nil))
	p.Check(syscall.Setgid(uid))
	p.Check(syscall.Setuid(uid))
}

// childAs becomes the user of its second argument, and then serves and dials as it is told.
func childAs(p *smctest.Parent) {
	uid, err := strconv.Atoi(p.Args[1])
	p.Check(err)
	becomeUser(p, uid)
	serveAndDial(p, p.Args[0])
}

// childUnmapped is a process that childAs would be, in a user namespace where nobody has a number.
func childUnmapped(p *smctest.Parent) {
	if len(p.Args) > 1 {
		uid, err := strconv.Atoi(p.Args[1])
		p.Check(err)
		becomeUser(p, uid)
		cmd := exec.Command("/proc/self/exe", p.Args[0])
		cmd.Env = append(os.Environ(), "GOSMC_TEST_CHILD=host-unmapped")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL}
		p.Check(cmd.Run())
		return
	}
	p.Say("user %d", os.Geteuid())
	serveAndDial(p, p.Args[0])
}

// serveAndDial listens, says where, and dials the addresses that it is told; it reports the outcome
// of each connection.
func serveAndDial(p *smctest.Parent, dir string) {
	h, err := New(Config{Dir: dir})
	p.Check(err)
	l, err := h.Listen(context.Background(), "tcp", "127.0.0.1:0", ListenOptions{})
	p.Check(err)
	go func() {
		for {
			s, err := l.Accept()
			p.Check(err)
			go func() {
				defer s.Close()
				io.Copy(s, s)
			}()
		}
	}()
	p.Say("listening %v %v", l.Addr(), l.meeting.Load().Reason())
	for {
		c, err := h.Dial(context.Background(), "tcp", p.Hear(), DialOptions{})
		p.Check(err)
		p.Check(echo(c))
		p.Say("dialled %v %v", c.Mode(), c.Reason().Tag)
		p.Check(c.Close())
	}
}

// TestRunDirectoryOfAll has several users, and root, share a run directory: the first of them must
// not lock out the others.
func TestRunDirectoryOfAll(t *testing.T) {
	needRoot(t)
	dir := sharedDir(t)
	first := smctest.Start(t, "host-as", dir, strconv.Itoa(userA))
	first.Hear("listening")
	for _, uid := range []int{userB, 0, userA} {
		var addr string
		servers := [2]*smctest.Process{}
		for i := range servers {
			servers[i] = smctest.Start(t, "host-as", dir, strconv.Itoa(uid))
			addr, _, _ = strings.Cut(servers[i].Hear("listening"), " ")
		}
		servers[0].Say("%s", addr)
		if got := servers[0].Hear("dialled"); got != "SMC-D " {
			t.Errorf("user %d, after user %d: %s, want SMC-D", uid, userA, got)
		}
	}
}

// TestUnmappedUsers has two users without a number in their user namespaces. Both look like user
// 65534, but they are not one user.
func TestUnmappedUsers(t *testing.T) {
	needRoot(t)
	dir := sharedDir(t)
	// Of a private directory one may be the owner, or rather look like it.
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	server := smctest.Start(t, "host-unmapped", dir, strconv.Itoa(userA))
	client := smctest.Start(t, "host-unmapped", dir, strconv.Itoa(userB))
	for _, p := range []*smctest.Process{server, client} {
		if got := p.Hear("user"); got != "65534" {
			t.Skipf("user namespaces show an unmapped user as %s", got)
		}
	}
	addr, _, _ := strings.Cut(server.Hear("listening"), " ")
	client.Hear("listening")
	client.Say("%s", addr)
	if got := client.Hear("dialled"); got != "TCP OTHER_USER" {
		t.Errorf("users %d and %d without a number: %s, want TCP OTHER_USER", userA, userB, got)
	}
}

// childDrops listens as root in the run directory of its first argument, becomes another user, and
// serves.
func childDrops(p *smctest.Parent) {
	h, err := New(Config{Dir: p.Args[0], Users: []string{"same"}})
	p.Check(err)
	l, err := h.Listen(context.Background(), "tcp", "127.0.0.1:0", ListenOptions{})
	p.Check(err)
	p.Say("listening %v", l.Addr())
	p.Hear()
	p.Check(syscall.Setgroups(nil))
	p.Check(syscall.Setgid(userA))
	p.Check(syscall.Setuid(userA))
	p.Say("dropped")
	serveEcho(l.Accept)
}

// TestDroppedPrivileges has a server that listens as root and then becomes another user, and admits
// no others: neither root nor that user shares memory with it. That holds also for a process that
// had a peering with it before.
func TestDroppedPrivileges(t *testing.T) {
	needRoot(t)
	smctest.CheckLeaks(t)
	dir := sharedDir(t)
	server := smctest.Start(t, "host-drops", dir)
	addr := server.Hear("listening")
	acquaintance := newTestHost(t, Config{Dir: dir, Users: []string{"same"}})
	f, _, err := acquaintance.open()
	if err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(rundir.Path(dir, rundir.ISM))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range names {
		if gid, ok := rendezvous.ParseGID(e.Name()); ok && gid != f.device.GID() {
			if _, err := f.device.Peer(boundedContext(t), gid); err != nil {
				t.Fatal(err)
			}
		}
	}
	server.Say("drop")
	server.Hear("dropped")
	for name, client := range map[string]*Host{"with a peering": acquaintance, "stranger": newTestHost(t, Config{Dir: dir, Users: []string{"same"}})} {
		c, err := client.Dial(boundedContext(t), "tcp", addr, DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if c.Mode() != conn.ModeTCP || c.Reason().Code != clc.DiagOtherUser {
			t.Errorf("root, %s: %v, %v; want TCP, %v", name, c.Mode(), c.Reason().Tag, clc.DiagOtherUser)
		}
		if err := echo(c); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	child := smctest.Start(t, "host-as", dir, strconv.Itoa(userA))
	child.Hear("listening")
	child.Say("%s", addr)
	if got := child.Hear("dialled"); got != "TCP OTHER_USER" {
		t.Errorf("the server's new user: %s, want TCP OTHER_USER", got)
	}
}

// TestUsersOfHost has two users, in a directory that is the machine's and in one that is not: who admits
// whom decides, at both ends.
func TestUsersOfHost(t *testing.T) {
	needRoot(t)
	a, b := strconv.Itoa(userA), strconv.Itoa(userB)
	for _, tt := range []struct {
		machine        bool
		server, client string // their users: lists
		want           string
	}{
		{true, "", "", "SMC-D "},
		{true, "", "same", "TCP OTHER_USER"},
		{true, "same", "", "TCP OTHER_USER"},
		{true, b, a, "SMC-D "},
		{true, "any,!" + b, a, "TCP OTHER_USER"},
		{true, b, "any,!" + a, "TCP OTHER_USER"},
		{false, "", "", "TCP OTHER_USER"},
		{false, "any", "any", "SMC-D "},
	} {
		dir := sharedDir(t)
		if tt.machine {
			if err := rundir.Prepare(dir); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("GOSMC_USERS", tt.server)
		server := smctest.Start(t, "host-as", dir, a)
		addr, _, _ := strings.Cut(server.Hear("listening"), " ")
		t.Setenv("GOSMC_USERS", tt.client)
		client := smctest.Start(t, "host-as", dir, b)
		client.Hear("listening")
		client.Say("%s", addr)
		if got := client.Hear("dialled"); got != tt.want {
			t.Errorf("machine's %t, the server's users %q, the client's %q: %s, want %s", tt.machine, tt.server, tt.client, got, tt.want)
		}
	}
}

// childOtherBoot serves in the run directory of its first argument, as if it ran on another machine.
func childOtherBoot(p *smctest.Parent) {
	const bootID = "/proc/sys/kernel/random/boot_id"
	if len(p.Args) > 1 { // in its own mount namespace
		p.Check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		p.Check(unix.Mount(p.Args[1], bootID, "", unix.MS_BIND, ""))
		serveAndDial(p, p.Args[0])
	}
	other := filepath.Join(p.Args[0], "other-boot-id")
	p.Check(os.WriteFile(other, []byte("00000000-0000-4000-8000-000000000001\n"), 0o644))
	cmd := exec.Command("/proc/self/exe", p.Args[0], other)
	cmd.Env = append(os.Environ(), "GOSMC_TEST_CHILD=host-other-boot")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	p.Check(cmd.Run())
}

// TestOtherMachine has a program of another machine use the same run directory: its announcements
// say nothing here, and its files stay, although nobody here answers behind them.
func TestOtherMachine(t *testing.T) {
	needRoot(t)
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	other := smctest.Start(t, "host-other-boot", dir)
	addr, _, _ := strings.Cut(other.Hear("listening"), " ")
	client := newTestHost(t, Config{Dir: dir})
	gidOf(t, client)
	c, err := client.Dial(boundedContext(t), "tcp", addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode() != conn.ModeTCP || c.Reason().Code != clc.DiagNoListener {
		t.Errorf("mode %v, reason %v; want TCP, %v", c.Mode(), c.Reason().Tag, clc.DiagNoListener)
	}
	c.Close()
	other.Say("%s", addr) // within that machine all is well
	if got := other.Hear("dialled"); got != "SMC-D " {
		t.Errorf("on the other machine: %s, want SMC-D", got)
	}
	// Its processes cannot be seen from here: the sockets look dead, and are not ours to remove.
	own := filepath.Join(dir, "00000000000040008000000000000001")
	left := 0
	filepath.WalkDir(own, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			left++
		}
		return err
	})
	if left < 3 {
		t.Errorf("%d files of the other machine are left in %s, want its device, control socket and announcement", left, own)
	}
}

// TestSetuid has another user start a setuid program, and name the run directory that it is to use.
func TestSetuid(t *testing.T) {
	needRoot(t)
	dir, err := os.MkdirTemp("", "gosmc-setuid-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "program")
	for _, setuid := range []bool{false, true} {
		mode := fs.FileMode(0o755)
		if setuid {
			mode |= fs.ModeSetuid
		}
		if err := os.WriteFile(path, program, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{os.Chmod(dir, 0o755), os.Chown(path, userB, userB), os.Chmod(path, mode)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(path)
		cmd.Env = []string{"GOSMC_TEST_CHILD=host-rundir", "GOSMC_DIR=/given", "XDG_RUNTIME_DIR=/given", "TMPDIR=" + dir}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: userA, Gid: userA}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		got := strings.TrimSpace(strings.TrimPrefix(string(out), "dir "))
		if !setuid && got != "/given" {
			t.Errorf("not setuid: run directory %s, want /given", got)
		}
		if want := fmt.Sprintf("/tmp/gosmc-%d", userB); setuid && got != want && got != "/run/gosmc" {
			t.Errorf("setuid: run directory %s, want %s", got, want)
		}
	}
}
