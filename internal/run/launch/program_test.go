package launch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestWithTools has programs find gosmc, and theirs first.
func TestWithTools(t *testing.T) {
	dir := t.TempDir()
	with := filepath.Join(dir, "with")
	if err := os.MkdirAll(filepath.Join(with, "not", "gosmc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(with, "gosmc"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ path, self, want string }{
		{"PATH=/none:/", "/opt/x/gosmc", "PATH=/none:/:/opt/x"},
		{"PATH=/none:" + with, "/opt/x/gosmc", "PATH=/none:" + with},
		{"PATH=" + with + "/not", "/opt/x/gosmc", "PATH=" + with + "/not:/opt/x"},
		{"PATH=/none", "/opt/x:y/gosmc", "PATH=/none"},
		{"PATH=/none", "/opt/x/main.test", "PATH=/none"},
		{"PATH=/none", "", "PATH=/none"},
		{"PATH=", "/opt/x/gosmc", "PATH="},
		{"XPATH=/none", "/opt/x/gosmc", "XPATH=/none"},
	} {
		environ := []string{"A=b", tt.path, "C=d"}
		if got := WithTools(environ, tt.self); got[1] != tt.want || len(got) != 3 || environ[1] != tt.path {
			t.Errorf("WithTools(%s, %s) = %q, want %s", tt.path, tt.self, got, tt.want)
		}
	}
}

// TestFindPlain looks programs up as execvp(3) does.
func TestFindPlain(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a/tool": 0o755, "b/tool": 0o755, "a/text": 0o644, "b/text": 0o755, "a/only": 0o644} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, mode)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+"/none:"+dir+"/a:"+dir+"/b")
	for _, tt := range []struct {
		program, want string
		err           error
	}{
		{"tool", dir + "/a/tool", nil},
		{"text", dir + "/b/text", nil},
		{"only", "", os.ErrPermission},
		{"none", "", os.ErrNotExist},
		{dir + "/b/tool", dir + "/b/tool", nil},
		{dir + "/a", "", os.ErrPermission},
	} {
		if got, err := FindPlain(tt.program); got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("FindPlain(%s) = %q, %v, want %q, %v", tt.program, got, err, tt.want, tt.err)
		}
	}
}
