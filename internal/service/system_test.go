package service

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A fakeSystemctl is a systemctl that notes its arguments, and answers show with the content of a file.
type fakeSystemctl struct {
	t   *testing.T
	dir string
}

// newSystem opens the system of a machine with a service echo, and a systemd that is a fake.
func newSystem(t *testing.T) (*System, *fakeSystemctl) {
	t.Helper()
	m := newMachine(t)
	m.put("usr/bin/gosmc", "")
	m.put(filepath.Join(systemUnits, "echo.service"), "[Service]\nUser=echo\nExecStart=/usr/bin/echo-server\n")
	s, err := OpenSystem(m.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	f := &fakeSystemctl{t, t.TempDir()}
	path := filepath.Join(f.dir, "systemctl")
	script := "#!/bin/sh\necho \"$1\" >> " + f.dir + "/calls\n" +
		"case \"$1\" in show) cat " + f.dir + "/show;; try-restart) test ! -e " + f.dir + "/broken;; esac\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	s.manager = &Manager{path}
	f.answer("LoadState=loaded\nActiveState=inactive\n")
	return s, f
}

func (f *fakeSystemctl) answer(show string) { f.put("show", show) }

func (f *fakeSystemctl) put(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// calls returns the commands since the last call of it.
func (f *fakeSystemctl) calls() string {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(f.dir, "calls"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.t.Fatal(err)
	}
	f.put("calls", "")
	return strings.Join(strings.Fields(string(text)), " ")
}

// planOf returns the drop-in for the service echo, with the gosmc that is in the system.
func planOf(t *testing.T, s *System) *Plan {
	t.Helper()
	o := testOptions
	var err error
	if o.Command, err = s.Command(); err != nil || o.Command != "/usr/bin/gosmc" {
		t.Fatalf("Command() = %q, %v", o.Command, err)
	}
	p, err := s.PlanFor(t.Context(), "echo.service", o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestSystemEnable enables and disables a service, and looks at the order of what systemd is told.
func TestSystemEnable(t *testing.T) {
	s, f := newSystem(t)
	p := planOf(t, s)
	f.calls()
	for i, want := range []string{"daemon-reload show", "daemon-reload show"} {
		written, err := s.Enable(t.Context(), p, false)
		if got := f.calls(); err != nil || written != (i == 0) || got != want {
			t.Errorf("Enable no. %d = %v, %v, and systemctl %s, want %s", i+1, written, err, got, want)
		}
	}
	list := s.Statuses(t.Context(), Options{Command: "/usr/bin/gosmc", Obstacle: testOptions.Obstacle})
	if len(list) != 1 || list[0].Unit != "echo.service" || list[0].State != StateOK || list[0].Running != string(Stopped) ||
		list[0].File != s.Outside(p.Path) {
		t.Errorf("Statuses() = %+v", list)
	}
	f.calls()
	removed, err := s.Disable(t.Context(), []Name{"none.service", "echo.service"}, false)
	if got := f.calls(); !errors.Is(err, ErrNone) || len(removed) != 1 || removed[0] != "echo.service" || got != "daemon-reload" {
		t.Errorf("Disable = %v, %v, and systemctl %s", removed, err, got)
	}
	if removed, err := s.Disable(t.Context(), []Name{"echo.service"}, false); err == nil || len(removed) != 0 || f.calls() != "" {
		t.Errorf("Disable again = %v, %v, or systemd was told", removed, err)
	}
}

// TestSystemTakesBack has systemd refuse a drop-in, which then is not left behind.
func TestSystemTakesBack(t *testing.T) {
	s, f := newSystem(t)
	p := planOf(t, s)
	f.answer("LoadState=bad-setting\nLoadError=why\n")
	f.calls()
	written, err := s.Enable(t.Context(), p, false)
	if got := f.calls(); err == nil || !strings.Contains(err.Error(), "the drop-in was taken back: ") || got != "daemon-reload show daemon-reload" {
		t.Errorf("Enable = %v, %v, and systemctl %s", written, err, got)
	}
	if _, err := os.Stat(s.Outside(p.Path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the drop-in is there: %v", err)
	}
}

// TestSystemRestart restarts a service only if it has to, and if that is wanted.
func TestSystemRestart(t *testing.T) {
	s, f := newSystem(t)
	for _, tt := range []struct {
		state        string
		enabled, now bool
		want         Effect
	}{
		{"ActiveState=inactive", true, true, Done},
		{"ActiveState=failed", false, true, Done},
		{"ActiveState=active", true, false, NextStart},
		{"ActiveState=active", false, true, Restarted},
	} {
		f.answer(tt.state)
		f.calls()
		got, err := s.Restart(t.Context(), "echo.service", tt.enabled, tt.now)
		if calls := f.calls(); err != nil || got != tt.want || strings.Contains(calls, "try-restart") != (tt.want == Restarted) {
			t.Errorf("Restart of %s, enabled %v, now %v = %v, %v, and systemctl %s; want %v", tt.state, tt.enabled, tt.now, got, err, calls, tt.want)
		}
	}
	f.put("broken", "")
	for _, enabled := range []bool{true, false} {
		_, err := s.Restart(t.Context(), "echo.service", enabled, true)
		if err == nil || !strings.Contains(err.Error(), "journalctl -u echo") || strings.Contains(err.Error(), "disable --now echo") != enabled {
			t.Errorf("Restart that fails, enabled %v = %v", enabled, err)
		}
	}
	s.manager = nil
	if got, err := s.Restart(t.Context(), "echo.service", true, true); got != Done || err != nil {
		t.Errorf("Restart without systemd = %v, %v", got, err)
	}
}
