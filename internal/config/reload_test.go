package config

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// replace puts a file in the place of another one.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
}

// A following is a follower with the settings that it has.
type following struct {
	*Follower
	t       *testing.T
	s       Settings
	changes int
}

func newFollowing(t *testing.T) (*following, error) {
	f, s, err := Follow()
	return &following{Follower: f, t: t, s: s}, err
}

// settled looks until the file is settled, and returns the last error.
func (f *following) settled() (err error) {
	f.Settled(func() time.Duration {
		again, e := f.Look(0, func(now *Settings) { f.s, f.changes = *now, f.changes+1 })
		if e != nil {
			err = e
		}
		return again
	})
	return err
}

// refuses says why the policy refuses a port of this machine.
func (f *following) refuses(port uint16) string {
	f.t.Helper()
	p, err := f.s.PolicyFor(Filter{}, Filter{}, "")
	if err != nil {
		f.t.Fatal(err)
	}
	return p.Listen.Refuses(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port))
}

// TestFollow changes the file of a program that runs: what it takes over, and what it leaves.
func TestFollow(t *testing.T) {
	path := write(t, "listen-port 80\n")
	synctest.Test(t, func(t *testing.T) {
		f, err := newFollowing(t)
		if err != nil || len(f.s.Listen.Ports) != 1 {
			t.Fatalf("Follow = %+v, %v", f.s, err)
		}
		for _, step := range []struct {
			text         string
			changes      bool
			err, refuses string // parts
		}{
			{"listen-port 80\nlisten-port 81\n", true, "", ""},
			{"listen-port 80\nlisten-port eighty\n", false, ":2: listen-port", ""},
			{"smc off\n", true, "", whyOff},
			{"", true, "", ""},
			{"listen-port !81\n", true, "", "port 81 is refused"},
		} {
			replace(t, path, step.text)
			f.changes = 0
			err := f.settled()
			if (f.changes == 1) != step.changes || (err == nil) != (step.err == "") ||
				err != nil && !strings.Contains(err.Error(), step.err) {
				t.Errorf("of %q: %d changes, error %v; want %t, %q", step.text, f.changes, err, step.changes, step.err)
			}
			if got := f.refuses(81); !strings.Contains(got, step.refuses) || (got == "") != (step.refuses == "") {
				t.Errorf("after %q the policy says %q, want %q", step.text, got, step.refuses)
			}
			if _, err := f.State(); (err == nil) != (step.err == "") {
				t.Errorf("State after %q: %v", step.text, err)
			}
			f.changes = 0
			if err := f.settled(); err != nil || f.changes > 0 {
				t.Errorf("the second look at %q: %v, %d changes", step.text, err, f.changes)
			}
		}
		if _, err := f.Look(time.Hour, nil); err != nil {
			t.Error(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		again, err := f.Look(time.Hour, func(*Settings) { t.Error("the file was looked at too early") })
		if again != 0 || err != nil {
			t.Errorf("Look = %v, %v", again, err)
		}
	})
}

// TestFollowHalf has editors take the file away, and write it in pieces: its policy stays until the
// file does.
func TestFollowHalf(t *testing.T) {
	path := write(t, "listen-port !81\n")
	synctest.Test(t, func(t *testing.T) {
		f, err := newFollowing(t)
		if err != nil {
			t.Fatal(err)
		}
		file := func(flags int) *os.File {
			t.Helper()
			file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flags, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			return file
		}
		var w *os.File
		for i, step := range []func() error{
			func() error { w = file(os.O_TRUNC); return nil }, // in place
			func() (err error) { _, err = w.WriteString("smc on\n"); return err },
			func() (err error) { _, err = w.WriteString("listen-port !82\n"); return err },
			func() error { return errors.Join(w.Close(), os.Rename(path, path+"~")) }, // by another file
			func() error { w = file(os.O_EXCL); return nil },
			func() (err error) { _, err = w.WriteString("listen-port !83\n"); return err },
			func() error { return w.Close() },
		} {
			if err := step(); err != nil {
				t.Fatal(err)
			}
			again, err := f.Look(0, func(s *Settings) { t.Errorf("after step %d the file counts: %+v", i, s) })
			if err != nil || again <= 0 || again > patience {
				t.Errorf("after step %d Look = %v, %v; want another look", i, again, err)
			}
			time.Sleep(patience / 2)
		}
		if err := f.settled(); err != nil || f.refuses(83) == "" || f.refuses(81) != "" {
			t.Errorf("the whole file: %v, %+v", err, f.s)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := f.settled(); err != nil || f.refuses(83) != "" {
			t.Errorf("a file that is gone: %v, %+v", err, f.s)
		}
		// Somebody goes on writing while it is read, for longer than anybody waits.
		reads, looks := 0, 0
		f.read = func(path string) (*File, error) {
			file, err := Read(path)
			reads++
			replace(t, path, strings.Repeat("#", reads))
			return file, err
		}
		replace(t, path, "smc off\n")
		f.Settled(func() time.Duration {
			looks++
			again, err := f.Look(0, func(s *Settings) { t.Errorf("a file that does not stay counts: %+v", s) })
			if err != nil {
				t.Error(err)
			}
			return again
		})
		if reads == 0 || looks != settleLooks {
			t.Errorf("it was read %d times in %d looks, want %d looks", reads, looks, settleLooks)
		}
	})
}

// TestFollowUnreadable tells once of a file that cannot be read, and reads it as soon as it can be,
// though it has not changed since.
func TestFollowUnreadable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a link of another user")
	}
	file := write(t, "listen-port !81\n")
	link := file + "-link"
	t.Setenv(EnvFile, link)
	if err := errors.Join(os.Symlink(file, link), os.Lchown(link, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		f, err := newFollowing(t)
		if err == nil || f.refuses(81) != "" {
			t.Fatalf("behind a link of another user: %v, %+v", err, f.s)
		}
		if err := f.settled(); err != nil {
			t.Errorf("the same error comes once more: %v", err)
		}
		if _, err := f.State(); !errors.Is(err, errLink) {
			t.Errorf("State = %v, want %v", err, errLink)
		}
		if err := os.Lchown(link, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.settled(); err != nil || f.refuses(81) == "" {
			t.Errorf("behind a link of ours: %v, %+v", err, f.s)
		}
		if _, err := f.State(); err != nil {
			t.Errorf("State = %v", err)
		}
	})
}

// TestFollowElsewhere has a program change its directory, its environment and its root: the file and
// the variables of its start count.
func TestFollowElsewhere(t *testing.T) {
	path := write(t, "listen-port !81\n")
	t.Chdir(filepath.Dir(path))
	t.Setenv(EnvFile, filepath.Base(path))
	t.Setenv("GOSMC_CONNECT_PORTS", "!82")
	f, err := newFollowing(t)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir("/")
	t.Setenv("GOSMC_CONNECT_PORTS", "")
	t.Setenv(EnvFile, "/dev/null")
	if err := f.settled(); err != nil || f.changes > 0 || f.refuses(81) == "" {
		t.Errorf("from another directory: %v, %+v", err, f.s)
	}
	replace(t, path, "listen-port !83\n")
	if err := f.settled(); err != nil || f.refuses(83) == "" || len(f.s.Connect.Ports) != 1 || !f.Set(ConnectPort) {
		t.Errorf("with another environment: %v, %+v", err, f.s)
	}
	f.root.ino++ // as after chroot
	replace(t, path, "")
	if err := f.settled(); err != nil || f.refuses(83) == "" {
		t.Errorf("below another root: %v, %+v", err, f.s)
	}
	if at, err := f.State(); at != path || err != errElsewhere {
		t.Errorf("State = %s, %v", at, err)
	}
}

// TestFollowBusy does not wait for another look: the values are there.
func TestFollowBusy(t *testing.T) {
	write(t, "")
	f, err := newFollowing(t)
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if again, err := f.Look(time.Nanosecond, nil); again != 0 || err != nil {
		t.Errorf("Look = %v, %v", again, err)
	}
}

// TestFollowHostile has short errors of files that are long, or none of text.
func TestFollowHostile(t *testing.T) {
	path := write(t, "")
	synctest.Test(t, func(t *testing.T) {
		f, err := newFollowing(t)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{
			strings.Repeat("x", maxFile), strings.Repeat("listen-port 99999\n", 4000),
			strings.Repeat("memory "+strings.Repeat("9", 200)+"\n", 4000),
			strings.Repeat("\x00\xff\n", 2*maxLines), strings.Repeat("\n", maxLines+1), strings.Repeat("x", maxFile+1),
		} {
			replace(t, path, text)
			err := f.settled()
			if err == nil || len(err.Error()) > 2000 || f.changes > 0 {
				t.Errorf("of %.20q...: %d changes, %.3000v", text, f.changes, err)
			}
		}
	})
}

// TestCopied has the file count, and not a variable that 'gosmc run' has copied from it. A variable
// that somebody has set since counts.
func TestCopied(t *testing.T) {
	write(t, "listen-port 82\nmemory 2MiB\n")
	environ := []string{"GOSMC_LISTEN_PORTS=80,81", "GOSMC_MEMORY=1048576"}
	name, value, _ := strings.Cut(CopiedVariable(environ, []string{ListenPort, Memory, SMC}), "=")
	t.Setenv(name, value)
	t.Setenv("GOSMC_LISTEN_PORTS", "80,81")
	t.Setenv("GOSMC_MEMORY", "4096")
	s, err := Load()
	if err != nil || strings.Join(s.Listen.Ports, " ") != "82" || s.Memory != 4096 || Set(ListenPort) || !Set(Memory) {
		t.Errorf("Load = %+v, %v; want listen-port of the file, and memory of the environment", s, err)
	}
	if Source(ListenPort) != Path() || Source(Memory) != "$GOSMC_MEMORY" {
		t.Errorf("sources are %s and %s", Source(ListenPort), Source(Memory))
	}
	environment := map[string]string{name: value, "GOSMC_LISTEN_PORTS": "80,81", EnvFile: Path()}
	p := ServerPolicy(func(name string) string { return environment[name] })
	if why := p.Listen.Refuses(netip.MustParseAddrPort("127.0.0.1:80")); !strings.Contains(why, "not among listen-port 82") {
		t.Errorf("ServerPolicy refuses port 80 with %q", why)
	}
	environment["GOSMC_LISTEN_PORTS"] = "80"
	p = ServerPolicy(func(name string) string { return environment[name] })
	if why := p.Listen.Refuses(netip.MustParseAddrPort("127.0.0.1:80")); why != "" {
		t.Errorf("ServerPolicy with a variable refuses port 80 with %q", why)
	}
}

// TestNarrower compares lists by what they allow.
func TestNarrower(t *testing.T) {
	for _, tt := range []struct {
		list, than string
		want       bool
	}{
		{"", "", true}, {"80", "", true}, {"!80", "", true}, {"", "80", false}, {"80", "80 81", true}, {"82", "80 81", false},
		{"80 !81", "80", true}, {"80", "80 !81", false}, {"any", "80", false}, {"80", "any", true}, {"", "any", true}, {"none", "80", true}, {"!80", "80", false},
	} {
		if got := Narrower(strings.Fields(tt.list), strings.Fields(tt.than)); got != tt.want {
			t.Errorf("Narrower(%q, %q) = %t", tt.list, tt.than, got)
		}
	}
}
