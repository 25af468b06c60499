package overlay

import (
	"os/exec"
	"strings"
	"testing"
)

// local returns the toolchain that runs the tests.
func local(t *testing.T) Toolchain {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT", "GOVERSION").Output()
	if err != nil {
		t.Fatal(err)
	}
	goroot, version, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return Toolchain{GOROOT: goroot, Version: version}
}

// TestToolchain says what to do for another release of Go. After that, make std-test with it says whether package net still keeps its promises.
func TestToolchain(t *testing.T) {
	tool := local(t)
	digest, err := tool.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := tool.Check(); err != nil {
		t.Errorf("%v; if make std-test passes, add {%q, %q} to releases", err, tool.Version, digest)
	}
	if _, err := makeSet(Options{Toolchain: tool}); err != nil {
		t.Errorf("an edit does not fit: %v", err)
	}
}
