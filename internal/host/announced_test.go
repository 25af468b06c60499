package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gosmc/smc/internal/conn"
	"github.com/gosmc/smc/internal/control"
	"github.com/gosmc/smc/internal/rendezvous"
	"github.com/gosmc/smc/internal/rundir"
	"github.com/gosmc/smc/internal/smctest"
)

// checkOften is how often hosts of these tests look at their announcements.
const checkOften = 5 * time.Millisecond

// eventuallySMC dials, as a program that has just started, until a connection uses SMC-D.
func eventuallySMC(t *testing.T, dir string, l *Listener) {
	t.Helper()
	l.SetDeadline(time.Time{})
	go serveEcho(l.Accept)
	last := ""
	deadline := time.Now().Add(patience)
	for ; time.Now().Before(deadline) && last != "SMC-D "; <-time.After(checkOften) {
		client, err := New(Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.Dial(boundedContext(t), "tcp", l.Addr().String(), DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(patience))
		if err := echo(c); err != nil {
			t.Error(err)
		}
		last = c.Mode().String() + " " + c.Reason().Tag
		c.Close()
		client.Close()
	}
	if last != "SMC-D " {
		t.Fatalf("a client gets %s, want SMC-D in the end", last)
	}
}

// TestAnnouncementRemoved removes the files that a server has in the run directory, as programs do
// that clean up by age, or at logout: they come back.
func TestAnnouncementRemoved(t *testing.T) {
	for _, tt := range []struct {
		name   string
		remove func(dir string, l *Listener) error
	}{
		{"the announcement", func(dir string, l *Listener) error {
			return os.RemoveAll(rendezvous.Folder(dir, l.meeting.Load().Netns(), l.addr.Port()))
		}},
		{"all announcements", func(dir string, _ *Listener) error { return os.RemoveAll(rundir.Path(dir, rundir.Listen)) }},
		{"the device's socket", func(dir string, l *Listener) error {
			return os.Remove(filepath.Join(rundir.Path(dir, rundir.ISM), gidOf(t, l.host).String()))
		}},
		{"all sockets", func(dir string, _ *Listener) error { return os.RemoveAll(rundir.Path(dir, rundir.ISM)) }},
		{"the run directory", func(dir string, _ *Listener) error { return os.RemoveAll(dir) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			smctest.CheckLeaks(t)
			remove := func(dir string, l *Listener) error { // again, if something is made meanwhile
				err := tt.remove(dir, l)
				for range 100 {
					if !errors.Is(err, unix.ENOTEMPTY) {
						break
					}
					err = tt.remove(dir, l)
				}
				return err
			}
			dir := filepath.Join(t.TempDir(), "run")
			server := newTestHost(t, Config{Dir: dir, CheckEvery: checkOften})
			before := newTestHost(t, Config{Dir: dir})
			l := mustListen(t, server, "127.0.0.1:0")
			checkServes(t, before, l)
			for range 2 {
				if err := remove(dir, l); err != nil {
					t.Fatal(err)
				}
				eventuallySMC(t, dir, l)
			}
			// A client that knew the server before goes on, and gets a new announcement, too.
			c := mustDial(t, before, l.Addr())
			defer c.Close()
			if c.Mode() != conn.ModeSMCD {
				t.Errorf("an acquaintance: %v, %v; want SMC-D", c.Mode(), c.Reason().Tag)
			}
			if err := echo(c); err != nil {
				t.Error(err)
			}
			smctest.Eventually(t, patience, "the control socket", func() bool {
				hosts, _ := control.Gather(t.Context(), dir)
				for _, h := range hosts {
					if h.GID == gidOf(t, server).String() {
						return true
					}
				}
				return false
			})
		})
	}
}

// TestListenAfterRemoval listens with a host after its run directory was removed: the new listener
// is announced at once, as one of a new host is.
func TestListenAfterRemoval(t *testing.T) {
	smctest.CheckLeaks(t)
	dir := filepath.Join(t.TempDir(), "run")
	server, client := newTestHost(t, Config{Dir: dir}), newTestHost(t, Config{Dir: dir})
	for _, removed := range []string{"nothing", dir, rundir.Path(dir, rundir.Listen)} {
		if err := os.RemoveAll(removed); err != nil {
			t.Fatal(err)
		}
		l := mustListen(t, server, "127.0.0.1:0")
		c := mustDial(t, client, l.Addr())
		s := mustAccept(t, l)
		if c.Mode() != conn.ModeSMCD {
			t.Errorf("%s was removed: a client of a new listener gets %v %v, want SMC-D", removed, c.Mode(), c.Reason().Tag)
		}
		c.Close()
		s.Close()
		l.Close()
	}
}

// TestAnnouncedLater has no room for an announcement, or for anything, when a server begins to listen.
func TestAnnouncedLater(t *testing.T) {
	needRoot(t)
	for _, inodes := range []int{2, 6, 8} {
		t.Run(fmt.Sprint(inodes), func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("mode=0700,nr_inodes=%d", inodes)); err != nil {
				t.Skipf("needs to mount a tmpfs: %v", err)
			}
			t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
			server := newTestHost(t, Config{Dir: dir, CheckEvery: checkOften})
			l := mustListen(t, server, "127.0.0.1:0")
			if l.meeting.Load().Reason() == 0 {
				t.Errorf("with %d inodes the listener is announced", inodes)
			}
			if err := unix.Mount("none", dir, "", unix.MS_REMOUNT, "mode=0700,nr_inodes=100"); err != nil {
				t.Fatal(err)
			}
			eventuallySMC(t, dir, l)
			smctest.Eventually(t, patience, "the listener's reason", func() bool { return l.meeting.Load().Reason() == 0 })
		})
	}
}

// TestAnnouncementMode checks that programs that clean up by age spare the files that a server has
// left.
func TestAnnouncementMode(t *testing.T) {
	dir := t.TempDir()
	server := newTestHost(t, Config{Dir: dir})
	l := mustListen(t, server, "127.0.0.1:0")
	gidOf(t, server)
	files := 0
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			files++
			if info.Mode()&(os.ModeSticky|os.ModeSymlink) == 0 { // links have none
				t.Errorf("%s has mode %v, want the sticky bit", path, info.Mode())
			}
		}
		return err
	})
	if err != nil || files != 5 {
		t.Errorf("%d files, %v; want the device, the announcement, the control socket, the broker and its link", files, err)
	}
	l.Close()
}
