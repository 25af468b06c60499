package preload

import (
	"bytes"
	"debug/elf"
	"strconv"
	"strings"
	"testing"
)

// TestNeeds has each committed library need no version of glibc after 2.17, and nothing but libc: the loader ends a program whose
// preloaded library needs a version that is not there. A weak reference needs its version, too.
func TestNeeds(t *testing.T) {
	const newest = 17 // the minor version: the first glibc for aarch64, of 2012
	for name, library := range map[string][]byte{"amd64": amd64, "arm64": arm64} {
		t.Run(name, func(t *testing.T) {
			f, err := elf.NewFile(bytes.NewReader(library))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			needs, err := f.DynamicVersionNeeds()
			if err != nil || len(needs) == 0 {
				t.Fatalf("DynamicVersionNeeds() = %v, %v", needs, err)
			}
			for _, need := range needs {
				if need.Name != "libc.so.6" {
					t.Errorf("the library needs versions of %s, want libc.so.6 only", need.Name)
				}
				for _, dep := range need.Needs {
					minor, ok := strings.CutPrefix(dep.Dep, "GLIBC_2.")
					minor, _, _ = strings.Cut(minor, ".")
					if n, err := strconv.Atoi(minor); !ok || err != nil || n > newest {
						t.Errorf("the library needs %s, want at most GLIBC_2.%d", dep.Dep, newest)
					}
				}
			}
			if libraries, err := f.ImportedLibraries(); err != nil || len(libraries) != 1 || libraries[0] != "libc.so.6" {
				t.Errorf("ImportedLibraries() = %v, %v, want libc.so.6", libraries, err)
			}
		})
	}
}
