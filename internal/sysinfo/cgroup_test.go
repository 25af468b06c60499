package sysinfo

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMemory(t *testing.T) {
	const (
		v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
		v1 = "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" +
			"32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
		container = "40 30 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"
	)
	for _, tt := range []struct {
		name, groups, mounts string
		files                map[string]string
		want                 int64 // 0: no limit
	}{
		{"none", "", "", nil, 0},
		{"no limit", "0::/a\n", v2, map[string]string{"sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		{"own", "0::/a\n", v2, map[string]string{"sys/fs/cgroup/a/memory.max": "1000\n"}, 1000},
		{"high", "0::/a\n", v2, map[string]string{"sys/fs/cgroup/a/memory.max": "1000\n", "sys/fs/cgroup/a/memory.high": "700\n"}, 700},
		{"of the group around", "0::/a/b/c\n", v2, map[string]string{
			"sys/fs/cgroup/a/memory.max": "500\n", "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/c/memory.max": "1000\n"}, 500},
		{"container that sees its part as the whole", "0::/\n", v2, map[string]string{"sys/fs/cgroup/memory.max": "2000\n"}, 2000},
		{"container without a namespace", "0::/docker/abc\n", container, map[string]string{"sys/fs/cgroup/memory.max": "3000\n"}, 3000},
		{"moved out of what is mounted", "0::/elsewhere\n", container, map[string]string{"sys/fs/cgroup/memory.max": "3000\n"}, 3000},
		{"version 1", "4:memory:/x\n3:cpu:/\n0::/\n", v1, map[string]string{"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "4000\n"}, 4000},
		{"version 1 without a limit", "4:memory:/x\n", v1,
			map[string]string{"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		{"version 1 with controllers together", "4:cpu,memory:/x\n", "32 23 0:28 / /cg rw - cgroup cgroup rw,cpu,memory\n",
			map[string]string{"cg/x/memory.limit_in_bytes": "4000\n"}, 4000},
		{"not mounted", "0::/a\n", "", map[string]string{"sys/fs/cgroup/a/memory.max": "1000\n"}, 0},
		{"nonsense", "0::/a\n0\nx:y\n", v2 + "a b c\n", map[string]string{"sys/fs/cgroup/a/memory.max": "-5\n"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				t.Helper()
				name = filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("proc/self/cgroup", tt.groups)
			write("proc/self/mountinfo", tt.mounts)
			for name, text := range tt.files {
				write(name, text)
			}
			got, ok := Memory(root)
			if ok != (tt.want != 0) || ok && got != tt.want {
				t.Errorf("Memory = %d, %t; want %d", got, ok, tt.want)
			}
		})
	}
}
