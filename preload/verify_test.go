package preload

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestVerify has verify.sh tell files that are equal, that differ by the same compiler, and that another compiler has made, from each other.
func TestVerify(t *testing.T) {
	for _, tool := range []string{"sh", "readelf", "awk", "cmp", "sha256sum"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool)
		}
	}
	const library = "libgosmc_amd64.so"
	other := [2]string{"GCC: (Debian", "GCC: (Nobody"}
	for _, tt := range []struct {
		name    string
		changes [][2]string
		code    int
		want    string
	}{
		{"equal", nil, 0, library + ": equal, "},
		{"same compiler", [][2]string{{"\x00admission\x00", "\x00admissiom\x00"}}, 1, library + ": DIFFERS from what this compiler makes of the source, in .rodata"},
		{"other compiler", [][2]string{other, {"\x00admission\x00", "\x00admissiom\x00"}}, 3, library + ": not verified: made by GCC: (Nobody"},
		{"other interface", [][2]string{other, {"\x00epoll_ctl\x00", "\x00epoll_cut\x00"}}, 1, library + ": DIFFERS in its interface"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			committed, built := t.TempDir(), t.TempDir()
			for _, file := range []string{"verify.sh", library, "bench/talk_amd64"} {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for _, dir := range []string{committed, built} {
					mine := b
					for _, c := range tt.changes {
						if dir == committed && file == library {
							if !bytes.Contains(b, []byte(c[0])) {
								t.Fatalf("%s has no %q", file, c[0])
							}
							mine = bytes.ReplaceAll(mine, []byte(c[0]), []byte(c[1]))
						}
					}
					path := filepath.Join(dir, file)
					if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, mine, 0o644)); err != nil {
						t.Fatal(err)
					}
				}
			}
			cmd := exec.Command("sh", filepath.Join(committed, "verify.sh"), built)
			cmd.Env = append(os.Environ(), "ARCHES=amd64")
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != tt.code || !strings.Contains(string(out), tt.want) {
				t.Errorf("verify.sh = %d, want %d and %q:\n%s", code, tt.code, tt.want, out)
			}
		})
	}
}
