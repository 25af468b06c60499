package survey

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestDirFinder(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"tmp/gosmc-0", "tmp/gosmc-7", "run/user/7/gosmc", "run/user/8/other", "given"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(root, "given"), filepath.Join(root, "tmp/gosmc-9")); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // of users as they make them, and one of many that a user could make
		for dir, uid := range map[string]int{"tmp/gosmc-7": 7, "tmp/gosmc-x": 7, "tmp/gosmc-8": 7} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(filepath.Join(root, dir), uid, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name string
		env  map[string]string
		uid  int
		want []string
	}{
		{"a user", map[string]string{"XDG_RUNTIME_DIR": filepath.Join(root, "run/user/7")}, 7, []string{"run/user/7/gosmc", "tmp/gosmc-7"}},
		{"nothing", nil, 5, nil},
		{"root", map[string]string{"GOSMC_DIR": filepath.Join(root, "given")}, 0, []string{"given", "tmp/gosmc-0", "tmp/gosmc-7", "run/user/7/gosmc"}},
		{"given, absent", map[string]string{"GOSMC_DIR": filepath.Join(root, "absent")}, 7, []string{"tmp/gosmc-7"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want []string
			for _, dir := range tt.want {
				want = append(want, filepath.Join(root, dir))
			}
			f := dirFinder{root, func(key string) string { return tt.env[key] }, tt.uid}
			if got := f.find(); !slices.Equal(got, want) {
				t.Errorf("find() = %v, want %v", got, want)
			}
		})
	}
}
