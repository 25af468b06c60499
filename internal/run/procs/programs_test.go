package procs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestSupervised has a search for programs know when it may have missed one.
func TestSupervised(t *testing.T) {
	const ours = "A=B\x00" + proto.EnvSocket + "=/here/0123456789abcdef\x00C=D\x00"
	const mark = "7f0000000000-7f0000001000 ---p 00000000 00:1a 77   /elsewhere/"
	type process struct {
		environ, exe, cmdline, stat, maps string
		gone                              bool
	}
	for _, tt := range []struct {
		name      string
		processes map[string]process
		pids      []int
		sure      bool
	}{
		{"nobody", nil, nil, true},
		{"ours", map[string]process{"10": {environ: ours, exe: "sh", cmdline: "sh"}, "9": {environ: "A=B\x00", exe: "sh", cmdline: "sh"}}, []int{10}, true},
		{"of another one", map[string]process{"10": {environ: proto.EnvSocket + "=/here/0123456789abcdee\x00", exe: "sh", cmdline: "sh"}}, nil, true},
		{"one has ended", map[string]process{"10": {gone: true}}, nil, false},
		{"one has ended, and one is there", map[string]process{"10": {gone: true}, "11": {environ: ours}}, []int{11}, false},
		{"a thread of the kernel, or a zombie", map[string]process{"10": {}}, nil, true},
		{"a thread of the kernel", map[string]process{"10": {stat: "10 (k) S) S 2 0 0"}}, nil, true},
		{"a zombie", map[string]process{"10": {stat: "10 (sh) Z 1 10 10"}, "11": {environ: ours}}, []int{11}, false},
		{"in the middle of exec", map[string]process{"10": {exe: "sh"}}, nil, false},
		{"wrote over its environment", map[string]process{"10": {environ: "title\x00\x00\x00", exe: "sh", cmdline: "title", maps: mark + "0123456789abcdef.run (deleted)\n"}}, []int{10}, true},
		{"the same, of another one", map[string]process{"10": {environ: "title\x00\x00\x00", exe: "sh", cmdline: "title", maps: mark + "0123456789abcdee.run\n"}}, nil, true},
		{"no environment", map[string]process{"10": {exe: "sh", cmdline: "sh"}}, nil, true},
	} {
		dir := t.TempDir()
		for pid, p := range tt.processes {
			at := filepath.Join(dir, pid)
			if err := os.Mkdir(at, 0o755); err != nil {
				t.Fatal(err)
			}
			if p.gone {
				continue
			}
			for name, text := range map[string]string{"environ": p.environ, "cmdline": p.cmdline, "maps": p.maps} {
				if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if p.stat != "" {
				if err := os.WriteFile(filepath.Join(at, "stat"), []byte(p.stat), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if p.exe != "" {
				if err := os.Symlink(p.exe, filepath.Join(at, "exe")); err != nil {
					t.Fatal(err)
				}
			}
		}
		if pids, sure := (&Search{proc: dir, socket: "/here/0123456789abcdef"}).Look(); !slices.Equal(pids, tt.pids) || sure != tt.sure {
			t.Errorf("%s: %v, %v; want %v, %v", tt.name, pids, sure, tt.pids, tt.sure)
		}
	}
}
