package host

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smctest"
	"github.com/gosmc/smc/wire"
	"github.com/gosmc/smc/wire/clc"
)

func needRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root")
	}
}

// sharedDir returns a directory that other users can reach and use.
func sharedDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "gosmc-test-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777|fs.ModeSticky); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// modesOf connects two hosts and returns the two ends, after an exchange.
func modesOf(tb testing.TB, client, server *Host) (c, s conn.Conn) {
	tb.Helper()
	l := mustListen(tb, server, "127.0.0.1:0")
	defer l.Close()
	c = mustDial(tb, client, l.Addr())
	s = mustAccept(tb, l)
	checkExchange(tb, c, s)
	c.Close()
	s.Close()
	return c, s
}

func TestRunDirectory(t *testing.T) {
	must := func(tb testing.TB, err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func(tb testing.TB, dir string) string // returns the directory to use
		reason  clc.Diagnosis                          // DiagNone: SMC-D works
	}{
		{"missing", func(_ testing.TB, dir string) string { return dir + "/new" }, clc.DiagNone},
		{"in a directory that is missing", func(_ testing.TB, dir string) string { return dir + "/no/new" }, clc.DiagNoRunDir},
		{"not absolute", func(testing.TB, string) string { return "run" }, clc.DiagNoRunDir},
		{"a file", func(tb testing.TB, dir string) string {
			must(tb, os.WriteFile(dir+"/file", nil, 0o600))
			return dir + "/file"
		}, clc.DiagNoRunDir},
		{"a symbolic link", func(tb testing.TB, dir string) string {
			must(tb, os.Symlink(".", dir+"/link"))
			return dir + "/link"
		}, clc.DiagNoRunDir},
		{"a FIFO among the announcements", func(tb testing.TB, dir string) string {
			must(tb, os.MkdirAll(rundir.Path(dir, rundir.Listen), 0o700))
			must(tb, unix.Mkfifo(rundir.Path(dir, rundir.Listen)+"/fifo", 0o600))
			return dir
		}, clc.DiagNone},
		{"a file for the sockets", func(tb testing.TB, dir string) string {
			must(tb, os.MkdirAll(rundir.Own(dir), 0o700))
			must(tb, os.WriteFile(rundir.Path(dir, rundir.ISM), nil, 0o600))
			return dir
		}, clc.DiagNoRunDir},
		{"a link for the announcements", func(tb testing.TB, dir string) string {
			must(tb, os.MkdirAll(rundir.Own(dir), 0o700))
			must(tb, os.Symlink(".", rundir.Path(dir, rundir.Listen)))
			return dir
		}, clc.DiagNoRunDir},
		{"writable for the group", func(tb testing.TB, dir string) string { must(tb, os.Chmod(dir, 0o770)); return dir }, clc.DiagNoRunDir},
		{"writable for all", func(tb testing.TB, dir string) string { must(tb, os.Chmod(dir, 0o777)); return dir }, clc.DiagNoRunDir},
		{"shared", func(tb testing.TB, dir string) string {
			must(tb, os.Chmod(dir, 0o777|fs.ModeSticky))
			return dir
		}, clc.DiagNone},
		{"of another user", func(tb testing.TB, dir string) string {
			needRoot(tb)
			must(tb, os.Chown(dir, nobody, nobody))
			return dir
		}, clc.DiagNoRunDir},
		{"path longer than a socket's", func(tb testing.TB, dir string) string {
			dir += strings.Repeat("/a-long-name", 20)
			must(tb, os.MkdirAll(dir, 0o700))
			return dir
		}, clc.DiagNone},
		{"path longer than any", func(_ testing.TB, dir string) string { return dir + strings.Repeat("/a-long-name", 1000) }, clc.DiagNoRunDir},
		{"name longer than any", func(_ testing.TB, dir string) string { return dir + "/" + strings.Repeat("a", 300) }, clc.DiagNoRunDir},
	} {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			dir := tt.prepare(t, t.TempDir())
			c, s := modesOf(t, newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir}))
			want := conn.ModeTCP
			if tt.reason == clc.DiagNone {
				want = conn.ModeSMCD
			}
			for _, end := range []conn.Conn{c, s} {
				if end.Mode() != want || end.Reason().Code != tt.reason {
					t.Errorf("mode %v, reason %v; want %v, %v", end.Mode(), end.Reason(), want, tt.reason)
				}
				said := end.Reason().Sentence
				if tt.reason == clc.DiagNoRunDir && !strings.Contains(said, dir[:min(len(dir), 200)]) || len(said) > 400 {
					t.Errorf("the reason does not name the directory %.200s and its error: %s", dir, said)
				}
			}
		})
	}
}

// TestRunDirectoryApart has two hosts that share no run directory.
func TestRunDirectoryApart(t *testing.T) {
	smctest.CheckLeaks(t)
	c, s := modesOf(t, newTestHost(t, Config{}), newTestHost(t, Config{}))
	if c.Mode() != conn.ModeTCP || c.Reason().Code != clc.DiagNoListener {
		t.Errorf("client: mode %v, reason %v; want TCP, %v", c.Mode(), c.Reason(), clc.DiagNoListener)
	}
	if s.Mode() != conn.ModeTCP || s.Reason().Code != clc.DiagPeerNoSMC {
		t.Errorf("server: mode %v, reason %v; want TCP, %v", s.Mode(), s.Reason(), clc.DiagPeerNoSMC)
	}
}

// TestRunDirectoryNoRights runs both ends as a user without write permission for the run directory.
func TestRunDirectoryNoRights(t *testing.T) {
	needRoot(t)
	dir := sharedDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	child := smctest.Start(t, "host-nobody", dir)
	for _, who := range []string{"server", "client"} {
		if tag := child.Hear(who); tag != "NO_RUNDIR" {
			t.Errorf("%s: reason %s, want NO_RUNDIR", who, tag)
		}
		if who == "server" { // the child ends after the other line
			child.Say("go on")
		}
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}

// TestRunDirectoryFull has room for so many files: whichever step finds none, connections work.
func TestRunDirectoryFull(t *testing.T) {
	needRoot(t)
	var modes []conn.Mode
	for inodes := 1; inodes < 18; inodes++ {
		t.Run(fmt.Sprint(inodes), func(t *testing.T) {
			smctest.CheckLeaks(t)
			dir := t.TempDir()
			if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("mode=0700,nr_inodes=%d", inodes)); err != nil {
				t.Skipf("needs to mount a tmpfs: %v", err)
			}
			t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
			c, s := modesOf(t, newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir}))
			if c.Mode() != s.Mode() || c.Mode() == conn.ModeTCP && (c.Reason().Code == 0 || s.Reason().Code == 0) {
				t.Errorf("client: %v, %v; server: %v, %v", c.Mode(), c.Reason(), s.Mode(), s.Reason())
			}
			modes = append(modes, c.Mode())
		})
	}
	if len(modes) > 0 && (modes[0] != conn.ModeTCP || modes[len(modes)-1] != conn.ModeSMCD) {
		t.Errorf("modes = %v, want TCP first and SMC-D last", modes)
	}
}

// TestAnnouncementsOddFiles puts all kinds of files where announcements are.
func TestAnnouncementsOddFiles(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	folder := rendezvous.Folder(dir, l.meeting.Load().Netns(), l.addr.Port())
	gid := testGID(0xabcdef).String()
	for _, name := range []string{
		"x", "@", ".", gid, gid + "@", gid + ".@*", gid + ".1", gid + ".1@", gid + ".-1@*", gid + ".1@**", gid + ".1@127.0.0.1%lo",
		gid + ".1@300.0.0.1", gid[1:] + ".1@*", strings.ToUpper(gid) + ".1@*", strings.ReplaceAll(gid, "-", "+") + ".1@*",
		"00000000-0000-0000-0000-000000000000.1@*", strings.Repeat("a", 255), "\xff\xfe\x00"[:2], gid + ".1@\n",
	} {
		if name != "." {
			if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Good names, but of no device; a directory, a link, a FIFO.
	os.Mkdir(filepath.Join(folder, testGID(1).String()+".1@*"), 0o700)
	os.Symlink("/etc/passwd", filepath.Join(folder, testGID(2).String()+".1@*"))
	unix.Mkfifo(filepath.Join(folder, testGID(3).String()+".1@*"), 0o600)
	checkServes(t, client, l)
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Error(err)
	}
}

// TestAnnouncementsMany puts thousands of dead announcements beside a live one.
func TestAnnouncementsMany(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	folder := rendezvous.Folder(dir, l.meeting.Load().Netns(), l.addr.Port())
	for _, count := range []int{500, 5000} {
		for i := range count {
			if err := os.WriteFile(filepath.Join(folder, testGID(uint64(count+i)).String()+".1@*"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		// All are looked at, or too many; then each connection removes some.
		rounds := 1 + count/rendezvous.MaxAnnouncements
		for i := range rounds {
			start := time.Now()
			c := mustDial(t, client, l.Addr())
			if took := time.Since(start); took > 2*rendezvous.PeeringTime {
				t.Errorf("a dial beside %d dead announcements took %v", count, took)
			}
			s := mustAccept(t, l)
			if i == rounds-1 && c.Mode() != conn.ModeSMCD {
				t.Errorf("dial %d beside %d dead announcements: %v, %v", i, count, c.Mode(), c.Reason())
			}
			checkExchange(t, c, s)
			c.Close()
			s.Close()
		}
	}
	if names, err := os.ReadDir(folder); err != nil || len(names) != 1 {
		t.Errorf("%d announcements are left, %v; want 1", len(names), err)
	}
}

func testGID(n uint64) wire.ISMGID { return wire.ISMGID{Hi: 0x4000, Lo: 0x8000_0000_0000_0000 | n} }

// TestStale dials where a process announced itself that was killed, and a plain program listens
// now.
func TestStale(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	child := smctest.Start(t, "host-serve", dir)
	addr := netip.MustParseAddrPort(child.Hear("listening"))
	client := newTestHost(t, Config{Dir: dir})
	c, err := client.Dial(boundedContext(t), "tcp", addr.String(), DialOptions{})
	if err != nil || c.Mode() != conn.ModeSMCD {
		t.Fatalf("Dial = %+v, %v; want SMC-D", c, err)
	}
	abandon(c)
	child.Kill()
	l := plainListener(t, addr.String())
	r := &clientRig{tb: t, client: client, evil: l}
	checkPlain(t, <-r.dial(boundedContext(t)), l, clc.DiagStale) // perhaps before the peer is known to be dead
	smctest.Eventually(t, patience, "the news of the death", func() bool {
		client.mu.Lock()
		defer client.mu.Unlock()
		return len(client.ends) == 0
	})
	checkStaleOrNone(t, r, l)
	// The announcement was removed, so now nobody listens.
	checkPlain(t, <-r.dial(boundedContext(t)), l, clc.DiagNoListener)
}

// checkStaleOrNone makes a connection. It finds that the announcement is dead, or its predecessor
// has found that.
func checkStaleOrNone(tb testing.TB, r *clientRig, l *net.TCPListener) {
	tb.Helper()
	res := <-r.dial(boundedContext(tb))
	if res.err != nil {
		tb.Fatal(res.err)
	}
	checkPlain(tb, res, l, min(max(res.conn.Reason().Code, clc.DiagNoListener), clc.DiagStale))
}

// TestForeign has a process of another user announce itself at our address and claim our
// connections.
func TestForeign(t *testing.T) {
	needRoot(t)
	for _, anyUser := range []bool{true, false} {
		t.Run(fmt.Sprint("any user ", anyUser), func(t *testing.T) {
			smctest.CheckLeaks(t)
			dir := sharedDir(t)
			server := newTestHost(t, Config{Dir: dir, AnyUser: true})
			client := newTestHost(t, Config{Dir: dir, Users: []string{map[bool]string{true: "any", false: "same"}[anyUser]}})
			l := mustListen(t, server, "127.0.0.1:0")
			plain := plainListener(t, "127.0.0.1:0")
			child := smctest.Start(t, "host-claim", dir, plain.Addr().String(), gidOf(t, server).String(), fmt.Sprintf("%x", l.meeting.Load().Netns()))
			child.Hear("ready")
			r := &clientRig{tb: t, client: client, evil: plain}
			want := clc.DiagForeign
			if !anyUser {
				want = clc.DiagOtherUser
			}
			checkPlain(t, <-r.dial(boundedContext(t)), plain, want)

			// A socket of ours is claimed before it connects. The server must not believe it.
			d := beforeConnect(func(netns, socket uint64) {
				child.Say("%x", socket)
				child.Say("%v", addrPort(l.Addr()))
				child.Hear("claimed")
				smctest.Eventually(t, patience, "the claim", func() bool { return server.meeting.Expected() == 1 })
			})
			c, err := d.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			s := mustAccept(t, l)
			defer s.Close()
			if s.Mode() != conn.ModeTCP || s.Reason().Code != clc.DiagPeerNoSMC {
				t.Errorf("mode %v, reason %v; want TCP, %v", s.Mode(), s.Reason(), clc.DiagPeerNoSMC)
			}
			checkExchange(t, c, s)
		})
	}
}

// TestStoppedServer stops a server's process, before and after the client has come to know it.
func TestStoppedServer(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := t.TempDir()
	child := smctest.Start(t, "host-serve", dir)
	addr := child.Hear("listening")
	client := newTestHost(t, Config{Dir: dir})
	stop(t, child)

	// A stranger: the peering does not come about, and the connection is plain TCP.
	start := time.Now()
	c, err := client.Dial(boundedContext(t), "tcp", addr, DialOptions{})
	if err != nil || c.Mode() != conn.ModeTCP || c.Reason().Code != clc.DiagUnreachable {
		t.Fatalf("Dial = %+v, %v; want TCP because of %v", c, err, clc.DiagUnreachable)
	}
	if took := time.Since(start); took > rendezvous.PeeringTime+slack {
		t.Errorf("Dial took %v, want %v", took, rendezvous.PeeringTime)
	}
	child.Signal(syscall.SIGCONT)
	c.SetDeadline(time.Now().Add(patience))
	if err := echo(c); err != nil {
		t.Error(err)
	}
	c.Close()

	// An acquaintance: the context bounds the wait.
	smc, err := client.Dial(boundedContext(t), "tcp", addr, DialOptions{})
	if err != nil || smc.Mode() != conn.ModeSMCD {
		t.Fatalf("Dial = %+v, %v; want SMC-D", smc, err)
	}
	stop(t, child)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	start = time.Now()
	if c, err := client.Dial(ctx, "tcp", addr, DialOptions{}); err == nil || time.Since(start) > slack {
		t.Errorf("Dial = %+v, %v after %v; want an error after 300 ms", c, err, time.Since(start))
	}
	// Connections that are there wait, and go on.
	smc.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	smc.Write([]byte("hello"))
	if n, err := smc.Read(make([]byte, 5)); n != 0 || !os.IsTimeout(err) {
		t.Errorf("Read = %d, %v; want a timeout", n, err)
	}
	child.Signal(syscall.SIGCONT)
	smc.SetReadDeadline(time.Now().Add(patience))
	got := make([]byte, 5)
	if _, err := io.ReadFull(smc, got); err != nil || !slices.Equal(got, []byte("hello")) {
		t.Errorf("Read = %q, %v; want hello", got, err)
	}
	smc.Close()
}

// stop stops a process, and waits until it is stopped.
func stop(tb testing.TB, child *smctest.Process) {
	tb.Helper()
	child.Signal(syscall.SIGSTOP)
	smctest.Eventually(tb, patience, "the process stops", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child.PID()))
		_, state, _ := strings.Cut(string(stat), ") ")
		return err == nil && strings.HasPrefix(state, "T")
	})
}
