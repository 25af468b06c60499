package bpf

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestObjects checks that the objects are those that their sources make, where there is the compiler that has made them.
func TestObjects(t *testing.T) {
	version, err := exec.Command("clang", "--version").Output()
	if err != nil {
		t.Skipf("needs clang, llvm and libbpf-dev: %v", err)
	}
	if !strings.Contains(string(version), "version 14.0.6") {
		t.Skipf("the objects are made by clang 14.0.6, and this is %s", strings.SplitN(string(version), "\n", 2)[0])
	}
	dir := filepath.Join(t.TempDir(), "kernel")
	if err := os.CopyFS(dir, os.DirFS("kernel")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", filepath.Join(dir, "build.sh")).CombinedOutput(); err != nil {
		t.Skipf("needs llvm and libbpf-dev: %v: %s", err, out)
	}
	objects, err := filepath.Glob("*.o")
	if err != nil || len(objects) != 4 {
		t.Errorf("objects %q, %v", objects, err)
	}
	for _, name := range objects {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what its source makes (%v); run 'make bpf'", name, err)
		}
	}
}
