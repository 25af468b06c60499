package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestServiceProcess finds the main process of a service among others, by its control group.
func TestServiceProcess(t *testing.T) {
	proc := t.TempDir()
	for _, p := range []struct {
		pid, parent int
		group       string
	}{
		{20, 30, "/system.slice/nginx.service"}, {30, 1, "/system.slice/nginx.service"},
		{31, 30, "/system.slice/nginx.service/worker"}, {5, 1, "/system.slice/nginx.service.d"},
		{1, 0, "/init.scope"}, {40, 1, "/user.slice/user@1000.service/app.slice/web.service"},
	} {
		dir := filepath.Join(proc, fmt.Sprint(p.pid))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"cgroup": "0::" + p.group + "\n", "stat": fmt.Sprintf("%d (a) b) S %d 1 1\n", p.pid, p.parent),
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, want := range map[string]int{"nginx": 30, "nginx.service": 30, "web": 40, "redis": 0, "": 0} {
		pid, err := serviceProcess(proc, name)
		if pid != want || (err == nil) != (want != 0) {
			t.Errorf("serviceProcess(%q) = %d, %v; want %d", name, pid, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "HOST:PORT") {
			t.Errorf("serviceProcess(%q): %v", name, err)
		}
	}
}

// TestNoProcess has a number that could be a port be told so.
func TestNoProcess(t *testing.T) {
	for pid, want := range map[int]bool{6379: true, 65535: true, 65536: false, 0: false, -1: false} {
		err := noProcess(pid)
		if got := strings.Contains(err.Error(), fmt.Sprintf("gosmc doctor :%d", pid)); got != want {
			t.Errorf("noProcess(%d) = %v, want a hint: %t", pid, err, want)
		}
	}
}
