package rundir

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestCheck(t *testing.T) {
	us := os.Geteuid()
	const sticky = fs.ModeSticky
	for _, tt := range []struct {
		owner int
		mode  fs.FileMode
		good  bool
	}{
		{us, 0o700, true},
		{us, 0o755, true},
		{us, 0o722, false},
		{us, 0o777, false},
		{us, 0o777 | sticky, true},
		{0, 0o755, true},
		{0, 0o775, false},
		{0, 0o777, false},
		{0, 0o777 | sticky, true},
		{us + 1, 0o700, false},
		{us + 1, 0o755, false},
		{us + 1, 0o755 | sticky, false},
		{us + 1, 0o777, false},
		{us + 1, 0o777 | sticky, true}, // somebody had to come first
		{us + 1, 0o770 | sticky, true}, // of our group, or we could not use it
	} {
		if err := Check("x", tt.owner, tt.mode); (err == nil) != tt.good {
			t.Errorf("Check(owner %d, mode %v) = %v, want good %t (we are %d)", tt.owner, tt.mode, err, tt.good, us)
		}
	}
}

// TestPrepareModes has directories made as private, or as open, as the run directory is.
func TestPrepareModes(t *testing.T) {
	for _, tt := range []struct{ mode, want fs.FileMode }{
		{0o700, 0o700},
		{0o755, 0o700},
		{0o777 | fs.ModeSticky, 0o777 | fs.ModeSticky},
		{0o770 | fs.ModeSticky, 0o770 | fs.ModeSticky},
		{0o770 | fs.ModeSticky | fs.ModeSetgid, 0o770 | fs.ModeSticky | fs.ModeSetgid},
	} {
		dir := t.TempDir()
		if err := os.Chmod(dir, tt.mode); err != nil {
			t.Fatal(err)
		}
		if err := Prepare(dir); err != nil {
			t.Errorf("Prepare(mode %v) = %v", tt.mode, err)
			continue
		}
		if err := Prepare(dir); err != nil {
			t.Errorf("second Prepare(mode %v) = %v", tt.mode, err)
		}
		for _, path := range []string{Own(dir), Path(dir, ISM), Path(dir, Listen), Path(dir, Control)} {
			if info, err := os.Stat(path); err != nil || info.Mode() != tt.want|fs.ModeDir {
				t.Errorf("run directory of mode %v: %s has %v, %v; want %v", tt.mode, filepath.Base(path), info.Mode(), err, tt.want)
			}
		}
	}
}

func TestBoot(t *testing.T) {
	if !isBoot(boot()) {
		t.Errorf("boot() = %q, want 32 hexadecimal digits", boot())
	}
}

// TestPrepareControl refuses a run directory with a line feed in its name: a supervisor tells where its socket is by a line.
func TestPrepareControl(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a\nb")
	if err := Prepare(dir); err == nil {
		t.Errorf("Prepare(%q) takes it", dir)
	}
}
