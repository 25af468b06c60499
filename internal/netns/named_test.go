package netns

import (
	"os"
	"path/filepath"
	"testing"
)

// --net takes a name of ip-netns(8), a process ID or a file.
func TestNetnsFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"blue", "4711"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"blue": filepath.Join(dir, "blue"), "4711": filepath.Join(dir, "4711"), "4712": "/proc/4712/ns/net",
		"/proc/1/ns/net": "/proc/1/ns/net", "./x": "./x", "red": "", "..": "", "-1": "", "0": "",
	} {
		if got, err := named(dir, name); got != want || (err == nil) != (want != "") {
			t.Errorf("named(%q) = %q, %v, want %q", name, got, err, want)
		}
	}
}
