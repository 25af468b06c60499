package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// write makes a configuration file that the environment names.
func write(t *testing.T, text string) (path string) {
	t.Helper()
	for _, name := range Variables {
		t.Setenv(name, "")
	}
	path = filepath.Join(t.TempDir(), "gosmc.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvFile, path)
	return path
}

func TestLoad(t *testing.T) {
	write(t, "# ours\nueid B.1 # first\n  ueid\tA.1\n\npeer 192.0.2.0/24\npeer [2001:db8::1]:80\ndevice 192.0.2.1\nseid off\nsmcr-v1 on\npnet NET1   eth1")
	s, err := Load()
	want := Settings{
		UEIDs: []string{"B.1", "A.1"}, NoSEID: true, Peers: []string{"192.0.2.0/24", "[2001:db8::1]:80"}, Devices: []string{"192.0.2.1"},
		SMCRv1: true, PNET: map[string]string{"eth1": "NET1"},
	}
	if diff := cmp.Diff(want, s); diff != "" || err != nil {
		t.Errorf("Load: %v (-want +got):\n%s", err, diff)
	}
	// The environment takes the place of the file's lines.
	t.Setenv("GOSMC_UEIDS", "C.1, D.1")
	t.Setenv("GOSMC_SMCR_PEERS", "198.51.100.7")
	t.Setenv("GOSMC_SEID", "on")
	want.UEIDs, want.Peers, want.NoSEID = []string{"C.1", "D.1"}, []string{"198.51.100.7"}, false
	s, err = Load()
	if diff := cmp.Diff(want, s); diff != "" || err != nil {
		t.Errorf("Load with an environment: %v (-want +got):\n%s", err, diff)
	}
}

// Entries that are not understood are reported, and the rest counts.
func TestLoadErrors(t *testing.T) {
	path := write(t, "ueid lower\nueid GOOD\nfoo bar\nseid maybe\npnet NET1\npeer\n")
	t.Setenv("GOSMC_SMCR_V1", "perhaps")
	s, err := Load()
	if diff := cmp.Diff(Settings{UEIDs: []string{"GOOD"}}, s); diff != "" {
		t.Errorf("Load (-want +got):\n%s", diff)
	}
	for _, want := range []string{path + ":1: UEID \"lower\"", `:3: unknown word "foo"`, `:4: seid "maybe"`, ":5: pnet", ":6: peer", "GOSMC_SMCR_V1: smcr-v1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load = %v, want %q in it", err, want)
		}
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "absent"), os.DevNull} {
		t.Setenv(EnvFile, path)
		t.Setenv("GOSMC_SMCR_V1", "")
		if s, err := Load(); err != nil || !cmp.Equal(s, Settings{}) {
			t.Errorf("Load of %s = %+v, %v", path, s, err)
		}
	}
}

// TestSwitches has each word that is on or off take the same values, in the file and in the environment.
func TestSwitches(t *testing.T) {
	for value, want := range map[string]bool{
		"on": true, "yes": true, "true": true, "1": true, "On": true, "TRUE": true,
		"off": false, "no": false, "false": false, "0": false, "No": false, "False": false,
	} {
		check := func(where string) {
			t.Helper()
			s, err := Load()
			if err != nil || s.SMCRv1 != want || s.NoSEID == want || s.Off == want {
				t.Errorf("%q in %s: version 1 %v, no SEID %v, off %v, %v", value, where, s.SMCRv1, s.NoSEID, s.Off, err)
			}
		}
		write(t, "smcr-v1 "+value+"\nseid "+value+"\nsmc "+value+"\n")
		check("the file")
		write(t, "")
		t.Setenv("GOSMC_SMCR_V1", value)
		t.Setenv("GOSMC_SEID", value)
		t.Setenv(EnvDisabled, value)
		if s, err := Load(); err != nil || s.SMCRv1 != want || s.NoSEID == want || s.Off != want {
			t.Errorf("%q in the environment: version 1 %v, no SEID %v, off %v, %v", value, s.SMCRv1, s.NoSEID, s.Off, err)
		}
		for _, name := range []string{"GOSMC_SMCR_V1", "GOSMC_SEID", EnvDisabled} {
			t.Setenv(name, "")
		}
	}
	if _, err := ParseSwitch("maybe"); err == nil {
		t.Error("ParseSwitch(maybe) has no error")
	}
}

// Changes keep the rest of the file.
func TestChange(t *testing.T) {
	path := write(t, "# ours\nueid A # mine\nueid B\n")
	f, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		value string
		added bool
		err   bool
	}{{"C", true, false}, {"A", false, false}, {"x", false, true}} {
		if added, err := f.Add(UEID, tt.value); added != tt.added || (err != nil) != tt.err {
			t.Errorf("Add(%q) = %v, %v", tt.value, added, err)
		}
	}
	if n := f.Delete(UEID, func(v string) bool { return v == "B" }); n != 1 {
		t.Errorf("Delete = %d, want 1", n)
	}
	if err := f.Write(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if want := "# ours\nueid A # mine\nueid C\n"; string(text) != want || err != nil {
		t.Errorf("file is %q, %v, want %q", text, err, want)
	}
	if names, _ := os.ReadDir(filepath.Dir(path)); len(names) != 1 {
		t.Errorf("%d files are left, want the one", len(names))
	}
}

// TestWriteElsewhere has a change keep a link to the file, its owner and its mode, and put nothing in the place of a device or behind a link of another user.
func TestWriteElsewhere(t *testing.T) {
	dir := t.TempDir()
	change := func(path string) error {
		t.Helper()
		f, err := Read(path)
		if err == nil {
			_, err = f.Add(SMC, "off")
		}
		return errors.Join(err, f.Write())
	}
	real := filepath.Join(dir, "real", "conf")
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(filepath.Dir(real), 0o755), os.WriteFile(real, nil, 0o640), os.Symlink("real/conf", link), change(link)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(real)
	if target, e := os.Readlink(link); err != nil || e != nil || string(text) != "smc off\n" || target != "real/conf" {
		t.Errorf("behind the link is %q, %v, and the link: %q, %v", text, err, target, e)
	}
	if info, err := os.Stat(real); err != nil || info.Mode() != 0o640 {
		t.Errorf("the file: %v, %v", info, err)
	}

	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, "/dev/null"} {
		before, _ := os.Stat(path)
		if os.Geteuid() == 0 && path == "/dev/null" {
			if err := os.Symlink(path, filepath.Join(dir, "null")); err != nil {
				t.Fatal(err)
			}
			path = filepath.Join(dir, "null") // without the rule this would be the machine's
		}
		err := change(path)
		if after, _ := os.Stat(path); err == nil || !os.SameFile(before, after) {
			t.Errorf("a change of %s = %v, and it is another file: %v", path, err, !os.SameFile(before, after))
		}
	}

	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := os.Lchown(link, 61001, 61001); err != nil {
		t.Fatal(err)
	}
	if err := change(link); err == nil {
		t.Error("a change behind a link of another user")
	}
	if err := errors.Join(os.Chown(real, 61001, 61001), os.Remove(link), os.WriteFile(real, nil, 0o600), change(real)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(real); err != nil || info.Sys().(*syscall.Stat_t).Uid != 61001 {
		t.Errorf("the file has another owner: %v", err)
	}
}
