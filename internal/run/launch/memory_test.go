package launch

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gosmc/smc/internal/run/proto"
)

// TestDefaultMemory has the rings of a program get a part of the memory of its control group, or of
// the machine.
func TestDefaultMemory(t *testing.T) {
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
	machine := defaultMemory(root)
	if machine <= 0 {
		t.Fatalf("defaultMemory without a control group = %d", machine)
	}
	write("proc/self/cgroup", "0::/a/b\n")
	write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n")
	for _, tt := range []struct {
		max, high string
		want      int64
	}{
		{"max", "max", machine},
		{"209715200", "max", 52428800},
		{"209715200", "104857600", 26214400},
		{"3", "max", 1},
	} {
		write("sys/fs/cgroup/a/memory.max", tt.max+"\n")
		write("sys/fs/cgroup/a/b/memory.high", tt.high+"\n")
		if got := defaultMemory(root); got != tt.want {
			t.Errorf("defaultMemory with memory.max %s around it and memory.high %s = %d, want %d", tt.max, tt.high, got, tt.want)
		}
	}
	environ := WithMemory([]string{"A=1", proto.EnvMemory + "=7", proto.EnvRingAfter + "=8", proto.EnvShortAfter + "=9", "B=2"})
	value, ok := strings.CutPrefix(environ[len(environ)-1], proto.EnvMemory+"=")
	if n, err := strconv.ParseInt(value, 10, 64); !ok || err != nil || n <= 0 || len(environ) != 5 || environ[2] != proto.EnvRingAfter+"=262144" || environ[3] != proto.EnvShortAfter+"=16" {
		t.Errorf("WithMemory = %q", environ)
	}
}
